"""The encoders that this service knows, configured or registered, and which of them can be asked now."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Protocol

from services.language.embeddings.assignment import Assignment
from services.language.embeddings.breaker import Breaker
from services.language.embeddings.dispatch import ConnectionBroke, Dispatcher, Refused
from services.language.embeddings.encoder import Encoder, EncoderView, Share, State
from services.language.embeddings.measures import EncoderMeasures
from services.language.embeddings.memory import OpenMemory
from services.language.embeddings.traffic import Traffic
from services.language.prompt.conversation import MediaSource
from shared.addresses import check_base_url
from shared.control import EncoderState, EncoderStatus, Registration, ServiceInfo, Subscription
from shared.errors import (
    ClientError,
    EncoderFailed,
    EncoderLost,
    EncoderOverloaded,
    EncoderUnavailable,
    EngineOverloaded,
    EpdError,
    InternalError,
    InvalidRequest,
)
from shared.telemetry import Metrics, get_logger
from shared.wire import VERSION, Heartbeat

_log = get_logger("pool")

MAX_ENCODERS = 4096
# A registered encoder that is down or refused and has not announced itself for so many seconds is forgotten.
FORGET_AFTER = 30.0
# Monitor ticks in one liveness timeout.
_TICKS = 20
_REASONS = 4  # encoders whose reasons a failure tells; of a thousand, nobody reads more


class PoolOptions(Protocol):
    """The settings that are the pool's."""

    @property
    def health_interval(self) -> float: ...
    @property
    def liveness_timeout(self) -> float: ...
    @property
    def breaker_failures(self) -> int: ...


