"""Where features live on a real CUDA device, and how another process opens them there: ``make test-gpu``."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

from services.encoder.faults.base import Outgoing
from services.encoder.threads import FairThreads
from services.encoder.transport.carriers import Carriers
from services.language.embeddings.memory import OpenMemory
from shared.control import Offer
from shared.identity import ContentHasher, MediaItem
from shared.residency import Residency
from shared.telemetry import Metrics
from shared.wire import DeviceMemory, Header, read_header, read_tensors
from tests.processes import ROOT
from tests.unit.transport.test_carriers import header

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
MESSAGES, TOKENS, WIDTH = 3, 500, 256


@dataclass(frozen=True)
class Settings:
    max_shared_bytes: int = 2**26


class Precomputing:
    precompute_hash_before_cpu_transfer = True


def an_item() -> MediaItem:
    item = MediaItem("image", 4, features={"pixel_values": torch.ones(4, 6, device=CUDA)})
    item.embeds, item.deepstack = torch.ones(4, 2, device=CUDA), (torch.ones(4, 2, device=CUDA),)
    return item


@pytest.mark.parametrize(("transport", "device"), [("cpu", "cpu"), ("shm", "cpu"), ("cuda_ipc", "cuda")])
def test_features_and_embeddings_are_where_the_transport_has_them(transport: str, device: str) -> None:
    hasher, item = ContentHasher(b"a secret of tests"), an_item()
    Residency(transport).prepared(item, hasher, Precomputing())  # type: ignore[arg-type]
    assert item.embeds is not None
    assert {tensor.device.type for tensor in (item.features["pixel_values"], item.embeds, *item.deepstack)} == {device}
    assert item.content_hash == hasher.hash({"pixel_values": torch.ones(4, 6)})


async def send(offer: str) -> None:
    """Another process: prints the header of each message, and keeps the memory until it is told to end."""
    threads = FairThreads(1)
    carriers = Carriers(Settings(), Residency("cuda_ipc"), "encoder-1", CUDA, threads, Metrics())
    assert carriers.agree("tcp://127.0.0.1:1", Offer.model_validate_json(offer)) == "cuda_ipc"
    for number in range(MESSAGES):
        tensors = {"embeds": torch.full((TOKENS, WIDTH), float(number), device=CUDA)}
        parcel = await carriers.pack("tcp://127.0.0.1:1", Outgoing(header(), tensors), 10)
        print(bytes(parcel.frames[0]).decode(), flush=True)
    sys.stdin.read()
    threads.close()


def test_another_process_opens_the_memory_of_the_gpu() -> None:
    memory = OpenMemory(Residency("cuda_ipc"), "language-1", 2**30)
    offer = memory.offer("encoder-1")
    assert offer is not None
    command = [sys.executable, "-m", "tests.gpu.test_residency", offer.model_dump_json()]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sender:
        assert sender.stdout is not None
        try:
            for number in range(MESSAGES):
                found = read_header(sender.stdout.readline().removesuffix("\n").encode())
                assert isinstance(found, Header)
                assert isinstance(found.place, DeviceMemory)
                [embeds] = read_tensors(found, memory.open(found, found.place)).tensors.values()
                assert embeds.is_cuda
                assert torch.equal(embeds.cpu(), torch.full((TOKENS, WIDTH), float(number)))
        finally:
            sender.kill()
    memory.close()


if __name__ == "__main__":
    asyncio.run(send(sys.argv[1]))
