"""One request over HTTP: what a client makes of whatever a server does."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.loadtest.deployment.route import client
from tests.processes import ROOT
from tests.unit.loadtest.scripted import Connection, Server, forever, nobody

CHAT = json.dumps({"choices": [{"message": {"role": "assistant", "content": "A red circle."}}]}).encode()
ERROR = {"error": {"message": "No encoder is healthy.", "type": "server_error", "param": None, "code": "encoder_unavailable"}}
DONE = b"data: [DONE]\n\n"


def token(text: str) -> bytes:
    return b"data: %s\n\n" % json.dumps({"choices": [{"delta": {"content": text}}]}).encode()


class Asker:
    """A process that asks."""

    def __init__(self, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.loadtest.asking"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment},
        )

    def ask(self, url: str, **order: Any) -> dict[str, Any]:
        """The record of one request, as a dictionary."""
        usual = {"body": "{}", "expected": None, "streamed": False, "hang_up": None, "id": "lt-1"}
        more = {"deadline": 10, "patience": 5, "api_key": None, "blind": False}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"url": url, **usual, **more, **order}), file=self._process.stdin, flush=True)
        record: dict[str, Any] = json.loads(self._process.stdout.readline())
        return record

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=10)
        assert self._process.returncode == 0


@pytest.fixture(scope="module")
def asker() -> Iterator[Asker]:
    with Asker() as asker:
        yield asker


def chat(connection: Connection) -> None:
    connection.say("200 OK", CHAT, "x-request-id: theirs")


def test_a_whole_answer_is_read_and_judged(asker: Asker) -> None:
    with Server(forever(chat)) as server:
        record = asker.ask(server.url, expected="A red circle.")
        wrong = asker.ask(server.url, expected="A blue square.")
    assert (record["end"], record["status"], record["code"], record["right"]) == ("answered", 200, "ok", True)
    assert record["answered_id"] == "theirs"
    assert record["due"] <= record["sent"] < record["first"] == record["ended"]
    assert record["length"] == len(CHAT)
    assert (wrong["right"], wrong["said"], wrong["expected"]) == (False, "A red circle.", "A blue square.")


def test_what_is_sent(asker: Asker) -> None:
    with Server(forever(chat)) as server:
        asker.ask(server.url + "/v1", body='{"a": 1}', id="lt-7", deadline=2.5, api_key="secret")
    head, _, body = server.requests[0].decode().partition("\r\n\r\n")
    lines = head.split("\r\n")
    assert lines[0] == "POST /v1/chat/completions HTTP/1.1"
    assert {"x-request-id: lt-7", "x-request-timeout: 2.5", "authorization: Bearer secret"} <= set(lines)
    assert {"content-type: application/json", f"host: {server.url.removeprefix('http://')}"} <= set(lines)
    assert body == '{"a": 1}'


def test_an_error_has_its_code_and_when_to_come_back(asker: Asker) -> None:
    with Server(forever(lambda it: it.say("503 Service Unavailable", json.dumps(ERROR).encode(), "retry-after: 3"))) as server:
        for streamed in (False, True):
            record = asker.ask(server.url, expected="A red circle.", streamed=streamed)
            assert (record["end"], record["status"], record["code"]) == ("answered", 503, "encoder_unavailable")
            assert (record["retry_after"], record["detail"], record["right"]) == (3.0, "No encoder is healthy.", None)
            assert record["first"] is None


@pytest.mark.parametrize(
    ("status", "body", "end", "detail"),
    [
        ("200 OK", b'{"id": "chatcmpl-1"}', "broken", "a completion without a message"),
        ("200 OK", b'{"choices": []}', "broken", "a completion without a message"),
        ("200 OK", b"<html>Welcome</html>", "broken", "<html>Welcome"),
        ("200 OK", b"", "broken", "nothing"),
        ("502 Bad Gateway", b"<html>Bad Gateway</html>", "answered", "<html>Bad Gateway"),
        ("404 Not Found", b'{"detail":"Not Found"}', "answered", "no error object"),
    ],
)
def test_what_is_no_answer_of_the_api(asker: Asker, status: str, body: bytes, end: str, detail: str) -> None:
    with Server(forever(lambda it: it.say(status, body))) as server:
        record = asker.ask(server.url)
    assert (record["end"], record["code"], record["status"]) == (end, "", int(status[:3]))
    assert detail in record["detail"]


def test_a_stream_is_put_together_whatever_pieces_it_comes_in(asker: Asker) -> None:
    whole = b": hello\r\n\r\n" + token("") + token("A red") + token(" circle.").replace(b"\n", b"\r\n") + DONE
    with Server(forever(lambda it: it.stream(*[whole[at : at + 7] for at in range(0, len(whole), 7)]))) as server:
        record = asker.ask(server.url, expected="A red circle.", streamed=True)
    assert (record["end"], record["status"], record["code"], record["right"]) == ("answered", 200, "ok", True)
    assert record["length"] == len(whole)


def test_the_first_token_has_a_time_of_its_own(asker: Asker) -> None:
    release = threading.Event()

    def script(connection: Connection) -> None:
        connection.read()
        connection.stream(token("A"), end=False)
        release.wait(0.2)  # the pause that is to be seen, not waited for
        connection.sock.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(DONE), DONE))

    with Server(script) as server:
        record = asker.ask(server.url, streamed=True)
    assert record["ended"] - record["first"] >= 0.15


@pytest.mark.parametrize(
    ("chunks", "end", "detail"),
    [
        ((token("A red"),), True, "ended without [DONE]"),
        ((token("A red"),), False, "broke off"),
        ((token("A red"), b"data: {\n\n"), True, "b'{'"[1:]),
    ],
)
def test_a_stream_that_is_not_whole_is_broken(asker: Asker, chunks: tuple[bytes, ...], end: bool, detail: str) -> None:
    def script(connection: Connection) -> None:
        connection.read()
        connection.stream(*chunks, end=end)

    with Server(script) as server:
        record = asker.ask(server.url, expected="A red circle.", streamed=True)
    assert (record["end"], record["right"]) == ("broken", None)
    assert detail in record["detail"]


def test_a_stream_that_ends_with_an_error_is_an_answer(asker: Asker) -> None:
    event = b"data: %s\n\n" % json.dumps(ERROR).encode()
    with Server(forever(lambda it: it.stream(token("A red"), event))) as server:
        record = asker.ask(server.url, expected="A red circle.", streamed=True)
    assert (record["end"], record["status"], record["code"]) == ("answered", 200, "encoder_unavailable")
    assert record["right"] is None


def test_a_whole_answer_where_a_stream_was_asked_for_is_broken(asker: Asker) -> None:
    with Server(forever(lambda it: it.say("200 OK", CHAT, "content-type: application/json"))) as server:
        record = asker.ask(server.url, streamed=True)
    assert record["end"] == "broken"
    assert "application/json" in record["detail"]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_gives_up_when_its_patience_is_over(asker: Asker, streamed: bool) -> None:
    def script(connection: Connection) -> None:
        connection.read()
        if streamed:
            connection.stream(token("A red"), end=False)
        connection.read()  # until the client closes

    with Server(script) as server:
        record = asker.ask(server.url, deadline=0.2, patience=0.1, streamed=streamed)
    assert record["end"] == "unanswered"
    assert 0.3 <= record["ended"] - record["sent"] < 1


def test_a_refused_connection_is_broken(asker: Asker) -> None:
    with nobody() as url:
        record = asker.ask(url)
    assert (record["end"], record["status"], record["code"]) == ("broken", 0, "")
    assert "refused" in record["detail"]


def test_connections_are_kept(asker: Asker) -> None:
    def both(connection: Connection) -> None:
        connection.stream(token("A"), DONE) if server.requests[-1].endswith(b"stream") else chat(connection)

    with Server(forever(both)) as server:
        for _ in range(3):
            assert asker.ask(server.url)["end"] == "answered"
            assert asker.ask(server.url, body="stream", streamed=True)["end"] == "answered"
    assert server.connections == 1


def test_an_idle_connection_that_the_server_closed_is_nobodys_failure(asker: Asker) -> None:
    def once(connection: Connection) -> None:
        connection.read()
        chat(connection)

    for blind in (False, True):  # blind: its goodbye crosses the next request
        with Server(once) as server:
            for _ in range(3):
                assert asker.ask(server.url, blind=blind, patience=0.5, deadline=2)["code"] == "ok"
        assert server.connections == len(server.requests) == 3


def test_who_reads_a_request_and_closes_is_not_asked_again(asker: Asker) -> None:
    def drops_the_second(connection: Connection) -> None:
        connection.read()
        chat(connection)
        connection.read()

    with Server(drops_the_second, forever(chat)) as server:
        assert asker.ask(server.url)["code"] == "ok"
        record = asker.ask(server.url)
    assert (record["end"], record["status"]) == ("broken", 0)
    assert len(server.requests) == 2


def test_a_new_connection_without_an_answer_is_broken(asker: Asker) -> None:
    with Server(lambda it: it.read() and None, forever(chat)) as server:
        assert asker.ask(server.url)["end"] == "broken"
    assert len(server.requests) == 1


def test_a_client_that_wants_to_leaves(asker: Asker) -> None:
    left = threading.Event()

    def waits(connection: Connection) -> None:
        connection.read()
        if not connection.read():
            left.set()

    with Server(waits) as server:
        record = asker.ask(server.url, hang_up=0.05)
        assert left.wait(5)
    assert (record["end"], record["status"], record["first"]) == ("hung_up", 0, None)
    assert record["ended"] - record["sent"] < 1


def test_a_client_that_wants_to_leave_may_be_answered_before(asker: Asker) -> None:
    with Server(forever(chat)) as server:
        record = asker.ask(server.url, hang_up=5, expected="A red circle.")
    assert (record["end"], record["right"]) == ("answered", True)


def test_a_client_leaves_a_stream_with_its_first_token(asker: Asker) -> None:
    left = threading.Event()

    def script(connection: Connection) -> None:
        connection.read()
        connection.stream(token("A"), end=False)
        if not connection.read():
            left.set()

    with Server(script) as server:
        record = asker.ask(server.url, hang_up=5, streamed=True)
        assert left.wait(5)
    assert (record["end"], record["status"]) == ("hung_up", 200)
    assert record["first"] is not None


def test_encrypted_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("makes a certificate by openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with Asker(SSL_CERT_FILE=str(certificate)) as trusting, Server(forever(chat), tls=context) as server:
        assert [trusting.ask(server.url)["code"] for _ in range(3)] == ["ok"] * 3
        assert server.connections == 1
        # What else asks the server trusts the same.
        with monkeypatch.context() as patch:
            patch.setenv("SSL_CERT_FILE", str(certificate))
            with client(timeout=5) as http:
                assert http.get(f"{server.url}/v1/models").status_code == 200
    with Asker() as wary, Server(forever(chat), tls=context) as server:
        record = wary.ask(server.url)
    assert record["end"] == "broken"
    assert "certificate" in record["detail"].lower()
