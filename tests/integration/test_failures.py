"""Every way in which embeddings fail to arrive is one code and one status, streaming or not, and nothing is run locally."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import torch
from fastapi import Response
from fastapi.responses import JSONResponse

from shared.errors import ERRORS, body_of
from shared.wire import VERSION
from tests.chats import encoded, user
from tests.fake_encoder import Call, FakeEncoder, after, honest
from tests.processes import UNCACHED, Service, free_port, wait_for

TIMEOUT, GRACE = 2.0, 0.6


def picture() -> bytes:
    from PIL import Image

    return encoded(Image.new("RGB", (64, 64), "red"))


@pytest.fixture(scope="module")
def encoder() -> Iterator[FakeEncoder]:
    with FakeEncoder() as fake:
        yield fake


@pytest.fixture(scope="module")
def language(encoder: FakeEncoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("failures")
    options: dict[str, Any] = {
        "embedding_timeout": TIMEOUT,
        "arrival_grace": GRACE,
        "health_interval": 0.1,
        **UNCACHED,  # every request is about the same picture
    }
    with Service("language", folder, encoders=encoder.url, **options).start() as service:
        service.wait_until_ready(encoders=1)
        yield service


@pytest.fixture(autouse=True)
def healthy_again(encoder: FakeEncoder, language: Service) -> Iterator[None]:
    """Each test leaves the fake honest, and shows that the language service serves again without a restart."""
    yield
    encoder.behaviour = honest
    language.wait_until_ready(encoders=1)
    response = ask(language)
    assert response.status_code == 200, response.text


def ask(language: Service, pictures: int = 1, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    body = user(*[picture()] * pictures, "Describe the picture.", max_tokens=8, **fields)
    return httpx.post(f"{language.url}/v1/chat/completions", json=body, headers=headers, timeout=30, trust_env=False)


def answer(status: int, code: str | None = None) -> Callable[[Call], Response]:
    content = "<html>oops" if code is None else body_of(ERRORS[code]("because", param="messages.0")).model_dump()
    return lambda _: JSONResponse(content, status_code=status)


def nothing(call: Call) -> Response:
    return call.done()


def first_only(call: Call) -> Response:
    call.send(call.message(0))
    return call.done()


def changed(**header: Any) -> Callable[[Call], Response]:
    def behave(call: Call) -> Response:
        call.send(call.message(0, **header))
        return call.done()

    return behave


def other_tensors(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Call], Response]:
    def behave(call: Call) -> Response:
        call.send(call.message(0, tensors=change(call.tensors())))
        return call.done()

    return behave


def tampered(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Call], Response]:
    def behave(call: Call) -> Response:
        call.send(change([bytes(frame) for frame in call.message(0)]))
        return call.done()

    return behave


def replace(old: bytes, new: bytes) -> Callable[[list[bytes]], list[bytes]]:
    def change(frames: list[bytes]) -> list[bytes]:
        assert old in frames[0]
        return [frames[0].replace(old, new), *frames[1:]]

    return change


def with_value(value: float) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tensors["deepstack.1"][2, 5] = value
        return tensors

    return change


CASES: dict[str, tuple[Callable[[Call], Response], str, int]] = {
    "an encoder that answers 500": (answer(500, "internal_error"), "encoder_failed", 503),
    "an encoder that answers nonsense": (lambda _: Response("<html>", 200), "encoder_failed", 503),
    "an encoder that answers 404": (answer(404), "encoder_failed", 503),
    "an encoder that is full": (answer(503, "encoder_overloaded"), "encoder_overloaded", 503),
    "an encoder that says the picture is bad": (answer(400, "invalid_media"), "invalid_media", 400),
    "an encoder that says the pictures are too many": (answer(400, "invalid_request"), "invalid_request", 400),
    "an encoder that is too slow": (after(TIMEOUT + 0.3, honest), "embedding_timeout", 503),
    "an encoder that says done and sends nothing": (nothing, "embedding_incomplete", 503),
    "a flipped bit": (
        tampered(lambda frames: [frames[0], bytes([frames[1][0] ^ 1]) + frames[1][1:], *frames[2:]]),
        "embedding_corrupt",
        503,
    ),
    "a lost frame": (tampered(lambda frames: frames[:-1]), "embedding_corrupt", 503),
    "a cut frame": (tampered(lambda frames: [*frames[:-1], frames[-1][:-8]]), "embedding_corrupt", 503),
    "another protocol version": (
        tampered(replace(f'"version":{VERSION}'.encode(), f'"version":{VERSION + 1}'.encode())),
        "embedding_incompatible",
        503,
    ),
    "another model": (changed(model_fingerprint="other"), "embedding_incompatible", 503),
    "a wrong token count": (changed(num_tokens=5), "embedding_incompatible", 503),
    "a grid that does not fit": (changed(grid_thw=(1, 4, 6), num_tokens=6), "embedding_incompatible", 503),
    "a wrong width": (
        other_tensors(lambda tensors: tensors | {"embeds": torch.zeros(4, 127)}),
        "embedding_incompatible",
        503,
    ),
    "a missing level": (
        other_tensors(lambda tensors: {name: tensors[name] for name in ("embeds", "deepstack.0")}),
        "embedding_incompatible",
        503,
    ),
    "a tensor too many": (
        other_tensors(lambda tensors: tensors | {"surprise": torch.zeros(4, 128)}),
        "embedding_incompatible",
        503,
    ),
    "a value that is not a number": (other_tensors(with_value(float("nan"))), "embedding_incompatible", 503),
    "a value that is infinite": (other_tensors(with_value(float("inf"))), "embedding_incompatible", 503),
    "integers instead of floats": (tampered(replace(b'"float32"', b'"int32"')), "embedding_incompatible", 503),
    "no tokens": (changed(num_tokens=0, grid_thw=(0, 4, 4)), "embedding_incompatible", 503),
    "no grid": (changed(grid_thw=None), "embedding_incompatible", 503),
    "a negative grid": (changed(grid_thw=(-1, -4, 4)), "embedding_incompatible", 503),
    "a grid that does not merge": (changed(grid_thw=(1, 16, 1)), "embedding_incompatible", 503),
    "another modality": (changed(modality="video"), "embedding_incompatible", 503),
    "two tensors of one name": (tampered(replace(b'"deepstack.1"', b'"deepstack.0"')), "embedding_corrupt", 503),
    "a content hash that is a caller's": (changed(content_hash=f"tenant:{0:032x}"), "embedding_incompatible", 503),
    "a content hash that is none": (changed(content_hash="picture"), "embedding_incompatible", 503),
    "a message that reports a failure": (
        changed(failure={"code": "encoder_failed", "message": "out of memory"}),
        "encoder_failed",
        503,
    ),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_each_failure_has_its_code(encoder: FakeEncoder, language: Service, name: str, stream: bool) -> None:
    encoder.behaviour, code, status = CASES[name]
    response = ask(language, stream=stream)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert error["message"]
    assert error["type"] == ERRORS[code].type
    assert ("retry-after" in response.headers) == (status == 503)
    lines = [line for line in language.log.read_text().splitlines() if response.headers["x-request-id"] in line]
    assert [f"code={code}" in line for line in lines if "request failed" in line or "request refused" in line] == [True]


def test_an_encoder_that_fails_for_one_picture_is_still_asked_for_the_next(encoder: FakeEncoder, language: Service) -> None:
    encoder.behaviour = answer(500, "internal_error")
    assert ask(language).status_code == 503
    encoder.behaviour = honest
    assert ask(language).status_code == 200


def test_one_of_three_items_missing_fails_the_request(encoder: FakeEncoder, language: Service) -> None:
    encoder.behaviour = first_only
    response = ask(language, pictures=3)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "embedding_incomplete")
    assert "2 of 3" in response.json()["error"]["message"]
    assert "locally" in response.json()["error"]["message"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_floating_dtypes_are_converted(encoder: FakeEncoder, language: Service, dtype: torch.dtype) -> None:
    encoder.behaviour = other_tensors(lambda tensors: {name: tensor.to(dtype) for name, tensor in tensors.items()})
    assert ask(language).status_code == 200


def test_repeated_late_and_foreign_messages_are_dropped_and_counted(encoder: FakeEncoder, language: Service) -> None:
    def noisy(call: Call) -> Response:
        call.send(call.message(7))
        call.send(call.message(0, request_id="somebody-else"))
        call.send(call.message(0, attempt=9))
        call.send([b"\x80\x04K\x01."])
        call.send([b"", b"", b""])
        call.send(call.message(0))
        call.send(call.message(0))
        call.send(call.message(1))
        return call.done()

    def outcomes() -> dict[str, float]:
        lines = httpx.get(f"{language.url}/metrics", trust_env=False).text.splitlines()
        found = [line for line in lines if line.startswith(("epd_messages_total{", "epd_late_messages_total{"))]
        return {line.split('"')[1]: float(line.rsplit(" ", 1)[1]) for line in found}

    encoder.behaviour = noisy
    before = outcomes()
    assert ask(language, pictures=2).status_code == 200
    wanted = {"foreign": 1, "late": 2, "malformed": 2, "repeated": 1, "ok": 2}
    wait_for(
        lambda: all(outcomes().get(name, 0) - before.get(name, 0) == count for name, count in wanted.items()),
        5,
        f"counting of {wanted}",
    )


def test_equal_request_ids_do_not_mix_requests_up(encoder: FakeEncoder, language: Service) -> None:
    """Two callers choose the same id at the same time: each is answered for its own picture."""
    seen: list[Call] = []
    both = threading.Barrier(2)

    def cross(call: Call) -> Response:
        seen.append(call)
        both.wait(5)
        call.send_all()
        return call.done()

    encoder.behaviour = cross
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(ask, language, headers={"x-request-id": "mine"}) for _ in range(2)]
        responses = [future.result() for future in asked]
    assert [response.status_code for response in responses] == [200, 200]
    assert [response.headers["x-request-id"] for response in responses] == ["mine", "mine"]
    assert len({call.request.request_id for call in seen}) == 2


def test_a_late_message_does_not_answer_a_later_request(encoder: FakeEncoder, language: Service) -> None:
    kept: list[list[bytes]] = []

    def keep(call: Call) -> Response:
        kept.append([bytes(frame) for frame in call.message(0)])
        return call.done()

    encoder.behaviour = keep
    assert ask(language).status_code == 503

    def replay(call: Call) -> Response:
        call.send(kept[0])
        return call.done()

    encoder.behaviour = replay
    response = ask(language)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "embedding_incomplete")


def test_a_closed_port_is_encoder_unavailable_and_text_goes_on(tmp_path: Any) -> None:
    with Service("language", tmp_path, encoders=f"http://127.0.0.1:{free_port()}").start() as language:
        for stream in (False, True):
            response = ask(language, stream=stream)
            assert (response.status_code, response.json()["error"]["code"]) == (503, "encoder_unavailable")
            assert "computes no vision itself" in response.json()["error"]["message"]
        text = httpx.post(f"{language.url}/v1/chat/completions", json=user("Hello!"), timeout=30, trust_env=False)
        assert text.status_code == 200


def test_no_encoder_configured_is_encoder_unavailable(tmp_path: Any) -> None:
    with Service("language", tmp_path, encoders="").start() as language:
        response = ask(language)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "encoder_unavailable")
        assert "No encoder is configured" in response.json()["error"]["message"]


def test_an_encoder_of_another_model_is_never_asked(tmp_path: Any) -> None:
    with (
        FakeEncoder(model_fingerprint="other") as encoder,
        Service("language", tmp_path, encoders=encoder.url).start() as language,
    ):
        wait_for(lambda: "refused" in language.log.read_text(), 10, "refusal of the encoder")
        response = ask(language)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "encoder_unavailable")
        assert "fingerprint other" in response.json()["error"]["message"]
        assert encoder.calls == 0
