"""Faults in what a call is answered with, before anything is done for it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from services.encoder.faults.base import Call, Fault, Stage
from shared.control import EncodeItem
from shared.errors import EncoderOverloaded, EpdError, InternalError, InvalidRequest


class Error(Fault):
    """The call is answered with the HTTP status ``status``. Rolls once a call.

    The code is ``internal_error`` from 500 on and ``invalid_request`` below, and no part of the request is blamed.
    """

    kind: Literal["error"] = "error"
    status: int = Field(500, ge=400, le=599)

    async def reach(self, stage: Stage, call: Call, item: EncodeItem | None) -> None:  # noqa: ARG002
        if stage is Stage.ADMIT and self.fires_for(call):
            raise failure_with(self.status)


class Overload(Fault):
    """The call is refused as for load, with ``retry_after`` in seconds. Rolls once a call."""

    kind: Literal["overload"] = "overload"
    retry_after: float = Field(1.0, ge=0, le=3600)

    async def reach(self, stage: Stage, call: Call, item: EncodeItem | None) -> None:  # noqa: ARG002
        if stage is Stage.ADMIT and self.fires_for(call):
            raise EncoderOverloaded("A fault makes the encoder refuse for load.", retry_after=self.retry_after)


def failure_with(status: int) -> EpdError:
    """A failure that is answered with any HTTP status, which otherwise belongs to an error's class."""
    base: type[EpdError] = InternalError if status >= 500 else InvalidRequest
    kind: type[EpdError] = type("OrderedError", (base,), {"status": status})
    # Every 503 says when to try again.
    return kind(f"A fault makes the encoder answer {status}.", retry_after=1.0 if status == 503 else None)
