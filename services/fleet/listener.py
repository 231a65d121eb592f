"""A service inside of a replica: on a port of its own, in the event loop that is there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable

import httpx
from fastapi import FastAPI

from shared.addresses import bracketed
from shared.lifecycle import server_of
from shared.telemetry import get_logger

_log = get_logger("replica")
_LOOK = 0.1
_MOMENT = 0.02  # seconds between looks whether the server listens


def bound_to(host: str, port: int = 0) -> socket.socket:
    """A socket bound to ``host``; with port 0 to one that the system chooses, and gives to nobody else. Nobody can connect yet.
    A port that was asked for may be bound twice: then only the first to listen on it can.

    Raises:
        OSError: it cannot be.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind)
    try:
        # Connections of a replica that has ended hold its port for a while.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(port != 0))
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def url_of(host: str, bound: socket.socket) -> str:
    """The base URL by which others reach what listens on ``bound``, at ``host``."""
    return f"http://{bracketed(host)}:{bound.getsockname()[1]}"


async def acquainted(met: Callable[[], Awaitable[bool]], seconds: float, whom: str) -> None:
    """Returns when ``met`` says so, or after ``seconds``. Serve lets an old replica go once a new one counts as ready, and
    that one is of use when both sides know each other; but neither may wait for ever for a side that is not there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(httpx.HTTPError):  # neither is a service that does not answer now
            if await met():
                return
        await asyncio.sleep(_LOOK)
    _log.warning("ready alone", missing=whom, waited=seconds)


class Listener:
    """Runs ``app``, its lifespan too, as ``python -m services…`` would, and drains it at the end."""

    def __init__(self, app: FastAPI, bound: socket.socket) -> None:
        self._app = app
        self._bound = bound
        host, port = bound.getsockname()[:2]
        self._server = server_of(app, host, port, lifespan="off")
        self._client = httpx.AsyncClient(base_url=url_of(host, bound), trust_env=False, timeout=None)
        self._life: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when the service is up and listens. Raises what its start raised, and OSError where it cannot listen."""
        self._life = asyncio.create_task(self._live(), name="service")
        while not self._server.started and not self._life.done():
            await asyncio.wait({self._life}, timeout=_MOMENT)
        if self._life.done():
            await self._life
            raise OSError(f"the service at {self._client.base_url} has ended as it began")

    async def stop(self) -> None:
        """Drains the service, and returns when it has ended."""
        self._server.end()
        if self._life is not None:
            await self._life
        await self._client.aclose()

    async def get(self, path: str, timeout: float) -> httpx.Response:
        """Asks the service over its port, as others do.

        Raises:
            httpx.HTTPError: it does not answer within ``timeout`` seconds, or not with success.
        """
        if self._life is None or self._life.done():  # who else has the port now must not answer for it
            raise httpx.ConnectError(f"the service at {self._client.base_url} does not run")
        return (await self._client.get(path, timeout=timeout)).raise_for_status()

    async def _live(self) -> None:
        with self._bound:
            async with self._app.router.lifespan_context(self._app):
                await self._server.serve(sockets=[self._bound])
