"""Whatever comes on the data socket, nothing breaks and nothing wrong gets in. ``make fuzz`` tries many more messages."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.errors import EmbeddingCorrupt
from shared.wire import MAX_HEADER_BYTES, Header, pack, read_header, read_tensors
from tests.fuzz.mutations import Frames, mutated, with_digest
from tests.fuzz.spelling import Raw, parse, spell
from tests.fuzz.targets import ReceiverTarget, Samples, check_reading, header

few = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def target() -> Iterator[ReceiverTarget]:
    made = ReceiverTarget()
    yield made
    made.close()


@pytest.fixture(scope="module")
def samples(target: ReceiverTarget) -> Samples:
    return target.samples


@few
@given(rng=st.randoms(use_true_random=False))
def test_reading_a_broken_message_ends_in_one_of_its_errors(samples: Samples, rng: random.Random) -> None:
    original = rng.choice(samples.all)
    check_reading(mutated(rng, original), original)


@few
@given(rng=st.randoms(use_true_random=False))
def test_a_broken_message_neither_stalls_the_receiver_nor_gets_in(target: ReceiverTarget, rng: random.Random) -> None:
    original = rng.choice(target.samples.all)
    target.check(mutated(rng, original), original)


def test_nor_does_one_that_points_at_memory(target: ReceiverTarget) -> None:
    for number in range(400):
        original, end = target.lent.message()
        target.check(mutated(random.Random(number), original), original)
        end()


def test_random_messages_reach_every_answer(target: ReceiverTarget) -> None:
    """So that the tests above are not all about what is refused at first sight; and these are always the same ones."""
    seen = Counter[str]()
    for number in range(600):
        rng = random.Random(number)
        original = rng.choice(target.samples.all)
        seen[target.check(mutated(rng, original), original)] += 1
    assert seen.keys() >= {"ok", "dropped", "embedding_corrupt", "embedding_incompatible", "invalid_media"}
    assert seen["ok"] >= 30


@pytest.mark.parametrize("number", range(6))
def test_good_messages_get_in(target: ReceiverTarget, number: int) -> None:
    original = target.samples.all[number]
    assert target.check(original, original) == ("ok", "ok", "ok", "invalid_media", "ok", "dropped")[number]
    assert check_reading(original, original) == ("heartbeat" if number == 5 else "ok")


def test_good_memory_gets_in(target: ReceiverTarget) -> None:
    original, end = target.lent.message()
    assert target.check(original, original) == "ok"
    end()


def changed(frames: Frames, **fields: object) -> Frames:
    """The same message with other fields, and the digest that it then has."""
    tree = [(name, fields.get(name, value)) for name, value in parse(frames[0])]
    return with_digest([spell(type(parse(b"{}"))(tree)).encode(), *frames[1:]])


@pytest.mark.parametrize("shape", [[0, 8], [8, 0], [0, 2**62, 2**62], [0, 2**63], [0, 10**400], [-1, -6, 128], [2**32, 2**32]])
def test_shapes_that_no_tensor_has_are_corrupt(target: ReceiverTarget, shape: list[int]) -> None:
    """torch overflows at some of them."""
    frames = target.samples.item(0)
    tensors = json.loads(frames[0])["tensors"]
    tensors[0]["shape"] = shape
    tree = parse(json.dumps(tensors).encode())
    message = changed([frames[0], b"", *frames[2:]], tensors=tree)
    with pytest.raises(EmbeddingCorrupt):
        read_tensors(_header(message), message[1:])
    assert target.check(message, frames) in ("embedding_corrupt", "dropped")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timings", '{"tower":NaN}'),
        ("timings", '{"tower":Infinity}'),
        ("timings", '{"tower":1e400}'),
        ("timings", "{" + ",".join(f'"{n}":1' for n in range(65)) + "}"),
        ("attempt", str(2**31)),
        ("item", "9" * 4000),
        ("num_tokens", "1e1"),
        ("item", "0.0"),
        ("item", "true"),
        ("encoder_id", r'"\ud800"'),
        ("grid_thw", "[" * 64 + "]" * 64),
    ],
)
def test_values_that_no_field_has_are_corrupt(samples: Samples, name: str, value: str) -> None:
    with pytest.raises(EmbeddingCorrupt):
        read_header(changed(samples.item(0), **{name: Raw(value)})[0])


def test_load_that_no_encoder_has_is_corrupt(samples: Samples) -> None:
    for name in ("items_in_work", "max_items"):
        with pytest.raises(EmbeddingCorrupt):
            read_header(changed(samples.all[-1], **{name: Raw("9" * 400)})[0])


def test_a_header_may_be_exactly_as_large_as_the_limit(samples: Samples) -> None:
    frame = samples.item(0)[0]
    assert read_header(frame.ljust(MAX_HEADER_BYTES)).model_dump() == read_header(frame).model_dump()
    with pytest.raises(EmbeddingCorrupt, match="too large"):
        read_header(frame.ljust(MAX_HEADER_BYTES + 1))


def test_a_report_of_a_failure_is_covered_by_its_digest_too(target: ReceiverTarget) -> None:
    """Else a flipped bit would fail somebody else's request, in silence."""
    report = [bytes(frame) for frame in pack(header(failure={"code": "invalid_media", "message": "No picture."}), {})]
    assert target.check(report, report) == "invalid_media"
    flipped = [report[0].replace(b'"item":0', b'"item":1')]
    assert target.check(flipped, report) == "embedding_corrupt"


def _header(frames: Frames) -> Header:
    """The header of a message; corrupt where it is none."""
    found = read_header(frames[0])
    assert isinstance(found, Header)
    return found
