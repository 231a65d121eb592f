"""Running a service: logging, torch's threads, uvicorn, and an end with manners."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any, Literal

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError

from shared.errors import Unavailable
from shared.pacing import PacedProtocol, Pump
from shared.settings import ServiceSettings
from shared.telemetry import configure_logging, get_logger

_log = get_logger("lifecycle")

# Names of mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


# Of the time that draining may take, what stopping the service's parts needs after the last answer.
_TIME_TO_STOP = 4.0

# Of collecting garbage: seconds between looks whether it is a good moment, and between collections at whatever moment.
_LOOK, _AT_LEAST_EVERY = 0.5, 30.0
_NEVER = 2**30

_MOST_FILES = 65_536


class Drain:
    """How a service ends: from the first signal on, what is open is finished and new work refused; when time is short, what
    is still open is answered too.

    ``refusal`` makes the error that new work, and in the end open work, gets.
    """

    def __init__(self, timeout: float, refusal: Callable[[], Unavailable]) -> None:
        self._timeout = timeout
        self._refusal = refusal
        self._open = 0
        self._deadline = float("inf")
        self._on_begin: list[Callable[[], None]] = []
        self._on_expiry: list[Callable[[], None]] = []
        self.begun = False
        self.expired = asyncio.Event()
        self._expiry: asyncio.Future[Any] | None = None

    def on_begin(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` in the event loop when draining begins."""
        self._on_begin.append(callback)

    def on_expiry(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` in the event loop when open work is to be answered at once."""
        self._on_expiry.append(callback)

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Inside it, a request is open."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def check(self) -> None:
        """Refuses new work.

        Raises:
            Unavailable: draining has begun.
        """
        if self.begun:
            raise self._refusal()

    def refuse(self) -> Unavailable:
        """The error for work that cannot be finished any more."""
        return self._refusal()

    def expiry(self) -> asyncio.Future[Any]:
        """Done once ``expired`` is set. All requests wait for the same one, so that none needs a task of its own for it."""
        if self._expiry is None:
            self._expiry = asyncio.ensure_future(self.expired.wait())
        return self._expiry

    def begin(self) -> None:
        """Draining begins."""
        if self.begun:
            return
        self.begun = True
        self._deadline = time.monotonic() + self._timeout - min(_TIME_TO_STOP, self._timeout / 2)
        _log.info("draining", open_requests=self._open, timeout=self._timeout)
        for callback in self._on_begin:
            callback()

    @property
    def idle(self) -> bool:
        """Whether no request is open."""
        return self._open == 0

    def finished(self) -> bool:
        """Whether nothing is open any more; asked several times a second."""
        if not self.begun:
            return False
        if time.monotonic() > self._deadline and not self.expired.is_set():
            _log.warning("draining took too long", open_requests=self._open)
            self.expired.set()
            for callback in self._on_expiry:
                callback()
        return self._open == 0 or time.monotonic() > self._deadline + 1.0


class Server(uvicorn.Server):
    """uvicorn, except that the first signal drains, the second ends at once, and a drained service exits with 0."""

    def __init__(self, config: uvicorn.Config, drain: Drain, pump: Pump) -> None:
        super().__init__(config)
        self._drain = drain
        self._pump = pump
        self._signalled = False

    def end(self) -> None:
        """What the first signal does, for a service that is not alone in its process: it drains, and then serving ends."""
        self._signalled = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._signalled:
            os._exit(128 + sig)
        self._signalled = True
        if not self.started:
            # There is nothing to finish yet, and loading a model may take minutes.
            os._exit(0)

    async def on_tick(self, counter: int) -> bool:
        if self._signalled:
            self._drain.begin()
        return (self._drain.finished() and self._pump.empty) or await super().on_tick(counter)


def prepare(settings: ServiceSettings) -> None:
    """Process-wide set-up, once, before anything is loaded."""
    prepare_process(settings.log_level, settings.log_format, settings.torch_threads())


def prepare_process(log_level: str, log_format: str, threads: int) -> None:
    """The same for any process of the pair."""
    configure_logging(log_level, log_format)
    # The event loop gets the interpreter back from busy threads this soon (seconds); the default is ten times as long.
    sys.setswitchinterval(0.0005)
    torch.set_num_threads(threads)
    keep_freed_memory()
    allow_connections()


def allow_connections() -> None:
    """Lets the process have as many files and connections open as the system lets it ask for, up to 65,536: many systems begin
    with 1,024, and a thousand encoders alone take four times as many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextlib.contextmanager
def reading_settings() -> Iterator[None]:
    """Inside it, settings with which the service must not start end the process with a sentence, and no traceback."""
    try:
        yield
    except ValidationError as error:
        wrong = (f"EPD_{'_'.join(map(str, one['loc'])).upper()}: {one['msg']}" for one in error.errors())
        sys.exit(f"not started: {'; '.join(wrong)}")
    except (ValueError, OSError) as error:
        sys.exit(f"not started: {error}")


def settle() -> None:
    """Called once when all is loaded: what exists by now stays, so the garbage collector need not look at it ever again.

    A full collection over the modules of torch and transformers was measured to stop a process for 200 ms, in the middle of
    requests.
    """
    gc.collect()
    gc.freeze()


@contextlib.asynccontextmanager
async def tidy(drain: Drain) -> AsyncIterator[None]:
    """Inside it, full garbage collections happen while no request is open; under load without a pause, twice a minute.

    By itself the collector looks at everything as soon as there is a quarter more of it. With a thousand requests open that was
    measured to stop the event loop for up to 200 ms, again and again.
    """
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    task = asyncio.create_task(_collect(drain), name="tidy")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gc.set_threshold(young, middle, old)


async def _collect(drain: Drain) -> None:
    last = time.monotonic()
    while True:
        await asyncio.sleep(_LOOK)
        waited = time.monotonic() - last > _AT_LEAST_EVERY
        if (waited or drain.idle) and gc.get_count()[2] > 0:
            gc.collect()
            last = time.monotonic()


def keep_freed_memory() -> None:
    """Tells glibc to keep what is freed, instead of giving it back to the system and asking for it again.

    A step frees and allocates the same megabytes as the one before; faulting their pages in anew was measured to take half of
    the time of batched decoding. Where the C library is another one, nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            libc.mallopt(parameter, 2**30)


class Refusal(ValueError):
    """The service cannot start, for a reason that is told in a sentence."""


@contextlib.contextmanager
def refusing(*also: type[Exception]) -> Iterator[None]:
    """Around what a service begins with: what is wrong with its checkpoint ends the start with a sentence, without a traceback.

    Raises:
        Refusal: for a ``ValueError`` or ``OSError``, or one of ``also``.
    """
    reasons: tuple[type[Exception], ...] = (ValueError, OSError, *also)
    try:
        yield
    except reasons as error:
        _log.debug("the start failed", exc_info=True)
        raise Refusal(str(error)) from error


def _told_in_a_line(record: logging.LogRecord) -> bool:
    """Of a start that was refused, uvicorn is given the traceback as text; the last line of it is the sentence."""
    name = f"{Refusal.__module__}.{Refusal.__qualname__}: "
    _, refused, sentence = record.getMessage().rpartition(name)
    if refused:
        record.msg, record.args = "cannot start: %s", (sentence.strip(),)
    return True


def server_of(app: FastAPI, host: str, port: int, lifespan: Literal["auto", "off"] = "auto") -> Server:
    """What serves ``app``; it drains by ``app.state.drain``. With its ``lifespan`` off, the caller enters that of the app."""
    pump = Pump()
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=partial(PacedProtocol, pump),  # type: ignore[arg-type]
        lifespan=lifespan,
        log_config=None,
        access_log=False,
        ws="none",  # there are no WebSockets, and so no other protocol to have limits for
        timeout_graceful_shutdown=1,  # open requests have ended by then
        timeout_keep_alive=30,
        backlog=4096,
    )
    return Server(config, app.state.drain, pump)


def run(app: FastAPI, settings: ServiceSettings, port: int) -> None:
    """Serves until SIGTERM or SIGINT, then drains (``app.state.drain``), and ends the process with status 0."""
    logging.getLogger("uvicorn.error").addFilter(_told_in_a_line)
    server_of(app, settings.host, port).run()
    # A thread that hangs in a computation must not keep the process from ending; the interpreter would wait for it.
    logging.shutdown()
    os._exit(0)
