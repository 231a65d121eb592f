"""Everything before the tower: fetch, decode, preprocess, hash on the device."""

from __future__ import annotations

import time
from dataclasses import dataclass

from services.encoder.admission import Share
from services.encoder.decode import decode_image
from services.encoder.fair import FairGate
from services.encoder.faults.base import Call, Stage
from services.encoder.faults.registry import Faults
from services.encoder.fetch import Fetcher
from services.encoder.models.generic import VisionHalf
from services.encoder.settings import EncoderSettings
from services.encoder.tally import Tally
from services.encoder.threads import FairThreads
from shared.control import EncodeItem
from shared.dataurl import is_data_url
from shared.errors import InvalidMedia, InvalidRequest
from shared.identity import ContentHasher, MediaItem


def inline_bytes(entry: EncodeItem) -> int:
    """What the media of an item take that came inside its call, as a ``data:`` URL."""
    return len(entry.url) if entry.url is not None and is_data_url(entry.url) else 0


@dataclass(eq=False, slots=True)
class Job:
    """One item of a call. ``raw`` are its bytes, from when they are there until it is preprocessed; ``share`` counts them."""

    call: Call
    entry: EncodeItem
    share: Share
    raw: bytes | None


class Preparer:
    """Makes features of media. Calls take turns at fetching, which waits for networks, and at ``threads``, which compute."""

    def __init__(
        self,
        settings: EncoderSettings,
        model: VisionHalf,
        hasher: ContentHasher,
        fetcher: Fetcher,
        threads: FairThreads,
        faults: Faults,
        tally: Tally,
    ) -> None:
        self._settings = settings
        self._model = model
        self._hasher = hasher
        self._fetcher = fetcher
        self._fetches = FairGate(settings.max_fetches)
        self._threads = threads
        self._faults = faults
        self._tally = tally

    async def prepare(self, job: Job) -> MediaItem:
        """The item with its features and its hash; from here on its token count is known, where the processor can tell.

        Raises:
            InvalidMedia: the item cannot be had, or is not a good picture.
            InvalidRequest: the call names no bytes for it.
            EncoderOverloaded: there is no room for its bytes.
        """
        with self._tally.item():
            began = time.perf_counter()
            if job.entry.modality != "image":
                raise InvalidMedia(f"This encoder takes images, not {job.entry.modality}.", param=job.entry.param)
            with self._tally.stage("fetch", job.entry.index):
                await self._faults.at(Stage.FETCH, job.call, job.entry)
                await self._fetch(job)
            fetched = time.perf_counter()
            with self._tally.stage("decode", job.entry.index) as span:
                item = await self._decode(job)
                span.set(**{f"{step}_seconds": seconds for step, seconds in item.timings.items()}, tokens=item.num_tokens)
                await self._faults.at(Stage.HASHED, job.call, job.entry)
            item.timings["fetch"] = fetched - began
            return item

    async def _fetch(self, job: Job) -> None:
        """Sees to it that the job has its bytes, within the limits."""
        entry = job.entry
        if entry.url is not None:
            async with self._fetches.turn(job.call):
                data = await self._fetcher.fetch(entry.url, entry.param)
                job.share.release(inline_bytes(entry))  # what they decode to takes their place, and is no more
                job.share.hold(len(data))
                job.raw = data
        elif job.raw is None:
            raise InvalidRequest(f"Item {entry.index} has neither a url nor a part of this body.", param=entry.param)
        elif len(job.raw) > self._settings.max_media_bytes:
            limit = self._settings.max_media_bytes
            raise InvalidMedia(f"The picture has {len(job.raw)} bytes; at most {limit} are accepted.", param=entry.param)

    async def _decode(self, job: Job) -> MediaItem:
        """From here on the call holds the item's features instead of its bytes."""
        assert job.raw is not None
        item = await self._threads.in_turn(job.call, self._preprocess, job.raw, job.entry.param)
        job.share.release(len(job.raw))
        job.raw = None
        job.share.hold(sum(feature.nbytes for feature in item.features.values()))
        return item

    def _preprocess(self, data: bytes, param: str | None) -> MediaItem:
        began = time.perf_counter()
        image = decode_image(data, self._settings.max_pixels, param)
        decoded = time.perf_counter()
        item = self._model.preprocess(image, param)
        ready = time.perf_counter()
        item.set_hash(self._hasher.hash(item.features))
        item.timings.update(decode=decoded - began, preprocess=ready - decoded, hash=time.perf_counter() - ready)
        return item
