"""The path of an item: what is held on it is given back, calls take turns, and who leaves leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import torch
import zmq
import zmq.asyncio
from PIL import Image

from services.encoder.faults.base import Call, Outgoing, Sender, Stage
from services.encoder.faults.registry import Faults
from services.encoder.fetch import Fetcher
from services.encoder.models.generic import EncoderHalf
from services.encoder.pipeline import Identity, Pipeline
from services.encoder.publisher import Publisher
from services.encoder.settings import EncoderSettings
from shared.control import EncodeItem, EncodeRequest, EncodeResponse
from shared.errors import EmbeddingTimeout, EncoderOverloaded, InvalidMedia
from shared.identity import ContentHasher, MediaItem
from shared.telemetry import Metrics
from shared.tracing import NO_TRACES, Tracer
from shared.wire import Header, read_header
from tests.chats import encoded
from tests.processes import free_port, wait_for

FEATURE_BYTES = 4000
THREADS = max(2, os.cpu_count() or 2)


def picture(size: int = 8) -> bytes:
    return encoded(Image.new("RGB", (size, size), "red"))


def pictures(count: int, first: int = 10) -> list[bytes]:
    """Pictures that differ, with widths from ``first`` on."""
    return [picture(first + number) for number in range(count)]


PICTURE = picture()


class Door:
    """Something to be held up at, in a thread, until the test opens it."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Semaphore(0)

    def pass_through(self) -> None:
        self.reached.release()
        assert self.open.wait(10)

    async def until_reached(self, times: int = 1) -> None:
        for _ in range(times):
            assert await asyncio.to_thread(self.reached.acquire, timeout=5)


class Processor:
    """Stands for the image processor, of which only the configuration matters here."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {"size": 8}

    def to_dict(self) -> dict[str, Any]:
        return self.config


class Model:
    """Stands for the vision half. Notes what it sees; pictures are known by their widths."""

    device = torch.device("cpu")
    precompute_hash_before_cpu_transfer = False
    modalities = ("image",)
    lacking = ()

    def __init__(self) -> None:
        self.processor = Processor()
        self.decoding, self.tower = Door(), Door()
        self.decoded: list[int] = []
        self.batches: list[list[int]] = []

    def preprocess(self, image: Image.Image, form: str, _: str | None) -> MediaItem:
        self.decoded.append(image.width)
        self.decoding.pass_through()
        features = {"pixel_values": torch.full((FEATURE_BYTES // 4,), float(image.width))}
        return MediaItem("image", image.width, features=features)

    def encode(self, items: Sequence[MediaItem]) -> None:
        self.batches.append([item.num_tokens for item in items])
        self.tower.pass_through()
        for item in items:
            item.embeds = torch.full((item.num_tokens, 2), float(item.num_tokens))


class Web:
    """Stands for the fetcher. URLs are answered when the test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer = asyncio.Event()
        self.reached = asyncio.Event()
        self.data = PICTURE

    async def fetch(self, url: str, _: str | None = None) -> bytes:
        self.asked.append(url)
        self.reached.set()
        await self.answer.wait()
        return self.data


