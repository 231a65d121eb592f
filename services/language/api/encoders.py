"""The encoders behind this service: shown to whoever operates it, and the place where they register."""

from __future__ import annotations

import secrets

from fastapi import FastAPI, Request

from services.language.embeddings.encoder import EncoderList
from services.language.embeddings.pool import EncoderPool
from shared.control import Registration
from shared.errors import InvalidRequest
from shared.http import ERROR_RESPONSES


def install_encoder_routes(app: FastAPI, token: str | None) -> None:
    """Adds ``/v1/encoders`` to ``app``, whose ``state.pool`` is an ``EncoderPool`` once it is up.

    ``token`` is what an encoder must bring to register; empty for nothing, None where nobody may.
    """

    @app.get("/v1/encoders", summary="State, load, last sign of life and failures of each encoder")
    async def encoders() -> EncoderList:
        pool: EncoderPool = app.state.pool
        return EncoderList(data=pool.describe())

    @app.post(
        "/v1/encoders", summary="Register an encoder; it says so again every second", responses={400: ERROR_RESPONSES[400]}
    )
    async def register(registration: Registration, request: Request) -> dict[str, str]:
        check_token(request, token)
        pool: EncoderPool = app.state.pool
        pool.register(registration)
        return {"status": "registered"}


def check_token(request: Request, token: str | None) -> None:
    """Lets pass who knows the token.

    Raises:
        InvalidRequest: it is missing or wrong, or registration is closed.
    """
    if token is None:
        raise InvalidRequest(
            "Registration is closed: give both services the same EPD_SECRET_FILE, or set EPD_OPEN_REGISTRATION.",
            param="authorization",
        )
    brought = request.headers.get("authorization", "").removeprefix("Bearer ")
    if token and not secrets.compare_digest(brought.encode(), token.encode()):
        raise InvalidRequest("The token does not fit: the services have different secrets.", param="authorization")
