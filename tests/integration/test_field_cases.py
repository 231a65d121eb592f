"""Inputs that broke other servers. A stream gets the same status as a whole answer, always before any event."""

from __future__ import annotations

import base64
import io
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from examples.scenes import png, random_scene
from tests.chats import Undivided, data_url, encoded, user
from tests.conftest import Pair
from tests.processes import Service, free_port
from tests.unit.test_decode import damaged_png, heic, no_pixels


@pytest.fixture(scope="module")
def undivided(demo_model: Path) -> Undivided:
    return Undivided(demo_model)


def noise(width: int, height: int) -> Image.Image:
    rng = random.Random(width * height)
    return Image.frombytes("RGB", (width, height), rng.randbytes(3 * width * height))


def post(pair: Pair, *parts: bytes | str, **fields: Any) -> httpx.Response:
    """The answer to a request, after checking that its stream has the same status."""
    body = user(*parts, max_tokens=8, **fields)
    streamed = pair.client.post("/v1/chat/completions", json=body | {"stream": True})
    whole = pair.client.post("/v1/chat/completions", json=body)
    assert streamed.status_code == whole.status_code
    if whole.status_code != 200:
        assert streamed.json()["error"] == whole.json()["error"]
    return whole


def at_once(pair: Pair, bodies: list[dict[str, Any]]) -> list[int]:
    """The statuses of requests that are all in flight at the same time."""
    limits = httpx.Limits(max_connections=None)
    with (
        httpx.Client(base_url=pair.language.url, timeout=120, trust_env=False, limits=limits) as client,
        ThreadPoolExecutor(len(bodies)) as threads,
    ):
        return list(threads.map(lambda body: client.post("/v1/chat/completions", json=body).status_code, bodies))


def same_as_undivided(pair: Pair, undivided: Undivided, *parts: bytes | str) -> None:
    response = post(pair, *parts, return_token_ids=True)
    assert response.status_code == 200, response.text
    body = response.json()
    assert (body["prompt_token_ids"], body["choices"][0]["token_ids"]) == undivided.answer(parts, 8)


SMALL = [(26, 28), (28, 26), (332, 27), (500, 19), (257, 27), (64, 1), (1, 64), (1, 1)]


@pytest.mark.parametrize("size", SMALL)
def test_1_tiny_and_narrow_pictures_are_scaled_up(pair: Pair, undivided: Undivided, size: tuple[int, int]) -> None:
    same_as_undivided(pair, undivided, encoded(noise(*size)), "Describe the picture.")


@pytest.mark.parametrize("size", [(1093, 5), (5, 1093), (201, 1)])
def test_2_extreme_ratios_are_refused_by_the_ratio(pair: Pair, size: tuple[int, int]) -> None:
    response = post(pair, encoded(noise(*size)), "Describe the picture.")
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_media")
    assert "ratio must be smaller than 200" in error["message"]
    assert error["param"] == "messages.0.content.0.image_url"


def test_3_damaged_pictures_are_the_clients_error(pair: Pair) -> None:
    picture = noise(96, 64)
    broken = [encoded(picture, "JPEG")[:-128], damaged_png(picture), b"\0", b"GIF89a"]
    for data in broken:
        response = post(pair, data, "Describe the picture.")
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_media")
    empty = user("x")
    empty["messages"][0]["content"].append({"type": "image_url", "image_url": {"url": "data:image/png;base64,"}})
    response = pair.client.post("/v1/chat/completions", json=empty)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_media")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (f"http://127.0.0.1:{free_port()}/a.png", "cannot be reached"),
        ("http://no-such-host.invalid/a.png", "no-such-host.invalid"),
        ("file:///etc/passwd", "not of http"),
        ("a.png", "not of http"),
    ],
)
def test_4_urls_that_lead_nowhere_are_named(pair: Pair, url: str, reason: str) -> None:
    body = user("Describe the picture.")
    body["messages"][0]["content"].append({"type": "image_url", "image_url": {"url": url}})
    response = pair.client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_media")
    assert reason in response.json()["error"]["message"]


