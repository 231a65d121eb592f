"""What a load test has seen: the one thing that is recorded, judged and reported. Nothing here knows how it came about.

All times are seconds since the load began, on one clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from services.loadtest.scenario import Scenario


class Kind(StrEnum):
    """What a request asks about."""

    TEXT = "text"
    IMAGE = "image"
    IMAGES = "images"
    REPEATED = "repeated"
    HUGE = "huge"
    BROKEN = "broken"


class End(StrEnum):
    """How a request ended, as its client saw it."""

    ANSWERED = "answered"
    """One whole HTTP answer, of whatever status; a stream that ended as it should, or with an error event."""
    UNANSWERED = "unanswered"
    """The client gave up waiting."""
    BROKEN = "broken"
    """The connection failed, or the answer broke off or was none."""
    HUNG_UP = "hung_up"
    """The client left, as the scenario wanted it; no answer is due."""


@dataclass(frozen=True, slots=True)
class Record:
    """One request. ``id`` is what was sent as ``x-request-id``, ``due`` when the schedule wanted it sent.

    ``code`` is ``ok`` for a 200, else the error object's code, or empty where there is none; for a stream that ended with an
    error event it is that error's, and ``status`` 200. ``fresh`` says that all pictures were new ones, so that no cache can
    have known them. ``right`` is None where the answer was not judged; ``said`` and ``expected`` are kept only of wrong ones.
    """

    id: str
    kind: Kind
    streamed: bool
    fresh: bool
    deadline: float
    due: float
    sent: float
    first: float | None
    """When the first token came; of what is not streamed, the answer."""
    ended: float
    end: End
    status: int
    code: str
    retry_after: float | None = None
    answered_id: str = ""
    """The answer's ``x-request-id``, to look up in the logs."""
    detail: str = ""
    """What went wrong, in words: the error's message, or the client's."""
    right: bool | None = None
    said: str = ""
    expected: str = ""

    @property
    def seconds(self) -> float:
        """From sending to the end of the answer."""
        return self.ended - self.sent

    @property
    def ok(self) -> bool:
        """Whether it was answered as it should be in the best case: a whole 200, or for a broken picture the client's error."""
        if self.end is not End.ANSWERED:
            return False
        return self.status == 400 if self.kind is Kind.BROKEN else self.code == "ok"


@dataclass(slots=True)
class Fault:
    """One thing that was done to the deployment, from when it was ordered to when what it hit was well again.

    ``ordered`` ≤ ``applied`` (in effect from here on) ≤ ``lifting`` (its end was ordered) ≤ ``cleared`` (in effect no more, and
    what it hit says itself that it is up). Those that did not come are None.
    """

    line: str
    """As the scenario has it, without the time."""
    action: str
    targets: tuple[str, ...]
    disabling: bool
    """Whether its targets can compute nothing while it lasts."""
    ordered: float
    applied: float | None = None
    lifting: float | None = None
    cleared: float | None = None
    error: str = ""
    """Why it could not be done."""

    @property
    def of_encoders(self) -> bool:
        """Whether it was done to encoders, and not only to the language service, or by the load itself."""
        return any(target != "language" for target in self.targets)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the deployment said of itself at one moment. What it does not say is None."""

    at: float
    queued: float | None
    """Requests that wait for embeddings or for the engine."""
    encoders_ready: float | None


@dataclass(frozen=True, slots=True)
class Generator:
    """How the load was made. ``cpu`` is the share of one core that the busiest generator process used."""

    processes: int
    cpu: float
    late_p99: float
    """Seconds that requests were sent later than they were due, 99th percentile."""
    skipped: int
    """Requests that were due and not sent, since too many were open."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """What the deployment still held a moment after the load's end, and what it is: such as waits that nobody waits for."""

    what: str
    value: float


@dataclass(frozen=True, slots=True)
class Run:
    """A whole load test. ``encoders`` are the names of all that the deployment has; none where the tool cannot know."""

    scenario: Scenario
    target: str
    model: str
    began: str
    """Date and time in UTC, ISO 8601."""
    seconds: float
    semantics: bool
    encoders: tuple[str, ...]
    records: list[Record] = field(repr=False)
    faults: list[Fault] = field(repr=False)
    samples: list[Sample] = field(repr=False)
    generator: Generator
    leftovers: list[Leftover] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What a reader should know about this run, such as settings of the machine."""
