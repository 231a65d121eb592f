"""A large message is copied by neither end: what it costs each in memory is measured where they are processes of their own.

Run as a program this is one of both ends.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
import torch

from services.encoder.faults.base import Outgoing
from services.encoder.publisher import Publisher
from services.encoder.threads import FairThreads
from services.encoder.transport.carriers import Carriers
from services.language.embeddings.assembly import Assembler
from services.language.embeddings.memory import OpenMemory
from services.language.embeddings.receiver import Receiver
from shared.control import Offer, Transport
from shared.identity import Grid, MediaItem, Modality
from shared.residency import Residency
from shared.telemetry import Metrics
from shared.wire import Header
from tests.processes import ROOT

WIDTH, TOKENS = 1024, 16_000
SIZE = 4 * WIDTH * TOKENS  # bytes of one message


@dataclass
class Facts:
    placeholders: dict[Modality, int] = field(default_factory=lambda: {"image": 0})
    media_ids: frozenset[int] = frozenset([0])
    by_grid: bool = True

    def tokens_of(self, modality: Modality, grid: Grid) -> int | None:
        return grid[2]

    def tensor_shapes(self, num_tokens: int) -> dict[str, tuple[int, int]]:
        return {"embeds": (num_tokens, WIDTH)}

    def fits(self, item: MediaItem) -> bool:
        return item.layout is None


@dataclass(frozen=True)
class Settings:
    max_shared_bytes: int = 2**28


def peak() -> int:
    """The most memory that this process ever had, in bytes; shared memory that it has open counts as its own."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def header(item: int, tokens: int) -> Header:
    return Header(
        request_id="r", attempt=0, item=item, num_items=2, modality="image", content_hash="0" * 32, num_tokens=tokens,
        grid_thw=(1, 1, tokens), model_fingerprint="f", encoder_id="encoder-1",
    )  # fmt: skip


async def send(transport: Transport, endpoint: str, offer: str) -> None:
    """Sends a small message, then a large one; tells what the large one took at most, beside itself."""
    threads, publisher = FairThreads(2), Publisher()
    carriers = Carriers(Settings(), Residency(transport), "encoder-1", torch.device("cpu"), threads, Metrics())
    assert carriers.agree(endpoint, Offer.model_validate_json(offer)) == transport
    large = torch.ones(TOKENS, WIDTH)
    for item, embeds in enumerate((torch.ones(64, WIDTH), large)):
        before = peak()
        parcel = await carriers.pack(endpoint, Outgoing(header(item, len(embeds)), {"embeds": embeds}), 10)
        await publisher.publish(endpoint, parcel.frames, 10)
        parcel.frames.clear()
        while publisher.queued_bytes:
            await asyncio.sleep(0.01)
    print(peak() - before)
    await asyncio.to_thread(sys.stdin.read)  # shared memory is to be there until it was looked at
    publisher.close()
    threads.close()


async def receive(transport: Transport) -> None:
    """Receives both, verified, and keeps them; tells what the large one took at most."""
    memory = OpenMemory(Residency(transport), "language-1", 2**30)
    assembler = Assembler(Facts(), torch.float32, "f")
    items: list[MediaItem] = []
    peaks: list[int] = []

    def arrived(_: int, item: MediaItem) -> None:
        items.append(item)
        peaks.append(peak())

    async with Receiver(assembler, "127.0.0.1", 0, 2**30, 2**30, Metrics(), memory) as receiver:
        offer = memory.offer("encoder-1")
        assert offer is not None or transport == "cpu"
        probe = OpenMemory(Residency("shm"), "language-2", 2**30).offer(None) if offer is None else offer
        assert probe is not None
        print(f"tcp://127.0.0.1:{receiver.port} {probe.model_dump_json()}", flush=True)
        with receiver.holding() as holding, receiver.expect("r", 0, [0, 1], holding, arrived) as wait:
            async with asyncio.timeout(30):
                await wait.done
    assert items[1].embedding_bytes == SIZE
    print(peaks[1] - peaks[0])


@pytest.mark.parametrize(("transport", "sender", "receiver"), [("cpu", 0.0, 1.0), ("shm", 1.0, 1.0)])
def test_a_message_is_in_memory_once_at_each_end(transport: str, sender: float, receiver: float) -> None:
    """``sender`` and ``receiver``: how many times the message is there, at the sender beside the tensor that is sent."""
    command = [sys.executable, "-m", "tests.integration.test_no_copy", transport]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as theirs:
        assert theirs.stdout is not None
        told = theirs.stdout.readline().split()
        with subprocess.Popen([*command, *told], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as ours:
            try:
                assert ours.stdout is not None
                grown = int(ours.stdout.readline())
                received = int(theirs.stdout.readline())
            finally:
                ours.kill()
                theirs.kill()
    assert grown < (sender + 0.25) * SIZE
    assert received < (receiver + 0.25) * SIZE


if __name__ == "__main__":
    if len(sys.argv) > 2:
        asyncio.run(send(sys.argv[1], sys.argv[2], " ".join(sys.argv[3:])))  # type: ignore[arg-type]
    else:
        asyncio.run(receive(sys.argv[1]))  # type: ignore[arg-type]
