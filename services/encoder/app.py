"""Routes of the encoder service, and the lifespan that owns its parts."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version

from fastapi import FastAPI, Request

from services.encoder.announcer import Announcer
from services.encoder.body import declared_bytes, receive_call
from services.encoder.discovery import Languages, languages_of
from services.encoder.faults.base import Call
from services.encoder.faults.kinds import KINDS
from services.encoder.faults.registry import Faults
from services.encoder.faults.routes import install_fault_routes
from services.encoder.fetch import Fetcher
from services.encoder.heart import Heart
from services.encoder.models.generic import EncoderHalf, open_half
from services.encoder.pipeline import Identity, Pipeline
from services.encoder.publisher import Publisher
from services.encoder.settings import EncoderSettings
from shared.checkpoint import fingerprint, resolve
from shared.control import (
    REQUEST_FIELD,
    EncodeRequest,
    EncodeResponse,
    EncoderState,
    EncoderStatus,
    ServiceInfo,
    Subscription,
)
from shared.errors import (
    EmbeddingTimeout,
    EncoderFailed,
    EncoderOverloaded,
    EncoderUnavailable,
    InvalidMedia,
    InvalidRequest,
)
from shared.guard import guarded
from shared.http import component_schemas, install, schema_ref, span_of, unless_gone
from shared.identity import ContentHasher
from shared.lifecycle import Drain, refusing, settle, tidy
from shared.openapi import Token, complete, failures
from shared.seam import seam_of
from shared.security import load_secret
from shared.telemetry import Metrics, get_logger
from shared.tracing import tracer_of
from shared.wire import VERSION

_log = get_logger("encoder")

_DESCRIPTION = """The vision (or audio) half of a model. Language services call it; nobody else has to.

