"""Pictures, sounds and videos take one path: what is wrong with them is the client's error, what is wrong with us is not."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, NoReturn, cast

import httpx
import pytest
import structlog
import torch
import zmq
import zmq.asyncio
from PIL import Image

from services.encoder import decode, sound, video
from services.encoder.app import Parts, create_app
from services.encoder.faults.registry import Faults
from services.encoder.fetch import Fetcher
from services.encoder.heart import Heart
from services.encoder.media import Media, Sound, Video
from services.encoder.models.generic import EncoderHalf
from services.encoder.pipeline import Identity, Pipeline
from services.encoder.publisher import Publisher
from services.encoder.sandbox.process import Decoding
from services.encoder.settings import EncoderSettings
from shared.control import REQUEST_FIELD, EncodeItem, EncodeRequest
from shared.identity import ContentHasher, MediaItem, Modality
from shared.telemetry import Metrics
from tests.chats import encoded
from tests.media import sound_file, tone, video_file
from tests.processes import ROOT, decoding_workers, free_port
from tests.unit.test_announcer import INFO

GOOD: dict[Modality, bytes] = {
    "image": encoded(Image.new("RGB", (8, 8))),
    "audio": sound_file(tone(0.5, 8000), 8000),
    "video": video_file(6),
}
MODALITIES = list(GOOD)


class Processor:
    def to_dict(self) -> dict[str, Any]:
        return {}


class Half:
    """Stands for the encoder half: notes what it is given."""

    device = torch.device("cpu")
    precompute_hash_before_cpu_transfer = False
    modalities: tuple[Modality, ...] = ("image", "audio", "video")
    sound_rate = 16_000
    processor = Processor()

    def __init__(self) -> None:
        self.given: list[Media] = []

    def choose_frames(self, total: int, fps: float, duration: float) -> Sequence[int]:
        return range(0, total, 2)

    def preprocess(self, media: Media, *_: object) -> MediaItem:
        self.given.append(media)
        kind: Modality = "audio" if isinstance(media, Sound) else "video" if isinstance(media, Video) else "image"
        return MediaItem(kind, 2, features={"values": torch.ones(2)})

    def encode(self, items: Sequence[MediaItem]) -> None:
        for item in items:
            item.embeds = torch.ones(2, 4)


class Encoder:
    """The encoder's application around a half, and a socket that takes what it sends."""

    def __init__(self, client: httpx.AsyncClient, half: Half, reply_to: str) -> None:
        self.client, self.half, self.reply_to = client, half, reply_to

    async def encode(self, modality: Modality, media: bytes | str) -> tuple[httpx.Response, list[Any]]:
        """The answer to a call for one item, bytes or a URL, and what was logged meanwhile."""
        source = {"url": media} if isinstance(media, str) else {"part": "0"}
        item = EncodeItem.model_validate({"index": 0, "modality": modality, "param": "messages.0", **source})
        call = EncodeRequest(request_id="r/1", num_items=1, items=(item,), reply_to=self.reply_to, timeout=20)
        files = {REQUEST_FIELD: (None, call.model_dump_json())} | ({} if isinstance(media, str) else {"0": ("0", media)})
        with structlog.testing.capture_logs() as logs:
            response = await self.client.post("/encode", files=files)
        return response, [entry for entry in logs if entry["event"].startswith("request ")]


@pytest.fixture
async def encoder() -> AsyncIterator[Encoder]:
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.PULL)
    socket.bind("tcp://127.0.0.1:*")
    settings = EncoderSettings.model_validate({"allow_private_urls": True})
    app, half, faults, publisher, metrics = create_app(settings), Half(), Faults(), Publisher(), Metrics()
    hasher, identity = ContentHasher(b"secret"), Identity("encoder-1", "fingerprint")
    async with (
        Fetcher(settings) as fetcher,
        Pipeline(settings, cast(EncoderHalf, half), hasher, identity, fetcher, publisher, faults, metrics) as pipeline,
        httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://encoder") as client,
    ):
        heart = Heart(settings, "encoder-1", pipeline, publisher, faults, pipeline.carriers)
        app.state.parts = Parts(INFO, pipeline, heart)
        yield Encoder(client, half, str(socket.get_string(zmq.LAST_ENDPOINT)))
        heart.stop()
    publisher.close()
    context.destroy(linger=0)
    assert decoding_workers() == []


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Whatever opens a file raises ``error``."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr(Image, "open", fail)
    monkeypatch.setattr(Decoding, "receive", fail)


