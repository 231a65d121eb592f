"""The pair with one secret: what crosses is encrypted, and nobody else gets in, at the data port or by a control call."""

from __future__ import annotations

import http.client
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.scenes import png, random_scene
from shared.seam import Seam, keys_of
from shared.security import control_token, keygen, load_secret
from tests.chats import user
from tests.fake_encoder import FakeEncoder
from tests.processes import UNCACHED, Service, free_port, wait_for
from tests.relay import Relay

SETTINGS: dict[str, Any] = {"threads": 1, **UNCACHED}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("seam")


@pytest.fixture(scope="module")
def secret(folder: Path) -> Path:
    path = folder / "secret"
    assert keygen(path)
    return path


@pytest.fixture(scope="module")
def other_secret(folder: Path) -> Path:
    path = folder / "other-secret"
    assert keygen(path)
    return path


@dataclass(frozen=True)
class Pair:
    """An encoder and a language service, and somebody on the wire between them."""

    encoder: Service
    language: Service
    wire: Relay

    def ask(self) -> httpx.Response:
        return ask(self.language)

    def metrics(self) -> str:
        return httpx.get(f"{self.language.url}/metrics", trust_env=False).text


def ask(language: Service) -> httpx.Response:
    """A request about a picture that was not there before."""
    picture = png(random_scene(random.Random(8)), seed=random.getrandbits(60))
    body = user(picture, "Describe the picture.", max_tokens=8)
    return httpx.post(f"{language.url}/v1/chat/completions", json=body, timeout=30, trust_env=False)


def state_of_the_encoder(language: Service) -> tuple[str, str]:
    [view] = httpx.get(f"{language.url}/v1/encoders", trust_env=False).json()["data"]
    return view["state"], view["reason"]


@contextmanager
def pair_of(folder: Path, **settings: Any) -> Iterator[Pair]:
    """A pair whose embeddings cross in frames, by another loopback address at which a relay listens."""
    port = free_port()
    both = SETTINGS | {"mm_feature_transport": "cpu"} | settings
    with (
        Relay(("127.0.0.2", port), ("127.0.0.1", port)) as wire,
        Service("encoder", folder, faults_enabled=True, **both).start(wait=False) as encoder,
        Service(
            "language", folder, encoders=encoder.url, data_port=port, advertise_host="127.0.0.2", **both
        ).start(wait=False) as language,
    ):  # fmt: skip
        language.wait_until_ready(encoders=1)
        yield Pair(encoder, language, wire)


@pytest.fixture(scope="module")
def pair(folder: Path, secret: Path) -> Iterator[Pair]:
    with pair_of(folder, secret_file=secret) as pair:
        yield pair


def test_a_picture_is_answered_and_nobody_on_the_wire_can_read_it(pair: Pair) -> None:
    response = pair.ask()
    assert response.status_code == 200, response.text
    seen = pair.wire.seen
    assert b"CURVE" in seen
    assert len(seen) > 3 * 4 * 128  # embeddings have come this way
    for readable in (b"request_id", b"encoder_id", b"embeds", b"heartbeat", response.headers["x-request-id"].encode()):
        assert readable not in seen


def test_without_a_secret_it_could_be_read(folder: Path) -> None:
    """So that the test above is worth something."""
    with pair_of(folder) as plain:
        response = plain.ask()
        assert response.status_code == 200
        for readable in (b"request_id", b"heartbeat", response.headers["x-request-id"].encode()):
            assert readable in plain.wire.seen


@pytest.mark.parametrize(
    ("encoders", "languages", "reason"),
    [
        ("other_secret", "secret", "different secrets"),
        (None, "secret", "this encoder does not"),
        ("secret", None, "different secrets"),
    ],
)
def test_services_of_different_secrets_say_so(
    folder: Path, request: pytest.FixtureRequest, encoders: str | None, languages: str | None, reason: str
) -> None:
    def with_secret(fixture: str | None) -> dict[str, Any]:
        return SETTINGS | ({} if fixture is None else {"secret_file": request.getfixturevalue(fixture)})

    with (
        Service("encoder", folder, **with_secret(encoders)).start(wait=False) as encoder,
        Service("language", folder, encoders=encoder.url, **with_secret(languages)).start() as language,
    ):
        wait_for(lambda: state_of_the_encoder(language)[0] == "refused", 30, "refusal")
        assert reason in state_of_the_encoder(language)[1]
        assert "EPD_SECRET_FILE" in state_of_the_encoder(language)[1]
        response = ask(language)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (503, "encoder_unavailable")
        assert reason in error["message"]


def test_an_encoder_that_gets_the_right_secret_is_used_without_a_restart_of_the_other(
    folder: Path, secret: Path, other_secret: Path
) -> None:
    port = free_port()
    with Service("language", folder, encoders=f"http://127.0.0.1:{port}", secret_file=secret, **SETTINGS).start() as language:
        with Service("encoder", folder, port, secret_file=other_secret, **SETTINGS).start(wait=False):
            wait_for(lambda: state_of_the_encoder(language)[0] == "refused", 30, "refusal")
        with Service("encoder", folder, port, secret_file=secret, **SETTINGS).start(wait=False):
            language.wait_until_ready(encoders=1)
            assert ask(language).status_code == 200


