"""A hundred large messages for a reader that is slower than the sender: all arrive, and neither end holds them all.

Run as a program this is one of both ends, so that their memory can be told apart.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time
from typing import cast

import pytest

from services.encoder.publisher import Publisher
from services.language.embeddings.assembly import Assembler
from services.language.embeddings.receiver import Receiver
from shared.seam import LOOPBACK, Seam, keys_of
from shared.telemetry import Metrics, configure_logging
from shared.wire import Header, pack
from tests.processes import ROOT, free_port

SIZE = 64_000_000
FIRST_PAUSE, PAUSE = 3.0, 0.02  # seconds that the reader takes for its first message, and for each other
QUEUED = 256 * 2**20


def peak() -> int:
    """The most memory that this process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def send(port: int, messages: int, keyed: bool) -> None:
    """Publishes as the encoder does, each message of memory of its own, by two callers at once."""
    publisher = Publisher(max_queued_bytes=QUEUED, seam=seam_of_the_test(keyed))
    header = Header(
        request_id="nobody's", attempt=0, item=0, num_items=messages, modality="image", content_hash="0" * 32, num_tokens=1,
        model_fingerprint="f", encoder_id="sender",
    )  # fmt: skip
    [head] = pack(header, {})
    numbers = iter(range(messages))
    before = peak()

    async def caller() -> None:
        for _ in numbers:
            # Not zeros, which would take no memory.
            await publisher.publish(f"tcp://127.0.0.1:{port}", [head, bytearray(b"x") * SIZE], 5)

    await asyncio.gather(caller(), caller())
    while publisher.queued_bytes:
        await asyncio.sleep(0.01)
    publisher.close()
    print(peak() - before)


async def receive(port: int, messages: int, keyed: bool) -> None:
    """Receives as the language service does, but slowly."""
    arrived = 0

    def slowly(encoder_id: str, heartbeat: object) -> None:
        nonlocal arrived
        time.sleep(PAUSE if arrived else FIRST_PAUSE)  # the event loop, too
        arrived += 1

    limits = 2**30, 2**31
    receiver = Receiver(cast(Assembler, None), "127.0.0.1", port, *limits, Metrics(), seam=seam_of_the_test(keyed))
    receiver.on_sign = slowly
    before = peak()
    async with receiver:
        while arrived < messages:
            await asyncio.sleep(0.01)
    print(peak() - before)


def seam_of_the_test(keyed: bool) -> Seam:
    return Seam(keys_of(b"a secret of the test")) if keyed else LOOPBACK


# Encryption takes its time, and fewer messages show the same.
@pytest.mark.parametrize(("messages", "keyed"), [(100, False), (30, True)], ids=["plain", "curve"])
def test_memory_is_bounded_at_both_ends_and_nothing_is_lost(messages: int, keyed: bool) -> None:
    port = free_port()

    def start(role: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.integration.test_slow_reader", role, str(port), str(messages), str(int(keyed))]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    with start("receive") as receiver, start("send") as sender:
        try:
            told, _ = sender.communicate(timeout=120)
            grown, _ = receiver.communicate(timeout=30)
        finally:
            receiver.kill()
            sender.kill()
    # What is queued, what each of two callers brings, and what is in the socket's hands.
    assert int(told) < QUEUED + 4 * SIZE
    # Two that wait, one that arrives, one that is looked at and the one before it.
    assert int(grown) < 6 * SIZE


if __name__ == "__main__":
    configure_logging("error", "text")
    asyncio.run({"send": send, "receive": receive}[sys.argv[1]](*map(int, sys.argv[2:])))
