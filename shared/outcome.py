"""What a request failed with, left in its scope: for the metrics, and for whoever is told of failures."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Scope

from shared.errors import EpdError


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that failed. ``route`` is the pattern that its path fits, so that nothing of the path itself is kept;
    ``encoder`` and ``encoder_id`` are those of the encoder that it failed for; ``streamed`` says that the answer had begun,
    with status 200."""

    code: str
    status: int
    param: str | None
    message: str
    encoder: str | None
    encoder_id: str | None
    request_id: str = ""
    method: str = ""
    route: str = ""
    streamed: bool = False


def failed(scope: Scope, error: EpdError, status: int | None = None) -> None:
    """Leaves in ``scope`` what a request failed with, for the metrics and for whoever is told of failures. ``status`` is that
    of the answer, where it is not the error's own."""
    scope["epd_code"] = error.code
    scope["epd_failure"] = Failure(
        code=error.code,
        status=status or error.status,
        param=error.param,
        message=error.message,
        encoder=error.encoder,
        encoder_id=error.encoder_id,
    )


def ignore(failure: Failure) -> None:
    """Nobody wants to know."""
