"""The one model that is served, as OpenAI's list of models and as one of it."""

from __future__ import annotations

import time

from fastapi import FastAPI

from services.language.api.answer import Chat
from services.language.api.body import check_model
from services.language.api.schemas import ModelCard, ModelList
from shared.errors import ModelNotFound
from shared.openapi import failures


def install_model_routes(app: FastAPI, model_name: str) -> None:
    """Adds ``/v1/models`` to ``app``, whose ``state.chat`` is a ``Chat`` once it is up."""
    created = int(time.time())

    def card() -> ModelCard:
        chat: Chat = app.state.chat
        return ModelCard(id=model_name, created=created, max_model_len=chat.context_length)

    @app.get("/v1/models", tags=["models"], summary="The served model")
    async def models() -> ModelList:
        return ModelList(data=[card()])

    # A path, since names of the model hub have a slash.
    @app.get("/v1/models/{name:path}", tags=["models"], summary="One model", responses=failures(ModelNotFound))
    async def model(name: str) -> ModelCard:
        check_model(name, model_name)
        return card()
