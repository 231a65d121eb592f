"""All kinds of faults, and reading them from JSON."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from services.encoder.faults.answers import Error, Overload
from services.encoder.faults.base import Fault
from services.encoder.faults.contents import Corrupt, NotFinite, WrongDtype, WrongFingerprint, WrongShape, WrongTokens
from services.encoder.faults.delivery import Drop, Duplicate, Late, Partial, Reorder, SlowDrip
from services.encoder.faults.stages import Crash, Delay, Hang
from shared.errors import InvalidRequest, from_validation

KINDS: tuple[type[Fault], ...] = (
    Crash,
    Hang,
    Delay,
    Error,
    Overload,
    Drop,
    Partial,
    Duplicate,
    Reorder,
    Late,
    SlowDrip,
    Corrupt,
    WrongShape,
    WrongTokens,
    NotFinite,
    WrongDtype,
    WrongFingerprint,
)
"""The one place where a new kind is added."""

_ANY: Any = reduce(or_, KINDS)
_FAULT: TypeAdapter[Fault] = TypeAdapter(Annotated[_ANY, Field(discriminator="kind")])


def read_faults(body: bytes) -> list[Fault]:
    """The faults that a JSON body describes: one object, or a list of them.

    Raises:
        InvalidRequest: it is no JSON, or a fault in it has no such kind or parameter.
    """
    try:
        entries = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"The body is not JSON: {error}.") from error
    try:
        return [_FAULT.validate_python(entry) for entry in (entries if isinstance(entries, list) else [entries])]
    except ValidationError as error:
        raise from_validation(error.errors()) from error
