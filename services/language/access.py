"""Who may call the API: holders of a key, where there are any, and pages of the origins that browsers let in."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.addresses import is_loopback
from shared.errors import InvalidApiKey
from shared.http import REQUEST_ID_HEADER, respond
from shared.telemetry import get_logger, new_request_id

_log = get_logger("access")

_GUARDED_PREFIX = "/v1/"
_GUARDED = frozenset({"/tokenize", "/detokenize"})
# Encoders register there; they have no key of the API, but the seam's token.
_REGISTRATION = ("POST", "/v1/encoders")


def install_keys(app: FastAPI, keys: Collection[str], host: str) -> None:
    """Lets nobody call the API without one of ``keys``. Everybody may where there are none, of which a warning tells if others
    can reach ``host``, the address that the service listens on. Comes before ``shared.http.install``, so that refusals are
    counted, and have their request ids."""
    if keys:
        app.add_middleware(KeyGuard, keys=frozenset(keys))
    elif not is_loopback(host):
        _log.warning("THE API IS OPEN: whoever can reach this service may use it; EPD_API_KEY asks for a key", host=host)


def install_cors(app: FastAPI, origins: Collection[str]) -> None:
    """Lets pages of ``origins`` call the API from a browser, and read every answer, errors too. Comes after
    ``shared.http.install``, so that it is around all that answers."""
    if origins:
        app.add_middleware(
            Cors,
            allow_origins=tuple(origins),
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=(REQUEST_ID_HEADER, "retry-after"),
        )


class Cors(CORSMiddleware):
    """Answers preflights before anything else sees them, and so gives them their request ids."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        response.headers[REQUEST_ID_HEADER] = new_request_id(request_headers.get(REQUEST_ID_HEADER))
        return response


class KeyGuard:
    """Refuses calls of the API that bring none of the ``keys``, before anything of their bodies is read."""

    def __init__(self, app: ASGIApp, keys: frozenset[str]) -> None:
        self._app = app
        # Of equal length, so that comparing takes equally long whatever was brought.
        self._digests = [_digest(key.encode()) for key in sorted(keys)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_guarded(scope["method"], scope["path"]):
            try:
                self._check(next((value for name, value in scope["headers"] if name.lower() == b"authorization"), b""))
            except InvalidApiKey as error:
                refusal = respond(scope, error)
                refusal.headers["WWW-Authenticate"] = "Bearer"
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, authorization: bytes) -> None:
        """Lets a call pass whose ``Authorization`` header holds a key.

        Raises:
            InvalidApiKey: it is missing or wrong.
        """
        scheme, _, brought = authorization.strip().partition(b" ")
        digest = _digest(brought.strip())
        # All are compared, so that nothing is learned from which of them fits.
        fits = sum(secrets.compare_digest(digest, known) for known in self._digests)
        if scheme.lower() != b"bearer":
            raise InvalidApiKey("This service asks for an API key, as `Authorization: Bearer KEY`.", param="authorization")
        if not fits:
            raise InvalidApiKey("The API key is none that this service knows.", param="authorization")


def is_guarded(method: str, path: str) -> bool:
    """Whether a call needs a key: those of the API do; what probes, scrapes, or is a page, does not."""
    return (path.startswith(_GUARDED_PREFIX) or path in _GUARDED) and (method, path) != _REGISTRATION


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
