"""Pictures that the load tester sends: new to every cache, and described rightly by the undivided model."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from PIL import Image

from examples.scenes import BACKGROUND, draw
from services.loadtest.traffic.pictures import REPEATED, SCENES, Pictures, answer, repeated_scene, scene
from services.loadtest.traffic.png import Template
from tests.chats import Undivided
from tests.processes import DEMO_MODEL


@pytest.fixture(scope="module")
def undivided() -> Undivided:
    return Undivided(DEMO_MODEL)


@pytest.fixture(scope="module")
def pictures() -> Pictures:
    return Pictures()


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


def said(undivided: Undivided, *parts: bytes | str) -> str:
    return str(undivided.tokenizer.decode(undivided.answer(parts)[1], skip_special_tokens=True))


def seen(undivided: Undivided, png: bytes) -> bytes:
    """What a cache that knows pictures by their preprocessed pixels goes by."""
    features = undivided.processor.image_processor(images=[Image.open(io.BytesIO(png))], return_tensors="pt")["pixel_values"]
    return bytes(features.numpy().tobytes())


@pytest.mark.parametrize(("height", "width", "band"), [(2, 1, 1), (64, 64, 1), (40, 96, 32), (7, 5, 6)])
def test_a_template_makes_the_picture_it_was_made_of(height: int, width: int, band: int) -> None:
    rng = np.random.default_rng(height)
    wanted = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    row = rng.integers(0, 256, (1, width, 3), dtype=np.uint8)
    got = pixels(Template(wanted, band).png(row.tobytes()))
    assert (got[:band] == row).all()
    assert (got[band:] == wanted[band:]).all()
    with pytest.raises(ValueError, match=f"has {3 * width} bytes"):
        Template(wanted, band).png(b"short")


def test_only_the_background_at_the_upper_edge_differs(pictures: Pictures) -> None:
    for number in range(SCENES):
        got, drawn = pixels(pictures.new(number)), np.asarray(draw(scene(number), 64, number))
        assert (got[1:] == drawn[1:]).all()
        assert (drawn[0] == BACKGROUND).all()
        assert (abs(got[0].astype(int) - BACKGROUND) <= 3).all()


def test_each_picture_is_new_to_every_cache(pictures: Pictures, undivided: Undivided) -> None:
    small = [pictures.new(5) for _ in range(50)]
    huge = [pictures.huge(random.Random(1))[1] for _ in range(10)]
    for made in (small, huge):
        assert len(set(made)) == len({seen(undivided, png) for png in made}) == len(made)
    assert pixels(huge[0]).shape == (2048, 2048, 3)


def test_new_pictures_are_described_rightly(pictures: Pictures, undivided: Undivided) -> None:
    numbers = random.Random(0).sample(range(SCENES), 64)
    assert [said(undivided, pictures.new(number), "Describe the picture.") for number in numbers] == list(map(answer, numbers))


def test_huge_pictures_are_described_rightly(pictures: Pictures, undivided: Undivided) -> None:
    rng = random.Random(0)
    for _ in range(6):
        number, png = pictures.huge(rng)
        assert said(undivided, png, "Describe the picture.") == answer(number)


def test_repeated_pictures_are_the_same_everywhere_and_described_rightly(pictures: Pictures, undivided: Undivided) -> None:
    made = [pictures.repeated(number) for number in range(REPEATED)]
    assert made == [Pictures().repeated(number) for number in range(REPEATED)]
    assert len({seen(undivided, png) for png in made}) == REPEATED
    assert [said(undivided, png, "Describe the picture.") for png in made] == [
        answer(repeated_scene(number)) for number in range(REPEATED)
    ]


def test_broken_pictures_are_none(pictures: Pictures) -> None:
    rng = random.Random(0)
    made = [pictures.broken(rng) for _ in range(40)]
    for png in made:
        with pytest.raises(OSError, match=r"cannot identify|truncated|not enough"):
            Image.open(io.BytesIO(png)).load()
    assert b"" in made
    assert any(png.startswith(b"\x89PNG") for png in made)
    assert any(png.startswith(b"<!doctype html>") for png in made)
