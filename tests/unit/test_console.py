"""The console's files: what is served, how, and that they ask nobody else for anything."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from services.language.access import install_keys
from services.language.console.routes import ConsoleSettings, assets, install_console
from shared.errors import ERRORS, EncoderUnavailable
from shared.http import install
from shared.lifecycle import Drain
from shared.telemetry import Metrics


def app_of(faults_enabled: bool = False) -> FastAPI:
    app = FastAPI()
    install_keys(app, ["secret"], "127.0.0.1")
    install(app, Metrics(), 2**20, Drain(1.0, lambda: EncoderUnavailable("ending")))
    install_console(app, ConsoleSettings(faults_enabled=faults_enabled, liveness_timeout=2.0))
    return app


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app_of()), base_url="http://language") as client:
        yield client


async def test_the_page_is_at_the_root_and_needs_no_key(client: httpx.AsyncClient) -> None:
    page = await client.get("/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "EPD console" in page.text
    for reference in re.findall(r'(?:src|href)="(/[^"]+)"', page.text):
        assert (await client.get(reference)).status_code == 200, reference


async def test_browsers_are_told_to_run_and_ask_nothing_else(client: httpx.AsyncClient) -> None:
    for path in ("/", "/console/main.js"):
        headers = (await client.get(path)).headers
        rules = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
        assert rules["default-src"] == "'self'"
        assert rules["img-src"] == "'self' data: blob:"
        assert rules["frame-ancestors"] == rules["base-uri"] == rules["object-src"] == "'none'"
        assert "script-src" not in rules
        assert headers["x-content-type-options"] == "nosniff"


async def test_a_file_that_a_browser_has_is_not_sent_again(client: httpx.AsyncClient) -> None:
    first = await client.get("/console/main.js")
    assert first.headers["cache-control"] == "no-cache"
    again = await client.get("/console/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
    other = await client.get("/console/main.js", headers={"if-none-match": '"other"'})
    assert (other.status_code, other.content) == (200, first.content)


@pytest.mark.parametrize("name", ["none.js", "..%2Froutes.py", "%2e%2e%2froutes.py", "routes.py", "__init__.py"])
async def test_nothing_else_is_served(client: httpx.AsyncClient, name: str) -> None:
    assert (await client.get(f"/console/{name}")).status_code == 404


@pytest.mark.parametrize("enabled", [False, True])
async def test_the_page_learns_whether_there_are_faults(enabled: bool) -> None:
    transport = httpx.ASGITransport(app_of(enabled))
    async with httpx.AsyncClient(transport=transport, base_url="http://language") as client:
        assert (await client.get("/console/settings")).json() == {"faults_enabled": enabled, "liveness_timeout": 2.0}


def test_no_file_names_another_host_or_makes_markup_of_text() -> None:
    forbidden = re.compile(
        rb"https?://(?!www\.w3\.org/2000/svg)|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b"
    )
    for name, asset in assets().items():
        assert forbidden.search(asset.content) is None, name
    page = assets()["index.html"].content.decode()
    assert re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", page) is None


def test_every_module_that_is_imported_is_there() -> None:
    files = assets()
    for name, asset in files.items():
        for imported in re.findall(rb'from "\./([^"]+)"', asset.content):
            assert imported.decode() in files, f"{name} imports {imported.decode()}"


def test_every_code_is_explained() -> None:
    told = set(re.findall(r"^  (\w+): \"", assets()["codes.js"].content.decode(), re.MULTILINE))
    assert set(ERRORS) <= told
