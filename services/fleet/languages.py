"""A language service as a replica of Ray Serve, behind Serve's proxy; encoders register with it at a port of its own."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import httpx
from ray import serve
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.fleet.directory import Listing, NamedDirectory
from services.fleet.listener import Listener, acquainted, bound_to, url_of
from services.fleet.options import FleetOptions
from services.fleet.place import here, reached_at, settings_at
from services.language.app import create_app
from services.language.settings import LanguageSettings
from shared.http import REQUEST_ID_HEADER
from shared.lifecycle import prepare

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle


@serve.ingress()
class LanguageReplica:
    """Starts the language service, is in the directory while it is up, and hands it what Serve's proxy brings."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        options: FleetOptions,
        encoders: DeploymentHandle,  # noqa: ARG002
    ) -> None:
        """``encoders`` makes their deployment a part of this application; nothing is called through it."""
        part = options.languages
        place = await asyncio.to_thread(here, part.needs.num_cpus)
        settings = settings_at(place, LanguageSettings, options.given(part))
        bound = bound_to(settings.host, settings.port if "port" in settings.model_fields_set else 0)
        chosen: dict[str, object] = {"port": bound.getsockname()[1]}
        for name, value in (
            ("encoders", ""),
            ("data_host", settings.host),
            ("advertise_host", reached_at(place, settings.host)),
        ):
            if name not in settings.model_fields_set:
                chosen[name] = value
        settings = settings.model_copy(update=chosen)
        prepare(settings)
        self._timeout = part.health_check_timeout_s
        self._patience = Patience(part.engine_patience_s)
        self._app = create_app(settings)
        self._listener = Listener(self._app, bound)
        await self._listener.start()
        self._listed = AsyncExitStack()
        directory = NamedDirectory(serve.get_replica_context().app_name)
        await self._listed.enter_async_context(Listing(directory, url_of(reached_at(place, settings.host), bound)))

        async def met() -> bool:
            told: int = (await self._listener.get("/ready", self._timeout)).json()["encoders_ready"]
            return told > 0

        await acquainted(met, part.acquaintance_s, "encoders")

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return Passage(self._app)

    async def check_health(self) -> None:
        """Raises httpx.HTTPError where the service does not answer, or its engine has been away for too long."""
        await self._listener.get("/health", self._timeout)
        try:
            await self._listener.get("/ready", self._timeout)
        except httpx.HTTPError:
            if self._patience.over(time.monotonic()):
                raise
        else:
            self._patience.renew()

    async def __del__(self) -> None:
        await self._listed.aclose()
        await self._listener.stop()


class Patience:
    """How long something may fail, in ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def renew(self) -> None:
        """It did not fail."""
        self._since = None

    def over(self, now: float) -> bool:
        """It fails ``now``: whether it has for too long."""
        if self._since is None:
            self._since = now
        return now - self._since >= self._seconds


class Passage:
    """``app`` as Serve's proxy reaches it: without its lifespan, which has begun already, and ends after Serve has brought its
    last request; and without its request id in answers, since the proxy adds the same one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, without_request_id(send))
            return
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})


def without_request_id(send: Send) -> Send:
    """``send``, except that the header of the request's id is left out."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            del MutableHeaders(scope=message)[REQUEST_ID_HEADER]
        await send(message)

    return sending
