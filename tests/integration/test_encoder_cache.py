"""A real encoder that is asked for the same picture again, and by many at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import torch
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from shared.control import REQUEST_FIELD, EncodeItem, EncodeRequest, EncodeResponse
from shared.wire import Header, Message, read_header, read_tensors
from tests.chats import encoded
from tests.integration.test_encoder_ends import Receiver
from tests.processes import Service, wait_for

MANY = 64
LEVELS = ("media", "embeddings")


class Asked:
    """An encoder, and the data socket of who asks it."""

    def __init__(self, encoder: Service, receiver: Receiver) -> None:
        self.encoder, self.receiver = encoder, receiver
        self.client = httpx.Client(base_url=encoder.url, timeout=60, trust_env=False)

    def encode(self, *pictures: bytes, request_id: str = "r/1") -> EncodeResponse:
        parts = {str(index): picture for index, picture in enumerate(pictures)}
        request = EncodeRequest(
            request_id=request_id,
            num_items=len(parts),
            items=tuple(EncodeItem(index=int(name), part=name) for name in parts),
            reply_to=self.receiver.address,
            timeout=30,
        )
        answer = self.client.post("/encode", data={REQUEST_FIELD: request.model_dump_json()}, files=parts)
        assert answer.status_code == 200, answer.text
        return EncodeResponse.model_validate_json(answer.content)

    def message(self) -> Message:
        """The next one that arrives."""
        head, *frames = self.receiver.socket.recv_multipart()
        header = read_header(head)
        assert isinstance(header, Header)
        return read_tensors(header, frames)

    def count(self, name: str, **labels: str) -> float:
        """A sample of the encoder's metrics; 0 where it has none yet."""
        families = text_string_to_metric_families(self.client.get("/metrics").text)
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    @property
    def towers(self) -> float:
        """Items that the tower has computed."""
        return self.count("epd_encoder_batch_items_sum")

    def lookups(self) -> list[dict[str, float]]:
        """How many items had which luck at each level."""
        return [
            {
                outcome: self.count("epd_encoder_cache_lookups_total", level=level, outcome=outcome)
                for outcome in ("hit", "miss", "joined")
            }
            for level in LEVELS
        ]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    receiver = Receiver()
    try:
        with Service("encoder", tmp_path_factory.mktemp("cache")).start() as encoder:
            yield Asked(encoder, receiver)
    finally:
        receiver.context.destroy(linger=0)


def noise(seed: int) -> Image.Image:
    pixels = torch.randint(0, 256, (96, 96, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(pixels.numpy())


def same(one: Message, other: Message) -> bool:
    """Whether two messages bring the same picture, bit for bit."""
    return (
        one.header.content_hash == other.header.content_hash
        and one.tensors.keys() == other.tensors.keys()
        and all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
    )


def test_a_repeated_picture_is_found_at_both_levels_and_bit_for_bit_the_same(asked: Asked) -> None:
    picture = encoded(noise(0))
    before, towers = asked.lookups(), asked.towers
    first, again = asked.encode(picture), asked.encode(picture)
    assert {"decode", "preprocess", "hash", "tower"} <= first.items[0].timings.keys()
    assert again.items[0].timings.keys() == {"fetch", "digest", "publish"}
    one, two = asked.message(), asked.message()
    assert {"embeds", "deepstack.0"} <= one.tensors.keys()
    assert same(one, two)
    assert asked.towers == towers + 1
    assert asked.lookups() == [{**was, "hit": was["hit"] + 1, "miss": was["miss"] + 1} for was in before]
    for level in LEVELS:
        assert asked.count("epd_encoder_cache_entries", level=level) >= 1
        assert asked.count("epd_encoder_cache_bytes", level=level) > 0


def test_the_same_pixels_in_another_format_take_no_second_run_of_the_tower(asked: Asked) -> None:
    towers = asked.towers
    asked.encode(encoded(noise(1), "PNG"))
    asked.encode(encoded(noise(1), "BMP"))
    assert same(asked.message(), asked.message())
    assert asked.towers == towers + 1


@pytest.mark.parametrize("calls", [MANY, 1])
def test_64_identical_pictures_at_once_take_exactly_one_run_of_the_tower(asked: Asked, calls: int) -> None:
    picture = encoded(noise(2 + calls))
    before, towers = asked.lookups(), asked.towers
    decoded = asked.count("epd_encoder_stage_seconds_count", stage="decode")
    with ThreadPoolExecutor(calls) as threads:
        running = [threads.submit(asked.encode, *[picture] * (MANY // calls), request_id=f"r/{i}") for i in range(calls)]
        answers = [each.result(60) for each in running]
    assert asked.towers == towers + 1
    assert asked.count("epd_encoder_stage_seconds_count", stage="decode") == decoded + 1
    messages = [asked.message() for _ in range(MANY)]
    assert all(same(each, messages[0]) for each in messages)
    assert {item.content_hash for answer in answers for item in answer.items} == {messages[0].header.content_hash}
    assert {(each.header.request_id, each.header.item) for each in messages} == {
        (f"r/{call}", item) for call in range(calls) for item in range(MANY // calls)
    }
    for was, now in zip(before, asked.lookups(), strict=True):
        assert (now["miss"] - was["miss"], sum(now.values()) - sum(was.values())) == (1, MANY)
    wait_for(lambda: asked.count("epd_encoder_bytes_in_work") == 0, 5, "an idle encoder")
