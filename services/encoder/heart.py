"""Signs of life for the language services that asked for them."""

from __future__ import annotations

import asyncio
from typing import Protocol

from services.encoder.faults.registry import Faults
from services.encoder.publisher import Publisher
from services.encoder.settings import EncoderSettings
from shared.control import EncoderState, Offer, Subscription, Transport
from shared.errors import EncoderOverloaded
from shared.telemetry import get_logger
from shared.wire import Heartbeat

_log = get_logger("heart")


class Vitals(Protocol):
    """What the heart looks at."""

    @property
    def items_in_work(self) -> int:
        """Items admitted and not finished."""
        ...

    @property
    def batch_seconds(self) -> float:
        """For how long the tower has been computing its batch."""
        ...


class Peers(Protocol):
    """Who is told of subscriptions that come and go."""

    def agree(self, endpoint: str, offer: Offer | None) -> Transport:
        """How tensors will cross to ``endpoint``."""
        ...

    def forget(self, endpoint: str) -> None:
        """Nobody listens at ``endpoint`` any more."""


class Heart:
    """Beats for each subscription at its own interval, by timers of the event loop: a loop that hangs goes silent.

    So does an encoder whose tower hangs, though its loop turns.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        encoder_id: str,
        vitals: Vitals,
        publisher: Publisher,
        faults: Faults,
        peers: Peers,
        max_subscriptions: int = 64,
    ) -> None:
        self._settings = settings
        self._encoder_id = encoder_id
        self._vitals = vitals
        self._publisher = publisher
        self._faults = faults
        self._peers = peers
        self._max = max_subscriptions
        self._loop = asyncio.get_running_loop()
        self._next: dict[str, asyncio.TimerHandle] = {}
        self._stalled = False
        self.state = EncoderState.READY

    def __len__(self) -> int:
        """Subscriptions whose lease has not ended."""
        return len(self._next)

    def subscribe(self, subscription: Subscription) -> Transport:
        """Begins or renews a subscription; returns how tensors will cross to it.

        Raises:
            InvalidRequest: ``reply_to`` is not an address that may be sent to, or one of both ends encrypts and the other not.
            EncoderOverloaded: there are too many.
        """
        endpoint, seam = subscription.reply_to, self._publisher.seam
        seam.check_mode(subscription.curve)
        seam.check_reply_to(endpoint)
        if endpoint not in self._next and len(self._next) >= self._max:
            raise EncoderOverloaded(f"The encoder has {self._max} subscribers, and takes no more.", retry_after=5.0)
        self._send(endpoint)
        self._schedule(endpoint, subscription.interval, self._loop.time() + subscription.lease)
        return self._peers.agree(endpoint, subscription.offer)

    def announce(self, state: EncoderState) -> None:
        """Tells everyone at once that the encoder is in another state."""
        self.state = state
        for endpoint in self._next:
            self._send(endpoint)

    def stop(self) -> None:
        """Says the last word, and is silent."""
        self.announce(EncoderState.LEAVING)
        for timer in self._next.values():
            timer.cancel()
        self._next.clear()

    def _schedule(self, endpoint: str, interval: float, end: float) -> None:
        if (before := self._next.get(endpoint)) is not None:
            before.cancel()
        self._next[endpoint] = self._loop.call_at(min(self._loop.time() + interval, end), self._beat, endpoint, interval, end)

    def _beat(self, endpoint: str, interval: float, end: float) -> None:
        if self._loop.time() >= end:
            del self._next[endpoint]
            self._publisher.forget(endpoint)
            self._peers.forget(endpoint)
            return
        self._schedule(endpoint, interval, end)
        self._send(endpoint)

    def _send(self, endpoint: str) -> None:
        if self._faults.muted or self.stalled:
            return
        beat = Heartbeat(
            encoder_id=self._encoder_id,
            state=self.state,
            items_in_work=self._vitals.items_in_work,
            max_items=self._settings.max_items,
        )
        self._publisher.beat(endpoint, beat.model_dump_json().encode())

    @property
    def stalled(self) -> bool:
        """Whether the tower counts as wedged now; the change is logged when it is noticed."""
        seconds = self._vitals.batch_seconds
        stalled = seconds > self._settings.stall_timeout
        if stalled and not self._stalled:
            _log.error("the tower hangs; heartbeats stop", batch_seconds=round(seconds, 1))
        elif self._stalled and not stalled:
            _log.info("the tower is back; heartbeats go on")
        self._stalled = stalled
        return stalled
