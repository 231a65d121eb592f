"""``python -m benchmarks.stub``: the language service with an engine that answers at once, for ``benchmarks.api``.

Settings are the service's (``EPD_…``). ``GET /benchmark/gap`` tells the longest time, in seconds, for which its event loop did
not turn since it was asked the last time, and the most processor time that the service took within one such gap; from the first
time on, a task looks each millisecond. With ``--bare PORT`` it is the
floor instead: a route of Starlette's that gives constant bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.language.app import create_app
from services.language.engine.interface import EngineRequest, Load, Step, TokenStream
from services.language.engine.options import EngineOptions
from services.language.settings import LanguageSettings
from shared.lifecycle import prepare, run

TOKENS = 8
LOOK = 0.001  # seconds
CONSTANT = b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"demo_model","choices":[{"index":0,"message":'
CONSTANT += b'{"role":"assistant","content":"Hello! I am a small model."},"finish_reason":"stop"}],"usage":{"prompt_tokens":17,'
CONSTANT += b'"completion_tokens":8,"total_tokens":25}}'


class Steps:
    """The tokens of an answer, all there from the beginning."""

    def __init__(self, request: EngineRequest) -> None:
        number = min(TOKENS, request.sampling.max_tokens)
        # Tokens of the demo model's alphabet, so that they have a text.
        self._steps = iter([Step(100 + at, "length" if at == number - 1 else None) for at in range(number)])

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> Step:
        for step in self._steps:
            return step
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._steps = iter(())


class StubEngine:
    """Computes nothing."""

    def __init__(self, options: EngineOptions) -> None:
        """There is nothing to set."""

    async def start(self) -> None:
        """It is ready."""

    async def stop(self) -> None:
        """It has nothing to end."""

    def abort(self, reason: str) -> None:
        """No answer takes any time."""

    def submit(self, request: EngineRequest) -> TokenStream:
        return Steps(request)

    def ready(self) -> bool:
        return True

    def parameters(self) -> dict[str, int]:
        return {}

    def load(self) -> Load:
        return Load(running=0, waiting=0)


class Gaps:
    """Looks each millisecond whether the event loop still turns."""

    def __init__(self) -> None:
        self._longest = self._busiest = 0.0
        self._task: asyncio.Task[None] | None = None

    def take(self) -> tuple[float, float]:
        """The longest gap since the last call, and the most that the process computed in one, in seconds."""
        self._task = self._task or asyncio.create_task(self._look())
        taken = self._longest, self._busiest
        self._longest = self._busiest = 0.0
        return taken

    async def _look(self) -> None:
        last, used = time.perf_counter(), time.process_time()
        while True:
            await asyncio.sleep(LOOK)
            now, using = time.perf_counter(), time.process_time()
            self._longest = max(self._longest, now - last - LOOK)
            self._busiest = max(self._busiest, using - used)
            last, used = now, using


def bare() -> Starlette:
    """The floor: reads a request's body and gives constant bytes."""

    async def answer(request: Request) -> Response:
        await request.body()
        return Response(CONSTANT, media_type="application/json")

    async def health(_: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type="application/json")

    return Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"]), Route("/health", health)])


def stubbed(settings: LanguageSettings) -> FastAPI:
    """The language service's application with a ``StubEngine``."""
    app = create_app(settings, StubEngine)
    gaps = Gaps()

    @app.get("/benchmark/gap")
    async def gap() -> tuple[float, float]:
        return gaps.take()

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bare", type=int, metavar="PORT", help="be the floor")
    args = parser.parse_args()
    if args.bare is not None:
        uvicorn.run(bare(), host="127.0.0.1", port=args.bare, log_level="warning", access_log=False)
        return
    settings = LanguageSettings()
    prepare(settings)
    run(stubbed(settings), settings, settings.port)


if __name__ == "__main__":
    main()
