"""Faults of encoders through the language service: passed on to those that are known, and allow it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import httpx
import pytest
import structlog
import uvicorn
from fastapi import FastAPI

from services.encoder.faults.kinds import KINDS
from services.encoder.faults.registry import Faults
from services.encoder.faults.routes import install_fault_routes as install_encoder_faults
from services.language.api.faults import install_fault_routes
from services.language.embeddings.breaker import Breaker
from services.language.embeddings.dispatch import open_client
from services.language.embeddings.encoder import Encoder, EncoderView
from services.language.embeddings.faults import EncoderFaults
from shared.control import ServiceInfo
from shared.errors import EncoderUnavailable
from shared.guard import guarded
from shared.http import install
from shared.lifecycle import Drain
from shared.seam import LOOPBACK, Seam, keys_of
from shared.telemetry import Metrics
from tests.processes import free_port

SEAM = Seam(keys_of(b"a secret of the deployment, 32 b."))
INFO: dict[str, Any] = {
    "service": "encoder", "version": "1", "wire_version": 1, "model": "m", "model_type": "m", "model_fingerprint": "f",
    "device": "cpu", "dtype": "float32", "parameters": {}, "parameters_total": 0,
}  # fmt: skip


class Known:
    """Stands for the pool: encoders by id."""

    def __init__(self, **urls: str) -> None:
        self._encoders = [
            Encoder(url, Breaker(5, 1.0), info=ServiceInfo(service_id=name, **INFO)) for name, url in urls.items()
        ] + [Encoder("http://127.0.0.1:1", Breaker(5, 1.0))]

    def describe(self) -> list[EncoderView]:
        return [encoder.view() for encoder in self._encoders]


def app_with(seam: Seam, faults: bool) -> FastAPI:
    """An encoder's control routes, without the encoder."""
    app = FastAPI()
    install(app, Metrics(), 2**20, Drain(1.0, lambda: EncoderUnavailable("ending")))
    routes = guarded(lambda request: seam.check_token(request.headers.get("authorization")))
    if faults:
        install_encoder_faults(routes, Faults())
    app.include_router(routes)
    return app


@contextlib.asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=free_port(), log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    yield f"http://127.0.0.1:{server.config.port}"
    server.should_exit = True
    await serving


def language(session: aiohttp.ClientSession, known: Known) -> httpx.AsyncClient:
    app = FastAPI()
    install(app, Metrics(), 2**20, Drain(1.0, lambda: EncoderUnavailable("ending")))
    with structlog.testing.capture_logs() as logs:
        install_fault_routes(app)
    assert "FAULTS ARE ENABLED" in logs[0]["event"]
    app.state.faults = EncoderFaults(session, known, timeout=2.0)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://language/v1/encoders", trust_env=False)


async def test_faults_are_set_listed_and_cleared() -> None:
    async with (
        served(app_with(SEAM, faults=True)) as url,
        open_client(SEAM) as session,
        language(session, Known(one=url)) as client,
    ):
        kinds = (await client.get("/one/faults/kinds")).json()["kinds"]
        assert [kind["kind"] for kind in kinds] == [kind.model_fields["kind"].default for kind in KINDS]
        delay = next(kind for kind in kinds if kind["kind"] == "delay")
        assert delay["parameters"]["required"] == ["seconds"]
        assert delay["description"].startswith("What reaches the stage goes on")
        added = await client.post("/one/faults", json=[{"kind": "delay", "seconds": 1}, {"kind": "drop"}])
        assert added.status_code == 201
        assert [entry["fault"]["kind"] for entry in added.json()["faults"]] == ["delay", "drop"]
        assert (await client.get("/one/faults")).json() == added.json()
        assert (await client.delete("/one/faults/fault-1")).json()["faults"][0]["id"] == "fault-1"
        assert [entry["id"] for entry in (await client.delete("/one/faults")).json()["faults"]] == ["fault-2"]
        assert (await client.get("/one/faults")).json() == {"faults": []}


async def test_what_is_wrong_is_said_by_whose_fault_it_is() -> None:
    async with (
        served(app_with(SEAM, faults=True)) as url,
        served(app_with(SEAM, faults=False)) as without,
        open_client(SEAM) as session,
        language(session, Known(one=url, without=without, gone="http://127.0.0.1:1")) as client,
    ):
        for method, path, body, status, words in (
            ("POST", "/one/faults", {"kind": "delay"}, 400, "seconds"),
            ("POST", "/one/faults", {"kind": "none"}, 400, "none"),
            ("DELETE", "/one/faults/fault-9", None, 404, "No fault 'fault-9' is set."),
            ("DELETE", "/one/faults/a%3Fb%23c", None, 404, "No fault 'a?b#c' is set."),
            ("DELETE", "/one/faults/%2E", None, 404, "No fault '.' is set."),
            ("DELETE", "/one/faults/%2E%2E", None, 404, "No fault '..' is set."),
            ("GET", "/two/faults", None, 404, "No encoder 'two' is known."),
            ("GET", "/None/faults", None, 404, "No encoder 'None' is known."),
            ("GET", "/without/faults", None, 404, "EPD_FAULTS_ENABLED"),
            ("GET", "/without/faults/kinds", None, 404, "EPD_FAULTS_ENABLED"),
            ("GET", "/gone/faults", None, 503, "cannot be reached"),
        ):
            answer = await client.request(method, path, json=body)
            assert (answer.status_code, words in answer.json()["error"]["message"]) == (status, True), answer.text


async def test_another_token_is_not_the_callers_fault() -> None:
    async with (
        served(app_with(SEAM, faults=True)) as url,
        open_client(LOOPBACK) as session,
        language(session, Known(one=url)) as client,
    ):
        answer = await client.get("/one/faults")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "encoder_failed")


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_pages_of_other_origins_set_nothing(media_type: str) -> None:
    async with (
        served(app_with(LOOPBACK, faults=True)) as url,
        open_client() as session,
        language(session, Known(one=url)) as client,
    ):
        headers = {"content-type": media_type} if media_type else {}
        answer = await client.post("/one/faults", content=b'{"kind": "crash"}', headers=headers)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "content-type")
        assert (await client.get("/one/faults")).json() == {"faults": []}
