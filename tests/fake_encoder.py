"""An encoder that misbehaves on order: a real HTTP server and a real PUSH socket, with no model behind them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
import uvicorn
import zmq
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from torch import Tensor

from services.loadtest.ports import free_port
from shared.checkpoint import fingerprint
from shared.control import (
    REQUEST_FIELD,
    EncodeRequest,
    EncodeResponse,
    EncoderState,
    EncoderStatus,
    ServiceInfo,
    Subscription,
)
from shared.errors import EpdError, body_of
from shared.guard import guarded
from shared.seam import LOOPBACK, Seam
from shared.wire import VERSION, Buffer, Header, Heartbeat, pack
from tests.processes import DEMO_MODEL, wait_for

GRID, TOKENS, WIDTH, LEVELS = (1, 4, 4), 4, 128, 2


@dataclass
class Call:
    """One ``/encode`` call, and the means to answer it well or badly."""

    request: EncodeRequest
    socket: zmq.Socket[bytes]
    fingerprint: str
    encoder_id: str
    stopping: threading.Event

    def header(self, item: int, **changes: Any) -> Header:
        fields: dict[str, Any] = {
            "request_id": self.request.request_id,
            "attempt": self.request.attempt,
            "item": item,
            "num_items": self.request.num_items,
            "modality": "image",
            "content_hash": f"{item:032x}",
            "num_tokens": TOKENS,
            "grid_thw": GRID,
            "model_fingerprint": self.fingerprint,
            "encoder_id": self.encoder_id,
        }
        return Header.model_validate(fields | changes)

    def tensors(self) -> dict[str, Tensor]:
        return {name: torch.zeros(TOKENS, WIDTH) for name in ("embeds", *(f"deepstack.{i}" for i in range(LEVELS)))}

    def message(self, item: int = 0, tensors: dict[str, Tensor] | None = None, **changes: Any) -> list[Buffer]:
        return pack(self.header(item, **changes), self.tensors() if tensors is None else tensors)

    def send(self, frames: Sequence[Buffer]) -> None:
        self.socket.send_multipart([bytes(frame) for frame in frames])

    def send_all(self) -> None:
        for item in self.request.items:
            self.send(self.message(item.index))

    def done(self) -> Response:
        body = EncodeResponse(encoder_id=self.encoder_id, items=())
        return Response(body.model_dump_json(), media_type="application/json")


Behaviour = Callable[[Call], Response]


def honest(call: Call) -> Response:
    """Sends zeros, correctly."""
    call.send_all()
    return call.done()


def refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, EpdError)
    return JSONResponse(body_of(error).model_dump(), status_code=error.status)


@dataclass
class FakeEncoder:
    """Serves in a thread of the test. ``behaviour`` answers each call; ``calls`` counts them. While ``beating`` is set, it
    shows signs of life to whoever subscribed, in the state ``state``. ``seam`` has its keys, if it has any."""

    behaviour: Behaviour = honest
    seam: Seam = LOOPBACK
    model_fingerprint: str = field(default_factory=lambda: fingerprint(DEMO_MODEL))
    calls: int = 0
    port: int = field(default_factory=free_port)
    stopping: threading.Event = field(default_factory=threading.Event)
    beating: threading.Event = field(default_factory=threading.Event)
    state: EncoderState = EncoderState.READY
    max_items: int = 256
    encoder_id: str = field(default_factory=lambda: f"fake-{uuid.uuid4().hex[:8]}")
    subscribers: dict[str, float] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _app(self) -> FastAPI:
        app = FastAPI()
        app.add_exception_handler(EpdError, refused)
        control = guarded(lambda request: self.seam.check_token(request.headers.get("authorization")))

        @control.post("/v1/subscribe")
        async def subscribe(subscription: Subscription) -> EncoderStatus:
            self._loop = asyncio.get_running_loop()
            self.subscribers[subscription.reply_to] = subscription.interval
            return EncoderStatus(info=self.info(), state=self.state, items_in_work=0, max_items=self.max_items)

        @control.post("/encode")
        async def encode(request: Request) -> Response:
            if request.headers["content-type"].startswith("multipart/"):
                async with request.form() as form:
                    raw = str(form[REQUEST_FIELD])
            else:
                raw = (await request.body()).decode()
            self.calls += 1
            return await asyncio.to_thread(self._answer, EncodeRequest.model_validate_json(raw))

        app.include_router(control)
        return app

    def info(self) -> ServiceInfo:
        return ServiceInfo(
            service="encoder",
            service_id=self.encoder_id,
            version="0",
            wire_version=VERSION,
            model="fake",
            model_type="qwen3_vl",
            model_fingerprint=self.model_fingerprint,
            device="cpu",
            dtype="float32",
            parameters={},
            parameters_total=0,
        )

    def _beat(self) -> None:
        sockets: dict[str, zmq.Socket[bytes]] = {}
        while not self.stopping.wait(min(self.subscribers.values(), default=0.02)):
            beat = Heartbeat(encoder_id=self.encoder_id, state=self.state, items_in_work=0, max_items=self.max_items)
            for endpoint in list(self.subscribers) if self.beating.is_set() else ():
                if endpoint not in sockets:
                    sockets[endpoint] = self._context.socket(zmq.PUSH)
                    sockets[endpoint].set(zmq.SNDHWM, 4)
                    sockets[endpoint].set(zmq.LINGER, 0)
                    self.seam.secure_client(sockets[endpoint])
                    sockets[endpoint].connect(endpoint)
                with contextlib.suppress(zmq.Again):
                    sockets[endpoint].send(beat.model_dump_json().encode(), zmq.NOBLOCK)

    def _answer(self, request: EncodeRequest) -> Response:
        with self._context.socket(zmq.PUSH) as socket:
            socket.set(zmq.LINGER, 1000)
            self.seam.secure_client(socket)
            socket.connect(request.reply_to)
            return self.behaviour(Call(request, socket, self.model_fingerprint, self.encoder_id, self.stopping))

    def drop_connections(self) -> None:
        """Closes the listening socket and resets all connections, as the death of the process would."""
        for server in self._server.servers:
            self._loop.call_soon_threadsafe(server.close)
        for connection in list(self._server.server_state.connections):
            self._loop.call_soon_threadsafe(connection.transport.abort)

    def __enter__(self) -> FakeEncoder:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        config = uvicorn.Config(self._app(), host="127.0.0.1", port=self.port, log_level="error", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        self.beating.set()
        self._heart = threading.Thread(target=self._beat)
        self._heart.start()
        wait_for(lambda: self._server.started, 10, "start of the fake encoder")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stopping.set()
        self._server.should_exit = True
        self._thread.join()
        self._heart.join()
        self._context.destroy(linger=0)


def after(seconds: float, behaviour: Behaviour) -> Behaviour:
    """The same, late; at once when the fake is told to stop."""

    def late(call: Call) -> Response:
        call.stopping.wait(seconds)
        return behaviour(call)

    return late