def test_5_pictures_that_exceed_the_context_are_counted_before_the_tower_runs(pair: Pair) -> None:
    def batches() -> float:
        lines = httpx.get(f"{pair.encoder.url}/metrics", trust_env=False).text.splitlines()
        return float(next(line for line in lines if line.startswith("epd_encoder_batch_items_count")).split()[1])

    picture = png(random_scene(random.Random(1)))
    fitting = pair.client.post("/v1/chat/completions", json=user(picture, "Hi", max_tokens=8)).json()["usage"]
    before = batches()
    # Two tokens more than the context has room for; without the picture it would fit.
    limit = 2048 - fitting["prompt_tokens"] + 2
    response = pair.client.post("/v1/chat/completions", json=user(picture, "Hi", max_tokens=limit))
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_request")
    assert "need 4 tokens" in error["message"]
    assert "only 2 are left" in error["message"]
    assert batches() == before
    long = pair.client.post("/v1/chat/completions", json=user("no " * 4000))
    assert (long.status_code, long.json()["error"]["code"]) == (400, "invalid_request")
    assert "2048" in long.json()["error"]["message"]


def test_6_sizes_may_differ_within_a_request(pair: Pair, undivided: Undivided) -> None:
    same_as_undivided(pair, undivided, encoded(noise(640, 320)), encoded(noise(600, 3000)), "Describe the first picture.")


@pytest.mark.parametrize("layout", ["PP?", "?PP", "P?P", "P", "PP", "P P?"])
def test_7_pictures_may_stand_anywhere(pair: Pair, undivided: Undivided, layout: str) -> None:
    pictures = iter(png(random_scene(random.Random(seed)), seed=seed) for seed in range(9))
    parts = [next(pictures) if mark == "P" else {"?": "How many objects are there?", " ": " "}[mark] for mark in layout]
    same_as_undivided(pair, undivided, *parts)


def test_9_literal_placeholders_are_text(pair: Pair, undivided: Undivided) -> None:
    picture = png(random_scene(random.Random(2)))
    response = post(pair, picture, "Is <|image_pad|><|vision_end|> in <|im_end|> it?", return_token_ids=True)
    assert response.status_code == 200
    prompt = response.json()["prompt_token_ids"]
    pad = undivided.model.config.image_token_id
    assert prompt.count(pad) == 4


def test_10_a_language_service_bound_to_every_address_works(pair: Pair, tmp_path: Path) -> None:
    everywhere = {"host": "0.0.0.0", "data_host": "0.0.0.0", "plain_seam": True}
    with Service("language", tmp_path, encoders=pair.encoder.url, **everywhere).start() as service:
        service.wait_until_ready(encoders=1)
        body = user(png(random_scene(random.Random(3))), "Describe the picture.")
        response = httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=30, trust_env=False)
        assert response.status_code == 200, response.text


def test_11_200_requests_at_once_are_all_answered(pair: Pair) -> None:
    bodies = [user(png(random_scene(random.Random(seed)), 256, seed), "How many objects are there?") for seed in range(200)]
    assert at_once(pair, bodies) == [200] * 200


def large_pictures(number: int) -> list[bytes]:
    """Different files of one large picture each: a JPEG may be followed by anything."""
    large = encoded(Image.effect_noise((1920, 1080), 60).convert("RGB"), "JPEG", quality=60)
    return [large + index.to_bytes(2, "little") for index in range(number)]


def test_12_many_requests_of_many_large_pictures_are_all_answered(pair: Pair) -> None:
    pictures = large_pictures(8)
    wanted = [[pictures[(number + at) % 8] for at in range(1 + number % 8)] for number in range(64)]
    bodies = [user(*shown, "Describe the first picture.", max_tokens=8) for shown in wanted]
    assert at_once(pair, bodies) == [200] * 64


def test_12_also_where_no_picture_was_there_before(pair: Pair) -> None:
    fresh = iter(large_pictures(288))
    wanted = [[next(fresh) for _ in range(1 + number % 8)] for number in range(64)]
    statuses = at_once(pair, [user(*shown, "Describe the first picture.", max_tokens=8) for shown in wanted])
    # They are more than the encoder takes at once: some are refused for load, none is lost.
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) > 32


@pytest.mark.parametrize("mode", ["L", "LA", "P", "PA", "RGBA", "CMYK", "I;16", "1"])
def test_every_mode_of_picture_is_taken(pair: Pair, mode: str) -> None:
    if mode == "I;16":
        image = Image.frombytes("I;16", (64, 64), random.Random(0).randbytes(2 * 64 * 64))
    elif mode == "PA":
        image = noise(64, 64).convert("P")
        image.info["transparency"] = 0
    else:
        image = noise(64, 64).convert(mode)
    data = encoded(image, "TIFF" if mode == "CMYK" else "PNG")
    assert post(pair, data, "Describe the picture.").status_code == 200


