"""Everything before the tower: fetch, decode, preprocess, hash on the device, as far as that was not done before."""

from __future__ import annotations

import time

from services.encoder.cache import EncoderCache, Spared
from services.encoder.decode import decode_image
from services.encoder.fair import FairGate
from services.encoder.faults.base import Stage
from services.encoder.faults.registry import Faults
from services.encoder.fetch import Fetcher
from services.encoder.job import Job
from services.encoder.media import Media
from services.encoder.models.generic import EncoderHalf
from services.encoder.sandbox.process import Effort, Sandbox
from services.encoder.settings import EncoderSettings
from services.encoder.sound import decode_sound
from services.encoder.tally import Tally
from services.encoder.video import decode_video
from shared.control import EncodeItem
from shared.dataurl import is_data_url
from shared.errors import InvalidMedia, InvalidRequest
from shared.identity import ContentHasher, MediaItem, Modality
from shared.residency import Residency


def inline_bytes(entry: EncodeItem) -> int:
    """What the media of an item take that came inside its call, as a ``data:`` URL."""
    return len(entry.url) if entry.url is not None and is_data_url(entry.url) else 0


def check_tokens(tokens: int, limit: int, param: str | None) -> None:
    """An item may take ``limit`` tokens.

    Raises:
        InvalidMedia: it takes more.
    """
    if tokens > limit:
        raise InvalidMedia(f"The item needs {tokens} tokens; at most {limit} are accepted.", param=param)


def refusal(modality: Modality, model: EncoderHalf) -> str:
    """Why items of this kind are not taken."""
    if modality in model.lacking:
        return f"This encoder lacks what {modality} items need: install epd-pair[{modality}] there."
    return f"This encoder takes {', '.join(model.modalities)}, not {modality}."


class Preparer:
    """Makes features of media, or finds what was made before. Calls take turns at fetching, which waits for networks, and at
    threads, which compute."""

    def __init__(
        self,
        settings: EncoderSettings,
        model: EncoderHalf,
        hasher: ContentHasher,
        fetcher: Fetcher,
        cache: EncoderCache,
        residency: Residency,
        faults: Faults,
        tally: Tally,
    ) -> None:
        self._settings = settings
        self._model = model
        self._hasher = hasher
        self._fetcher = fetcher
        self._fetches = FairGate(settings.max_fetches)
        self._cache = cache
        self._residency = residency
        self._faults = faults
        self._tally = tally
        self._sandbox = Sandbox(Effort(settings.max_decode_seconds, settings.max_decode_bytes), keeps=True)

    def close(self) -> None:
        """Ends the processes that are kept for decoding."""
        self._sandbox.close()

    async def prepare(self, job: Job) -> None:
        """Makes the job an item with its hash, and with features or already with embeddings; from here on its token count is
        known, where the processor can tell or the tower has seen it before.

        Raises:
            InvalidMedia: the item cannot be had, or is not a good picture.
            InvalidRequest: the call names no bytes for it.
            EncoderOverloaded: there is no room for its bytes.
        """
        entry = job.entry
        with self._tally.item():
            began = time.perf_counter()
            if entry.modality not in self._model.modalities:
                raise InvalidMedia(refusal(entry.modality, self._model), param=entry.param)
            with self._tally.stage("fetch", entry.index):
                await self._faults.at(Stage.FETCH, job.call, entry)
                spared = None if entry.content_hash is None else self._cache.find(job, entry.content_hash)
                if spared is None:
                    await self._fetch(job)
                    job.timings["fetch"] = time.perf_counter() - began
            with self._tally.stage("decode", entry.index) as span:
                spared = spared or await self._decode(job)
                job.let_go()
                steps = {f"{step}_seconds": job.timings.get(step) for step in ("digest", "decode", "preprocess", "hash")}
                span.set(**steps, cache=spared, tokens=job.item.num_tokens)
                await self._faults.at(Stage.HASHED, job.call, entry)

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
            raise InvalidMedia(f"The item has {len(job.raw)} bytes; at most {limit} are accepted.", param=entry.param)

    async def _decode(self, job: Job) -> Spared:
        try:
            return await self._cache.prepare(job, self._preprocess)
        except InvalidMedia as error:
            error.param = error.param or job.entry.param  # the same bytes may have been found bad for another item
            raise

    def _decoded(self, data: bytes, entry: EncodeItem) -> Media:
        settings, param = self._settings, entry.param
        if entry.modality == "audio":
            return decode_sound(data, self._model.sound_rate, settings.max_sound_seconds, param, self._sandbox)
        if entry.modality == "video":
            limits = settings.max_video_pixels, settings.max_video_frames, settings.max_video_seconds
            return decode_video(data, self._model.choose_frames, *limits, param, self._sandbox)
        return decode_image(data, settings.max_pixels, param, self._sandbox)

    def _preprocess(self, data: bytes, entry: EncodeItem) -> MediaItem:
        began = time.perf_counter()
        media = self._decoded(data, entry)
        decoded = time.perf_counter()
        item = self._model.preprocess(media, entry.form, entry.param)
        check_tokens(item.prompt_tokens, self._settings.max_item_tokens, entry.param)
        ready = time.perf_counter()
        item.timings.update(decode=decoded - began, preprocess=ready - decoded)
        self._residency.prepared(item, self._hasher, self._model, entry.content_hash)
        if entry.content_hash is None:
            item.timings["hash"] = time.perf_counter() - ready
        return item
