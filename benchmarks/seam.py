"""``python -m benchmarks.seam``: how fast embeddings cross the seam, against the least that could be done in the same run.

The encoder's carriers and publisher send from one process; the language service's receiver verifies in another. The floor is,
for frames, bare pyzmq between two processes, without copies, plain or with CURVE as the pair; for shared memory, a memcpy.
Floor and pair are run in turns, so that a noisy machine slows both; the medians count. ``--write PAGE`` puts the table into a
page.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch
import zmq
from torch import Tensor

from benchmarks.pages import report
from benchmarks.tables import table
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
from shared.seam import LOOPBACK, Seam, keys_of
from shared.telemetry import Metrics
from shared.wire import Header

MIB = 2**20
HIDDEN = 2048
SIZES = {1: 384, 8: 96, 64: 24}  # MiB of embeddings, and how many messages a run
TARGETS = {"cpu": 0.8, "shm": 0.6}
FINGERPRINT = "benchmark"
REQUEST = "benchmark/1"
_TIMEOUT = 60.0
_IN_WORK = 4  # messages that the encoder packs and sends at once
_WARM_UP = 8  # messages that do not count; while they come, connections are made, and memory that is then used again

TEXT = """\
`python -m benchmarks.seam`: bytes of embeddings a second once all is warm; medians of runs in turns. *cpu*: frames over ZeroMQ,
digest and all checks included, against bare pyzmq without copies; *curve*: the same, both encrypted; *shm*: shared memory,
written once and checked once for each message, against a memcpy of as many bytes in one process.

What stands in the way of the targets, on two cores: the floor for frames uses both already (one sends, one receives), so a
digest at each end, the check for numbers that are not finite, and some 300 us of Python a message come on top; they weigh more
the smaller a message is and the faster the sockets are. The floor for shared memory has the memory to itself: measured here, a
memcpy falls from 20 to 11 GB/s while the other core reads, as the receiver does to check; and 1 MiB takes 40 us to copy, less
than it takes to wake the other process."""


@dataclass
class Facts:
    """A model whose items have one tensor, and a token for each unit of their grid."""

    placeholders: dict[Modality, int] = field(default_factory=lambda: {"image": 0})
    media_ids: frozenset[int] = frozenset([0])
    by_grid: bool = True

    def tokens_of(self, modality: Modality, grid: Grid) -> int | None:  # noqa: ARG002
        return grid[0] * grid[1] * grid[2]

    def tensor_shapes(self, num_tokens: int) -> dict[str, tuple[int, int]]:
        return {"embeds": (num_tokens, HIDDEN)}

    def fits(self, item: MediaItem) -> bool:
        return item.layout is None


@dataclass(frozen=True)
class Way:
    """How embeddings cross."""

    name: str
    transport: Transport
    curve: bool = False

    @property
    def seam(self) -> Seam:
        return Seam(keys_of(b"a secret of benchmarks")) if self.curve else LOOPBACK


WAYS = {way.name: way for way in (Way("cpu", "cpu"), Way("curve", "cpu", curve=True), Way("shm", "shm"))}


class Task(Protocol):
    """What the sending process is told to do. What it has sent is all received when ``received`` returns."""

    def run(self, received: Callable[[], object]) -> None: ...


@dataclass(frozen=True)
class FloorTask:
    """Sends by a bare socket."""

    way: Way
    endpoint: str
    size: int
    count: int

    def run(self, received: Callable[[], object]) -> None:
        payloads = cycle(payload.view(torch.uint8).numpy().data for payload in _payloads(self.size))
        with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
            self.way.seam.secure_client(socket)
            socket.connect(self.endpoint)
            for _ in range(self.count):
                socket.send_multipart([b"h" * 600, next(payloads)], copy=False)
            received()


@dataclass(frozen=True)
class PairTask:
    """Sends as the encoder does."""

    way: Way
    endpoint: str
    size: int
    count: int
    offer: Offer | None

    @property
    def max_shared_bytes(self) -> int:
        return 2**29

    def run(self, received: Callable[[], object]) -> None:
        asyncio.run(self._run(received))

    async def _run(self, received: Callable[[], object]) -> None:
        threads, publisher = FairThreads(2), Publisher(seam=self.way.seam)
        residency = Residency(self.way.transport)
        carriers = Carriers(self, residency, "benchmark", torch.device("cpu"), threads, Metrics())
        agreed = carriers.agree(self.endpoint, self.offer)
        if agreed != self.way.transport:
            raise RuntimeError(f"{self.way.transport} is not to be had here, only {agreed}")
        embeds, numbers = cycle(_payloads(self.size)), iter(range(self.count))

        async def work() -> None:
            for number in numbers:
                outgoing = Outgoing(_header(number, self.count, self.size // (4 * HIDDEN)), {"embeds": next(embeds)})
                parcel = await carriers.pack(self.endpoint, outgoing, _TIMEOUT)
                await publisher.publish(self.endpoint, parcel.frames, _TIMEOUT)

        try:
            await asyncio.gather(*(work() for _ in range(_IN_WORK)))
            await asyncio.to_thread(received)
        finally:
            publisher.close()
            carriers.close()
            threads.close()


def _payloads(size: int) -> list[Tensor]:
    """Embeddings of ``size`` bytes: so many that they are in no cache when their turn comes again, as real ones never come."""
    return [torch.full((size // (4 * HIDDEN), HIDDEN), float(number)) for number in range(max(2, 128 * MIB // size))]


def _header(number: int, count: int, tokens: int) -> Header:
    return Header(
        request_id=REQUEST,
        attempt=0,
        item=number,
        num_items=count,
        modality="image",
        content_hash="0" * 32,
        num_tokens=tokens,
        grid_thw=(1, 1, tokens),
        model_fingerprint=FINGERPRINT,
        encoder_id="benchmark",
    )


class Peer:
    """The sending process: does one task after another."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()

    def start(self, task: Task) -> None:
        self._connection.send(task)

    def finish(self) -> None:
        """All is received; waits for the end of the task.

        Raises:
            RuntimeError: it failed.
        """
        self._connection.send(None)
        if (error := self._connection.recv()) is not None:
            raise RuntimeError(error)

    def close(self) -> None:
        self._connection.send(None)
        self._process.join()