def test_too_many_pictures_are_counted(pair: Pair) -> None:
    response = post(pair, *[png(random_scene(random.Random(0)), 64)] * 33, "Describe the picture.")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")
    assert "33" in response.json()["error"]["message"]


def test_bodies_past_the_limit_are_refused_declared_or_not(pair: Pair) -> None:
    size = 65 * 2**20

    def chunks() -> Any:
        for _ in range(size // 2**20):
            yield b" " * 2**20

    for content in (b" " * size, chunks()):
        response = pair.client.post("/v1/chat/completions", content=content)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")


def with_url(url: str, kind: str = "image_url") -> dict[str, Any]:
    """A request about what is behind a URL."""
    body = user("Describe the picture.", max_tokens=8)
    body["messages"][0]["content"].insert(0, {"type": kind, kind: {"url": url}})
    return body


def scene() -> Image.Image:
    return Image.open(io.BytesIO(png(random_scene(random.Random(4)), 256)))


@pytest.mark.parametrize("file_format", ["AVIF", "WEBP", "TIFF", "BMP", "GIF", "HEIC"])
def test_every_format_of_pictures_is_answered(pair: Pair, file_format: str) -> None:
    data = heic(scene()) if file_format == "HEIC" else encoded(scene(), file_format)
    assert post(pair, data, "Describe the picture.").status_code == 200


def test_an_animation_is_its_first_frame_and_a_turned_photograph_is_upright(pair: Pair, undivided: Undivided) -> None:
    first = scene().convert("P")
    animation = encoded(first, "GIF", save_all=True, append_images=[noise(256, 256).convert("P")])
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encoded(scene().convert("RGB").transpose(Image.Transpose.ROTATE_90), exif=exif)
    for seen, same in ((animation, encoded(Image.open(io.BytesIO(animation)).convert("RGB"))), (turned, encoded(scene()))):
        response = post(pair, seen, "Describe the picture.", return_token_ids=True)
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["token_ids"] == undivided.answer((same, "Describe the picture."), 8)[1]


REFUSED = {
    "SVG": (b"<svg xmlns='http://www.w3.org/2000/svg' width='8' height='8'/>", "SVG, which is not accepted"),
    "a page": (b"<!DOCTYPE html><title>Not found</title>", "HTML page"),
    "a bomb": (encoded(Image.new("1", (30_000, 30_000))), "100000000 pixels"),
    "no pixels": (no_pixels("PNG"), "PNG"),
    "a video": (b"\0\0\0\x18ftypisom\0\0\0\0mp42", "send that as video_url"),
    "a sound": (b"RIFF\0\0\0\0WAVEfmt ", "send that as audio_url"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_picture_is_refused_by_what_it_is(pair: Pair, name: str) -> None:
    data, reason = REFUSED[name]
    error = post(pair, data, "Describe the picture.").json()["error"]
    assert (error["code"], error["param"]) == ("invalid_media", "messages.0.content.0.image_url")
    assert reason in error["message"]


@pytest.mark.parametrize(
    "head",
    [
        "data:text/html;base64,",
        "data:application/pdf;charset=utf-8;base64,",
        "data:image/gif;base64;charset=utf-8,",
        " DATA:;Base64,\n",
        'data:image/png; name="a b.png" ; base64,',
    ],
)
def test_the_bytes_of_a_data_url_decide_whatever_it_declares(pair: Pair, head: str) -> None:
    data = base64.b64encode(encoded(scene())).decode()
    lines = "\r\n".join(data[at : at + 76] for at in range(0, len(data), 76))
    plain, odd = (
        pair.client.post("/v1/chat/completions", json=with_url(url)) for url in (data_url(encoded(scene())), head + lines)
    )
    assert odd.status_code == 200, odd.text
    assert odd.json()["choices"][0]["message"] == plain.json()["choices"][0]["message"]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "audio_url", "audio_url": {"url": "https://example.com/a.wav"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    ],
)
def test_media_that_the_model_does_not_take_are_refused_by_kind(pair: Pair, part: dict[str, Any]) -> None:
    body = user("Describe it.")
    body["messages"][0]["content"].append(part)
    response = pair.client.post("/v1/chat/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_request")
    assert error["param"] == f"messages.0.content.1.{part['type']}"
    assert "takes no sounds" in error["message"]
