"""The decoding processes: what they cannot do, what their ends mean, and that none outlives its file or sees another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from services.encoder.sandbox.messages import Done, Found, Order, Piece
from services.encoder.sandbox.process import Effort, Sandbox
from services.encoder.sound import decode_sound
from services.encoder.video import decode_video
from shared.errors import InvalidMedia
from tests.media import sound_file, tone, video_file
from tests.processes import ROOT, decoding_workers

SOUND = sound_file(tone(0.1, 16_000), 16_000)
VIDEO = video_file(3)


def order_for(data: bytes, kind: str = "sound", form: str = "") -> Order:
    return Order(kind, form, len(data), 5.0, 2**30, 16_000, 60.0)  # type: ignore[arg-type]


def confined(program: str, *arguments: str) -> str:
    """What a program prints that runs after ``confine``."""
    head = "import mmap, socket, subprocess, sys, threading\n"
    head += "from services.encoder.sandbox.__main__ import confine\nfrom services.encoder.sandbox.messages import Order\n"
    head += "confine(Order('sound', '', 0, 1.0, 2**28))\n"
    command = [sys.executable, "-c", head + program, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() or f"{done.returncode} {done.stderr}"


@pytest.mark.parametrize(
    "attempt",
    [
        "open('/etc/passwd')",
        "open(sys.argv[1], 'w')",
        "socket.socket()",
        "socket.create_connection(('127.0.0.1', 80))",
        "subprocess.run(['true'])",
        "bytearray(2**29)",
        "mmap.mmap(-1, 2**29)",
    ],
)
def test_no_file_no_connection_no_program_and_little_memory_can_be_had(attempt: str, tmp_path: Path) -> None:
    program = f"try:\n    {attempt}\n    print('done')\nexcept (OSError, MemoryError) as error:\n    print('refused')"
    assert confined(program, str(tmp_path / "file")) == "refused"
    assert not (tmp_path / "file").exists()


def test_processor_time_ends() -> None:
    assert confined("while True: pass").startswith(f"{-signal.SIGXCPU} ")


def decoders() -> list[psutil.Process]:
    return [child for worker in decoding_workers() for child in worker.children()]


def test_nothing_is_left_of_a_process_however_it_ends() -> None:
    before = len(os.listdir("/proc/self/fd"))
    decode_sound(SOUND, 16_000, 60.0)
    decode_video(VIDEO, lambda *_: [0], 10**6, 8, 60.0)
    with pytest.raises(InvalidMedia):
        decode_sound(SOUND[:30], 16_000, 60.0)
    with Sandbox().decoding(order_for(VIDEO, "video", "mov"), VIDEO, None) as decoding:
        assert isinstance(decoding.receive(), Found)
        assert len(decoders()) == 1  # which waits to be told what is wanted
    assert decoding_workers() == []
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_is_the_decoders_fault_and_not_the_files(number: signal.Signals) -> None:
    with Sandbox().decoding(order_for(VIDEO, "video", "mov"), VIDEO, None) as decoding:
        assert isinstance(decoding.receive(), Found)
        decoders()[0].send_signal(number)
        with pytest.raises(RuntimeError, match=f"ended with status {-number}"):
            decoding.receive()


def test_a_bug_is_told_with_its_traceback() -> None:
    told = pytest.raises(RuntimeError, match=r"(?s)status 1: Traceback.*nonsense")
    with told as caught, Sandbox().decoding(order_for(SOUND, "nonsense"), SOUND, None) as decoding:
        decoding.receive()
    assert not isinstance(caught.value, ValueError)


def test_running_out_of_processor_time_is_the_files_fault() -> None:
    with Sandbox().decoding(order_for(VIDEO, "video", "mov"), VIDEO, "messages.0") as decoding:
        assert isinstance(decoding.receive(), Found)
        decoders()[0].send_signal(signal.SIGXCPU)
        with pytest.raises(InvalidMedia, match="The video takes more than the 5 seconds of processor time") as caught:
            decoding.receive()
    assert caught.value.param == "messages.0"


def test_a_process_hears_and_answers_in_pieces() -> None:
    with Sandbox().decoding(order_for(SOUND), SOUND, None) as decoding:
        piece = decoding.receive()
        assert isinstance(piece, Piece)
        assert piece.shape == (1600,)
        decoding.fill(memoryview(bytearray(piece.size)))
        assert isinstance(decoding.receive(), Done)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    """One that keeps its workers."""
    sandbox = Sandbox(keeps=True)
    yield sandbox
    sandbox.close()
    assert decoding_workers() == []


def pid_of_decoding(sandbox: Sandbox) -> int:
    """Of the process that decodes a video, which waits meanwhile."""
    with sandbox.decoding(order_for(VIDEO, "video", "mov"), VIDEO, None) as decoding:
        assert isinstance(decoding.receive(), Found)
        return decoders()[0].pid


def test_a_worker_serves_files_of_all_kinds_in_turn_each_by_another_process(sandbox: Sandbox) -> None:
    first = decode_sound(SOUND, 16_000, 60.0, None, sandbox)
    (worker,) = decoding_workers()
    before = worker.num_fds(), len(os.listdir("/proc/self/fd"))
    pids = {pid_of_decoding(sandbox) for _ in range(5)}
    assert np.array_equal(decode_sound(SOUND, 16_000, 60.0, None, sandbox).samples, first.samples)
    assert (decoding_workers(), decoders(), len(pids)) == ([worker], [], 5)
    assert (worker.num_fds(), len(os.listdir("/proc/self/fd"))) == before


def test_a_file_that_ends_its_process_does_not_disturb_the_next(sandbox: Sandbox) -> None:
    decode_sound(SOUND, 16_000, 60.0, None, sandbox)
    (worker,) = decoding_workers()
    with sandbox.decoding(order_for(VIDEO, "video", "mov"), VIDEO, None) as decoding:
        assert isinstance(decoding.receive(), Found)
        decoders()[0].send_signal(signal.SIGSEGV)
        with pytest.raises(RuntimeError):
            decoding.receive()
    assert decoding_workers() == []
    decode_sound(SOUND, 16_000, 60.0, None, sandbox)
    assert len(decoding_workers()) == 1
    assert decoding_workers() != [worker]


def test_a_worker_that_ended_while_it_was_idle_is_replaced(sandbox: Sandbox) -> None:
    decode_sound(SOUND, 16_000, 60.0, None, sandbox)
    (worker,) = decoding_workers()
    os.kill(worker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    decode_sound(SOUND, 16_000, 60.0, None, sandbox)


def test_each_file_has_all_of_its_processor_time(sandbox: Sandbox) -> None:
    """Of which one takes a part, and all together more than the second that each may have."""
    sandbox.effort = Effort(seconds=0.9)
    long = sound_file(np.zeros((16_000 * 60 * 10, 1), np.float32), 16_000, subtype="PCM_16")
    decode_sound(long, 16_000, 601.0, None, sandbox)
    (worker,) = decoding_workers()
    while sum(worker.cpu_times()[2:4]) < 1.5:  # of its children
        decode_sound(long, 16_000, 601.0, None, sandbox)
    assert decoding_workers() == [worker]


def test_all_end_with_the_encoder_even_while_they_decode() -> None:
    program = "from tests.unit.test_sandbox import *\nsandbox = Sandbox(keeps=True)\n"
    program += "with sandbox.decoding(order_for(VIDEO, 'video', 'mov'), VIDEO, None) as decoding:\n"
    program += "    decoding.receive()\n"
    # It does not learn of the end by its connection, as it would not while it computes.
    program += "    subprocess.Popen(['sleep', '60'], pass_fds=[decoding._connection.fileno()])\n"
    program += "    decode_sound(SOUND, 16_000, 60.0, None, sandbox)\n"  # by another worker, which is idle then
    program += "    print(flush=True)\n    sys.stdin.read()"
    encoder = psutil.Popen([sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert encoder.stdout.readline() == b"\n"
    holder, *processes = sorted(encoder.children(recursive=True), key=lambda child: child.name() != "sleep")
    assert (holder.name(), len(processes)) == ("sleep", 3)
    encoder.kill()
    assert psutil.wait_procs(processes, timeout=10)[1] == []
    holder.kill()
    encoder.communicate()


def test_what_a_decoding_may_take_has_a_default() -> None:
    assert Effort().seconds > 1
    assert Effort().memory >= 2**29
