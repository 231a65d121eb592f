"""Clients of the pair, none of which talks to anybody else."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openai
import pytest

from tests.conftest import Pair
from tests.processes import ROOT

# Read by LiteLLM and LangSmith when they are imported: no list of prices is downloaded, nothing is traced.
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "DO_NOT_TRACK": "1"}

SCENE = (ROOT / "examples" / "scene.png").read_bytes()
SCENE_BASE64 = base64.b64encode(SCENE).decode()


@pytest.fixture(scope="session")
def base_url(pair: Pair) -> str:
    return f"{pair.language.url}/v1"


@pytest.fixture(scope="session")
def sdk(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
async def async_sdk(base_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


class _Gallery(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "image/png")
        self.send_header("content-length", str(len(SCENE)))
        self.end_headers()
        self.wfile.write(SCENE)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="session")
def picture_url() -> Iterator[str]:
    """Where the scene is, on a server of its own."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Gallery) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/scene.png"
        server.shutdown()
