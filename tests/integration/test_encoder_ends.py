"""How an encoder ends: what is open is finished, new calls are refused, and whoever listens is told."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import zmq
from PIL import Image

from shared.control import EncoderState, EncoderStatus
from shared.wire import Header, Heartbeat, read_header
from tests.chats import encoded
from tests.processes import Service, wait_for


class Media:
    """A site whose one picture comes when the test says so."""

    def __init__(self) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()
        media, picture = self, encoded(Image.new("RGB", (64, 64), "red"))

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                media.asked.set()
                media.answer.wait(30)
                self.send_response(200)
                self.send_header("content-length", str(len(picture)))
                self.end_headers()
                self.wfile.write(picture)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/picture.png"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.answer.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Receiver:
    """The data socket of a language service."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.PULL)
        self.socket.bind("tcp://127.0.0.1:*")
        self.socket.set(zmq.RCVTIMEO, 5000)
        self.address = self.socket.get_string(zmq.LAST_ENDPOINT)

    def next(self) -> Header | Heartbeat:
        return read_header(self.socket.recv_multipart()[0])

    def until(self, state: EncoderState) -> None:
        """Returns when a heartbeat has told of ``state``."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            message = self.next()
            if isinstance(message, Heartbeat) and message.state == state:
                return
        raise AssertionError(f"no heartbeat told of {state}")


@contextmanager
def calling(tmp_path: Path, drain_timeout: float) -> Iterator[tuple[Service, Media, Receiver, Future[httpx.Response]]]:
    """An encoder with one open call, which waits for its picture, and one subscriber."""
    media, receiver = Media(), Receiver()
    try:
        with (
            Service("encoder", tmp_path, allow_private_urls=True, drain_timeout=drain_timeout).start() as encoder,
            ThreadPoolExecutor(1) as thread,
        ):
            open_call = thread.submit(encode, encoder, media, receiver)
            assert media.asked.wait(5)
            yield encoder, media, receiver, open_call
            media.answer.set()
    finally:
        media.close()
        receiver.context.destroy(linger=0)


def encode(encoder: Service, media: Media, receiver: Receiver) -> httpx.Response:
    item = {"index": 0, "url": media.url}
    call = {"request_id": "r/1", "num_items": 1, "items": [item], "reply_to": receiver.address, "timeout": 20}
    return httpx.post(f"{encoder.url}/encode", json=call, timeout=30, trust_env=False)


def subscribe(encoder: Service, receiver: Receiver) -> EncoderStatus:
    body = {"reply_to": receiver.address, "interval": 0.1, "lease": 30}
    response = httpx.post(f"{encoder.url}/v1/subscribe", json=body, trust_env=False)
    assert response.status_code == 200, response.text
    return EncoderStatus.model_validate_json(response.content)


def status_of(encoder: Service) -> int:
    return httpx.get(f"{encoder.url}/ready", trust_env=False).status_code


def code_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_sigterm_finishes_what_is_open_and_refuses_what_is_new(tmp_path: Path) -> None:
    with calling(tmp_path, drain_timeout=10) as (encoder, media, receiver, open_call):
        status = subscribe(encoder, receiver)
        assert (status.state, status.items_in_work) == (EncoderState.READY, 1)
        receiver.until(EncoderState.READY)
        began = time.monotonic()
        encoder.process.send_signal(signal.SIGTERM)
        receiver.until(EncoderState.DRAINING)
        wait_for(lambda: status_of(encoder) == 503, 5, "draining")
        refused = encode(encoder, media, receiver)
        assert code_of(refused) == (503, "encoder_unavailable")
        assert subscribe(encoder, receiver).state == EncoderState.DRAINING
        assert not open_call.done()
        media.answer.set()
        assert open_call.result(timeout=10).status_code == 200
        messages = [receiver.next()]
        while not (isinstance(messages[-1], Heartbeat) and messages[-1].state == EncoderState.LEAVING):
            messages.append(receiver.next())
        assert sum(isinstance(message, Header) for message in messages) == 1
        assert encoder.process.wait(timeout=10) == 0
        assert time.monotonic() - began < 10
        # Each line says which encoder it is from.
        lines = [line for line in encoder.log.read_text().splitlines() if "request failed" in line or "draining" in line]
        assert lines
        assert all(f"encoder_id={status.info.service_id}" in line for line in lines)


def test_what_cannot_be_finished_in_time_is_answered(tmp_path: Path) -> None:
    with calling(tmp_path, drain_timeout=3) as (encoder, _, _, open_call):
        began = time.monotonic()
        encoder.process.send_signal(signal.SIGTERM)
        assert code_of(open_call.result(timeout=5)) == (503, "encoder_unavailable")
        assert encoder.process.wait(timeout=5) == 0
        assert time.monotonic() - began < 3.5


def test_a_second_sigterm_ends_at_once(tmp_path: Path) -> None:
    with calling(tmp_path, drain_timeout=30) as (encoder, _, _, open_call):
        encoder.process.send_signal(signal.SIGTERM)
        wait_for(lambda: status_of(encoder) == 503, 5, "draining")
        encoder.process.send_signal(signal.SIGTERM)
        assert encoder.process.wait(timeout=1) != 0
        with pytest.raises(httpx.HTTPError):
            open_call.result(timeout=5)
