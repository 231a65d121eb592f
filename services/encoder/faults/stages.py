"""Faults that take hold where the pipeline passes a stage: it dies, stops, or dawdles there."""

from __future__ import annotations

import os
import signal
from typing import Literal

from pydantic import PrivateAttr

from services.encoder.faults.base import Call, Fault, Outgoing, Point, Seconds, Sender, Stage
from shared.control import EncodeItem


def die() -> None:
    """Ends this process by a signal that it can neither catch nor tidy up after."""
    os.kill(os.getpid(), signal.SIGKILL)


class Crash(Fault):
    """The process dies as by ``kill -9``. Rolls once a call.

    At ``publish`` it dies in the middle: right after the first message of the call was handed over.
    """

    kind: Literal["crash"] = "crash"
    at: Point = Stage.FETCH

    async def reach(self, stage: Stage, call: Call, item: EncodeItem | None) -> None:  # noqa: ARG002
        if stage is self.at and stage is not Stage.PUBLISH and self.fires_for(call):
            die()

    async def send(self, call: Call, outgoing: Outgoing, onward: Sender) -> None:
        await onward(outgoing)
        if self.at is Stage.PUBLISH and self.fires_for(call):
            die()


class Hang(Fault):
    """What reaches the stage does not go on until ``seconds`` have passed (None: never), or the fault is cleared.

    While anything hangs no heartbeats go out: the encoder looks wedged. Rolls once an item; at ``admit`` once a call.
    """

    kind: Literal["hang"] = "hang"
    at: Point = Stage.FETCH
    seconds: Seconds | None = None

    _hanging: int = PrivateAttr(default=0)

    @property
    def muted(self) -> bool:
        return self._hanging > 0

    async def reach(self, stage: Stage, call: Call, item: EncodeItem | None) -> None:
        if stage is not self.at or not self.fires(call, item):
            return
        self._hanging += 1
        try:
            await self.pause(self.seconds)
        finally:
            self._hanging -= 1


class Delay(Fault):
    """What reaches the stage goes on ``seconds`` later, and up to ``jitter`` seconds more. Heartbeats go out meanwhile.

    Rolls once an item; at ``admit`` once a call.
    """

    kind: Literal["delay"] = "delay"
    at: Point = Stage.FETCH
    seconds: Seconds
    jitter: Seconds = 0.0

    async def reach(self, stage: Stage, call: Call, item: EncodeItem | None) -> None:
        if stage is self.at and self.fires(call, item):
            await self.pause(self.seconds + self._random.uniform(0, self.jitter))
