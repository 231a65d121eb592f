"""The control route: faults are set, listed and cleared over HTTP, where they are enabled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import structlog
from fastapi import FastAPI

from services.encoder.faults.registry import Faults
from services.encoder.faults.routes import install_fault_routes
from services.encoder.settings import EncoderSettings
from shared.errors import EncoderUnavailable
from shared.http import install
from shared.lifecycle import Drain
from shared.telemetry import Metrics
from tests.unit.faults.calls import call, sent_by

EXAMPLES: list[dict[str, Any]] = [
    {"kind": "crash", "at": "fetch"},
    {"kind": "crash", "at": "hash"},
    {"kind": "crash", "at": "publish"},
    {"kind": "hang", "at": "fetch"},
    {"kind": "hang", "at": "admit", "seconds": 3},
    {"kind": "delay", "seconds": 0.5, "jitter": 0.1, "at": "publish"},
    {"kind": "error", "status": 502},
    {"kind": "overload", "retry_after": 3},
    {"kind": "drop", "probability": 0.1, "seed": 7},
    {"kind": "partial", "k": 1},
    {"kind": "duplicate", "times": 3},
    {"kind": "reorder", "count": 5},
    {"kind": "late", "seconds": 2},
    {"kind": "slow_drip", "seconds": 0.2},
    {"kind": "corrupt", "bits": 8, "frame": 1},
    {"kind": "wrong_shape", "match": {"modality": "image"}},
    {"kind": "wrong_tokens", "delta": -1},
    {"kind": "nan", "value": "inf"},
    {"kind": "wrong_dtype", "dtype": "int32"},
    {"kind": "wrong_fingerprint", "match": {"headers": {"x-request-id": "victim*"}}},
]


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
async def client(faults: Faults) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    install(app, Metrics(), 2**20, Drain(1.0, lambda: EncoderUnavailable("ending")))
    with structlog.testing.capture_logs() as logs:
        install_fault_routes(app.router, faults)
    assert [(line["log_level"], "FAULTS ARE ENABLED" in line["event"]) for line in logs] == [("warning", True)]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://encoder") as client:
        yield client


def test_faults_are_off_by_default() -> None:
    assert EncoderSettings(_env_file=None).faults_enabled is False


async def test_a_list_of_every_kind_is_set_and_told_in_order(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/faults", json=EXAMPLES)
    assert response.status_code == 201
    told = response.json()["faults"]
    assert [entry["id"] for entry in told] == [f"fault-{number}" for number in range(1, len(EXAMPLES) + 1)]
    for example, entry in zip(EXAMPLES, told, strict=True):
        fault = entry["fault"]
        match = {"modality": None, "headers": {}} | example.get("match", {})
        at = {"at": "hashed"} if example.get("at") == "hash" else {}
        assert fault == fault | example | {"match": match} | at
        assert entry["fired"] == 0
    assert (await client.get("/v1/faults")).json() == response.json()
    # What is told can be set again.
    assert (await client.post("/v1/faults", json=[entry["fault"] for entry in told])).status_code == 201


async def test_firing_is_told_and_clearing_ends_it(client: httpx.AsyncClient, faults: Faults) -> None:
    told = [(await client.post("/v1/faults", json={"kind": kind})).json() for kind in ("duplicate", "wrong_shape")]
    ids = [answer["faults"][0]["id"] for answer in told]
    assert len((await sent_by(faults, call())).items) == 2
    assert [entry["fired"] for entry in (await client.get("/v1/faults")).json()["faults"]] == [1, 2]
    removed = (await client.delete(f"/v1/faults/{ids[0]}")).json()["faults"]
    assert [(entry["id"], entry["fired"]) for entry in removed] == [(ids[0], 1)]
    cleared = (await client.delete("/v1/faults")).json()["faults"]
    assert [(entry["id"], entry["fired"]) for entry in cleared] == [(ids[1], 2)]
    assert (await client.get("/v1/faults")).json() == {"faults": []}
    assert (await client.delete("/v1/faults")).json() == {"faults": []}


async def test_an_unknown_id_is_not_found(client: httpx.AsyncClient) -> None:
    response = await client.delete("/v1/faults/fault-9")
    assert response.status_code == 404
    assert "fault-9" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "not JSON"),
        (b"7", "body"),
        (b"{}", "kind"),
        (b'{"kind": "meteor"}', "meteor"),
        (b'{"kind": "late"}', "late.seconds"),
        (b'{"kind": "late", "seconds": -1}', "late.seconds"),
        (b'{"kind": "late", "seconds": NaN}', "not JSON"),
        (b'{"kind": "crash", "at": "lunch"}', "crash.at"),
        (b'{"kind": "drop", "probability": 1.5}', "drop.probability"),
        (b'{"kind": "drop", "times": 2}', "drop.times"),
        (b'{"kind": "drop", "match": {"colour": "red"}}', "drop.match.colour"),
        (b'[{"kind": "drop"}, {"kind": "meteor"}]', "meteor"),
    ],
)
async def test_an_invalid_fault_is_refused_and_nothing_is_set(
    client: httpx.AsyncClient, faults: Faults, body: bytes, told: str
) -> None:
    response = await client.post("/v1/faults", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_request"
    assert told in response.json()["error"]["message"]
    assert not faults.faults


async def test_the_description_of_the_service_tells_the_route(client: httpx.AsyncClient) -> None:
    assert "/v1/faults" in (await client.get("/openapi.json")).json()["paths"]
