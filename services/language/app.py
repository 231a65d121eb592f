"""The language service's application, and the lifespan that owns its parts."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

import httpx
from fastapi import FastAPI

from services.language.api.routes import install_routes
from services.language.chat import ChatService
from services.language.embeddings.assembly import Assembler
from services.language.embeddings.dispatch import Dispatcher, reply_address
from services.language.embeddings.gather import Gatherer
from services.language.embeddings.pool import EncoderPool
from services.language.embeddings.receiver import Receiver
from services.language.engine.torch.engine import TorchEngine
from services.language.models.generic import LanguageHalf
from services.language.settings import LanguageSettings
from shared.checkpoint import fingerprint, resolve
from shared.control import ServiceInfo
from shared.errors import EngineOverloaded
from shared.http import ERROR_RESPONSES, install
from shared.telemetry import Metrics, get_logger
from shared.wire import VERSION

_log = get_logger("language")


def create_app(settings: LanguageSettings) -> FastAPI:
    """The language service's ASGI application. Nothing is loaded until its lifespan starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        folder = await asyncio.to_thread(resolve, settings.model, settings.revision)
        identity = await asyncio.to_thread(fingerprint, folder)
        model = await asyncio.to_thread(LanguageHalf, folder, settings.device, settings.dtype)
        await asyncio.to_thread(model.warm_up)
        engine = TorchEngine(model, settings.max_queue)
        metrics.gauge("epd_engine_running", "Sequences in the engine.").set_function(lambda: engine.load().running)
        metrics.gauge("epd_engine_waiting", "Sequences that wait for the engine.").set_function(lambda: engine.load().waiting)
        receiver = Receiver(
            Assembler(model, identity), settings.data_host, settings.data_port, settings.max_message_bytes, metrics
        )
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        async with httpx.AsyncClient(limits=limits, trust_env=False) as client:

            def reply_to(base_url: str) -> str:
                return reply_address(base_url, settings.data_host, receiver.port, settings.advertise_host)

            interval, timeout = settings.health_interval, settings.health_timeout
            pool = EncoderPool(settings.encoder_urls(), identity, client, reply_to, interval, timeout)
            async with receiver, pool:
                engine.start()
                gatherer = Gatherer(settings, pool, Dispatcher(client), receiver, metrics)
                app.state.chat = ChatService(settings, model, gatherer, engine)
                app.state.pool = pool
                app.state.info = describe(settings, model, identity)
                _log.info("language service ready", model=settings.model, data_port=receiver.port, device=str(model.device))
                yield
                app.state.chat = None
                await engine.stop()

    metrics = Metrics()
    app = FastAPI(title="EPD language service", version=version("epd-pair"), lifespan=lifespan)
    app.state.chat = None
    install(app, metrics, settings.max_body_bytes)
    install_routes(app, settings.model_name())

    @app.get("/ready", summary="The engine takes requests", responses={503: ERROR_RESPONSES[503]})
    async def ready() -> dict[str, str | int]:
        if app.state.chat is None:
            raise EngineOverloaded("The service is starting or stopping.")
        # Text needs no encoder, so a missing one does not make the service unready; it is told beside.
        return {"status": "ready", "encoders_ready": app.state.pool.ready()}

    @app.get("/v1/info", summary="What this service is")
    async def info() -> ServiceInfo:
        result: ServiceInfo = app.state.info
        return result

    return app


def describe(settings: LanguageSettings, model: LanguageHalf, identity: str) -> ServiceInfo:
    """What ``GET /v1/info`` answers."""
    return ServiceInfo(
        service="language",
        service_id=f"language-{uuid.uuid4().hex[:8]}",
        version=version("epd-pair"),
        wire_version=VERSION,
        model=settings.model,
        model_type=model.model_type,
        model_fingerprint=identity,
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        parameters=model.parameters,
        parameters_total=sum(model.parameters.values()),
    )
