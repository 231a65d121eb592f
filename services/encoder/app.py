"""Routes of the encoder service, and the lifespan that owns its parts."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.datastructures import UploadFile

from services.encoder.fetch import Fetcher
from services.encoder.models.generic import VisionHalf
from services.encoder.pipeline import Identity, Pipeline
from services.encoder.publisher import Publisher
from services.encoder.settings import EncoderSettings
from shared.checkpoint import fingerprint, resolve
from shared.control import REQUEST_FIELD, EncodeRequest, EncodeResponse, ServiceInfo
from shared.errors import EncoderUnavailable, InvalidRequest, from_validation
from shared.http import ERROR_RESPONSES, component_schemas, install, schema_ref, unless_gone
from shared.identity import ContentHasher
from shared.lifecycle import settle
from shared.security import load_secret
from shared.telemetry import Metrics, get_logger
from shared.wire import VERSION

_log = get_logger("encoder")


def create_app(settings: EncoderSettings) -> FastAPI:
    """The encoder's ASGI application. Nothing is loaded until its lifespan starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        folder = await asyncio.to_thread(resolve, settings.model, settings.revision)
        model = await asyncio.to_thread(VisionHalf, folder, settings.device, settings.dtype)
        await asyncio.to_thread(model.warm_up)
        identity = Identity(f"encoder-{uuid.uuid4().hex[:8]}", await asyncio.to_thread(fingerprint, folder))
        hasher = ContentHasher(load_secret(settings.secret_file))
        publisher = Publisher()
        async with Fetcher(settings) as fetcher:
            pipeline = Pipeline(settings, model, hasher, identity, fetcher, publisher, metrics)
            async with pipeline:
                app.state.pipeline = pipeline
                app.state.info = describe(settings, model, identity)
                settle()
                _log.info("encoder ready", model=settings.model, encoder_id=identity.encoder_id, device=str(model.device))
                yield
                app.state.pipeline = None
        publisher.close()

    metrics = Metrics()
    app = FastAPI(title="EPD encoder", version=version("epd-pair"), lifespan=lifespan)
    app.state.pipeline = None
    install(app, metrics, settings.max_body_bytes)
    component_schemas(app, EncodeRequest)

    @app.get("/ready", summary="The encoder takes requests", responses={503: ERROR_RESPONSES[503]})
    async def ready() -> dict[str, str]:
        if app.state.pipeline is None:
            raise EncoderUnavailable("The encoder is starting or stopping.")
        return {"status": "ready"}

    @app.get("/v1/info", summary="What this encoder is")
    async def info() -> ServiceInfo:
        result: ServiceInfo = app.state.info
        return result

    @app.post(
        "/encode",
        summary="Encode media items and publish their embeddings",
        response_model=EncodeResponse,
        responses=ERROR_RESPONSES,
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
        call, parts = await read_call(request, settings)
        pipeline: Pipeline | None = app.state.pipeline
        if pipeline is None:
            raise EncoderUnavailable("The encoder is starting or stopping.")
        return await unless_gone(request, pipeline.run(call, parts))

    return app


async def read_call(request: Request, settings: EncoderSettings) -> tuple[EncodeRequest, dict[str, bytes]]:
    """The call and its raw media by part name, from a JSON or a multipart body.

    Raises:
        InvalidRequest: the body follows neither form.
    """
    parts: dict[str, bytes] = {}
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        limit = settings.max_items
        async with request.form(max_files=limit, max_fields=2, max_part_size=settings.max_body_bytes) as form:
            raw = form.get(REQUEST_FIELD)
            for name, value in form.multi_items():
                if isinstance(value, UploadFile):
                    parts[name] = await value.read()
        if not isinstance(raw, str):
            raise InvalidRequest(f"The multipart body lacks the text field {REQUEST_FIELD!r}.", param=REQUEST_FIELD)
        text: str | bytes = raw
    else:
        text = await request.body()
    try:
        return EncodeRequest.model_validate_json(text), parts
    except ValidationError as error:
        raise from_validation(error.errors()) from error


def describe(settings: EncoderSettings, model: VisionHalf, identity: Identity) -> ServiceInfo:
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
