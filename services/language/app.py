"""The language service's application, and the lifespan that owns its parts."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI

from services.language.access import install_cors, install_keys, is_guarded
from services.language.api.completions import COMPLETIONS_PATH, install_completion_routes
from services.language.api.document import DESCRIPTION, complete_document
from services.language.api.encoders import install_encoder_routes
from services.language.api.failures import install_failure_routes
from services.language.api.faults import install_fault_routes
from services.language.api.models import install_model_routes
from services.language.api.render import RENDER_PATH, install_render_routes
from services.language.api.routes import CHAT_PATH, install_routes
from services.language.api.tokens import DETOKENIZE_PATH, TOKENIZE_PATH, install_token_routes
from services.language.chat import ChatService
from services.language.console.routes import ConsoleSettings, install_console
from services.language.embeddings.assembly import Assembler
from services.language.embeddings.attempt import Attempts
from services.language.embeddings.cache import EmbeddingCache
from services.language.embeddings.dispatch import Dispatcher, open_client, reply_address
from services.language.embeddings.failover import Failover
from services.language.embeddings.faults import EncoderFaults
from services.language.embeddings.gather import Gatherer
from services.language.embeddings.memory import OpenMemory
from services.language.embeddings.pool import EncoderPool
from services.language.embeddings.receiver import Receiver
from services.language.engine.choice import make_engine_of
from services.language.engine.interface import Engine, EngineStartError
from services.language.engine.options import EngineOptions
from services.language.failures import RecentFailures
from services.language.models.facts import LanguageFacts
from services.language.settings import LanguageSettings
from shared.checkpoint import fingerprint, pick_device, resolve
from shared.control import ServiceInfo
from shared.errors import EngineOverloaded
from shared.http import install
from shared.identity import ContentHasher
from shared.lifecycle import Drain, refusing, settle, tidy
from shared.openapi import failures
from shared.residency import Residency
from shared.seam import Seam, seam_of
from shared.security import load_secret
from shared.telemetry import Metrics, get_logger
from shared.tracing import tracer_of
from shared.wire import MAX_HEADER_BYTES, VERSION

_log = get_logger("language")


def create_app(settings: LanguageSettings, make_engine: Callable[[EngineOptions], Engine] | None = None) -> FastAPI:
    """The language service's ASGI application. Nothing is loaded until its lifespan starts. Without ``make_engine`` the engine
    is the one that the settings name.

    Raises:
        ValueError, OSError: it would be open to strangers, the secret is none, or the engine is not installed.
    """
    make_engine = make_engine or make_engine_of(settings.engine)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with refusing():
            folder = await asyncio.to_thread(resolve, settings.model, settings.revision, settings.trust_remote_code)
            identity = await asyncio.to_thread(fingerprint, folder)
        async with AsyncExitStack() as owned:
            owned.push_async_callback(tracer.close)
            engine = make_engine(engine_options(settings, folder))
            owned.push_async_callback(engine.stop)
            starting = asyncio.create_task(engine.start())  # beside what else takes time
            owned.push_async_callback(given_up, starting)
            kind = settings.device, settings.dtype, settings.families, settings.trust_remote_code
            with refusing():
                facts = await asyncio.to_thread(LanguageFacts, folder, *kind)
            client = await owned.enter_async_context(open_client(seam))
            memory = OpenMemory(Residency.of(settings), service_id, settings.max_embedding_bytes)
            owned.callback(memory.close)
            receiver = receiver_of(settings, facts, identity, metrics, memory, seam)
            await owned.enter_async_context(receiver)

            def reply_to(base_url: str) -> str:
                return reply_address(base_url, settings.data_host, receiver.port, settings.advertise_host)

            dispatcher = Dispatcher(client, settings.liveness_timeout)
            urls = settings.encoder_urls()
            pool = EncoderPool(urls, identity, dispatcher, reply_to, settings, metrics, memory, seam.curve)
            receiver.on_sign = pool.sign
            await owned.enter_async_context(pool)
            app.state.faults = EncoderFaults(client, pool, settings.liveness_timeout)
            with refusing(EngineStartError):
                await starting
            measure_engine(engine, metrics)
            attempts = Attempts(dispatcher, receiver, settings.arrival_grace, tracer)
            failover = Failover(pool, attempts, settings.encoder_retries, metrics)
            cache = EmbeddingCache(settings.embedding_cache_bytes, metrics)
            gatherer = Gatherer(failover, cache, receiver, settings.waiting_places(), metrics, tracer)
            hasher = ContentHasher(secret)
            marks = pair_fingerprint(settings, facts, identity)
            app.state.chat = ChatService(settings, facts, gatherer, engine, drain, hasher, metrics, tracer, marks)
            drain.on_expiry(lambda: engine.abort("The service is stopping, and has no time left for this answer."))
            app.state.pool, app.state.engine = pool, engine
            app.state.info = describe(settings, service_id, facts, engine, identity)
            settle()
            await owned.enter_async_context(tidy(drain))
            _log.info("language service ready", model=settings.model, data_port=receiver.port)
            yield

    secret = load_secret(settings.secret_file)
    seam = seam_of(settings, secret, "EPD_DATA_HOST", settings.data_host)
    metrics, tracer = Metrics(), tracer_of(settings.tracing, "epd-language")
    service_id = f"language-{uuid.uuid4().hex[:8]}"
    drain = Drain(settings.drain_timeout, lambda: EngineOverloaded("The language service is stopping."))
    # Pages of documentation that come from elsewhere are off; docs/api.md is ours.
    about: dict[str, Any] = {"description": DESCRIPTION, "version": version("epd-pair"), "docs_url": None, "redoc_url": None}
    app = FastAPI(title="EPD language service", lifespan=lifespan, **about)
    recent = RecentFailures()
    install_keys(app, settings.api_keys(), settings.host)
    work = CHAT_PATH, RENDER_PATH, COMPLETIONS_PATH, TOKENIZE_PATH, DETOKENIZE_PATH
    install(app, metrics, settings.max_body_bytes, drain, tracer, work, recent.add)
    install_cors(app, settings.origins())
    name, times = settings.model_name(), (settings.request_timeout, settings.body_timeout)
    install_routes(app, name, *times, settings.keepalive)
    install_render_routes(app, name, *times)
    install_completion_routes(app, name, *times, settings.keepalive)
    install_token_routes(app, name, *times)
    install_model_routes(app, name)
    install_encoder_routes(app, seam)
    install_failure_routes(app, recent)
    if settings.faults_enabled:
        install_fault_routes(app)
    install_console(app, ConsoleSettings(faults_enabled=settings.faults_enabled, liveness_timeout=settings.liveness_timeout))
    complete_document(app, is_guarded, bool(settings.api_keys()), seam.keys is not None)

    @app.get("/ready", tags=["probes"], summary="The engine takes requests", responses=failures(EngineOverloaded))
    async def ready() -> dict[str, str | int]:
        drain.check()
        if not app.state.engine.ready():
            raise EngineOverloaded("The engine is being restarted.")
        # Text needs no encoder, so a missing one does not make the service unready; it is told beside.
        return {"status": "ready", "encoders_ready": app.state.pool.ready()}

    @app.get("/v1/info", tags=["service"], summary="What this service is")
    async def info() -> ServiceInfo:
        result: ServiceInfo = app.state.info
        return result

    return app


async def given_up(task: asyncio.Task[None]) -> None:
    """Ends a task that nobody waits for any more; does nothing to one that has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def engine_options(settings: LanguageSettings, folder: Path) -> EngineOptions:
    """The settings that are the engine's."""
    return EngineOptions(
        folder=str(folder.resolve()),
        device=settings.device,
        dtype=settings.dtype,
        threads=settings.torch_threads(),
        block_size=settings.block_size,
        kv_cache_memory=settings.kv_cache_memory,
        max_running=settings.max_running,
        max_batch_tokens=settings.max_batch_tokens,
        max_queue=settings.max_queue,
        max_embedding_bytes=settings.max_embedding_bytes,
        families=settings.families,
        trusted=settings.trust_remote_code,
        vllm_args=settings.vllm_args,
        log_level=settings.log_level,
        log_format=settings.log_format,
    )


