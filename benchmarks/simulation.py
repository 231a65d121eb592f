"""A fleet of simulated encoders around the language service's own pool, failover, attempts and receiver, in one process.

Nothing of the language service is simulated but the network: calls are answered here, and what an encoder sends is handed to
the receiver as if it had just come. Time is real.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any, cast

from services.language.deadline import Deadline
from services.language.embeddings.assembly import Assembler
from services.language.embeddings.attempt import Attempts
from services.language.embeddings.cache import EmbeddingCache
from services.language.embeddings.dispatch import ConnectionBroke, Dispatcher
from services.language.embeddings.failover import Failover
from services.language.embeddings.gather import Gatherer
from services.language.embeddings.pool import EncoderPool
from services.language.embeddings.receiver import Received, Receiver
from services.language.prompt.conversation import MediaSource
from shared.control import EncodeRequest, EncodeResponse, EncoderState, EncoderStatus, ServiceInfo, Subscription
from shared.errors import EncoderOverloaded, EpdError
from shared.identity import MediaItem
from shared.telemetry import Metrics
from shared.together import together
from shared.wire import VERSION, Header, Heartbeat

FINGERPRINT = "simulated"
RETRIES = 1
REPLY_TO = "tcp://127.0.0.1:1"


class Life(StrEnum):
    """Well; killed, whose connections break; or cut off, of which nothing is heard any more."""

    WELL = "well"
    KILLED = "killed"
    CUT_OFF = "cut off"


@dataclass(frozen=True)
class Options:
    """The language service's defaults."""

    health_interval: float = 0.5
    liveness_timeout: float = 2.0
    breaker_failures: int = 5


@dataclass
class SimulatedEncoder:
    """Computes ``width`` items at a time, ``seconds`` each, and takes ``max_items``."""

    encoder_id: str
    seconds: float
    width: int = 2
    max_items: int = 8
    life: Life = Life.WELL
    in_work: int = 0
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    beating: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.tower = asyncio.Semaphore(self.width)

    def heartbeat(self) -> Heartbeat:
        return Heartbeat(
            encoder_id=self.encoder_id, state=EncoderState.READY, items_in_work=self.in_work, max_items=self.max_items
        )

    def info(self) -> ServiceInfo:
        return ServiceInfo(
            service="encoder",
            service_id=self.encoder_id,
            version="0",
            wire_version=VERSION,
            model="simulated",
            model_type="simulated",
            model_fingerprint=FINGERPRINT,
            device="cpu",
            dtype="float32",
            parameters={},
            parameters_total=0,
        )


class SimulatedFleet:
    """Stands for the dispatcher, and for everything behind it. ``looks`` and ``beats`` count what came over control and data
    channel, ``asked`` how often each item of each request was asked for."""

    def __init__(self, encoders: Mapping[str, SimulatedEncoder], receiver: Receiver) -> None:
        self.encoders = dict(encoders)
        self._receiver = receiver
        self.looks = 0
        self.beats = 0
        self.beat_bytes = 0
        self.refusals = 0
        self.asked: Counter[tuple[str, int]] = Counter()

    async def subscribe(self, base_url: str, subscription: Subscription) -> EncoderStatus:
        self.looks += 1
        encoder = self.encoders[base_url]
        await self._reach(encoder)
        self._schedule(encoder, 0.0, subscription.interval)
        return EncoderStatus(info=encoder.info(), state=EncoderState.READY, items_in_work=0, max_items=encoder.max_items)

    async def encode(
        self,
        base_url: str,
        call: EncodeRequest,
        media: Sequence[MediaSource],  # noqa: ARG002
        forwarded: Mapping[str, str],  # noqa: ARG002
    ) -> EncodeResponse:
        encoder = self.encoders[base_url]
        for item in call.items:
            self.asked[call.request_id, item.index] += 1
        await self._reach(encoder)
        if encoder.in_work + len(call.items) > encoder.max_items:
            self.refusals += 1
            raise EncoderOverloaded("The simulated encoder is full.")
        encoder.in_work += len(call.items)
        work = asyncio.create_task(together([self._compute(encoder, call, item.index) for item in call.items]))
        death = asyncio.create_task(encoder.dead.wait())
        either: list[asyncio.Task[Any]] = [work, death]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            await self._reach(encoder)
            await work
        finally:
            death.cancel()
            work.cancel()
            encoder.in_work -= len(call.items)
        return EncodeResponse(encoder_id=encoder.encoder_id, items=())

    def end(self, encoder: SimulatedEncoder, life: Life) -> None:
        """An encoder dies, in one way or the other."""
        encoder.life = life
        encoder.dead.set()
        if encoder.beating is not None:
            encoder.beating.cancel()

    def stop(self) -> None:
        """No more heartbeats."""
        for encoder in self.encoders.values():
            if encoder.beating is not None:
                encoder.beating.cancel()

    async def _reach(self, encoder: SimulatedEncoder) -> None:
        await asyncio.sleep(0)
        if encoder.life is Life.KILLED:
            raise ConnectionBroke("The connection to the simulated encoder broke.")
        if encoder.life is Life.CUT_OFF:
            await asyncio.Event().wait()

    async def _compute(self, encoder: SimulatedEncoder, call: EncodeRequest, index: int) -> None:
        async with encoder.tower:
            await asyncio.sleep(encoder.seconds)
        item = MediaItem("image", 1)
        item.set_hash(f"{index:032x}")
        header = Header(
            request_id=call.request_id,
            attempt=call.attempt,
            item=index,
            num_items=call.num_items,
            modality="image",
            content_hash=f"{index:032x}",
            num_tokens=1,
            model_fingerprint=FINGERPRINT,
            encoder_id=encoder.encoder_id,
        )
        self._receiver.give(Received(header, 0, item))

    def _beat(self, encoder: SimulatedEncoder, interval: float) -> None:
        frame = encoder.heartbeat().model_dump_json().encode()
        self.beats += 1
        self.beat_bytes += len(frame)
        self._receiver.give(self._receiver.read([memoryview(frame)]))
        self._schedule(encoder, interval, interval)

    def _schedule(self, encoder: SimulatedEncoder, seconds: float, interval: float) -> None:
        if encoder.beating is not None:
            encoder.beating.cancel()
        encoder.beating = asyncio.get_running_loop().call_later(seconds, self._beat, encoder, interval)


