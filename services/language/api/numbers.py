"""Bodies whose bulk is text or token ids, under whatever name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from pydantic import BaseModel

from services.language.api.body import of_schema
from shared.errors import ClientError, InvalidRequest

M = TypeVar("M", bound=BaseModel)


def validate_numbers(raw: bytes, schema: type[M], field: str, most: int) -> M:
    """What is in a body by ``schema``, whose ``field`` may hold ``most`` token ids. They are many values for JSON, but numbers
    in a row take little time.

    Raises:
        InvalidRequest: too many token ids or other values, not JSON, or not the schema.
    """
    found = re.search(rb'"%s"\s*:\s*\[[\d,\s\[\]]*\]' % field.encode(), raw)
    rest = raw
    if found is not None:
        values = found[0].count(b",") + found[0].count(b"[")
        if values > most:
            raise InvalidRequest(f"{field} has {values} values; at most {most} are accepted.", param=field)
        rest = raw[: found.start()] + raw[found.end() :]
    return of_schema(raw, rest, schema)


@contextmanager
def blamed_on(param: str) -> Iterator[None]:
    """Inside it, what is wrong with a prompt is wrong with ``param``, whatever the name is that a chat request has for it."""
    try:
        yield
    except ClientError as error:
        if error.param in ("messages", "prompt_token_ids", "tokens"):
            error.param = param
        raise