With a secret (`EPD_SECRET_FILE`) all but probes, metrics and `/v1/info` ask for a token that both services derive from it."""

_UNAUTHENTICATED = ("/health", "/ready", "/metrics", "/v1/info")


@dataclass(frozen=True, slots=True)
class Parts:
    """What the routes use; it exists while the service is up."""

    info: ServiceInfo
    pipeline: Pipeline
    heart: Heart


def create_app(settings: EncoderSettings, languages: Languages | None = None) -> FastAPI:
    """The encoder's ASGI application. Nothing is loaded until its lifespan starts. It registers with ``languages``; without
    them, with those of the settings.

    Raises:
        ValueError, OSError: it would be open to strangers, or the secret is none.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with refusing():
            folder = await asyncio.to_thread(resolve, settings.model, settings.revision, settings.trust_remote_code)
            kind = settings.device, settings.dtype, settings.families, settings.trust_remote_code
            model = await asyncio.to_thread(open_half, folder, *kind)
            identity = Identity(app.state.encoder_id, await asyncio.to_thread(fingerprint, folder))
        await asyncio.to_thread(model.warm_up)
        info = describe(settings, model, identity)
        publisher = Publisher(max_queued_bytes=settings.max_queued_bytes, seam=seam)
        queued.set_function(lambda: publisher.queued_bytes)
        async with (
            Fetcher(settings) as fetcher,
            Pipeline(settings, model, ContentHasher(secret), identity, fetcher, publisher, faults, metrics, tracer) as pipeline,
            Announcer(settings, info, seam, found) as announcer,
            tidy(drain),
        ):
            heart = Heart(settings, identity.encoder_id, pipeline, publisher, faults, pipeline.carriers)
            subscribers.set_function(lambda: len(heart))
            drain.on_begin(announcer.stop)
            drain.on_begin(lambda: heart.announce(EncoderState.DRAINING))
            app.state.parts = Parts(info, pipeline, heart)
            settle()
            _log.info("encoder ready", model=settings.model, device=str(model.device))
            yield
            app.state.parts = None
            heart.stop()
            await faults.aclose()
        publisher.close()
        await tracer.close()

    def parts() -> Parts:
        """Raises EncoderUnavailable while there are none."""
        found: Parts | None = app.state.parts
        if found is None:
            raise EncoderUnavailable("The encoder is starting or stopping.")
        return found

    secret = load_secret(settings.secret_file)
    seam = seam_of(settings, secret, "EPD_HOST", settings.host)
    found = languages_of(settings.announce_targets()) if languages is None else languages
    metrics, faults, tracer = Metrics(), Faults(), tracer_of(settings.tracing, "epd-encoder")
    subscribers = metrics.gauge("epd_encoder_subscribers", "Language services that get heartbeats.")
    queued = metrics.gauge("epd_encoder_queued_bytes", "Bytes of messages that are on their way to language services.")
    drain = Drain(settings.drain_timeout, lambda: EncoderUnavailable("The encoder is draining."))
    app = FastAPI(
        title="EPD encoder",
        description=_DESCRIPTION,
        version=version("epd-pair"),
        lifespan=lifespan,
        docs_url=None,  # these load a page from elsewhere; docs/api.md is ours
        redoc_url=None,
    )
    app.state.encoder_id = f"encoder-{uuid.uuid4().hex[:8]}"
    app.state.parts = None
    install(app, metrics, settings.max_body_bytes, drain, tracer, ("/encode",))
    component_schemas(app, EncodeRequest)
    if seam.keys is not None:
        token = Token("seam", "The token of the services' secret.", lambda _, path: path not in _UNAUTHENTICATED)
        complete(app, [token])
    else:
        complete(app)
    control = guarded(lambda request: seam.check_token(request.headers.get("authorization")))
    if settings.faults_enabled:
        install_fault_routes(control, faults)
        component_schemas(app, *KINDS)

    @app.get("/ready", tags=["probes"], summary="The encoder takes requests", responses=failures(EncoderUnavailable))
    async def ready() -> dict[str, str]:
        drain.check()
        if parts().heart.stalled:
            raise EncoderUnavailable("The tower hangs.")
        return {"status": "ready"}

    @app.get("/v1/info", tags=["service"], summary="What this encoder is", responses=failures(EncoderUnavailable))
    async def info() -> ServiceInfo:
        return parts().info

    @control.post(
        "/v1/subscribe",
        tags=["service"],
        summary="Ask for signs of life on the data channel",
        responses=failures(InvalidRequest, EncoderUnavailable),
    )
    async def subscribe(subscription: Subscription) -> EncoderStatus:
        up = parts()
        transport = up.heart.subscribe(subscription)
        return EncoderStatus(
            info=up.info,
            state=up.heart.state,
            items_in_work=up.pipeline.items_in_work,
            max_items=settings.max_items,
            transport=transport,
        )

    @control.post(
        "/encode",
        tags=["embeddings"],
        summary="Encode media items and publish their embeddings",
        response_model=EncodeResponse,
        responses=failures(
            InvalidRequest, InvalidMedia, EncoderOverloaded, EncoderFailed, EncoderUnavailable, EmbeddingTimeout
        ),
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {"schema": schema_ref(EncodeRequest)},
                    "multipart/form-data": {
                        "schema": {
                            "type": "object",
                            "properties": {REQUEST_FIELD: {"type": "string", "description": "EncodeRequest as JSON"}},
                            "additionalProperties": {"type": "string", "format": "binary"},
                        }
                    },
                },
            }
        },
    )
    async def encode(request: Request) -> EncodeResponse:
        drain.check()
        pipeline = parts().pipeline
        with pipeline.arriving(declared_bytes(request)) as share:
            asked, media = await receive_call(request, settings, share)
            span_of(request).set(encoder_id=app.state.encoder_id, attempt=asked.attempt, items=len(asked.items))
            return await unless_gone(request, pipeline.run(Call(asked, request.headers), media, share))

    app.include_router(control)
    return app


def describe(settings: EncoderSettings, model: EncoderHalf, identity: Identity) -> ServiceInfo:
    """What ``GET /v1/info`` answers."""
    return ServiceInfo(
        service="encoder",
        service_id=identity.encoder_id,
        version=version("epd-pair"),
        wire_version=VERSION,
        model=settings.model,
        model_type=model.model_type,
        model_fingerprint=identity.model_fingerprint,
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        parameters=model.parameters,
        parameters_total=sum(model.parameters.values()),
    )
