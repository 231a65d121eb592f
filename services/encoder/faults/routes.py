"""The control route of faults, which exists only where they are enabled."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel, SerializeAsAny
from starlette.exceptions import HTTPException

from services.encoder.faults.base import Fault
from services.encoder.faults.kinds import read_faults
from services.encoder.faults.registry import Faults
from shared.telemetry import get_logger

_log = get_logger("faults")


class SetFault(BaseModel):
    """A fault that is or was set, and how many times it has fired."""

    id: str
    fired: int
    fault: SerializeAsAny[Fault]


class SetFaults(BaseModel):
    """Faults in the order in which they happen."""

    faults: list[SetFault]


def install_fault_routes(routes: APIRouter, faults: Faults) -> None:
    """Adds ``/v1/faults`` to ``routes``, by which anyone who may call it can make the encoder fail."""
    _log.warning("FAULTS ARE ENABLED: anyone who may call /v1/faults can make this encoder fail; never do this in production")

    @routes.get("/v1/faults", summary="The faults that are set")
    async def listed() -> SetFaults:
        return _told(dict(faults.faults))

    @routes.post("/v1/faults", summary="Set a fault, or a list of them", status_code=201)
    async def add(request: Request) -> SetFaults:
        added = _told(faults.add(read_faults(await request.body())))
        _log.warning("faults set", faults=added.model_dump(mode="json")["faults"])
        return added

    @routes.delete("/v1/faults", summary="Clear all faults")
    async def clear() -> SetFaults:
        cleared = _told(await faults.clear())
        _log.warning("faults cleared", faults={fault.id: fault.fired for fault in cleared.faults})
        return cleared

    @routes.delete("/v1/faults/{fault_id}", summary="Clear one fault")
    async def remove(fault_id: str) -> SetFaults:
        try:
            fault = await faults.remove(fault_id)
        except KeyError as error:
            raise HTTPException(404, f"No fault {fault_id!r} is set.") from error
        _log.warning("faults cleared", faults={fault_id: fault.fired})
        return _told({fault_id: fault})


def _told(faults: dict[str, Fault]) -> SetFaults:
    return SetFaults(faults=[SetFault(id=name, fired=fault.fired, fault=fault) for name, fault in faults.items()])
