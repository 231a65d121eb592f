"""An item has as many tokens as the family's processor says, whatever its size, and the tower makes as many."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from services.encoder.media import Media, Sound
from services.encoder.models.generic import EncoderHalf, open_half
from shared.errors import InvalidMedia
from tests.families import NEED_TORCHVISION, PICTURED, make
from tests.families.media import picture, samples
from tests.families.processors import processor_of

SIZES = [
    (1, 1),
    (8, 8),
    (20, 13),
    (33, 31),
    (48, 32),
    (64, 64),
    (97, 300),
    (200, 90),
    (320, 24),
    (24, 320),
    (640, 480),
    (500, 3),
]
SECONDS = [0.001, 0.02, 0.1, 0.77, 1.0, 1.99, 2.0]


def expected(processor: Any, config: Any, kind: str, given: dict[str, Any]) -> tuple[int, int] | None:
    """What an item takes in the prompt, and how much of that are media tokens, by the processor; None if it makes none."""
    try:
        outputs = processor(text=[getattr(processor, f"{kind}_token")], **given, add_special_tokens=False, return_tensors="pt")
    except ValueError:
        return None
    ids = outputs["input_ids"][0].tolist()
    count = ids.count(getattr(config, f"{kind}_token_id"))
    return (len(ids), count) if count else None


def found(half: EncoderHalf, media: Media) -> tuple[int, int] | None:
    try:
        item = half.preprocess(media)
    except InvalidMedia:
        return None
    half.encode([item])
    assert item.embeds is not None
    assert item.embeds.shape[0] == item.num_tokens
    edges = "" if item.layout is None else item.layout.before + item.layout.after
    return item.prompt_tokens + len(half.processor.tokenizer(edges, add_special_tokens=False)["input_ids"]), item.num_tokens


def _params(names: tuple[str, ...]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.torchvision] if name in NEED_TORCHVISION else []) for name in names]


@pytest.mark.parametrize("name", _params(PICTURED))
def test_pictures_of_any_size(name: str, tmp_path: Path) -> None:
    folder = make(name, tmp_path)
    half, processor = open_half(folder, "cpu", "float32"), processor_of(folder)
    images = {size: Image.open(io.BytesIO(picture(sum(size), *size))) for size in SIZES}
    wanted = {size: expected(processor, half.config, "image", {"images": [[image]]}) for size, image in images.items()}
    assert {size: found(half, image) for size, image in images.items()} == wanted
    assert sum(count is not None for count in wanted.values()) >= len(SIZES) - 2


@pytest.mark.parametrize("name", ["qwen2_audio"])
def test_sounds_of_any_length(name: str, tmp_path: Path) -> None:
    folder = make(name, tmp_path)
    half, processor = open_half(folder, "cpu", "float32"), processor_of(folder)
    sounds = {seconds: samples(round(seconds * 1000), seconds) for seconds in SECONDS}
    given = {seconds: {"audio": [sound], "sampling_rate": 16_000} for seconds, sound in sounds.items()}
    wanted = {seconds: expected(processor, half.config, "audio", each) for seconds, each in given.items()}
    assert {seconds: found(half, Sound(sound, 16_000)) for seconds, sound in sounds.items()} == wanted


def test_a_sound_longer_than_the_model_hears_is_refused_and_not_cut_off(tmp_path: Path) -> None:
    half = open_half(make("qwen2_audio", tmp_path), "cpu", "float32")
    with pytest.raises(InvalidMedia, match=r"lasts 7\.0 seconds; the model hears 2 at most"):
        half.preprocess(Sound(samples(1, 7.0), 16_000), "", "messages.0")


@pytest.mark.parametrize("name", ["internvl", "llava"])
def test_what_a_processor_cannot_take_is_told_with_size_and_ratio(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = open_half(make(name, tmp_path), "cpu", "float32")

    def refuse(*_: object, **__: object) -> None:
        raise ValueError("no such size")

    monkeypatch.setattr(half, "processed", refuse)
    with pytest.raises(InvalidMedia, match=r"a picture of 1093x5, whose ratio is 218\.6: no such size"):
        half.preprocess(Image.new("RGB", (1093, 5)), "", "messages.0")
