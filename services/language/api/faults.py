"""The faults of the encoders, through this service: only where both allow it, for the console and for tests."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from services.language.embeddings.faults import EncoderFaults, NotThere
from shared.errors import EncoderFailed, InvalidRequest
from shared.openapi import failures, json_body, unknown
from shared.telemetry import get_logger

_log = get_logger("faults")

_PATH = "/v1/encoders/{encoder_id}/faults"


def install_fault_routes(app: FastAPI) -> None:
    """Adds the fault routes to ``app``, whose ``state.faults`` is an ``EncoderFaults`` once it is up."""
    _log.warning("FAULTS ARE ENABLED: anyone who may call this service can make its encoders fail; never do this in production")
    failing = failures(InvalidRequest, EncoderFailed) | unknown("No encoder 'encoder-1a2b3c4d' is known.")
    about: dict[str, Any] = {"tags": ["faults"], "responses": failing, "response_class": JSONResponse}

    def faults() -> EncoderFaults:
        found: EncoderFaults = app.state.faults
        return found

    @app.get(f"{_PATH}/kinds", summary="The kinds of faults that an encoder has, with their parameters", **about)
    async def kinds(encoder_id: str) -> JSONResponse:
        return JSONResponse(await faults().call(encoder_id, "GET", "/kinds"))

    @app.get(_PATH, summary="The faults that are set in an encoder", **about)
    async def listed(encoder_id: str) -> JSONResponse:
        return JSONResponse(await faults().call(encoder_id, "GET"))

    @app.post(
        _PATH,
        summary="Set a fault, or a list of them",
        status_code=201,
        openapi_extra=json_body({"type": ["object", "array"]}, a_delay={"kind": "delay", "at": "fetch", "seconds": 0.5}),
        **about,
    )
    async def add(encoder_id: str, request: Request) -> JSONResponse:
        # A page of another origin may send other types without being asked, and must not make encoders fail.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise InvalidRequest("The content-type must be application/json.", param="content-type")
        return JSONResponse(await faults().call(encoder_id, "POST", body=await request.body()), status_code=201)

    @app.delete(_PATH, summary="Clear all faults of an encoder", **about)
    async def clear(encoder_id: str) -> JSONResponse:
        return JSONResponse(await faults().call(encoder_id, "DELETE"))

    @app.delete(f"{_PATH}/{{fault_id}}", summary="Clear one fault of an encoder", **about)
    async def remove(encoder_id: str, fault_id: str) -> JSONResponse:
        if fault_id in (".", ".."):  # quoted or not, these lead to other paths
            raise NotThere(f"No fault {fault_id!r} is set.")
        return JSONResponse(await faults().call(encoder_id, "DELETE", f"/{quote(fault_id, safe='')}"))
