"""The encoder's routes while it is not up, and those that need no model."""

from __future__ import annotations

from typing import cast

import httpx
import pytest
from fastapi import FastAPI

from services.encoder.app import Parts, create_app
from services.encoder.faults.registry import Faults
from services.encoder.heart import Heart
from services.encoder.pipeline import Pipeline
from services.encoder.publisher import Publisher
from services.encoder.settings import EncoderSettings
from shared.control import EncoderState, EncoderStatus, Offer, Transport
from shared.errors import ErrorBody
from tests.unit.test_announcer import INFO

SUBSCRIPTION = {"reply_to": "tcp://127.0.0.1:1", "interval": 1, "lease": 2}


async def ask(app: FastAPI, method: str, path: str, body: object = None) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://encoder") as client:
        return await client.request(method, path, json=body)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("GET", "/ready", None), ("GET", "/v1/info", None), ("POST", "/v1/subscribe", SUBSCRIPTION), ("POST", "/encode", {})],
)
@pytest.mark.parametrize("state", ["starting", "draining"])
async def test_an_encoder_that_is_not_up_says_so(method: str, path: str, body: object, state: str) -> None:
    app = create_app(EncoderSettings())
    if state == "draining":
        app.state.drain.begin()
    response = await ask(app, method, path, body)
    assert response.status_code == 503
    assert ErrorBody.model_validate_json(response.content).error.code == "encoder_unavailable"
    assert int(response.headers["retry-after"]) >= 1


class Idle:
    """Stands for the pipeline and its carriers."""

    items_in_work = 3
    batch_seconds = 0.0

    def agree(self, endpoint: str, offer: Offer | None) -> Transport:
        return "shm"

    def forget(self, endpoint: str) -> None:
        pass


async def test_a_subscriber_learns_what_the_encoder_is_and_how_it_is() -> None:
    settings = EncoderSettings.model_validate({"max_items": 9})
    app, publisher, faults, idle = create_app(settings), Publisher(), Faults(), Idle()
    heart = Heart(settings, "encoder-1", idle, publisher, faults, idle)
    app.state.parts = Parts(INFO, cast(Pipeline, idle), heart)
    for state in (EncoderState.READY, EncoderState.DRAINING):
        heart.announce(state)
        response = await ask(app, "POST", "/v1/subscribe", SUBSCRIPTION)
        expected = EncoderStatus(info=INFO, state=state, items_in_work=3, max_items=9, transport="shm")
        assert EncoderStatus.model_validate_json(response.content) == expected
    for wrong in ({"reply_to": "tcp://0.0.0.0:1"}, {"interval": 0}, {"interval": 0.009}, {"lease": 601}, {"more": 1}):
        refused = await ask(app, "POST", "/v1/subscribe", SUBSCRIPTION | wrong)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")
    heart.stop()
    publisher.close()


async def test_a_tower_that_hangs_is_not_ready_though_nobody_subscribed() -> None:
    settings = EncoderSettings()
    app, publisher, idle = create_app(settings), Publisher(), Idle()
    app.state.parts = Parts(INFO, cast(Pipeline, idle), Heart(settings, "encoder-1", idle, publisher, Faults(), idle))
    assert (await ask(app, "GET", "/ready")).status_code == 200
    idle.batch_seconds = settings.stall_timeout + 1
    assert (await ask(app, "GET", "/ready")).status_code == 503
    publisher.close()
