"""``detail: low``: what is made of a picture is what transformers' processor makes of it with these limits."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from services.encoder.models.generic import EncoderHalf, open_half
from services.language.prompt.conversation import MediaSource
from services.language.prompt.sources import prepare_sources
from shared.control import LOW_DETAIL, EncodeItem
from shared.identity import ContentHasher
from tests.chats import data_url
from tests.families import NEED_TORCHVISION
from tests.families.media import picture
from tests.families.processors import processor_of

AREAS = {"size": {"shortest_edge": 1024, "longest_edge": 2**21}}
EDGES = {"size": {"longest_edge": 1024}}
LOW_AREA = {"size": {"shortest_edge": 1024, "longest_edge": 512 * 512}}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": (AREAS, LOW_AREA),
    "qwen2_5_vl": (AREAS, LOW_AREA),
    "qwen3_vl": (AREAS, LOW_AREA),
    "qwen3_vl_moe": (AREAS, LOW_AREA),
    "ernie4_5_vl_moe": (AREAS, LOW_AREA),
    "glm4v": (AREAS, {"size": {"shortest_edge": 1024, "longest_edge": 2 * 512 * 512}}),
    "glm4v_moe": (AREAS, {"size": {"shortest_edge": 1024, "longest_edge": 2 * 512 * 512}}),
    "idefics3": ({}, {"do_image_splitting": False}),
    "smolvlm": ({}, {"do_image_splitting": False}),
    "internvl": ({}, {"crop_to_patches": False}),
    "pixtral": (EDGES, {"size": {"longest_edge": 512}}),
    "mistral3": (EDGES, {"size": {"longest_edge": 512}}),
    "kimi_k25": ({"max_patches": 16384, "size": {"max_height": 512, "max_width": 512}}, {"max_patches": 512 * 512 // 8**2}),
}
"""By family: what its tiny checkpoint allows that large pictures have many tokens, and low detail by the processor's words."""

LARGE = Image.open(io.BytesIO(picture(1, 1000, 800)))
SMALL = Image.open(io.BytesIO(picture(2, 30, 24)))


def allow(folder: Path, settings: dict[str, Any]) -> Path:
    """Changes settings of the checkpoint's image processor."""
    for file in (folder / "preprocessor_config.json", folder / "processor_config.json"):
        if file.is_file():
            written = json.loads(file.read_text())
            written.get("image_processor", written).update(settings)
            file.write_text(json.dumps(written))
    return folder


def tokens(half: EncoderHalf, image: Image.Image, form: str) -> int:
    item = half.preprocess(image, form)
    half.encode([item])
    return item.num_tokens


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.torchvision] if name in NEED_TORCHVISION else []) for name in CASES]
)
def test_low_detail_is_the_processors_own_with_limits(name: str, fresh: Callable[[str], Path]) -> None:
    settings, low = CASES[name]
    folder = allow(fresh(name), settings)
    half, processor = open_half(folder, "cpu", "float32"), processor_of(folder)
    token = half.config.image_token_id

    def wanted(image: Image.Image, **limits: Any) -> int:
        outputs = processor(
            text=[processor.image_token], images=[[image]], **limits, add_special_tokens=False, return_tensors="pt"
        )
        return int(outputs["input_ids"][0].tolist().count(token))

    assert tokens(half, LARGE, "") == wanted(LARGE)
    assert tokens(half, LARGE, LOW_DETAIL) == wanted(LARGE, **low) < wanted(LARGE)
    assert tokens(half, SMALL, LOW_DETAIL) == wanted(SMALL, **low)
    if "size" in low:
        assert tokens(half, SMALL, LOW_DETAIL) == tokens(half, SMALL, "")


def test_llava_onevision_makes_one_tile_of_it(fresh: Callable[[str], Path]) -> None:
    half = open_half(fresh("llava_onevision"), "cpu", "float32")
    side = half.config.vision_config.image_size // half.config.vision_config.patch_size
    assert tokens(half, LARGE, "several low") == tokens(half, LARGE, LOW_DETAIL) == side**2 + 1 < tokens(half, LARGE, "")


@pytest.mark.parametrize("name", ["llava", "gemma3"])
def test_it_changes_nothing_where_all_pictures_have_the_same_size(name: str, fresh: Callable[[str], Path]) -> None:
    half = open_half(fresh(name), "cpu", "float32")
    low, high = half.preprocess(LARGE, LOW_DETAIL), half.preprocess(LARGE)
    assert {key: value.tolist() for key, value in low.features.items()} == {
        key: value.tolist() for key, value in high.features.items()
    }


def test_limits_that_are_lower_already_stay(fresh: Callable[[str], Path]) -> None:
    half = open_half(fresh("qwen3_vl"), "cpu", "float32")
    assert tokens(half, LARGE, LOW_DETAIL) == tokens(half, LARGE, "") <= 128 * 128 // 16**2


URL = data_url(picture(3))


def prepared(detail: str, form: str = "", name: str | None = None) -> MediaSource:
    source = MediaSource(0, "image", "messages.0", url=URL, detail=detail)
    (found,) = prepare_sources([source], [form], [name], "tenant", ContentHasher(b"s" * 32), 10**6)
    return found


@pytest.mark.parametrize(
    ("detail", "form", "told"),
    [
        ("auto", "", ""),
        ("high", "", ""),
        ("low", "", "low"),
        ("auto", "several", "several"),
        ("low", "several", "several low"),
    ],
)
def test_the_encoder_is_told_by_the_form(detail: str, form: str, told: str) -> None:
    assert prepared(detail, form).form == told
    assert EncodeItem(index=0, form=told).form == told


def test_a_picture_is_another_item_in_low_detail_whether_it_is_known_by_its_bytes_or_a_name() -> None:
    low, high, auto = (prepared(detail).identity for detail in ("low", "high", "auto"))
    assert low != high == auto
    low, high, auto = (prepared(detail, name="a").identity for detail in ("low", "high", "auto"))
    assert low != high == auto


def test_a_long_url_comes_as_the_bytes_that_it_was() -> None:
    source = MediaSource(0, "image", "messages.0", url="data:,short", inline=memoryview(URL.encode()))
    (found,) = prepare_sources([source], [""], [], "", ContentHasher(b"s" * 32), 10**6)
    assert (found.data, found.url, found.inline) == (picture(3), None, None)


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a checkpoint that may be changed."""
    from tests.families import make

    return lambda name: make(name, tmp_path / name)
