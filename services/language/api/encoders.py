"""The encoders behind this service: shown to whoever operates it, and the place where they register."""

from __future__ import annotations

from fastapi import FastAPI, Request

from services.language.embeddings.encoder import EncoderList
from services.language.embeddings.pool import EncoderPool
from shared.control import Registered, Registration
from shared.errors import InvalidRequest
from shared.guard import guarded
from shared.openapi import failures
from shared.seam import Seam


def install_encoder_routes(app: FastAPI, seam: Seam) -> None:
    """Adds ``/v1/encoders`` to ``app``, whose ``state.pool`` is an ``EncoderPool`` once it is up."""

    def check(request: Request) -> None:
        if seam.closed:
            raise InvalidRequest(
                "Registration is closed: give both services the same EPD_SECRET_FILE, or set EPD_PLAIN_SEAM.",
                param="authorization",
            )
        seam.check_token(request.headers.get("authorization"))

    control = guarded(check)

    @app.get("/v1/encoders", tags=["encoders"], summary="State, load, last sign of life and failures of each encoder")
    async def encoders() -> EncoderList:
        pool: EncoderPool = app.state.pool
        return EncoderList(data=pool.describe())

    @control.post(
        "/v1/encoders",
        tags=["encoders"],
        summary="Register an encoder; it says so again and again",
        responses=failures(InvalidRequest, invalid_request="The encoder at http://encoder:8001 is refused: another model."),
    )
    async def register(registration: Registration) -> Registered:
        pool: EncoderPool = app.state.pool
        return Registered(again=pool.register(registration))

    app.include_router(control)
