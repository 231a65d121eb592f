"""Bytes to pictures: what is damaged, foreign or too large is the client's error, and says so."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest
from PIL import Image

from services.encoder.decode import decode_image
from shared.errors import InvalidMedia
from tests.chats import encoded

MAX = 10_000_000


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8))


@pytest.mark.parametrize("file_format", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_formats_give_the_same_pixels(picture: Image.Image, file_format: str) -> None:
    assert np.array_equal(np.asarray(decode_image(encoded(picture, file_format), MAX)), np.asarray(picture))


@pytest.mark.parametrize("file_format", ["JPEG", "WEBP", "GIF"])
def test_lossy_formats_decode(picture: Image.Image, file_format: str) -> None:
    assert decode_image(encoded(picture, file_format), MAX).size == picture.size


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    upright = Image.new("RGB", (64, 32), "white")
    upright.paste((255, 0, 0), (0, 0, 16, 16))
    undo = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    stored = upright if undo is None else upright.transpose(undo)
    exif = Image.Exif()
    exif[0x0112] = orientation
    seen = decode_image(encoded(stored, "PNG", exif=exif), MAX)
    assert np.array_equal(np.asarray(seen), np.asarray(upright))


def test_sixteen_bits_keep_their_contrast() -> None:
    levels = np.linspace(0, 65535, 256, dtype=np.uint16).reshape(16, 16)
    seen = np.asarray(decode_image(encoded(Image.fromarray(levels)), MAX))
    assert np.abs(seen.astype(int) - levels // 256).max() <= 1


def test_an_animation_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    seen = decode_image(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]), MAX)
    assert seen.convert("RGB").getpixel((5, 5)) == (255, 0, 0)


def damaged_png(picture: Image.Image) -> bytes:
    data = bytearray(encoded(picture))
    at = data.index(b"IDAT") + 4
    length = struct.unpack(">I", data[at - 8 : at - 4])[0]
    data[at + length] ^= 0xFF  # the chunk's checksum
    return bytes(data)


def test_broken_files_are_invalid_media(picture: Image.Image) -> None:
    jpeg, png = encoded(picture, "JPEG"), encoded(picture)
    broken = [b"", b"\x00", b"GIF89a", jpeg[:-128], png[: len(png) // 2], png[:-40], damaged_png(picture), jpeg[:20]]
    for data in broken:
        with pytest.raises(InvalidMedia):
            decode_image(data, MAX, "messages.0")


@pytest.mark.parametrize("seed", range(200))
def test_random_damage_never_raises_anything_else(picture: Image.Image, seed: int) -> None:
    rng = np.random.default_rng(seed)
    file_format = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")[seed % 7]
    data = bytearray(encoded(picture, file_format))
    for at in rng.integers(0, len(data), 8):
        data[at] = rng.integers(0, 256)
    with contextlib.suppress(InvalidMedia):
        decode_image(bytes(data[: rng.integers(1, len(data) + 1)]), MAX)


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b"<!DOCTYPE html><p>not found", "HTML"),
        (b"<svg xmlns='x'/>", "SVG"),
        (b"\0\0\0\x18ftypheic", "HEIC"),
        (b"%PDF-1.7", "PDF"),
        (b"hello", "5 bytes"),
    ],
)
def test_what_is_no_picture_is_named(data: bytes, hint: str) -> None:
    with pytest.raises(InvalidMedia, match=hint):
        decode_image(data, MAX)


def test_too_many_pixels_are_refused_before_they_are_decoded() -> None:
    bomb = encoded(Image.new("1", (20_000, 20_000)))
    with pytest.raises(InvalidMedia, match="pixels"):
        decode_image(bomb, MAX)
    with pytest.raises(InvalidMedia, match="100x100"):
        decode_image(encoded(Image.new("RGB", (100, 100))), 9_999)
