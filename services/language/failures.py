"""The failures of the API since the service's start: how many of each code, and the last ones."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable

from pydantic import BaseModel

from shared.errors import ERRORS, ClientError, InvalidApiKey
from shared.outcome import Failure

KEPT = 100
_MAX_TEXT = 500

_CLIENTS = "/v1/"
# Encoders register there, once a second each, whether or not they are let in; and their faults are set there.
_OPERATION = "/v1/encoders"


class FailureView(BaseModel):
    """One failure. ``time`` is in seconds since 1970; ``message`` is null where the request was at fault, since it may quote
    what only the client is to see; ``streamed`` says that the answer had begun with status 200 and ended with the failure."""

    time: float
    code: str
    status: int
    method: str
    path: str
    request_id: str
    param: str | None
    message: str | None
    encoder: str | None
    encoder_id: str | None
    streamed: bool


class FailureList(BaseModel):
    """The answer of ``GET /v1/failures``: ``counts`` by code ``since`` the service's start, and the last 100, newest first."""

    object: str = "list"
    since: float
    counts: dict[str, int]
    data: list[FailureView]


class RecentFailures:
    """Remembers failures of what clients ask for, below ``/v1/``.

    Calls without a valid API key are only counted: strangers could push everything else out. ``clock`` tells the time in
    seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._since = clock()
        self._counts: Counter[str] = Counter()
        self._last: deque[FailureView] = deque(maxlen=KEPT)

    def add(self, failure: Failure) -> None:
        """A request failed."""
        kind = ERRORS[failure.code]
        if issubclass(kind, InvalidApiKey):
            self._counts[failure.code] += 1
            return
        if not failure.route.startswith(_CLIENTS) or failure.route.startswith(_OPERATION):
            return
        self._counts[failure.code] += 1
        self._last.appendleft(
            FailureView(
                time=self._clock(),
                code=failure.code,
                status=failure.status,
                method=failure.method,
                path=failure.route,
                request_id=failure.request_id,
                param=None if failure.param is None else failure.param[:_MAX_TEXT],
                message=None if issubclass(kind, ClientError) else failure.message[:_MAX_TEXT],
                encoder=failure.encoder,
                encoder_id=failure.encoder_id,
                streamed=failure.streamed,
            )
        )

    def view(self) -> FailureList:
        """What the API shows."""
        return FailureList(since=self._since, counts=dict(self._counts), data=list(self._last))
