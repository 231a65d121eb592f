"""Bytes to pictures: what is damaged, foreign or too large is the client's error, and says so."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from typing import Any

import numpy as np
import pillow_heif
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


@pytest.mark.parametrize("file_format", ["JPEG", "WEBP", "GIF", "AVIF"])
def test_lossy_formats_decode(picture: Image.Image, file_format: str) -> None:
    assert decode_image(encoded(picture, file_format), MAX).size == picture.size


def heic(image: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pillow_heif.from_pillow(image).save(buffer, quality=90, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_heic_is_decoded_where_its_extra_is_installed(mode: str) -> None:
    original = Image.new("RGB", (96, 64), "blue")
    original.paste((255, 0, 0), (0, 0, 48, 32))
    seen = decode_image(heic(original.convert(mode)), MAX)
    assert seen.size == (96, 64)
    assert np.abs(np.asarray(seen.convert("RGB"), int) - np.asarray(original.convert(mode).convert("RGB"), int)).mean() < 4


def test_heic_is_upright() -> None:
    stored = Image.new("RGB", (96, 64), "blue")
    stored.paste((255, 0, 0), (0, 0, 48, 32))
    exif = Image.Exif()
    exif[0x0112] = 6
    file = pillow_heif.from_pillow(stored)
    buffer = io.BytesIO()
    file.save(buffer, quality=90, exif=exif.tobytes())
    seen = decode_image(buffer.getvalue(), MAX)
    assert seen.size == (64, 96)
    assert seen.getpixel((56, 8))[0] > 200  # type: ignore[index]


def test_heic_is_refused_by_the_extras_name_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.encoder.extras.find_spec", lambda name: None)
    with pytest.raises(InvalidMedia, match=r"HEIC pictures are not taken here.*epd-pair\[heif\]") as caught:
        decode_image(heic(Image.new("RGB", (64, 64))), MAX, "messages.0")
    assert caught.value.param == "messages.0"


def test_heic_of_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(InvalidMedia, match="64x64; at most 4095 pixels"):
        decode_image(heic(Image.new("RGB", (64, 64))), 4095)


@pytest.mark.parametrize("coded", ["HEIC", "AVIF"])
def test_a_picture_larger_than_it_says_is_refused_or_scaled_to_what_it_says(coded: str) -> None:
    large = Image.new("RGB", (600, 400))
    data = bytearray(heic(large) if coded == "HEIC" else encoded(large, coded))
    at = data.index(b"ispe") + 8
    data[at : at + 8] = struct.pack(">II", 64, 64)
    with contextlib.suppress(InvalidMedia):
        assert decode_image(bytes(data), MAX).size == (64, 64)


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
    avif = encoded(picture, "AVIF")
    broken = [b"", b"\x00", b"GIF89a", jpeg[:-128], png[: len(png) // 2], png[:-40], damaged_png(picture), jpeg[:20]]
    broken += [avif[:200], avif[:-200], heic(picture)[:-200], heic(picture)[:100]]
    for data in broken:
        with pytest.raises(InvalidMedia):
            decode_image(data, MAX, "messages.0")


@pytest.mark.parametrize("seed", range(200))
def test_random_damage_never_raises_anything_else(picture: Image.Image, seed: int) -> None:
    rng = np.random.default_rng(seed)
    file_format = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")[seed % 8]
    data = bytearray(encoded(picture, file_format))
    for at in rng.integers(0, len(data), 8):
        data[at] = rng.integers(0, 256)
    with contextlib.suppress(InvalidMedia):
        decode_image(bytes(data[: rng.integers(1, len(data) + 1)]), MAX)


def test_random_damage_of_heic_never_raises_anything_else(picture: Image.Image) -> None:
    rng = np.random.default_rng(0)
    for _ in range(8):
        data = bytearray(heic(picture))
        for at in rng.integers(0, len(data), 8):
            data[at] = rng.integers(0, 256)
        with contextlib.suppress(InvalidMedia):
            decode_image(bytes(data[: rng.integers(1, len(data) + 1)]), MAX)


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b"<!DOCTYPE html><p>not found", "HTML"),
        (b"<svg xmlns='x'/>", "SVG"),
        (b"\xef\xbb\xbf  <?xml version='1.0'?><svg/>", "SVG"),
        (b"\0\0\0\x18ftypheic", "HEIC"),
        (b"\0\0\0\x18ftypavif\0\0\0\0avif", "AVIF"),
        (b"%PDF-1.7", "PDF"),
        (b"\0\0\0\x18ftypisom\0\0\0\0mp42", "MP4; send that as video_url"),
        (b"\x1a\x45\xdf\xa3\x01", "WebM; send that as video_url"),
        (b"RIFF\0\0\0\0AVI LIST", "AVI; send that as video_url"),
        (b"RIFF\0\0\0\0WAVEfmt ", "WAV; send that as audio_url"),
        (b"ID3\x04", "MP3; send that as audio_url"),
        (b"\xff\xf1\x50", "AAC; send that as audio_url"),
        (b"hello", "5 bytes"),
    ],
)
def test_what_is_no_picture_is_named(data: bytes, hint: str) -> None:
    with pytest.raises(InvalidMedia, match=hint):
        decode_image(data, MAX)


def no_pixels(file_format: str) -> bytes:
    """A picture of no width or height."""
    data = bytearray(encoded(Image.new("P", (8, 8)), file_format))
    at, size = {"PNG": (16, 4), "GIF": (data.find(b",") + 5, 4), "BMP": (18, 8)}[file_format]
    data[at : at + size] = bytes(size)
    if file_format == "PNG":
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


@pytest.mark.parametrize("file_format", ["PNG", "GIF", "BMP"])
def test_pictures_without_pixels_are_invalid(file_format: str) -> None:
    with pytest.raises(InvalidMedia, match=file_format):
        decode_image(no_pixels(file_format), MAX)


@pytest.mark.parametrize(("mode", "file_format"), [("CMYK", "JPEG"), ("CMYK", "TIFF"), ("YCbCr", "TIFF")])
def test_modes_of_print_are_taken(picture: Image.Image, mode: str, file_format: str) -> None:
    seen = decode_image(encoded(picture.convert(mode), file_format), MAX)
    assert seen.convert("RGB").size == picture.size


def test_transparent_colours_of_a_palette_are_kept_for_the_processor() -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([255, 0, 0, 0, 255, 0])
    seen = decode_image(encoded(image, "PNG", transparency=1), MAX)
    assert seen.convert("RGBA").getpixel((0, 0)) == (0, 255, 0, 0)


def test_too_many_pixels_are_refused_before_they_are_decoded() -> None:
    bomb = encoded(Image.new("1", (20_000, 20_000)))
    with pytest.raises(InvalidMedia, match="pixels"):
        decode_image(bomb, MAX)
    with pytest.raises(InvalidMedia, match="100x100"):
        decode_image(encoded(Image.new("RGB", (100, 100))), 9_999)
