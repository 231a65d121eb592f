"""The data message survives the trip bit by bit, and anything wrong with it is told apart."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from shared.control import EncoderState
from shared.errors import EmbeddingCorrupt, EmbeddingIncompatible
from shared.wire import MAX_HEADER_BYTES, VERSION, ForeignVersion, Header, Heartbeat, pack, read_header, read_tensors


def header(**changes: object) -> Header:
    fields: dict[str, object] = {
        "request_id": "r",
        "attempt": 0,
        "item": 0,
        "num_items": 1,
        "modality": "image",
        "content_hash": "00" * 16,
        "num_tokens": 3,
        "grid_thw": (1, 2, 6),
        "model_fingerprint": "f",
        "encoder_id": "e",
    }
    return Header.model_validate(fields | changes)


def tensors(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "embeds": torch.randn(3, 8, generator=generator).to(dtype),
        "deepstack.0": torch.randn(8, 3, generator=generator).to(dtype).T,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_arrive_bit_by_bit(dtype: torch.dtype) -> None:
    sent = tensors(dtype)
    frames = [bytes(frame) for frame in pack(header(), sent)]
    message = read_tensors(read_header(frames[0]), frames[1:])
    assert list(message.tensors) == list(sent)
    for name, tensor in sent.items():
        assert message.tensors[name].dtype == dtype
        assert torch.equal(message.tensors[name], tensor)


def test_no_flipped_bit_of_a_header_passes_for_another_header() -> None:
    """Whose embeddings these are is as much covered as the embeddings."""
    sent = header(item=0, num_items=2)
    frames = [bytes(frame) for frame in pack(sent, {"embeds": torch.zeros(3, 8)})]
    original = read_header(frames[0])
    for bit in range(8 * len(frames[0])):
        flipped = bytearray(frames[0])
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            read = read_header(flipped)
            assert isinstance(read, Header)
            assert read_tensors(read, frames[1:]).header == original
        except (EmbeddingCorrupt, EmbeddingIncompatible):
            pass


def test_a_heartbeat_is_told_from_an_item() -> None:
    beat = Heartbeat(encoder_id="e", state=EncoderState.DRAINING, items_in_work=3, max_items=8)
    assert read_header(beat.model_dump_json().encode()) == beat


def test_contiguous_tensors_are_sent_without_a_copy() -> None:
    tensor = torch.zeros(3, 8)
    frame = pack(header(), {"embeds": tensor})[1]
    tensor[0, 0] = 1.0
    assert bytes(frame)[:4] == b"\x00\x00\x80\x3f"


def test_received_frames_are_viewed_not_copied() -> None:
    frames = pack(header(), {"embeds": torch.zeros(3, 8)})
    buffer = bytearray(frames[1])
    read = read_tensors(read_header(frames[0]), [buffer]).tensors["embeds"]
    buffer[:4] = b"\x00\x00\x80\x3f"
    assert read[0, 0] == 1.0


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_other_dtypes_are_not_sent(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="cross the wire"):
        pack(header(), {"embeds": torch.zeros(3, 8, dtype=dtype)})


def test_every_flipped_bit_is_noticed() -> None:
    frames = [bytes(frame) for frame in pack(header(), tensors())]
    for at in range(0, 8 * len(frames[1]), 37):
        damaged = bytearray(frames[1])
        damaged[at // 8] ^= 1 << at % 8
        with pytest.raises(EmbeddingCorrupt, match="digest"):
            read_tensors(read_header(frames[0]), [damaged, frames[2]])


def test_swapped_missing_and_short_frames_are_corrupt() -> None:
    frames = [bytes(frame) for frame in pack(header(), tensors())]
    parsed = read_header(frames[0])
    for wrong in ([frames[2], frames[1]], frames[1:2], [*frames[1:], b""], [frames[1], frames[2][:-4]]):
        with pytest.raises(EmbeddingCorrupt):
            read_tensors(parsed, wrong)


def test_another_version_is_refused_by_name_and_belongs_to_its_request() -> None:
    raw = json.dumps({"version": VERSION + 1, "request_id": "r", "attempt": 2, "item": 1, "novelty": True}).encode()
    with pytest.raises(ForeignVersion, match=f"version {VERSION + 1}") as caught:
        read_header(raw)
    assert (caught.value.request_id, caught.value.attempt, caught.value.code) == ("r", 2, "embedding_incompatible")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x80\x04K\x01.",
        b"[]",
        b"{}",
        b'{"version": "1", "request_id": "r"}',
        b"\xff\xfe",
        b"{" * 2000,
        b" " * (MAX_HEADER_BYTES + 1),
    ],
)
def test_what_is_no_header_is_corrupt(raw: bytes) -> None:
    with pytest.raises(EmbeddingCorrupt):
        read_header(raw)


def test_unknown_fields_and_wrong_types_are_refused() -> None:
    good = json.loads(pack(header(), tensors())[0])
    changes = ({"surprise": 1}, {"item": "0"}, {"num_tokens": -1}, {"modality": "smell"}, {"grid_thw": [1, 2]}, {"item": True})
    for change in changes:
        with pytest.raises(EmbeddingCorrupt):
            read_header(json.dumps(good | change).encode())


def test_a_declared_dtype_that_may_not_cross_is_incompatible() -> None:
    frames = pack(header(), {"embeds": torch.zeros(3, 8)})
    raw = json.loads(frames[0])
    raw["tensors"][0]["dtype"] = "int32"
    with pytest.raises(EmbeddingIncompatible, match="int32"):
        read_tensors(read_header(json.dumps(raw).encode()), frames[1:])


@pytest.mark.parametrize("shape", [[-3, -8], [2**40, 2**40], [3, 7]])
def test_shapes_that_lie_are_corrupt(shape: list[int]) -> None:
    frames = pack(header(), {"embeds": torch.zeros(3, 8)})
    raw = json.loads(frames[0])
    raw["tensors"][0]["shape"] = shape
    with pytest.raises(EmbeddingCorrupt):
        read_tensors(read_header(json.dumps(raw).encode()), frames[1:])
