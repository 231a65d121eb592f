"""What a file is by its first bytes, which decide: neither names nor declared media types do."""

from __future__ import annotations

_FIRST_BYTES = {
    b"\x89PNG": "PNG",
    b"\xff\xd8": "JPEG",
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"II": "TIFF",
    b"MM": "TIFF",
    b"fLaC": "FLAC",
    b"OggS": "OGG",
    b"ID3": "MP3",
    b"\x1a\x45\xdf\xa3": "WebM",
    b"RF64": "WAV",
}
_RIFF = {b"WEBP": "WEBP", b"AVI ": "AVI", b"WAVE": "WAV"}
_QUICKTIME = frozenset((b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"))
_HEIC = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"))
_AVIF = frozenset((b"avif", b"avis"))
_BRANDS = 16  # of which a file's first box lists the kinds that it is

_SENT_AS = {
    "image_url": ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "HEIC", "AVIF"),
    "video_url": ("MP4", "WebM", "AVI"),
    "audio_url": ("WAV", "MP3", "FLAC", "OGG", "AAC"),
}


def kind_of(data: bytes) -> str | None:
    """The kind of a file, such as ``PNG``, ``MP4`` (and all of its family), or None where its first bytes do not tell."""
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12])
    if data[4:8] == b"ftyp":
        return _of_brands(data)
    if data[4:8] in _QUICKTIME:
        return "MP4"
    for first, kind in _FIRST_BYTES.items():
        if data.startswith(first):
            return kind
    return _of_frames(data[:2]) or _of_text(data)


def _of_brands(data: bytes) -> str:
    """HEIC and AVIF share their container with MP4, and name themselves first, or after a brand that both have."""
    end = min(int.from_bytes(data[:4]), 16 + 4 * _BRANDS)
    brands = [data[8:12], *(data[at : at + 4] for at in range(16, end, 4))]
    if brands[0] in (b"mif1", b"msf1"):
        return "AVIF" if _AVIF & set(brands) else "HEIC"
    return "HEIC" if brands[0] in _HEIC else "AVIF" if brands[0] in _AVIF else "MP4"


def _of_frames(first: bytes) -> str | None:
    """Streams of MPEG audio begin with the head of a frame: eleven bits set, and then which layer, if any."""
    if len(first) < 2 or first[0] != 0xFF or first[1] & 0xE0 != 0xE0:
        return None
    return "AAC" if first[1] & 0xF6 == 0xF0 else "MP3"


def _of_text(data: bytes) -> str | None:
    start = data[:256].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "HTML"
    if start.startswith((b"<svg", b"<?xml")):
        return "SVG"
    if start.startswith(b"%pdf"):
        return "PDF"
    return None


def describe(data: bytes, part: str) -> str:
    """What bytes seem to be that are not what a ``part`` of this type takes, for an error message."""
    kind = kind_of(data)
    if kind is None:
        return f"{len(data)} bytes of an unknown format"
    if kind in ("HTML", "PDF"):
        return f"they look like {'an HTML page' if kind == 'HTML' else 'a PDF'}"
    if kind == "SVG":
        return "they look like SVG, which is not accepted"
    right = next(name for name, kinds in _SENT_AS.items() if kind in kinds)
    if right != part:
        return f"they look like {kind}; send that as {right}"
    return f"they begin like {kind}, but are damaged, or made to be costly to read"
