"""What this service knows of one encoder."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from services.language.embeddings.breaker import Breaker
from services.language.embeddings.receiver import Wait
from services.language.prompt.conversation import MediaSource
from shared.control import ServiceInfo, Transport
from shared.errors import EpdError


class State(StrEnum):
    """What is known of an encoder. Only a ``ready`` one is asked."""

    UNKNOWN = "unknown"
    READY = "ready"
    DRAINING = "draining"
    DOWN = "down"
    REFUSED = "refused"


class EncoderView(BaseModel):
    """One encoder as ``GET /v1/encoders`` shows it.

    ``in_flight`` counts the items that this service has asked it for; ``items_in_work`` and ``max_items`` are what it says of
    itself; ``transport`` is how its embeddings cross; ``silence`` is the time in seconds since its last sign of life, null
    where there was none; ``failures`` counts attempts by the code that they ended with.
    """

    model_config = ConfigDict(protected_namespaces=())

    url: str
    encoder_id: str | None
    source: str
    state: str
    reason: str
    circuit: str
    in_flight: int
    items_in_work: int
    max_items: int
    transport: str
    silence: float | None
    failures: dict[str, int]
    model: str | None
    device: str | None
    dtype: str | None


class EncoderList(BaseModel):
    """The answer of ``GET /v1/encoders``."""

    object: str = "list"
    data: list[EncoderView]


@dataclass(eq=False)
class Encoder:
    """One encoder, known by its base URL. ``reason`` says why it is not ready.

    ``reply_to`` is where it shall send embeddings; found by the watcher, since names may take long to resolve. ``agreed`` is
    set while its last answer was compatible; it is ready when signs of life arrive on the data channel too. ``silent_for``
    is the time in seconds without one, as the pool's monitor counts it. ``load`` counts the items that this service has asked
    it for, ``waits`` are those of the attempts it has in work.
    """

    url: str
    breaker: Breaker
    configured: bool = True
    state: State = State.UNKNOWN
    reason: str = "it was not looked at yet"
    info: ServiceInfo | None = None
    reply_to: str = ""
    agreed: bool = False
    capacity: int = 1
    items_in_work: int = 0
    transport: Transport = "cpu"
    silent_for: float = float("inf")
    last_sign: float | None = None
    announced: float = 0.0
    load: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    waits: set[Wait] = field(default_factory=set)
    look_now: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def encoder_id(self) -> str | None:
        """The id of the process behind the URL, as last heard."""
        return None if self.info is None else self.info.service_id

    def alive(self) -> None:
        """A sign of life arrived."""
        self.silent_for = 0.0
        self.last_sign = time.monotonic()

    @contextlib.contextmanager
    def asked(self, wait: Wait) -> Iterator[None]:
        """Inside it, ``wait`` is failed as soon as the encoder is known to be gone."""
        self.waits.add(wait)
        try:
            yield
        finally:
            self.waits.discard(wait)

    def abandon(self, error: EpdError) -> None:
        """Fails all attempts that it has in work."""
        for wait in tuple(self.waits):
            wait.fail(error)

    def view(self) -> EncoderView:
        """What the API shows."""
        info = self.info
        return EncoderView(
            url=self.url,
            encoder_id=self.encoder_id,
            source="configured" if self.configured else "registered",
            state=self.state.value,
            reason=self.reason,
            circuit=self.breaker.circuit.value,
            in_flight=self.load,
            items_in_work=self.items_in_work,
            max_items=self.capacity,
            transport=self.transport,
            silence=None if self.last_sign is None else round(time.monotonic() - self.last_sign, 3),
            failures=dict(self.failures),
            model=None if info is None else info.model,
            device=None if info is None else info.device,
            dtype=None if info is None else info.dtype,
        )


class Share:
    """The items of one request that go to one encoder together. They count as its load until the share is released, which
    ``released`` is told of."""

    def __init__(self, encoder: Encoder, released: Callable[[Share], None]) -> None:
        self.encoder = encoder
        self._tell = released
        self.sources: list[MediaSource] = []
        self.began = time.monotonic()
        self.breaker = encoder.breaker  # of the process that is asked, whoever is behind the URL when it ends
        self._probe = self.breaker.enter()
        self._released = False

    def add(self, source: MediaSource) -> None:
        self.sources.append(source)
        self.encoder.load += 1

    def release(self, ok: bool | None = None) -> None:
        """Ends it: well, badly, or in a way that says nothing about the encoder. Only the first call counts."""
        if self._released:
            return
        self._released = True
        self.encoder.load -= len(self.sources)
        self.breaker.leave(self._probe, ok)
        self._tell(self)

    def rest(self, there: Container[int]) -> list[MediaSource]:
        """The sources whose items are not ``there`` yet."""
        return [source for source in self.sources if source.index not in there]