def receiver_of(
    settings: LanguageSettings, facts: LanguageFacts, identity: str, metrics: Metrics, memory: OpenMemory, seam: Seam
) -> Receiver:
    """The data socket as the settings want it."""
    assembler = Assembler(facts.half, facts.dtype, identity, settings.max_item_tokens)
    limits = max_frame_bytes(settings, facts.half.tensor_shapes(settings.max_item_tokens)), settings.max_embedding_bytes
    return Receiver(assembler, settings.data_host, settings.data_port, *limits, metrics, memory, seam)


def max_frame_bytes(settings: LanguageSettings, shapes: Mapping[str, tuple[int, int]]) -> int:
    """The most bytes that a frame of the data socket may have, where the largest item has tensors of these ``shapes``.

    ZeroMQ holds as much for whoever connects, also before it is known who that is. It is twice what is needed, so that an item
    which is a little too large is told so, instead of breaking the connection.
    """
    largest = max(rows * width for rows, width in shapes.values()) * torch.float32.itemsize
    return min(settings.max_message_bytes, 2 * max(largest, MAX_HEADER_BYTES))


def measure_engine(engine: Engine, metrics: Metrics) -> None:
    """Makes the engine's load visible."""
    for name, text in (
        ("running", "Sequences that the engine computes."),
        ("waiting", "Sequences that wait for their turn."),
        ("blocks_used", "Blocks of the key/value pool that sequences hold."),
        ("blocks_total", "Blocks of the key/value pool."),
        ("prefix_tokens_asked", "Prompt tokens looked up in the prefix cache since the engine's start."),
        ("prefix_tokens_found", "Prompt tokens found in the prefix cache since the engine's start."),
        ("preemptions", "Sequences that gave their blocks up to others since the engine's start."),
    ):
        gauge = metrics.gauge(f"epd_engine_{name}", text)
        gauge.set_function(lambda name=name: getattr(engine.load(), name))


def pair_fingerprint(settings: LanguageSettings, facts: LanguageFacts, identity: str) -> str:
    """What the answers of this service and its encoders depend on, besides the request: all of them have the same model."""
    told = "|".join((identity, version("epd-pair"), str(pick_device(settings.device)), str(facts.dtype)))
    return f"fp_{hashlib.blake2b(told.encode(), digest_size=6).hexdigest()}"


def describe(settings: LanguageSettings, service_id: str, facts: LanguageFacts, engine: Engine, identity: str) -> ServiceInfo:
    """What ``GET /v1/info`` answers."""
    parameters = engine.parameters()
    return ServiceInfo(
        service="language",
        service_id=service_id,
        version=version("epd-pair"),
        wire_version=VERSION,
        model=settings.model,
        model_type=facts.model_type,
        model_fingerprint=identity,
        device=str(pick_device(settings.device)),
        dtype=str(facts.dtype).removeprefix("torch."),
        parameters=parameters,
        parameters_total=sum(parameters.values()),
    )