def _serve(connection: Connection) -> None:
    torch.set_num_threads(1)
    while (task := connection.recv()) is not None:
        try:
            task.run(connection.recv)
            connection.send(None)
        except Exception as error:
            connection.send(f"{type(error).__name__}: {error}")


def floor(way: Way, peer: Peer, size: int, count: int) -> float:
    """Bytes per second of the least that could be done."""
    if way.transport == "shm":
        return _memcpy(size, count)
    times = []
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.set(zmq.RCVHWM, 2)
        _bare_server(way, socket)
        endpoint = f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
        peer.start(FloorTask(way, endpoint, size, count))
        for _ in range(count):
            socket.recv_multipart(copy=False)
            times.append(time.perf_counter())
        peer.finish()
    return _rate(times, size)


def _bare_server(way: Way, socket: zmq.Socket[Any]) -> None:
    """CURVE without asking who may come in, which costs nothing once the connection is there."""
    if way.seam.keys is not None:
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, way.seam.keys.language.secret)


def _memcpy(size: int, count: int) -> float:
    sources, times = _payloads(size), list[float]()
    targets = [torch.zeros_like(sources[0]) for _ in range(_IN_WORK)]  # shared memory is used again, too
    for number in range(count):
        targets[number % len(targets)].copy_(sources[number % len(sources)])
        times.append(time.perf_counter())
    return _rate(times, size)


def pair(way: Way, peer: Peer, size: int, count: int) -> float:
    """Bytes per second of the services' own parts."""
    return asyncio.run(_pair(way, peer, size, count))


async def _pair(way: Way, peer: Peer, size: int, count: int) -> float:
    memory = OpenMemory(Residency(way.transport), "benchmark", 2**30)
    assembler = Assembler(Facts(), torch.float32, FINGERPRINT)
    receiver = Receiver(assembler, "127.0.0.1", 0, 2**30, 2**50, Metrics(), memory, way.seam)
    times = []

    def arrived(_: int, item: MediaItem) -> None:
        assert item.embedding_bytes == size
        times.append(time.perf_counter())

    async with receiver:
        task = PairTask(way, f"tcp://127.0.0.1:{receiver.port}", size, count, memory.offer("benchmark"))
        with receiver.holding() as holding, receiver.expect(REQUEST, 0, range(count), holding, arrived) as wait:
            peer.start(task)
            async with asyncio.timeout(_TIMEOUT):
                await wait.done
            await asyncio.to_thread(peer.finish)
    memory.close()
    return _rate(times, size)


def _rate(times: Sequence[float], size: int) -> float:
    counted = times[_WARM_UP - 1 :]
    return (len(counted) - 1) * size / (counted[-1] - counted[0])


@dataclass(frozen=True)
class Speed:
    """Bytes per second of both, for embeddings of ``size`` MiB."""

    way: Way
    size: int
    floor: float
    pair: float

    @property
    def ratio(self) -> float:
        return self.pair / self.floor


def measure(way: Way, peer: Peer, size: int, rounds: int) -> Speed:
    """Medians over ``rounds`` runs of each, in turns."""
    rates: dict[str, list[float]] = {"floor": [], "pair": []}
    for _ in range(rounds):
        rates["floor"].append(floor(way, peer, size * MIB, SIZES[size]))
        rates["pair"].append(pair(way, peer, size * MIB, SIZES[size]))
    return Speed(way, size, statistics.median(rates["floor"]), statistics.median(rates["pair"]))


def lines(speeds: Sequence[Speed]) -> Iterator[str]:
    """The table."""
    heads = ("way", "embeddings", "floor", "pair", "ratio", "target", "met")

    def row(speed: Speed) -> Sequence[str]:
        target = TARGETS[speed.way.transport]
        rates = (f"{rate / 1e9:.2f} GB/s" for rate in (speed.floor, speed.pair))
        met = "yes" if speed.ratio >= target else "**no**"
        return (speed.way.name, f"{speed.size} MiB", *rates, f"{speed.ratio:.2f}", f"≥ {target:g}", met)

    return table(heads, map(row, speeds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--sizes", nargs="+", type=int, choices=list(SIZES), default=list(SIZES), help="MiB of embeddings")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", type=Path, help="page to write the table into, such as docs/performance.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    peer = Peer()
    speeds = [measure(WAYS[name], peer, size, args.rounds) for name in args.ways for size in args.sizes]
    peer.close()
    report("Seam", TEXT, lines(speeds), args.write)


if __name__ == "__main__":
    main()