def assert_the_clients(response: httpx.Response, logs: list[Any], reason: str) -> None:
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_media", "messages.0")
    assert reason in error["message"]
    assert [(entry["log_level"], "exc_info" in entry) for entry in logs] == [("info", False)]


@pytest.mark.parametrize("modality", MODALITIES)
async def test_each_kind_is_decoded_and_reaches_the_processor(encoder: Encoder, modality: Modality) -> None:
    response, logs = await encoder.encode(modality, GOOD[modality])
    assert (response.status_code, logs) == (200, []), response.text
    (media,) = encoder.half.given
    if isinstance(media, Sound):
        assert (media.rate, len(media.samples)) == (16_000, 8000)
    elif isinstance(media, Video):
        assert (media.frames.shape, media.indices, media.total_frames) == ((3, 48, 64, 3), [0, 2, 4], 6)
    else:
        assert media.size == (8, 8)


@pytest.mark.parametrize("modality", MODALITIES)
async def test_an_unreachable_url_is_the_clients_error(encoder: Encoder, modality: Modality) -> None:
    response, logs = await encoder.encode(modality, f"http://127.0.0.1:{free_port()}/media")
    assert_the_clients(response, logs, "cannot be reached")


@pytest.mark.parametrize("modality", MODALITIES)
@pytest.mark.parametrize("bad", ["noise", "half", "another"])
async def test_bytes_that_are_no_good_are_the_clients_error(encoder: Encoder, modality: Modality, bad: str) -> None:
    others: dict[Modality, Modality] = {"image": "audio", "audio": "video", "video": "image"}
    whole = GOOD[modality]
    data = {"noise": bytes(range(256)), "half": whole[:30], "another": GOOD[others[modality]]}[bad]
    response, logs = await encoder.encode(modality, data)
    assert_the_clients(response, logs, "")


@pytest.mark.parametrize("modality", MODALITIES)
async def test_a_value_error_of_a_loader_is_the_clients_error(
    encoder: Encoder, modality: Modality, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, ValueError("of no known colour"))
    assert_the_clients(*await encoder.encode(modality, GOOD[modality]), "")


@pytest.mark.parametrize("modality", MODALITIES)
@pytest.mark.parametrize("error", [RuntimeError("a bug"), MemoryError(), AssertionError(), AttributeError("a bug")])
async def test_any_other_error_of_a_loader_is_ours(
    encoder: Encoder, modality: Modality, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, error)
    response, logs = await encoder.encode(modality, GOOD[modality])
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert "a bug" not in response.text
    assert [(entry["log_level"], entry["exc_info"]) for entry in logs] == [("error", error)]


@pytest.mark.parametrize(("modality", "extra"), [("audio", "audio"), ("video", "video")])
async def test_what_needs_an_extra_that_is_not_there_names_it(
    encoder: Encoder, modality: Modality, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.encoder.extras.find_spec", lambda name: None)
    assert_the_clients(*await encoder.encode(modality, GOOD[modality]), f"epd-pair[{extra}]")


def test_the_page_names_every_format() -> None:
    page = (ROOT / "docs" / "media.md").read_text()
    rows = dict(re.findall(r'^\| `\{"type": "(\w+)".*\| ([^|]*) \|$', page, re.MULTILINE))
    for part, formats in (("image_url", decode.FORMATS), ("video_url", video.FORMATS), ("audio_url", sound.FORMATS)):
        assert re.findall(r"[A-Z][A-Z\dMa-z]{2,}", rows[part].replace("HEIC with", "")) == list(formats)
