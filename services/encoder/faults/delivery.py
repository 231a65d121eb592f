"""Faults in the delivery of messages: which go out, how often, in which order, and when. The call is answered as done."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal
from weakref import WeakKeyDictionary

from pydantic import Field, PrivateAttr

from services.encoder.faults.base import Call, Fault, Outgoing, Seconds, Sender
from shared.telemetry import get_logger

_log = get_logger("faults")

# Messages that may be late at a time; past it they go out on time.
_MAX_LATE = 1024


class Drop(Fault):
    """Nothing is sent. Rolls once a message."""

    kind: Literal["drop"] = "drop"

    async def send(self, call: Call, outgoing: Outgoing, onward: Sender) -> None:
        if not self.fires(call, outgoing.header):
            await onward(outgoing)


class Partial(Fault):
    """Only messages of the first ``k`` items of a call, in its order, are sent. Rolls once a call that has more."""

    kind: Literal["partial"] = "partial"
    k: int = Field(ge=0)

    async def send(self, call: Call, outgoing: Outgoing, onward: Sender) -> None:
        kept = {item.index for item in call.request.items[: self.k]}
        if outgoing.header.item in kept or not self.fires_for(call):
            await onward(outgoing)


class Duplicate(Fault):
    """A message is sent ``times`` times. Rolls once a message."""

    kind: Literal["duplicate"] = "duplicate"
    times: int = Field(2, ge=2, le=100)

    async def send(self, call: Call, outgoing: Outgoing, onward: Sender) -> None:
        for _ in range(self.times if self.fires(call, outgoing.header) else 1):
            await onward(outgoing)


@dataclass
class _Held:
    """What is held back of a call, and the items of which nothing came yet."""

    missing: set[int]
    messages: list[Outgoing] = field(default_factory=list)


class Reorder(Fault):
    """The messages of a call are held back, and sent in reverse order when the last item's is there. Rolls once a call.

    Set it before faults that lose messages: it waits for one that is lost before it gets here, and the others are lost too.
    """

    kind: Literal["reorder"] = "reorder"

    _held: WeakKeyDictionary[Call, _Held] = PrivateAttr(default_factory=WeakKeyDictionary)

    async def send(self, call: Call, outgoing: Outgoing, onward: Sender) -> None:
        if not self.fires_for(call):
            await onward(outgoing)
            return
        held = self._held.setdefault(call, _Held({item.index for item in call.request.items}))
        held.missing.discard(outgoing.header.item)
        held.messages.append(outgoing)
        if not held.missing:
            messages, held.messages = held.messages[::-1], []
            for message in messages:
                await onward(message)


class Late(Fault):
    """A message goes out ``seconds`` after the call was answered for it, or when the fault is cleared. Rolls once a message."""

    kind: Literal["late"] = "late"
    seconds: Seconds

    _tasks: set[asyncio.Task[None]] = PrivateAttr(default_factory=set)

    async def send(self, call: Call, outgoing: Outgoing, onward: Sender) -> None:
        if len(self._tasks) >= _MAX_LATE or not self.fires(call, outgoing.header):
            await onward(outgoing)
            return
        task = asyncio.create_task(self._later(outgoing, onward), name="late message")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def clear(self) -> None:
        await super().clear()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _later(self, outgoing: Outgoing, onward: Sender) -> None:
        await self.pause(self.seconds)
        try:
            await onward(outgoing)
        except Exception as error:
            # Its call was answered long ago, and its receiver may be gone.
            _log.info("late message could not be sent", reason=str(error))


@dataclass
class _Drip:
    """Lets one message of a call through at a time; ``begun`` after the first."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    begun: bool = False


class SlowDrip(Fault):
    """The messages of a call go out one after another, with ``seconds`` between them. Rolls once a call."""

    kind: Literal["slow_drip"] = "slow_drip"
    seconds: Seconds

    _drips: WeakKeyDictionary[Call, _Drip] = PrivateAttr(default_factory=WeakKeyDictionary)

    async def send(self, call: Call, outgoing: Outgoing, onward: Sender) -> None:
        if not self.fires_for(call):
            await onward(outgoing)
            return
        drip = self._drips.setdefault(call, _Drip())
        async with drip.turn:
            if drip.begun:
                await self.pause(self.seconds)
            drip.begun = True
            await onward(outgoing)
