"""Faults in what a message says, and what the language service makes of them."""

from __future__ import annotations

import json

import pytest
import torch

from services.encoder.faults.base import Fault
from services.encoder.faults.contents import Corrupt, NotFinite, WrongDtype, WrongFingerprint, WrongShape, WrongTokens
from services.encoder.faults.registry import Faults
from services.language.embeddings.assembly import Assembler
from shared.errors import EpdError
from shared.identity import Grid, MediaItem, Modality
from shared.wire import Buffer, Header, read_header, read_tensors
from tests.unit.faults.calls import TOKENS, WIDTH, call, sent_by, setting


class Facts:
    """A model that the messages of these tests fit."""

    by_grid = True
    media_ids = frozenset([1])

    def __init__(self) -> None:
        self.placeholders: dict[Modality, int] = {"image": 1}

    def tokens_of(self, modality: Modality, grid: Grid) -> int | None:
        return grid[1] * grid[2] // 4

    def tensor_shapes(self, num_tokens: int) -> dict[str, tuple[int, int]]:
        return {name: (num_tokens, WIDTH) for name in ("embeds", "deepstack.0")}

    def fits(self, item: MediaItem) -> bool:
        return item.layout is None


async def frames_with(*faults: Fault) -> list[Buffer]:
    """The frames of a message to which these faults happened."""
    return (await sent_by(setting(*faults), call())).frames[0]


def header_of(frames: list[Buffer]) -> Header:
    header = read_header(frames[0])
    assert isinstance(header, Header)
    return header


def verdict(frames: list[Buffer]) -> str:
    """The code of the failure that the language service finds in a message, or ``ok``."""
    try:
        Assembler(Facts(), torch.float32, "f").assemble(header_of(frames), frames[1:])
    except EpdError as error:
        return error.code
    return "ok"


def flipped(frames: list[Buffer], healthy: list[Buffer]) -> list[int]:
    """How many bits differ, frame by frame."""
    return [
        sum((a ^ b).bit_count() for a, b in zip(bytes(frame), bytes(other), strict=True))
        for frame, other in zip(frames, healthy, strict=True)
    ]


async def test_a_healthy_message_passes() -> None:
    assert verdict((await sent_by(Faults(), call())).frames[0]) == "ok"


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Corrupt(), "embedding_corrupt"),
        (WrongShape(), "embedding_incompatible"),
        (WrongTokens(), "embedding_incompatible"),
        (WrongTokens(delta=-2), "embedding_incompatible"),
        (WrongTokens(delta=-100), "embedding_incompatible"),
        (NotFinite(), "embedding_incompatible"),
        (NotFinite(value="inf"), "embedding_incompatible"),
        (NotFinite(value="-inf"), "embedding_incompatible"),
        (WrongDtype(), "embedding_incompatible"),
        (WrongDtype(dtype="int32"), "embedding_incompatible"),
        (WrongFingerprint(), "embedding_incompatible"),
    ],
    ids=repr,
)
async def test_the_language_service_finds_each(fault: Fault, code: str) -> None:
    assert verdict(await frames_with(fault)) == code
    assert fault.fired == 1


@pytest.mark.parametrize("bits", [1, 7, 100_000])
async def test_corrupt_flips_as_many_bits_in_one_tensor(bits: int) -> None:
    healthy = await frames_with()
    hit = set()
    for seed in range(20):
        counts = flipped(await frames_with(Corrupt(bits=bits, seed=seed)), healthy)
        assert counts[0] == 0
        assert sorted(counts[1:]) == [0, min(bits, 8 * TOKENS * WIDTH * 4)]
        hit.add(counts.index(max(counts)))
    assert hit == {1, 2}


@pytest.mark.parametrize(("frame", "counts"), [(0, [3, 0, 0]), (2, [0, 0, 3]), (3, [0, 0, 0])])
async def test_corrupt_hits_the_frame_that_is_named(frame: int, counts: list[int]) -> None:
    assert flipped(await frames_with(Corrupt(bits=3, frame=frame)), await frames_with()) == counts


async def test_wrong_shape_and_wrong_tokens_are_well_formed() -> None:
    for fault, tokens, width in (
        (WrongShape(), TOKENS, WIDTH - 1),
        (WrongTokens(delta=2), TOKENS + 2, WIDTH),
        (WrongTokens(delta=-1), TOKENS - 1, WIDTH),
    ):
        frames = await frames_with(fault)
        header = header_of(frames)
        assert header.num_tokens == tokens
        assert {tuple(tensor.shape) for tensor in read_tensors(header, frames[1:]).tensors.values()} == {(tokens, width)}


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
async def test_nan_is_one_element_of_one_tensor(value: str) -> None:
    frames = await frames_with(NotFinite.model_validate({"value": value}))
    tensors = read_tensors(header_of(frames), frames[1:]).tensors
    strange = torch.cat([tensor[~tensor.isfinite()] for tensor in tensors.values()])
    assert strange.numel() == 1
    assert str(float(strange)) == value


async def test_wrong_dtype_changes_the_header_alone_even_one_that_is_broken() -> None:
    healthy, frames = await frames_with(), await frames_with(WrongDtype())
    assert [spec["dtype"] for spec in json.loads(frames[0])["tensors"]] == ["float64", "float64"]
    assert frames[1:] == healthy[1:]
    assert len(await frames_with(Corrupt(frame=0, bits=500), WrongDtype())) == 3


async def test_wrong_fingerprint_changes_nothing_else() -> None:
    healthy, frames = await frames_with(), await frames_with(WrongFingerprint())
    same = {"model_fingerprint": "f", "digest": header_of(healthy).digest}
    assert header_of(frames).model_copy(update=same).model_dump() == header_of(healthy).model_dump()
    assert frames[1:] == healthy[1:]
