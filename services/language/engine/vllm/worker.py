"""The process between the service and vLLM's own (``python -m services.language.engine.vllm.worker CONFIG``)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zmq
import zmq.asyncio

from services.language.engine.interface import EngineStartError
from services.language.engine.messages import Config, Refused, encode
from services.language.engine.options import EngineOptions
from services.language.engine.vllm.items import form_of
from services.language.models.facts import LanguageFacts
from shared.lifecycle import prepare_process, settle
from shared.telemetry import get_logger

if TYPE_CHECKING:
    from services.language.engine.vllm.launch import Started

_log = get_logger("engine")


def main() -> None:
    config = msgspec.json.decode(sys.argv[1], type=Config)
    options = config.options
    # The terminal's Ctrl-C goes to the whole group; when to end is for the service to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare_process(options.log_level, options.log_format, options.threads)
    asyncio.run(_run(config))
    # What else there may be of threads has nothing left to do.
    os._exit(1)


async def _run(config: Config) -> None:
    """Until vLLM's engine dies, or the service wants no more of it."""
    with zmq.asyncio.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.connect(config.endpoint)
        unwanted = _unwanted(asyncio.get_running_loop())
        cause = Path(os.environ["VLLM_LOGGING_CONFIG_PATH"]).with_name("cause")
        cause.unlink(missing_ok=True)
        try:
            started = await _start(config.options, socket)
        except Exception as error:
            reason = _reason(error, cause, config.options)
            _log.error("engine cannot start", reason=reason)
            await socket.send(encode(Refused(reason)))
            return
        try:
            settle()
            _log.info("engine ready", capacity=started.ready.capacity, kv_blocks=started.serving.load().blocks_total)
            await socket.send(encode(started.ready))
            serves = asyncio.create_task(started.serving.run())
            await asyncio.wait([serves, unwanted], return_when=asyncio.FIRST_COMPLETED)
            if serves.done():
                # To end in order takes seconds; what waits for an answer need not wait for that.
                await socket.send(encode(Refused(f"vLLM's engine is gone: {serves.exception() or 'its process ended'}")))
        finally:
            started.llm.shutdown()


async def _start(options: EngineOptions, socket: zmq.asyncio.Socket) -> Started:
    """Loads the model, which takes as long as it takes: nothing else is to be done here meanwhile.

    Raises:
        EngineStartError, ValueError, OSError, and what vLLM raises: it cannot be served.
    """
    facts = LanguageFacts(Path(options.folder), options.device, options.dtype, options.families, options.trusted)
    form = form_of(facts)
    # To import vLLM takes longer than to see that it would be in vain.
    from services.language.engine.vllm.launch import launch

    return await launch(options, facts, form, socket)


def _reason(error: Exception, cause: Path, options: EngineOptions) -> str:
    """What to tell of a failed start: what failed first, in whichever of vLLM's processes."""
    if cause.exists():
        first = cause.read_text(encoding="utf-8")
    elif isinstance(error, EngineStartError | OSError) or type(error) is ValueError:
        return str(error)
    else:
        first = " ".join(str(error).split())
    pool = f" (EPD_KV_CACHE_MEMORY is {options.kv_cache_memory})" if options.kv_cache_memory else ""
    return f"vLLM says: {first}{pool}"


def _unwanted(loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """Done when the service closes this process's standard input, or is gone, however it ended."""
    future: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not future.done():
            future.set_result(None)

    def watch() -> None:
        while sys.stdin.buffer.read(1):
            pass
        loop.call_soon_threadsafe(tell)
        # Where this takes longer than anybody waits (a model still loads), the whole group goes.
        threading.Event().wait(_PATIENCE)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    return future


_PATIENCE = 8.0
"""Seconds for vLLM to end in order; less than ``VllmEngine.patience``."""


if __name__ == "__main__":
    main()