class EncoderPool:
    """Keeps a subscription to every encoder's signs of life, and assigns items to those that are ready.

    A watcher an encoder asks it again and again (over HTTP) for signs of life (over the data channel). One whose answer is
    compatible and whose signs arrive is ready. One whose connection breaks, or who falls silent, is not asked any more until
    both are back. One with another checkpoint or wire version is refused, with the reason, until it changes; so is one that
    refuses this service, for its keys for example.
    """

    def __init__(
        self,
        urls: Sequence[str],
        fingerprint: str,
        dispatcher: Dispatcher,
        reply_address: Callable[[str], str],
        options: PoolOptions,
        metrics: Metrics,
        memory: OpenMemory | None = None,
        curve: bool = False,
    ) -> None:
        self._fingerprint = fingerprint
        self._memory = memory
        self._curve = curve
        self._dispatcher = dispatcher
        self._reply_address = reply_address
        self._options = options
        # Of its own: names that take long to resolve must not hold up what others do in threads.
        self._resolver = ThreadPoolExecutor(2, thread_name_prefix="resolve")
        self._tasks: dict[Encoder | None, asyncio.Task[None]] = {}
        self._encoders: dict[str, Encoder] = {}
        self._ready = 0
        # By the id of the process. One may be reached at several addresses.
        self._processes: dict[str, set[Encoder]] = {}
        self._assignment = Assignment(self._why_none)
        self._traffic = Traffic(options.health_interval, options.liveness_timeout)
        self._measures = EncoderMeasures(metrics)
        metrics.gauge("epd_encoders_ready", "Encoders that can be asked now.").set_function(self.ready)
        for url in urls:
            self._add(url, configured=True)

    async def __aenter__(self) -> EncoderPool:
        self._tasks[None] = asyncio.create_task(self._monitor(), name="signs of life")
        for encoder in self._encoders.values():
            self._start(encoder)
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._resolver.shutdown(wait=False, cancel_futures=True)

    def ready(self) -> int:
        """How many encoders can be asked."""
        return self._ready

    def describe(self) -> list[EncoderView]:
        """All encoders, as the API shows them."""
        return [encoder.view() for encoder in self._encoders.values()]

    # ---------------------------------------------------------------------------------------------------- assignment

    def assign(self, sources: Iterable[MediaSource], avoiding: frozenset[Encoder] = frozenset()) -> list[Share]:
        """Gives each source to an encoder: by affinity at first, and where encoders are avoided, to the least loaded.

        Raises:
            EncoderUnavailable: none is healthy, or none besides those to avoid.
            EncoderOverloaded: those that are have no room.
        """
        return self._assignment.assign(sources, avoiding)

    def check(self, items: int, avoiding: frozenset[Encoder] = frozenset()) -> None:
        """Whether encoders could be asked for ``items`` items now.

        Raises:
            EncoderUnavailable: none is healthy, or none besides those to avoid.
            EncoderOverloaded: those that are have no room.
        """
        self._assignment.check(items, avoiding)

    def report(self, share: Share, error: EpdError | None, blame: bool = True) -> None:
        """Says how a share ended, and releases it. Without ``blame`` the encoder is not held responsible for the failure."""
        encoder = share.encoder
        if self._encoders.get(encoder.url) is encoder:  # else it is forgotten, and so are its labels
            self._measures.attempt(encoder, "ok" if error is None else error.code, time.monotonic() - share.began)
        if error is None or isinstance(error, ClientError):
            share.release(ok=True)
            return
        error.encoder, error.encoder_id = encoder.url, encoder.encoder_id
        encoder.failures[error.code] += 1
        if not blame or isinstance(error, EncoderOverloaded | EncoderUnavailable | EngineOverloaded | InternalError):
            share.release()
            if isinstance(error, EncoderUnavailable):
                self._set(encoder, State.DRAINING, error.message)
            return
        share.release(ok=False)
        if isinstance(error, EncoderLost):
            share.breaker.trip()
            self._assignment.settle(encoder)
        elif isinstance(error, ConnectionBroke):
            self._down(encoder, error.message)
            encoder.look_now.set()

    def _why_none(self) -> str:
        if not self._encoders:
            return "No encoder is configured or registered, and this service computes no vision itself."
        reasons = [
            f"{encoder.url}: {encoder.reason or f'its circuit is {encoder.breaker.circuit}'}"
            for encoder in islice(self._encoders.values(), _REASONS)
        ]
        if len(self._encoders) > _REASONS:
            reasons.append(f"and {len(self._encoders) - _REASONS} more")
        return f"No encoder is healthy, and this service computes no vision itself ({'; '.join(reasons)})."

    # ------------------------------------------------------------------------------------------------- signs of life

    def sign(self, encoder_id: str, heartbeat: Heartbeat | None) -> None:
        """Something arrived from an encoder on the data channel."""
        for encoder in self._processes.get(encoder_id, ()):
            encoder.alive()
            if heartbeat is not None:
                self._hear(encoder, heartbeat)

    def _hear(self, encoder: Encoder, heartbeat: Heartbeat) -> None:
        encoder.items_in_work = heartbeat.items_in_work
        if encoder.capacity != heartbeat.max_items:
            encoder.capacity = heartbeat.max_items
            self._assignment.settle(encoder)
        if heartbeat.state is EncoderState.LEAVING:
            self._down(encoder, "it said goodbye")
            encoder.announced = float("-inf")
        elif heartbeat.state is EncoderState.DRAINING:
            self._set(encoder, State.DRAINING, "it is draining")
        elif encoder.agreed:
            self._set(encoder, State.READY, "")

    async def _monitor(self) -> None:
        """Counts each encoder's silence. A tick that comes very late counts as three at most: then it was this service that
        stood still, and signs of life may lie unread."""
        tick = self._options.liveness_timeout / _TICKS
        before = time.monotonic()
        while True:
            await asyncio.sleep(tick)
            now = time.monotonic()
            suspect = self._traffic.suspect(len(self._encoders))
            for encoder in list(self._encoders.values()):
                try:
                    self._tick(encoder, min(now - before, 3 * tick), suspect, now)
                except Exception as error:
                    # Without a monitor nothing would ever be lost again.
                    _log.error("watching for signs of life failed", url=encoder.url, exc_info=error)
            before = now

    def _tick(self, encoder: Encoder, seconds: float, suspect: float, now: float) -> None:
        silent_before = encoder.silent_for
        encoder.silent_for += seconds
        if silent_before <= suspect < encoder.silent_for:
            encoder.look_now.set()
        if encoder.silent_for > self._options.liveness_timeout:
            text = f"it showed no sign of life for {self._options.liveness_timeout:g} s"
            if encoder.state in (State.READY, State.DRAINING):
                encoder.breaker.trip()
                self._down(encoder, text)
            # Also of one that is known to be down: that its connections still stand does not mean that anything comes of them.
            encoder.abandon(EncoderLost(f"The encoder at {encoder.url} is lost: {text}; nothing was computed locally instead."))
        gone = encoder.state in (State.DOWN, State.REFUSED) and now - encoder.announced > FORGET_AFTER
        if gone and not encoder.configured and not encoder.waits:
            self._forget(encoder)

    # ----------------------------------------------------------------------------------------------------- watching

    async def _watch(self, encoder: Encoder) -> None:
        while True:
            await self._traffic.turn()
            try:
                if encoder.state is not State.READY:
                    loop = asyncio.get_running_loop()
                    encoder.reply_to = await loop.run_in_executor(self._resolver, self._reply_address, encoder.url)
                self._judge(encoder, await self._dispatcher.subscribe(encoder.url, self._subscription(encoder)))
                if self._memory is not None and encoder.transport == "shm" and encoder.encoder_id is not None:
                    await asyncio.to_thread(self._memory.tidy, encoder.encoder_id)
            except Refused as error:
                encoder.agreed = False
                self._set(encoder, State.REFUSED, error.message)
            except EpdError as error:
                # One that is only slow to answer, but shows life, is not down.
                if isinstance(error, ConnectionBroke) or encoder.silent_for > self._options.liveness_timeout:
                    self._down(encoder, error.message)
            except Exception as error:
                # A watcher must outlive whatever it meets, or the encoder would never be seen again.
                _log.error("looking at an encoder failed", url=encoder.url, exc_info=error)
                self._down(encoder, f"looking at it failed ({type(error).__name__})")
            # Not by wait_for, which in Python 3.11 can swallow a cancellation.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause(encoder)):
                    await encoder.look_now.wait()
                # Something just failed: give it a moment, then look sooner than usual.
                await asyncio.sleep(min(0.1, self._options.health_interval))
            encoder.look_now.clear()

    def _pause(self, encoder: Encoder) -> float:
        """Seconds until the next look at an encoder. Those that are ready show life by themselves, so that a look only renews
        the subscription; in a large fleet they are looked at less often, as are those that are not, when these are many."""
        if encoder.state is not State.READY:
            return self._traffic.pause(len(self._encoders) - self._ready)
        if encoder.silent_for > self._traffic.suspect(len(self._encoders)):
            return self._options.health_interval
        return self._traffic.pause(self._ready)

    def _subscription(self, encoder: Encoder) -> Subscription:
        encoders = len(self._encoders)
        # Signs must go on while a few looks in a row are slow.
        lease = max(10.0, 5 * (self._traffic.pause(encoders) + self._options.liveness_timeout))
        return Subscription(
            reply_to=encoder.reply_to,
            interval=self._traffic.beat(encoders),
            lease=min(600.0, lease),
            curve=self._curve,
            offer=None if self._memory is None else self._memory.offer(encoder.encoder_id),
        )

    def _judge(self, encoder: Encoder, status: EncoderStatus) -> None:
        if encoder.encoder_id != status.info.service_id:
            if encoder.state is State.READY and encoder.silent_for < self._options.liveness_timeout / 2:
                # The one before still shows life: several encoders share the address, and this one has nothing of ours.
                _log.warning("two encoders at one address", url=encoder.url, also=status.info.service_id)
                return
            # Another process: what was asked of the one before will never come, and what was held against it is void.
            encoder.abandon(EncoderFailed(f"The encoder at {encoder.url} was restarted."))
            self._close_memory(encoder)
            encoder.breaker = self._breaker()
            encoder.silent_for = float("inf")
            self._rename(encoder, status.info.service_id)
        encoder.info, encoder.capacity, encoder.items_in_work = status.info, status.max_items, status.items_in_work
        encoder.transport = status.transport
        why_not = self._incompatible(status.info)
        encoder.agreed = why_not is None
        if why_not is not None:
            self._set(encoder, State.REFUSED, why_not)
        elif status.state is not EncoderState.READY:
            self._set(encoder, State.DRAINING, f"it is {status.state.value}")
        elif encoder.silent_for <= self._options.liveness_timeout:
            self._set(encoder, State.READY, "")
        else:
            # Not logged: the first sign is a moment behind the answer.
            self._become(encoder, State.DOWN, f"no sign of life of it arrives at {encoder.reply_to}")
        self._assignment.settle(encoder)

    def _incompatible(self, info: ServiceInfo) -> str | None:
        if info.service != "encoder":
            return f"it is a {info.service} service"
        if info.wire_version != VERSION:
            return f"it speaks wire version {info.wire_version}, this service speaks {VERSION}"
        if info.model_fingerprint != self._fingerprint:
            return f"its model {info.model} has fingerprint {info.model_fingerprint}, this service has {self._fingerprint}"
        return None

    # --------------------------------------------------------------------------------------------------- membership

    def register(self, registration: Registration) -> float:
        """An encoder announces itself; new ones are watched from now on. Returns the seconds after which it shall do so again.

        Raises:
            InvalidRequest: its address is none to send to, its model or wire version is another, or there are too many.
        """
        try:
            url = check_base_url(registration.url)
        except ValueError as error:
            raise InvalidRequest(f"The encoder cannot be reached there: {error}.", param="url") from error
        why_not = self._incompatible(registration.info)
        if why_not is not None:
            raise InvalidRequest(f"The encoder at {url} is refused: {why_not}.", param="info")
        encoder = self._encoders.get(url)
        if encoder is None:
            if len(self._encoders) >= MAX_ENCODERS:
                raise InvalidRequest(f"{MAX_ENCODERS} encoders are known already; that is all this service watches.")
            encoder = self._add(url, configured=False)
            encoder.capacity = registration.max_items
            self._start(encoder)
            _log.info("encoder registered", url=url, encoder_id=registration.info.service_id)
        elif encoder.encoder_id != registration.info.service_id or encoder.state is State.DOWN:
            encoder.look_now.set()
        encoder.announced = time.monotonic()
        return self._traffic.round(len(self._encoders))

    def _add(self, url: str, configured: bool) -> Encoder:
        encoder = self._encoders[url] = Encoder(url, self._breaker(), configured)
        self._measures.add(encoder)
        return encoder

    def _breaker(self) -> Breaker:
        return Breaker(self._options.breaker_failures, self._options.liveness_timeout / 2)

    def _start(self, encoder: Encoder) -> None:
        self._tasks[encoder] = asyncio.create_task(self._watch(encoder), name=f"watch {encoder.url}")

    def _forget(self, encoder: Encoder) -> None:
        """Ends the watch over a registered encoder."""
        del self._encoders[encoder.url]
        self._tasks.pop(encoder).cancel()
        self._close_memory(encoder)
        self._rename(encoder, None)
        self._measures.remove(encoder)
        _log.info("encoder forgotten", url=encoder.url)

    def _rename(self, encoder: Encoder, encoder_id: str | None) -> None:
        """Another process is behind an encoder's address, or (None) nobody is any more."""
        if encoder.encoder_id is not None:
            known = self._processes[encoder.encoder_id]
            known.discard(encoder)
            if not known:
                del self._processes[encoder.encoder_id]
        if encoder_id is not None:
            self._processes.setdefault(encoder_id, set()).add(encoder)

    def _close_memory(self, encoder: Encoder) -> None:
        """What is open of an encoder's memory is closed, since it may be gone; if it is not, it is opened again when needed."""
        if self._memory is not None and encoder.encoder_id is not None:
            self._memory.forget(encoder.encoder_id)

    def _down(self, encoder: Encoder, reason: str) -> None:
        encoder.agreed = False
        self._close_memory(encoder)
        self._set(encoder, State.DOWN, reason)

    def _set(self, encoder: Encoder, state: State, reason: str) -> None:
        if (encoder.state, encoder.reason) != (state, reason):
            log = _log.info if state is State.READY else _log.warning
            log("encoder changed", url=encoder.url, encoder_id=encoder.encoder_id, state=state.value, reason=reason)
            self._become(encoder, state, reason)

    def _become(self, encoder: Encoder, state: State, reason: str) -> None:
        self._ready += (state is State.READY) - (encoder.state is State.READY)
        encoder.state, encoder.reason = state, reason
        self._assignment.settle(encoder)
