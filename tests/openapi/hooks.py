"""What Schemathesis' requests are changed to, so that many get past the schema, none leaves this machine, and all end soon.

Three of four bodies are mended; the fourth goes as it was made, bounded only in what it costs. Loaded by Schemathesis itself.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Iterator
from typing import Any

import requests
import schemathesis

from tests.processes import DEMO_MODEL, ROOT

SINK = "EPD_TEST_SINK"
"""The variable that holds the endpoint which embeddings are sent to."""
INFO = "EPD_TEST_INFO"
"""The variable that holds what an encoder says of itself, as JSON."""

MODEL = DEMO_MODEL.name
PICTURE = "data:image/png;base64," + base64.b64encode((ROOT / "examples" / "scene.png").read_bytes()).decode()
NOWHERE = "http://127.0.0.1:9"
MAX_TOKENS = 8
MAX_ANSWERS = 2
MIN_SECONDS = 5.0
NEVER = {"headers": {"x-epd-never": "set"}}

_MEDIA = ("image_url", "video_url", "audio_url")


def mend(path: str, body: Any) -> None:
    """Changes a JSON body in place: what names things names those that are there."""
    if not isinstance(body, dict):
        return
    mended = _mostly(body)
    if path.endswith("/faults"):
        body["match"] = NEVER  # or the encoder would do as it is told, and crash
    elif path == "/v1/encoders":
        body["url"] = NOWHERE
        if mended:
            body["info"] = json.loads(os.environ[INFO])
    elif path in ("/encode", "/v1/subscribe"):
        body["reply_to"] = os.environ[SINK]
        if mended:
            _mend_call(body)
    else:
        _mend_question(body, mended)


def _mend_call(body: dict[str, Any]) -> None:
    if "curve" in body:
        body["curve"] = False
    for item in _dicts(body.get("items")):
        item |= {"modality": "image", "url": PICTURE, "part": None, "form": ""}
    if isinstance(body.get("timeout"), int | float):
        body["timeout"] = max(MIN_SECONDS, body["timeout"])


def _mend_question(body: dict[str, Any], mended: bool) -> None:
    _bound(body, "n", MAX_ANSWERS)
    limits = [name for name in ("max_tokens", "max_completion_tokens") if name in body]
    for name in limits or ["max_tokens"]:
        body.setdefault(name, MAX_TOKENS)
        _bound(body, name, MAX_TOKENS)
    if not mended:
        return
    body["model"] = MODEL
    for message in _dicts(body.get("messages")):
        for part in _dicts(message.get("content")):
            for kind in _MEDIA:
                if kind in part:
                    part.clear()
                    part |= {"type": "image_url", "image_url": {"url": PICTURE}}
                    break


def _bound(body: dict[str, Any], name: str, most: int) -> None:
    value = body.get(name)
    if (isinstance(value, int | float) and value > most) or (value is None and name in body):
        body[name] = most


def _mostly(value: Any) -> bool:
    """Says yes to three of four values, always the same."""
    return zlib.crc32(json.dumps(value, default=repr, sort_keys=True).encode()) % 4 != 0


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    return (each for each in value if isinstance(each, dict)) if isinstance(value, list) else iter(())


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    """Mends the body, and gives the request time."""
    if isinstance(case.body, list) and case.path.endswith("/faults"):
        for each in case.body:
            mend(case.path, each)
    mend(case.path, case.body)
    if "name" in case.path_parameters and _mostly(case.path_parameters):
        case.path_parameters["name"] = MODEL
    wished = case.headers.get("x-request-timeout")
    if wished is not None and _mostly(wished):
        case.headers["x-request-timeout"] = str(MIN_SECONDS)


@schemathesis.hook
def after_call(context: schemathesis.HookContext, case: schemathesis.Case, response: schemathesis.Response) -> None:
    """Clears faults that were set: there is room for no more than 64."""
    if case.path.endswith("/faults") and response.status_code == 201:
        requests.delete(str(response.request.url), headers=dict(case.headers or {}), timeout=10).raise_for_status()