@dataclass(frozen=True)
class Simulation:
    """The parts of one language service, running, and its fleet."""

    fleet: SimulatedFleet
    pool: EncoderPool
    gatherer: Gatherer
    metrics: Metrics


def encoders_of(number: int, seconds: float) -> dict[str, SimulatedEncoder]:
    """So many encoders by their addresses, each of which takes ``seconds`` for an item."""
    return {
        f"http://10.{index >> 16}.{index >> 8 & 255}.{index & 255}:8001": SimulatedEncoder(f"encoder-{index:08x}", seconds)
        for index in range(number)
    }


@asynccontextmanager
async def simulation(encoders: Mapping[str, SimulatedEncoder], options: Options | None = None) -> AsyncIterator[Simulation]:
    """A service with encoders, which are ready a moment later."""
    metrics = Metrics()
    receiver = Receiver(cast(Assembler, None), "127.0.0.1", 0, 2**20, 2**20, metrics)
    fleet = SimulatedFleet(encoders, receiver)
    dispatcher = cast(Dispatcher, fleet)
    async with AsyncExitStack() as owned:
        await owned.enter_async_context(receiver)
        owned.callback(fleet.stop)
        pool = EncoderPool(list(encoders), FINGERPRINT, dispatcher, lambda _: REPLY_TO, options or Options(), metrics)
        receiver.on_sign = pool.sign
        await owned.enter_async_context(pool)
        failover = Failover(pool, Attempts(dispatcher, receiver, 1.0), RETRIES, metrics)
        yield Simulation(fleet, pool, Gatherer(failover, EmbeddingCache(0, metrics), receiver, 10_000, metrics), metrics)


async def until(condition: Callable[[], bool], timeout: float = 60.0) -> float:
    """Seconds until something is so.

    Raises:
        TimeoutError: it does not become so.
    """
    began = time.perf_counter()
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110, what others do is polled
            await asyncio.sleep(0.01)
    return time.perf_counter() - began


async def until_ready(service: Simulation, number: int) -> float:
    """Seconds until so many encoders are ready, and no more."""
    return await until(lambda: service.pool.ready() == number)


@dataclass(frozen=True)
class Ended:
    """One request: when it began and ended, and ``ok`` or the code of its error."""

    began: float
    ended: float
    code: str


@dataclass
class Load:
    """Requests of ``items`` items that come at a steady ``rate`` a second, whatever becomes of those before.

    ``stretches`` are pairs of a time and the seconds for which the event loop computed before it came back to a timer of 5 ms;
    ``loads`` are a time, and the items in work at the well encoder that has most of them, and on average.
    """

    service: Simulation
    rate: float
    items: int
    timeout: float
    ended: list[Ended] = field(default_factory=list)
    stretches: list[tuple[float, float]] = field(default_factory=list)
    loads: list[tuple[float, int, float]] = field(default_factory=list)
    began: int = 0

    async def run(self, seconds: float) -> None:
        """Returns when all requests that came within ``seconds`` have ended."""
        draw, due = random.Random(self.began), time.perf_counter()
        end = due + seconds
        watch = asyncio.create_task(self._watch())
        async with asyncio.TaskGroup() as requests:
            while (now := time.perf_counter()) < end:
                while due <= now:
                    requests.create_task(self._ask(draw.randbytes(8).hex()))
                    due += 1 / self.rate
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
        watch.cancel()

    async def _ask(self, name: str) -> None:
        self.began += 1
        began, code = time.perf_counter(), "ok"
        media = [MediaSource(index, "image", f"messages.{index}", digest=f"{name}/{index}") for index in range(self.items)]
        try:
            with self.service.gatherer.holding() as holding:
                await self.service.gatherer.gather(name, media, 10_000, Deadline(self.timeout), {}, holding)
        except EpdError as error:
            code = f"{error.status} {error.code}"
        self.ended.append(Ended(began, time.perf_counter(), code))

    async def _watch(self) -> None:
        """Notes for how long the event loop was busy, and now and then the loads of the encoders that are well."""
        for turn in count():
            used = time.thread_time()
            await asyncio.sleep(0.005)
            now = time.perf_counter()
            self.stretches.append((now, time.thread_time() - used))
            if turn % 20 == 0:
                loads = [encoder.in_work for encoder in self.service.fleet.encoders.values() if encoder.life is Life.WELL]
                self.loads.append((now, max(loads), sum(loads) / len(loads)))
