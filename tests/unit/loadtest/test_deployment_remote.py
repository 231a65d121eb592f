"""A server that is only known by its address: what it says of its encoders decides what can be concluded from faults."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from services.loadtest.deployment.remote import RemoteDeployment


@contextmanager
def server(says: str | None, key: str | None = None) -> Iterator[str]:
    """Answers all that is asked; with status 404 where it says nothing, and 401 to whom has not the ``key``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            stranger = key is not None and self.headers["authorization"] != f"Bearer {key}"
            self.send_response(401 if stranger else 404 if says is None else 200)
            self.end_headers()
            self.wfile.write((says or "").encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("says", "known"),
    [
        ('{"data": [{}, {}]}', ("encoder-1", "encoder-2")),
        ('{"data": [{}, {}, {}]}', ()),  # another one can go on computing
        ("[]", ()),
        ("hello", ()),
        (None, ()),
    ],
)
def test_encoders_are_known_where_the_server_says_that_there_are_no_others(says: str | None, known: tuple[str, ...]) -> None:
    with server(says) as url, RemoteDeployment(url, ("http://a", "http://b")) as deployment:
        assert deployment.encoders == known
        assert deployment.parts == ("encoder-1", "encoder-2")


@pytest.mark.parametrize(("key", "known"), [("right", ("encoder-1",)), ("wrong", ()), (None, ())])
def test_a_server_that_asks_for_a_key_is_asked_with_it(key: str | None, known: tuple[str, ...]) -> None:
    with server('{"data": [{}]}', "right") as url, RemoteDeployment(url, ("http://a",), api_key=key) as deployment:
        assert deployment.encoders == known