def test_a_token_that_an_encoder_refuses_in_the_middle_is_not_the_clients_fault(folder: Path, secret: Path) -> None:
    """One that is ready, and then has other keys, as one behind the same address would."""
    seam = Seam(keys_of(load_secret(secret)))
    with (
        FakeEncoder(seam=seam) as encoder,
        # It looks again so late that it does not notice by itself.
        Service("language", folder, encoders=encoder.url, secret_file=secret, health_interval=30, **SETTINGS) as language,
    ):
        language.wait_until_ready(encoders=1)
        assert ask(language).status_code == 200
        encoder.seam = Seam(keys_of(b"a secret of somebody else"))
        response = ask(language)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (503, "encoder_failed")
        assert "different secrets" in error["message"]
        assert encoder.calls == 1


# ------------------------------------------------------------------------------------------------------- control calls

CONTROL = [
    ("encoder", "POST", "/encode"),
    ("encoder", "POST", "/v1/subscribe"),
    ("encoder", "GET", "/v1/faults"),
    ("encoder", "POST", "/v1/faults"),
    ("encoder", "DELETE", "/v1/faults"),
    ("encoder", "DELETE", "/v1/faults/fault-1"),
    ("language", "POST", "/v1/encoders"),
]


def call(service: Service, method: str, path: str, authorization: str | None, body: bytes = b"") -> tuple[int, dict[str, Any]]:
    """The answer to a call whose body is announced, and comes only as far as ``body``."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=5)
    try:
        connection.putrequest(method, path)
        connection.putheader("content-type", "application/json")
        connection.putheader("content-length", str(len(body) or 1_000))
        if authorization is not None:
            connection.putheader("authorization", authorization)
        connection.endheaders()
        connection.send(body)
        response = connection.getresponse()
        answer: dict[str, Any] = httpx.Response(response.status, content=response.read()).json()
        return response.status, answer
    finally:
        connection.close()


@pytest.mark.parametrize("wrong", ["none", "another", "no scheme", "empty"])
@pytest.mark.parametrize(("service", "method", "path"), CONTROL)
def test_a_control_call_without_the_token_is_refused_before_its_body_is_read(
    pair: Pair, secret: Path, service: str, method: str, path: str, wrong: str
) -> None:
    token = control_token(load_secret(secret))
    authorization = {"none": None, "another": f"Bearer {token[:-1]}x", "no scheme": token, "empty": "Bearer "}[wrong]
    status, answer = call(getattr(pair, service), method, path, authorization)
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "invalid_request", "authorization")
    assert "different secrets" in answer["error"]["message"]


@pytest.mark.parametrize(("service", "method", "path"), CONTROL)
def test_with_the_token_a_control_call_is_looked_at(pair: Pair, secret: Path, service: str, method: str, path: str) -> None:
    status, answer = call(getattr(pair, service), method, path, f"Bearer {control_token(load_secret(secret))}", b"{}")
    assert status in (200, 400, 404)
    if status != 200:
        assert answer["error"]["param"] != "authorization"


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v1/info"])
@pytest.mark.parametrize("service", ["encoder", "language"])
def test_what_tells_of_a_service_is_open(pair: Pair, service: str, path: str) -> None:
    assert httpx.get(f"{getattr(pair, service).url}{path}", trust_env=False).status_code == 200


def test_the_list_of_encoders_is_open(pair: Pair) -> None:
    assert state_of_the_encoder(pair.language) == ("ready", "")


def test_a_plain_encoder_sends_to_loopback_only(folder: Path) -> None:
    with Service("encoder", folder, **SETTINGS).start() as encoder:
        for path, rest in (
            ("/encode", {"request_id": "r", "num_items": 1, "items": [{"index": 0, "url": "data:,"}], "timeout": 5}),
            ("/v1/subscribe", {"interval": 1, "lease": 1}),
        ):
            body = {"reply_to": "tcp://192.0.2.1:5557", **rest}
            refused = httpx.post(f"{encoder.url}{path}", json=body, trust_env=False)
            error = refused.json()["error"]
            assert (refused.status_code, error["param"]) == (400, "reply_to")
            assert "loopback addresses only" in error["message"]


# ------------------------------------------------------------------------------------------------------- the data port


class Attackers:
    """Connections to ``port`` that come without end and say nothing, nonsense, or half of a handshake."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._attack, args=(seed,)) for seed in range(4)]
        self.connections = 0

    def _attack(self, seed: int) -> None:
        rng = random.Random(seed)
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(47)
        hello = greeting + b"\x04\xc8\x05HELLO"
        with ExitStack() as open_ones:
            while not self._stop.wait(0.005):
                one = open_ones.enter_context(socket.create_connection(("127.0.0.1", self._port)))
                said = rng.choice([b"", os.urandom(3000), b"GET / HTTP/1.0\r\n\r\n", greeting[:20], greeting, hello])
                with suppress(ConnectionError):
                    one.sendall(said)
                if rng.random() < 0.5:
                    one.close()
                self.connections += 1

    def __enter__(self) -> Attackers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_a_flood_of_strangers_at_the_data_port_does_not_stop_a_request(pair: Pair) -> None:
    with Attackers(pair.wire._target[1]) as attackers:
        wait_for(lambda: attackers.connections > 500, 30, "the flood")
        began = time.monotonic()
        responses = [pair.ask() for _ in range(10)]
        assert [response.status_code for response in responses] == [200] * 10
        assert time.monotonic() - began < 20
        # A restarted encoder has to get in, too, where the others push.
        pair.encoder.kill()
        pair.encoder.start(wait=False)
        wait_for(lambda: pair.ask().status_code == 200, 60, "an answer after a restart of the encoder")
    assert "epd_rejected_peers_total" in pair.metrics()
    assert 'outcome="malformed"' not in pair.metrics()
