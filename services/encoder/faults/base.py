"""Where faults take hold of the one path that an item takes, and what all faults have."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, TypeAlias
from weakref import WeakKeyDictionary

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, field_validator
from torch import Tensor

from shared.control import EncodeItem, EncodeRequest
from shared.identity import Modality
from shared.wire import Buffer, Header


class Stage(StrEnum):
    """The points that the pipeline passes through; each is passed before what it names happens, ``HASHED`` after."""

    ADMIT = "admit"
    FETCH = "fetch"
    HASHED = "hashed"
    PUBLISH = "publish"


@dataclass(eq=False)
class Call:
    """One ``/encode`` call, with its HTTP headers (names in lower case)."""

    request: EncodeRequest
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Outgoing:
    """One item's message before it is packed. ``manglers`` change the packed frames, in order.

    Faults make another one of it and change neither it nor its tensors, which are the encoder's own.
    """

    header: Header
    tensors: dict[str, Tensor]
    manglers: list[Callable[[list[Buffer]], list[Buffer]]] = field(default_factory=list)


Sender: TypeAlias = Callable[[Outgoing], Awaitable[None]]
"""Packs a message and hands it to the connection with the call's ``reply_to``."""

Point = Annotated[Stage, BeforeValidator(lambda value: Stage.HASHED if value == "hash" else value)]
"""A stage as a fault's parameter, where ``hash`` is another name of ``hashed``."""

Seconds = Annotated[float, Field(ge=0, le=3600)]
"""A time as a fault's parameter."""


class Match(BaseModel):
    """What a fault is aimed at; at everything without conditions.

    ``modality`` is an item's; a call has that of any of its items. ``headers`` are those of the ``/encode`` call: all that are
    named must be there and follow their pattern (``fnmatch``, in which upper and lower case differ).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    modality: Modality | None = None
    headers: dict[str, str] = Field(default_factory=dict)

    @field_validator("headers")
    @classmethod
    def _lower(cls, headers: dict[str, str]) -> dict[str, str]:
        return {name.lower(): pattern for name, pattern in headers.items()}

    def takes(self, call: Call, thing: EncodeItem | Header | None) -> bool:
        """Whether an item or a message of a call, or for None the call as a whole, is aimed at."""
        there = {each.modality for each in (call.request.items if thing is None else (thing,))}
        return (self.modality is None or self.modality in there) and all(
            name in call.headers and fnmatchcase(call.headers[name], pattern) for name, pattern in self.headers.items()
        )


class Fault(BaseModel):
    """One failure on order: its parameters, and what became of it. By itself it does nothing.

    It fires for a thing that it is aimed at (``match``) with ``probability``, at most ``count`` times, None being no limit. A
    thing is a message, an item, or a call: each kind says which, and rolls once for it. What is random comes from the fault's
    own generator; with a ``seed`` the same things, in the same order, get the same again.

    Subclasses have a ``kind: Literal[...]``, and override ``reach``, ``send`` or both.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    probability: float = Field(1.0, ge=0, le=1)
    count: int | None = Field(None, ge=1)
    seed: int | None = None
    match: Match = Match()

    _random: random.Random = PrivateAttr()
    _fired: int = PrivateAttr(default=0)
    _cleared: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)
    # Weak, so that what was decided for a call goes when the call goes; no value may refer to its call.
    _decided: WeakKeyDictionary[Call, bool] = PrivateAttr(default_factory=WeakKeyDictionary)

    def model_post_init(self, context: Any, /) -> None:  # noqa: ARG002
        self._random = random.Random(self.seed)

    @property
    def fired(self) -> int:
        """How many times it has fired."""
        return self._fired

    @property
    def muted(self) -> bool:
        """Whether it withholds heartbeats now."""
        return False

    async def reach(self, stage: Stage, call: Call, item: EncodeItem | None) -> None:
        """Happens to whatever passes a stage; ``item`` is None where that is the call."""

    async def send(self, call: Call, outgoing: Outgoing, onward: Sender) -> None:  # noqa: ARG002
        """Happens to a message on its way; ``onward`` takes what is to go on."""
        await onward(outgoing)

    async def clear(self) -> None:
        """It fires no more and lets go of what it holds up; returns when that is gone."""
        self._cleared.set()

    async def aclose(self) -> None:
        """Ends what it has going in the background."""

    def fires(self, call: Call, thing: EncodeItem | Header | None) -> bool:
        """Rolls for an item or a message of a call, or for None the call itself; True is counted as fired."""
        spent = self._cleared.is_set() or (self.count is not None and self._fired >= self.count)
        if spent or not self.match.takes(call, thing) or self._random.random() >= self.probability:
            return False
        self._fired += 1
        return True

    def fires_for(self, call: Call) -> bool:
        """Rolls for a call when it is first asked, and stays with that."""
        if call not in self._decided:
            self._decided[call] = self.fires(call, None)
        return self._decided[call]

    async def pause(self, seconds: float | None) -> None:
        """Returns when so many seconds have passed, or the fault is cleared; None is for ever."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._cleared.wait()