class Recorder(Faults):
    """Notes where it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int | None]] = []

    async def at(self, stage: Stage, call: Call, item: EncodeItem | None = None) -> None:
        assert call.request.request_id == "r/1"
        self.seen.append((stage, None if item is None else item.index))

    async def fetched(self, times: int) -> None:
        """Returns when so many items that came with their bytes stand in the line for threads, or have stood in it: nothing
        suspends such an item between its fetch and its place there."""
        await until(lambda: [stage for stage, _ in self.seen].count(Stage.FETCH) == times)

    def sender(self, call: Call, send: Sender) -> Sender:
        assert call.request.request_id == "r/1"
        self.seen.append(("sender", None))

        async def mangled(outgoing: Outgoing) -> None:
            outgoing.manglers.append(lambda frames: [*frames, b"more"])
            await send(outgoing)

        return mangled


class Bench:
    """A pipeline with all around it, and a receiver."""

    def __init__(self, pipeline: Pipeline, model: Model, web: Web, metrics: Metrics, socket: zmq.asyncio.Socket) -> None:
        self.pipeline, self.model, self.web, self.metrics, self.socket = pipeline, model, web, metrics, socket
        self.reply_to = str(socket.get_string(zmq.LAST_ENDPOINT))

    def call(self, *media: bytes | str, content_hash: str | None = None, **request: Any) -> asyncio.Task[EncodeResponse]:
        """Begins a call; strings are URLs, bytes raw media. All are known by ``content_hash``, where it is given."""
        items = tuple(
            EncodeItem(
                index=i,
                param=f"messages.{i}",
                content_hash=content_hash,
                **({"url": each} if isinstance(each, str) else {"part": str(i)}),
            )
            for i, each in enumerate(media)
        )
        fields = {"request_id": "r/1", "num_items": len(items), "items": items, "reply_to": self.reply_to, "timeout": 10}
        parts = {str(i): each for i, each in enumerate(media) if isinstance(each, bytes)}
        return asyncio.create_task(self.pipeline.run(Call(EncodeRequest.model_validate(fields | request)), parts))

    async def received(self) -> Header:
        async with asyncio.timeout(5):
            header = read_header((await self.socket.recv_multipart())[0])
        assert isinstance(header, Header)
        return header

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def cancelled(self, stage: str) -> float:
        return self.metric("epd_encoder_cancelled_total", stage=stage)

    async def assert_empty(self) -> None:
        """Nothing is in work, and another call goes through, alone on the wire."""
        for name in ("items_in_work", "bytes_in_work", "queue_items"):
            assert self.metric(f"epd_encoder_{name}") == 0, name
        self.web.answer.set()
        for door in (self.model.decoding, self.model.tower):
            door.open.set()
        await asyncio.wait_for(self.call(picture(3), "http://a/", request_id="after"), 5)
        assert {(await self.received()).request_id for _ in range(2)} == {"after"}


@asynccontextmanager
async def bench(
    faults: Faults | None = None, half: Model | None = None, tracer: Tracer = NO_TRACES, **settings: object
) -> AsyncIterator[Bench]:
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.PULL)
    socket.bind("tcp://127.0.0.1:*")
    model, web, metrics, publisher = half or Model(), Web(), Metrics(), Publisher()
    pipeline = Pipeline(
        EncoderSettings.model_validate(settings),
        cast(EncoderHalf, model),
        ContentHasher(b"secret"),
        Identity("encoder-1", "fingerprint"),
        cast(Fetcher, web),
        publisher,
        faults or Faults(),
        metrics,
        tracer,
    )
    try:
        async with pipeline:
            yield Bench(pipeline, model, web, metrics, socket)
    finally:
        for door in (model.decoding, model.tower):
            door.open.set()
        publisher.close()
        context.destroy(linger=0)


async def leave(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_for, condition, 5, "what the test waits for")


async def test_items_arrive_and_nothing_is_held_afterwards() -> None:
    async with bench() as b:
        b.web.answer.set()
        answer = await asyncio.wait_for(b.call(picture(4), "http://a/"), 5)
        assert [item.num_tokens for item in answer.items] == [4, 8]
        assert answer.items[0].timings.keys() >= {"fetch", "decode", "preprocess", "hash", "queue", "tower", "publish"}
        assert {(await b.received()).item for _ in range(2)} == {0, 1}
        assert b.metric("epd_encoder_items_total", code="ok") == 2
        assert b.metric("epd_encoder_published_bytes_total") == 12 * 2 * 4
        await b.assert_empty()


async def test_a_call_that_leaves_while_fetching_is_gone() -> None:
    async with bench(max_fetches=1) as b:
        fetching = b.call("http://a/", "http://b/")
        waiting = b.call("http://c/")
        await asyncio.wait_for(b.web.reached.wait(), 5)
        await leave(waiting)
        assert b.cancelled("fetch") == 1
        await leave(fetching)
        assert b.cancelled("fetch") == 3
        assert b.web.asked == ["http://a/"]
        await b.assert_empty()


async def test_a_call_that_leaves_while_decoding_is_gone() -> None:
    async with bench() as b:
        b.model.decoding.open.clear()
        many = b.call(*pictures(THREADS + 20))
        await b.model.decoding.until_reached(THREADS)
        waiting = b.call(PICTURE)
        await asyncio.sleep(0)
        await leave(waiting)
        assert b.cancelled("decode") == 1
        await leave(many)
        assert b.cancelled("decode") == THREADS + 21
        await b.assert_empty()
        assert len(b.model.decoded) == THREADS + 2, "what had not begun never does"


async def test_a_call_that_leaves_the_towers_queue_is_not_computed() -> None:
    async with bench() as b:
        b.model.tower.open.clear()
        first = b.call(picture(1))
        await b.model.tower.until_reached()
        waiting = b.call(picture(5), picture(6))
        await until(lambda: b.metric("epd_encoder_queue_items") == 2)
        await leave(waiting)
        assert b.cancelled("queue") == 2
        b.model.tower.open.set()
        await asyncio.wait_for(first, 5)
        assert (await b.received()).num_tokens == 1
        await b.assert_empty()
        assert not {5, 6} & {tokens for batch in b.model.batches for tokens in batch}


async def test_what_the_tower_computed_for_a_call_that_left_is_neither_packed_nor_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[str] = []

    def pack(outgoing: Outgoing) -> list[bytes]:
        packed.append(outgoing.header.request_id)
        return [b"{}"]

    monkeypatch.setattr("services.encoder.transport.carriers._as_frames", pack)
    async with bench() as b:
        b.model.tower.open.clear()
        running = b.call(*pictures(2))
        await b.model.tower.until_reached()
        await until(lambda: len(b.model.batches[0]) + b.metric("epd_encoder_queue_items") == 2)
        await leave(running)
        assert b.cancelled("tower") + b.cancelled("queue") == 2
        assert b.cancelled("tower") >= 1
        b.model.tower.open.set()
        await asyncio.wait_for(b.call(PICTURE, request_id="after"), 5)
        assert packed == ["after"]


async def test_a_call_that_leaves_while_publishing_sends_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    port, handed, publish = free_port(), asyncio.Event(), Publisher.publish

    async def noted(*arguments: Any) -> None:
        handed.set()
        await publish(*arguments)

    monkeypatch.setattr(Publisher, "publish", noted)
    async with bench() as b:
        nobody = b.call(PICTURE, reply_to=f"tcp://127.0.0.1:{port}")
        await asyncio.wait_for(handed.wait(), 5)
        await leave(nobody)
        assert b.cancelled("publish") == 1
        context = zmq.asyncio.Context()
        late = context.socket(zmq.PULL)
        late.bind(f"tcp://127.0.0.1:{port}")
        await asyncio.wait_for(b.call(PICTURE, request_id="next", reply_to=f"tcp://127.0.0.1:{port}"), 5)
        header = read_header((await asyncio.wait_for(late.recv_multipart(), 5))[0])
        assert isinstance(header, Header)
        assert header.request_id == "next"
        context.destroy(linger=0)
        await b.assert_empty()


@pytest.mark.parametrize("stage", ["fetch", "decode", "tower"])
async def test_the_deadline_ends_a_call_wherever_it_is(stage: str) -> None:
    async with bench() as b:
        if stage == "decode":
            b.model.decoding.open.clear()
        elif stage == "tower":
            b.model.tower.open.clear()
        call = b.call("http://slow/" if stage == "fetch" else PICTURE, timeout=0.3)
        with pytest.raises(EmbeddingTimeout, match="deadline"):
            await asyncio.wait_for(call, 5)
        assert b.cancelled(stage) == 1
        await b.assert_empty()


class Watched(bytes):
    """Bytes whose end can be seen."""

    gone = threading.Event()

    def __del__(self) -> None:
        self.gone.set()


async def test_raw_bytes_are_let_go_once_they_are_preprocessed() -> None:
    async with bench() as b:
        b.model.decoding.open.clear()
        b.model.tower.open.clear()
        call = b.call(Watched(PICTURE))
        await b.model.decoding.until_reached()
        assert b.metric("epd_encoder_bytes_in_work") == len(PICTURE)
        assert not Watched.gone.is_set()
        b.model.decoding.open.set()
        await b.model.tower.until_reached()
        assert b.metric("epd_encoder_bytes_in_work") == FEATURE_BYTES
        assert Watched.gone.wait(5)
        b.model.tower.open.set()
        await asyncio.wait_for(call, 5)
        await b.received()
        await b.assert_empty()


@pytest.mark.parametrize("what", ["raw bytes", "fetched bytes", "features"])
async def test_bytes_past_the_bound_are_refused_unless_the_call_is_alone(what: str) -> None:
    async with bench(max_bytes=FEATURE_BYTES + 500) as b:
        b.model.tower.open.clear()
        b.web.answer.set()
        first = b.call(PICTURE)
        await b.model.tower.until_reached()
        b.web.data = raw = picture(9) + bytes(1000 if what != "features" else 0)
        with pytest.raises(EncoderOverloaded, match="bytes"):
            await asyncio.wait_for(b.call("http://a/" if what == "fetched bytes" else raw), 5)
        assert len(b.model.decoded) == (2 if what == "features" else 1)
        b.model.tower.open.set()
        await asyncio.wait_for(first, 5)
        await b.received()
        await asyncio.wait_for(b.call(*[PICTURE + bytes(1000)] * 5), 5)


async def test_one_picture_does_not_wait_for_the_thirty_of_another_call() -> None:
    recorder = Recorder()
    async with bench(recorder, max_batch_items=4) as b:
        b.model.decoding.open.clear()
        many = b.call(*pictures(2 * THREADS + 30))
        await b.model.decoding.until_reached(THREADS)
        one = b.call(picture(1))
        await recorder.fetched(2 * THREADS + 31)
        b.model.decoding.open.set()
        await asyncio.wait_for(one, 5)
        assert b.model.decoded.index(1) <= 2 * THREADS + 2
        await asyncio.wait_for(many, 5)


async def test_the_towers_batches_take_turns_too() -> None:
    async with bench(max_batch_items=4) as b:
        b.model.tower.open.clear()
        first = b.call(picture(1))
        await b.model.tower.until_reached()
        many = b.call(*pictures(30))
        await until(lambda: b.metric("epd_encoder_queue_items") == 30)
        one = b.call(picture(2))
        await until(lambda: b.metric("epd_encoder_queue_items") == 31)
        b.model.tower.open.set()
        await asyncio.wait_for(asyncio.gather(first, many, one), 5)
        assert b.model.batches[1][1] == 2
        assert min(b.model.batches[1][::2]) >= 10


async def test_faults_take_hold_at_every_stage_and_of_every_message() -> None:
    faults = Recorder()
    async with bench(faults) as b:
        await asyncio.wait_for(b.call(PICTURE, PICTURE), 5)
        assert faults.seen[:2] == [("admit", None), ("sender", None)]
        stages = [("fetch", i) for i in range(2)] + [("hashed", i) for i in range(2)] + [("publish", i) for i in range(2)]
        assert sorted(faults.seen[2:], key=str) == sorted(stages, key=str)
        assert (await b.socket.recv_multipart())[-1] == b"more"


async def test_a_client_error_of_one_item_ends_the_others_and_is_counted() -> None:
    async with bench() as b:
        with pytest.raises(InvalidMedia, match="not a picture"):
            await asyncio.wait_for(b.call("http://slow/", b"nonsense"), 5)
        assert b.metric("epd_encoder_items_total", code="invalid_media") == 1
        assert b.cancelled("fetch") == 1
        await b.assert_empty()
