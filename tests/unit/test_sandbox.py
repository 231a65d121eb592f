"""The decoding processes: what they cannot do, what their ends mean, and that none outlives its file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from services.encoder.sandbox.messages import Done, Found, Order, Piece
from services.encoder.sandbox.process import Decoding, Effort
from services.encoder.sound import decode_sound
from services.encoder.video import decode_video
from shared.errors import InvalidMedia
from tests.media import sound_file, tone, video_file
from tests.processes import ROOT

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


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "services.encoder.sandbox" in child.cmdline()]


def test_nothing_is_left_of_a_process_however_it_ends() -> None:
    before = len(os.listdir("/proc/self/fd"))
    decode_sound(SOUND, 16_000, 60.0)
    decode_video(VIDEO, lambda *_: [0], 10**6, 8, 60.0)
    with pytest.raises(InvalidMedia):
        decode_sound(SOUND[:30], 16_000, 60.0)
    with Decoding(order_for(VIDEO, "video", "mov"), VIDEO, None) as decoding:
        assert isinstance(decoding.receive(), Found)
        assert len(children()) == 1  # which waits to be told what is wanted
    assert children() == []
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_is_the_decoders_fault_and_not_the_files(number: signal.Signals) -> None:
    with Decoding(order_for(VIDEO, "video", "mov"), VIDEO, None) as decoding:
        assert isinstance(decoding.receive(), Found)
        children()[0].send_signal(number)
        with pytest.raises(RuntimeError, match=f"ended with status {-number}"):
            decoding.receive()


def test_a_bug_is_told_with_its_traceback() -> None:
    told = pytest.raises(RuntimeError, match=r"(?s)status 1: Traceback.*nonsense")
    with told as caught, Decoding(order_for(SOUND, "nonsense"), SOUND, None) as decoding:
        decoding.receive()
    assert not isinstance(caught.value, ValueError)


def test_running_out_of_processor_time_is_the_files_fault() -> None:
    with Decoding(order_for(VIDEO, "video", "mov"), VIDEO, "messages.0") as decoding:
        assert isinstance(decoding.receive(), Found)
        children()[0].send_signal(signal.SIGXCPU)
        with pytest.raises(InvalidMedia, match="The video takes more than the 5 seconds of processor time") as caught:
            decoding.receive()
    assert caught.value.param == "messages.0"


def test_a_process_hears_and_answers_in_pieces() -> None:
    with Decoding(order_for(SOUND), SOUND, None) as decoding:
        piece = decoding.receive()
        assert isinstance(piece, Piece)
        assert piece.shape == (1600,)
        decoding.fill(memoryview(bytearray(piece.size)))
        assert isinstance(decoding.receive(), Done)


def test_what_a_decoding_may_take_has_a_default() -> None:
    assert Effort().seconds > 1
    assert Effort().memory >= 2**29
