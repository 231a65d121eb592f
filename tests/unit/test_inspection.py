"""Files that are made to cost much: a few megabytes that take PIL ten seconds, gigabytes, or for ever are refused at once."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from services.encoder import inspection
from services.encoder.decode import decode_image
from shared.errors import InvalidMedia
from tests.chats import encoded
from tests.processes import ROOT

MAX_PIXELS = 100_000_000
MANY = inspection.MAX_PARTS + 1
LARGE = 10**8


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def deflated(size: int) -> bytes:
    """So many zeros, compressed by a thousand."""
    packer = zlib.compressobj(9)
    block = bytes(min(size, 10**7))
    return b"".join(packer.compress(block) for _ in range(size // len(block))) + packer.flush()


def png(before: bytes = b"", after: bytes = b"", size: int = 8, bits: int = 8, pixels: bytes | None = None) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, bits, 0, 0, 0, 0))
    body = deflated((size * bits // 8 + 1) * size) if pixels is None else pixels
    return b"\x89PNG\r\n\x1a\n" + head + before + chunk(b"IDAT", body) + after + chunk(b"IEND", b"")


def jpeg(before: bytes = b"", scans: int = 0) -> bytes:
    data = encoded(Image.new("L", (64, 64), 128), "JPEG", progressive=True)
    scan = data[data.rindex(b"\xff\xda") : -2]
    return data[:2] + before + data[2:-2] + scan * scans + b"\xff\xd9"


def segment(marker: int, data: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def avif(exif: bytes) -> bytes:
    return encoded(Image.new("RGB", (64, 64)), "AVIF", exif=b"Exif\0\0" + exif)


def gif(before: bytes) -> bytes:
    data = encoded(Image.new("P", (8, 8)), "GIF")
    at = 13 + 3 * (2 << (data[10] & 7))
    return data[:at] + before + data[at:]


def tags(**changes: tuple[int, int, bytes]) -> dict[int, tuple[int, int, bytes]]:
    """The directory of a grey 8x8 TIFF: type, count and values by tag. ``changes`` are named ``t`` and the tag."""

    def numbers(*values: int) -> tuple[int, int, bytes]:
        return 4, len(values), struct.pack(f"<{len(values)}I", *values)

    sane = {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 277: 1, 278: 8, 273: 0, 279: 64}
    return {tag: numbers(value) for tag, value in sane.items()} | {int(tag[1:]): entry for tag, entry in changes.items()}


def tiff(directory: dict[int, tuple[int, int, bytes]], pixels: bytes = bytes(64), head: bytes = b"II*\0") -> bytes:
    """A TIFF of this directory, with its ``pixels`` in one strip or tile."""
    values, entries, base = b"", b"", 8 + 2 + 12 * len(directory) + 4
    for tag, (form, count, value) in sorted(directory.items()):
        if tag in (273, 324) and count == 1:
            long = sum(len(other) for _, _, other in directory.values() if len(other) > 4)
            value = struct.pack("<I", base + long)
        if len(value) > 4:
            values, value = values + value, struct.pack("<I", base + len(values))
        entries += struct.pack("<HHI", tag, form, count) + value.ljust(4, b"\0")
    return head + struct.pack("<IH", 8, len(directory)) + entries + bytes(4) + values + pixels


def numbers(count: int, form: int = 4) -> tuple[int, int, bytes]:
    return form, count, bytes({3: 2, 4: 4, 5: 8}[form] * count)


def tiff_tile() -> bytes:
    """Two gigabytes in the only tile of a picture of 8x8 pixels."""
    side = {322: 40_000, 323: 50_000, 324: 0, 259: 8}
    tiled = tags(**{f"t{tag}": (4, 1, struct.pack("<I", value)) for tag, value in side.items()})
    del tiled[273], tiled[278], tiled[279]
    pixels = deflated(LARGE)
    return tiff(tiled | {325: (4, 1, struct.pack("<I", len(pixels)))}, pixels)


def overlapping(size: int = 50_000) -> bytes:
    """A directory whose thousand entries all have the same values."""
    base = 8 + 2 + 12 * 1000 + 4
    entries = b"".join(struct.pack("<HHII", tag, 7, size, base) for tag in range(1000, 2000))
    return b"II*\0" + struct.pack("<IH", 8, 1000) + entries + bytes(4) + bytes(size)


def bmp_rle() -> bytes:
    data = b"\x01\x01" * 10_000
    head = struct.pack("<IiiHHIIiiII", 40, 1000, 1000, 1, 8, 1, len(data), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 1078 + len(data), 0, 0, 1078) + head + bytes(1024) + data


COSTLY: dict[str, tuple[Callable[[], bytes], str]] = {
    "png: chunks before the pixels": (lambda: png(chunk(b"teSt", b"") * MANY), "parts"),
    "png: chunks after the pixels": (lambda: png(b"", chunk(b"tEXt", b"k\0v") * MANY), "parts"),
    "png: empty chunks of pixels": (lambda: png(chunk(b"IDAT", b"") * MANY), "parts"),
    "png: a profile of 100 megabytes": (lambda: png(chunk(b"iCCP", b"x\0\0" + deflated(LARGE))), "PNG"),
    "png: a text of 100 megabytes": (lambda: png(chunk(b"zTXt", b"x\0\0" + deflated(LARGE))), "PNG"),
    "png: a hundred texts of a megabyte": (lambda: png(chunk(b"zTXt", b"x\0\0" + deflated(10**6)) * 100), "PNG"),
    "png: 2.5 gigapixels": (lambda: png(size=50_000, bits=1), "pixels"),
    "png: large exif": (lambda: png(chunk(b"eXIf", tiff({40_000: numbers(2**18 + 1)}))), "EXIF"),
    "png: exif that overlaps": (lambda: png(chunk(b"eXIf", overlapping())), "EXIF"),
    "jpeg: segments": (lambda: jpeg(segment(0xFE, b"") * MANY), "parts"),
    "jpeg: segments behind an end": (lambda: jpeg(b"\xff\xd9" + segment(0xE5, b"") * MANY), "parts"),
    "jpeg: segments in one that is skipped": (lambda: jpeg(segment(0xF0, segment(0xFE, b"") * MANY)[:65_000]), "parts"),
    "jpeg: fill bytes": (lambda: jpeg(b"\xff" * 2**17), "between"),
    "jpeg: junk": (lambda: jpeg(segment(0xFE, b"") + bytes(2**17)), "between"),
    "jpeg: restarts before the pixels": (lambda: jpeg(b"\xff\xd0" * 2**16), "between"),
    "jpeg: megabytes of segments": (lambda: jpeg(segment(0xED, bytes(65_000)) * 130), "before its pixels"),
    "jpeg: large exif": (lambda: jpeg(segment(0xE1, b"Exif\0\0" + bytes(60_000)) * 20), "EXIF"),
    "jpeg: exif that overlaps": (lambda: jpeg(segment(0xE1, b"Exif\0\0" + overlapping())), "EXIF"),
    "jpeg: scans": (lambda: jpeg(scans=inspection.MAX_SCANS), "scans"),
    "avif: exif of many numbers": (lambda: avif(tiff({40_000: numbers(2**18 + 1, form=3)})), "EXIF"),
    "gif: extensions": (lambda: gif(b"!\x01\0" * MANY), "parts"),
    "gif: blocks": (lambda: gif(b"!\xfe" + b"\x01a" * MANY + b"\0"), "parts"),
    "gif: junk": (lambda: gif(b"\x01" * MANY), "parts"),
    "bmp: run lengths": (bmp_rle, "bmp_rle"),
    "ppm: numbers as text": (lambda: b"P2\n1000 1000\n255\n" + b"0 " * 10**6, "ppm_plain"),
    "ppm: odd levels": (lambda: b"P6\n100 100\n200\n" + bytes(30_000), r"\(ppm\)"),
    "ppm: a comment": (lambda: b"P5\n#" + b"x" * 10**5 + b"\n8 8\n255\n" + bytes(64), "PPM"),
    "ppm: comments": (lambda: b"P5\n" + b"#\n" * 10**5 + b"8 8\n255\n" + bytes(64), "PPM"),
    "ppm: spaces": (lambda: b"P5" + b" " * 10**5 + b"8 8\n255\n" + bytes(64), "PPM"),
    "tiff: a tile": (tiff_tile, "tile of 40000x50000"),
    "tiff: strips": (lambda: tiff(tags(t273=numbers(2**17 + 1), t279=numbers(2**17 + 1))), "directories"),
    "tiff: fractions": (lambda: tiff(tags(t282=numbers(2**18 + 1, form=5))), "directories"),
    "tiff: entries that overlap": (overlapping, "directories"),
    "tiff: a directory in itself": (lambda: tiff(tags(t34665=(4, 1, struct.pack("<I", 8)))), "directories"),
    "tiff: a rare compression": (lambda: tiff(tags(t259=(4, 1, struct.pack("<I", 34925)))), "lzma"),
    "tiff: big": (lambda: b"II+\0\x08\0\0\0\x10" + bytes(100), "BigTIFF"),
}


@pytest.mark.parametrize("name", COSTLY)
def test_costly_files_are_refused_by_name(name: str) -> None:
    make, reason = COSTLY[name]
    with pytest.raises(InvalidMedia, match=reason) as caught:
        decode_image(make(), MAX_PIXELS, "messages.0")
    assert caught.value.param == "messages.0"


def test_they_are_refused_in_little_time_and_memory(tmp_path: Path) -> None:
    for at, (make, _) in enumerate(COSTLY.values()):
        (tmp_path / f"{at}").write_bytes(make())
    # Memory is the peak of a process, which knows nothing of what making the files took.
    program = """
