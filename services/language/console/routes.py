"""The page at ``/`` and its files. They hold nothing that is secret; what they show comes from the API, as for any client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import xxhash
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

_FOLDER = Path(__file__).parent / "static"
_PAGE = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    # Whatever the page is made to show, browsers run nothing but these files, and send nothing to anybody else.
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # Asked for again each time, and answered by 304 unless the service was updated.
    "cache-control": "no-cache",
}


class ConsoleSettings(BaseModel):
    """What the page has to know before it calls the API; ``liveness_timeout`` is in seconds."""

    faults_enabled: bool
    liveness_timeout: float


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page, as it is sent."""

    content: bytes
    media_type: str
    etag: str


def assets() -> dict[str, Asset]:
    """The files by name, read now."""
    found = {}
    for path in sorted(_FOLDER.iterdir()):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            found[path.name] = Asset(content, _TYPES[path.suffix], f'"{xxhash.xxh3_64_hexdigest(content)}"')
    return found


def install_console(app: FastAPI, told: ConsoleSettings) -> None:
    """Adds the console at ``/`` to ``app``, and its files below ``/console/``. It needs no API key; what it calls may."""
    files = assets()

    @app.get("/", summary="The console", include_in_schema=False)
    async def page(request: Request) -> Response:
        return _sent(request, files[_PAGE])

    @app.get("/console/settings", summary="What the console has to know", include_in_schema=False)
    async def settings() -> ConsoleSettings:
        return told

    @app.get("/console/{name}", summary="A file of the console", include_in_schema=False)
    async def file(name: str, request: Request) -> Response:
        if name not in files:
            raise HTTPException(404, "The console has no such file.")
        return _sent(request, files[name])


def _sent(request: Request, asset: Asset) -> Response:
    headers = _HEADERS | {"etag": asset.etag}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)
