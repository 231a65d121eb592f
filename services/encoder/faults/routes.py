"""The control route of faults, which exists only where they are enabled."""

from __future__ import annotations

from inspect import getdoc
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, SerializeAsAny, WithJsonSchema
from starlette.exceptions import HTTPException

from services.encoder.faults.base import Fault
from services.encoder.faults.kinds import KINDS, read_faults
from services.encoder.faults.registry import Faults
from shared.errors import InvalidRequest
from shared.http import schema_ref
from shared.openapi import failures, json_body, unknown
from shared.telemetry import get_logger

_log = get_logger("faults")

_ONE = {"oneOf": [schema_ref(kind) for kind in KINDS]}
"""The schema of a fault; ``component_schemas`` describes the kinds."""


class SetFault(BaseModel):
    """A fault that is or was set, and how many times it has fired."""

    id: str
    fired: int
    fault: Annotated[SerializeAsAny[Fault], WithJsonSchema(_ONE)]


class SetFaults(BaseModel):
    """Faults in the order in which they happen."""

    faults: list[SetFault]


class FaultKind(BaseModel):
    """A kind of faults: what it does, and the JSON schema of its parameters."""

    kind: str
    description: str
    parameters: dict[str, Any]


class FaultKinds(BaseModel):
    """All kinds that there are."""

    kinds: list[FaultKind]


def install_fault_routes(routes: APIRouter, faults: Faults) -> None:
    """Adds ``/v1/faults`` to ``routes``, by which anyone who may call it can make the encoder fail."""
    _log.warning("FAULTS ARE ENABLED: anyone who may call /v1/faults can make this encoder fail; never do this in production")

    @routes.get("/v1/faults", tags=["faults"], summary="The faults that are set")
    async def listed() -> SetFaults:
        return _told(dict(faults.faults))

    @routes.get("/v1/faults/kinds", tags=["faults"], summary="The kinds of faults, with their parameters")
    async def kinds() -> FaultKinds:
        return FaultKinds(kinds=[_described(kind) for kind in KINDS])

    @routes.post(
        "/v1/faults",
        tags=["faults"],
        summary="Set a fault, or a list of them",
        status_code=201,
        responses=failures(InvalidRequest, invalid_request="kind: Input tag 'crush' does not match any of the expected tags"),
        openapi_extra=json_body(
            {"anyOf": [_ONE, {"type": "array", "items": _ONE}]},
            slow_fetches={"kind": "delay", "at": "fetch", "seconds": 0.5},
            one_crash={"kind": "crash", "count": 1},
        ),
    )
    async def add(request: Request) -> SetFaults:
        added = _told(faults.add(read_faults(await request.body())))
        _log.warning("faults set", faults=added.model_dump(mode="json")["faults"])
        return added

    @routes.delete("/v1/faults", tags=["faults"], summary="Clear all faults")
    async def clear() -> SetFaults:
        cleared = _told(await faults.clear())
        _log.warning("faults cleared", faults={fault.id: fault.fired for fault in cleared.faults})
        return cleared

    @routes.delete(
        "/v1/faults/{fault_id}",
        tags=["faults"],
        summary="Clear one fault",
        responses=unknown("No fault 'fault-7' is set."),
    )
    async def remove(fault_id: str) -> SetFaults:
        try:
            fault = await faults.remove(fault_id)
        except KeyError as error:
            raise HTTPException(404, f"No fault {fault_id!r} is set.") from error
        _log.warning("faults cleared", faults={fault_id: fault.fired})
        return _told({fault_id: fault})


def _told(faults: dict[str, Fault]) -> SetFaults:
    return SetFaults(faults=[SetFault(id=name, fired=fault.fired, fault=fault) for name, fault in faults.items()])


def _described(kind: type[Fault]) -> FaultKind:
    schema = kind.model_json_schema()
    return FaultKind(kind=kind.model_fields["kind"].default, description=getdoc(kind) or "", parameters=schema)