import contextlib, pathlib, resource, sys, time
from services.encoder.decode import decode_image
from shared.errors import InvalidMedia
files = [path.read_bytes() for path in pathlib.Path(sys.argv[1]).iterdir()]
peak, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
for data in files:
    with contextlib.suppress(InvalidMedia):
        decode_image(data, 100_000_000)
        raise SystemExit("accepted")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) // 1024, time.process_time() - began)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    megabytes, seconds = map(float, done.stdout.split())
    assert megabytes < 150  # the texts of a PNG, up to PIL's bound on all of them
    assert seconds < 5


def test_sane_files_of_many_parts_are_welcome() -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)).resize((1700, 1700))
    exif = Image.Exif()
    exif[0x010F], exif[0x0112] = "maker", 3
    exif.get_ifd(ExifTags.IFD.Exif)[0x9286] = b"x" * 10_000
    profile = bytes(3 * 10**5)
    for file_format, options in (
        ("JPEG", {"progressive": True, "quality": 95, "subsampling": 0}),
        ("JPEG", {"restart_marker_blocks": 1, "quality": 95, "subsampling": 0}),
        ("PNG", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "raw", "strip_size": 768}),
        ("WEBP", {"lossless": True}),
    ):
        data = encoded(picture, file_format, exif=exif, icc_profile=profile, **options)
        expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        assert np.array_equal(decode_image(data, MAX_PIXELS), expected), (file_format, options)


def test_broken_exif_is_no_reason_to_refuse_a_picture() -> None:
    for broken in (b"Exif\0\0nonsense", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0II+\0\0\0\0\0" + bytes(8), b"Exif\0\0"):
        for file_format in ("JPEG", "PNG", "WEBP"):
            data = encoded(Image.new("RGB", (16, 8)), file_format, exif=broken)
            assert decode_image(data, MAX_PIXELS).size == (16, 8)


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_only_the_first_of_many_frames_is_decoded(file_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [Image.new("RGB", (20, 20), (level, 0, 0)) for level in range(200, 240)]
    options = {"lossless": True} if file_format == "WEBP" else {}
    data = encoded(frames[0], file_format, save_all=True, append_images=frames[1:], **options)
    image = Image.open(io.BytesIO(data))
    assert image.n_frames == len(frames)  # type: ignore[attr-defined]
    monkeypatch.setattr(type(image), "seek", lambda *_: pytest.fail("another frame is sought"))
    assert decode_image(data, MAX_PIXELS).convert("RGB").getpixel((5, 5)) == (200, 0, 0)
