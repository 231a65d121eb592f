"""Server-sent events: framing, and the end of a stream."""

from __future__ import annotations

from pydantic import BaseModel

DONE = b"data: [DONE]\n\n"


def event(payload: BaseModel, exclude: set[str] | None = None) -> bytes:
    """One ``data:`` event; ``exclude`` names top-level fields to leave out."""
    return f"data: {payload.model_dump_json(exclude=exclude)}\n\n".encode()
