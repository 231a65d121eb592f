"""The media of a request, made ready to be asked for: raw bytes where they came along, and an identity where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from services.language.prompt.conversation import MediaSource
from shared.control import LOW_DETAIL
from shared.dataurl import decode_data_url, is_data_url
from shared.errors import InvalidRequest
from shared.identity import ContentHasher

_PURPOSE = "media"


def prepare_sources(
    media: Sequence[MediaSource],
    forms: Sequence[str],
    supplied: Sequence[str | None],
    tenant: str,
    hasher: ContentHasher,
    max_bytes: int,
) -> list[MediaSource]:
    """Data URLs become raw bytes, so that they cross to the encoder as they are; other URLs stay. ``supplied`` are the hashes
    that the ``tenant`` supplied, one for each item or none at all. Equal bytes are other items where they are to be prepared in
    another of ``forms``, or in another detail. Hashes, so not for the event loop.

    Raises:
        InvalidMedia: a data URL is broken, empty or too large.
        InvalidRequest: a supplied hash is malformed.
    """
    prepared = []
    for source, wanted, value in zip(media, forms, supplied or [None] * len(media), strict=True):
        form = f"{wanted} {LOW_DETAIL}".strip() if source.detail == LOW_DETAIL else wanted
        kind = f"{source.modality}/{form}" if form else source.modality
        named = _named(source, value, f"{kind}|{tenant}", hasher)
        if source.url is not None and is_data_url(source.url):
            data = decode_data_url(source.inline or source.url, max_bytes, source.param)
            source = replace(source, url=None, inline=None, data=data)
        if named is not None:
            source = replace(source, supplied=named)
        elif source.data is not None:
            source = replace(source, digest=hasher.hash_bytes(source.data, f"{_PURPOSE}/{kind}"))
        prepared.append(replace(source, form=form))
    return prepared


def _named(source: MediaSource, value: str | None, tenant: str, hasher: ContentHasher) -> str | None:
    """The content hash that stands for what was supplied."""
    try:
        return None if value is None else hasher.supplied(value, tenant)
    except InvalidRequest as error:
        error.param = f"mm_hashes.{source.index}"
        raise
