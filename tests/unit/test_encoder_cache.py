"""What the encoder's caches know: a picture that comes again is neither decoded nor computed, and what is kept is bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from PIL import Image

from services.encoder.faults.base import Stage
from services.encoder.faults.contents import NotFinite
from shared.errors import InvalidRequest
from shared.identity import ContentHasher, MediaItem
from tests.chats import encoded
from tests.unit.caching import ENTRY_BYTES, TENANT, Notebook, Recorder, answered, computed, done, lookups, message, other_bytes
from tests.unit.faults.calls import setting
from tests.unit.test_pipeline import FEATURE_BYTES, PICTURE, Model, bench, picture, pictures, until


async def test_a_picture_that_comes_again_is_neither_decoded_nor_computed_and_its_bits_are_the_same() -> None:
    notebook = Notebook()
    async with bench(tracer=notebook) as b:
        first = await done(b.call(PICTURE))
        one = await message(b)
        assert notebook.spared() == [("fetch", None), ("decode", "none"), ("tower", "none"), ("publish", None)]
        again = await done(b.call(PICTURE))
        two = await message(b)
        assert notebook.spared() == [("fetch", None), ("decode", "media"), ("publish", None)]
        assert (b.model.decoded, computed(b)) == ([8], [8])
        assert lookups(b, "media") == lookups(b, "embeddings") == {"miss": 1, "hit": 1}
        assert torch.equal(one.tensors["embeds"], two.tensors["embeds"])
        assert [first.items[0].model_copy(update={"timings": {}})] == [again.items[0].model_copy(update={"timings": {}})]
        assert first.items[0].timings.keys() == {
            *("fetch", "digest", "decode", "preprocess", "hash"),
            *("queue", "tower", "publish"),
        }
        assert again.items[0].timings.keys() == {"fetch", "digest", "publish"}
        for stage, items in (("digest", 2), ("decode", 1), ("tower", 1)):
            assert b.metric("epd_encoder_stage_seconds_count", stage=stage) == items
        await b.assert_empty()


async def test_the_same_pixels_in_other_bytes_are_decoded_but_not_computed() -> None:
    notebook = Notebook()
    async with bench(tracer=notebook) as b:
        one = await answered(b, PICTURE)
        notebook.spared()
        two = await answered(b, other_bytes())
        assert notebook.spared() == [("fetch", None), ("decode", "none"), ("publish", None)]
        assert one.items[0].content_hash == two.items[0].content_hash
        assert (b.model.decoded, computed(b)) == ([8, 8], [8])
        assert (lookups(b, "media"), lookups(b, "embeddings")) == ({"miss": 2}, {"miss": 1, "hit": 1})


async def test_formats_do_not_matter_to_what_bytes_are_known_as() -> None:
    blue = Image.new("RGB", (9, 9), "blue")
    async with bench() as b:
        media = [PICTURE, other_bytes(), encoded(blue, "JPEG"), encoded(blue, "PNG"), picture(9)]
        first = [(await answered(b, each)).items[0].num_tokens for each in media]
        again = [(await answered(b, each)).items[0].num_tokens for each in media]
        assert first == again == [8, 8, 9, 9, 9]
        assert lookups(b, "media") == {"miss": 5, "hit": 5}


async def test_faults_can_take_hold_of_what_comes_again_as_of_what_is_new() -> None:
    faults = Recorder()
    async with bench(faults) as b:
        for content_hash in (None, TENANT):
            for _ in range(2):
                faults.passed.clear()
                await answered(b, PICTURE, content_hash=content_hash)
                assert faults.passed == [Stage.ADMIT, Stage.FETCH, Stage.HASHED, Stage.PUBLISH]


async def test_a_fault_in_what_is_sent_is_not_kept() -> None:
    async with bench(setting(NotFinite(count=1))) as b:
        await done(b.call(PICTURE))
        assert not bool(torch.isfinite((await message(b)).tensors["embeds"]).all())
        await answered(b, PICTURE)
        assert computed(b) == [8]


class Tiles(Model):
    """Of a family that cuts large pictures into tiles: features differ in names and shapes, and sometimes only in names."""

    def preprocess(self, image: Image.Image, form: str, param: str | None) -> MediaItem:
        item = super().preprocess(image, form, param)
        item.features["pixel_values"] = torch.zeros(2 if image.width < 20 else 3, 3)
        if image.width % 2:
            item.features["image_sizes"] = torch.tensor([[image.width, image.height]])
        return item

    def encode(self, items: Sequence[MediaItem]) -> None:
        assert all(item.features.keys() == items[0].features.keys() for item in items)
        super().encode(items)


async def test_features_of_any_names_and_shapes_tell_pictures_apart() -> None:
    async with bench(half=Tiles()) as b:
        media = [picture(width) for width in (8, 9, 11, 22, 23)]
        first = await answered(b, *media)
        again = await answered(b, *media)
        assert [item.num_tokens for item in first.items] == [item.num_tokens for item in again.items] == [8, 9, 11, 22, 23]
        assert len({item.content_hash for item in first.items}) == len(computed(b)) == 5


class Slip(Model):
    """Its tower's first numbers are not finite."""

    def encode(self, items: Sequence[MediaItem]) -> None:
        super().encode(items)
        if len(self.batches) == 1:
            for item in items:
                item.deepstack = (torch.full((1, 2), float("nan")),)


async def test_numbers_that_are_not_finite_are_not_kept() -> None:
    async with bench(half=Slip()) as b:
        await done(b.call(PICTURE))
        assert (await message(b)).tensors.keys() == {"embeds", "deepstack.0"}
        assert (await answered(b, PICTURE)).items[0].num_tokens == 8
        await answered(b, PICTURE)
        assert computed(b) == [8, 8]


# ---------------------------------------------------------------------------------------------- identities that callers supply


async def test_a_picture_that_its_caller_names_is_not_even_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook()

    def forbidden(*_: object) -> str:
        raise AssertionError("no hash is to be computed")

    async with bench(tracer=notebook) as b:
        b.web.answer.set()
        with monkeypatch.context() as patch:
            patch.setattr(ContentHasher, "hash", forbidden)
            first = await answered(b, "http://a/", content_hash=TENANT)
            assert "hash" not in first.items[0].timings
            notebook.spared()
            again = await answered(b, "http://b/", content_hash=TENANT)
        assert notebook.spared() == [("fetch", None), ("decode", "embeddings"), ("publish", None)]
        assert first.items[0].content_hash == again.items[0].content_hash == TENANT
        assert (b.web.asked, b.model.decoded, computed(b)) == (["http://a/"], [8], [8])
        assert again.items[0].timings.keys() == {"publish"}
        assert (lookups(b, "media"), lookups(b, "embeddings")) == ({"miss": 1}, {"miss": 1, "hit": 1})
        # Who does not name it has no part in that.
        assert (await answered(b, PICTURE)).items[0].content_hash != TENANT
        assert computed(b) == [8, 8]
        await b.assert_empty()


# -------------------------------------------------------------------------------------------------------- bounds and budgets


async def test_what_was_not_used_for_longest_goes_first_and_is_computed_again() -> None:
    async with bench(embedding_cache_bytes=2 * ENTRY_BYTES + 200) as b:
        for width in (8, 9, 8, 10, 8, 9):
            await answered(b, picture(width))
        # 10 drove 9 out, which drove 10 out; 8 was in use all the time.
        assert computed(b) == b.model.decoded == [8, 9, 10, 9]
        assert b.metric("epd_encoder_cache_evictions_total", level="embeddings") == 2
        assert b.metric("epd_encoder_cache_entries", level="embeddings") == 2
        assert 0 < b.metric("epd_encoder_cache_bytes", level="embeddings") <= 2 * ENTRY_BYTES + 200
        assert b.metric("epd_encoder_cache_entries", level="media") == 3
        assert lookups(b, "media") == {"miss": 4, "hit": 2}


async def test_features_take_the_place_of_the_bytes_that_they_came_from() -> None:
    async with bench(max_bytes=2 * FEATURE_BYTES + 500) as b:
        b.model.tower.open.clear()
        first = b.call(PICTURE)
        await b.model.tower.until_reached()
        second = b.call(picture(9) + bytes(2000))
        await until(lambda: b.metric("epd_encoder_bytes_in_work") == 2 * FEATURE_BYTES)
        b.model.tower.open.set()
        await asyncio.gather(done(first), done(second))


async def test_known_pictures_are_bounded_too() -> None:
    async with bench(media_cache_bytes=2000) as b:
        for each in pictures(10):
            await answered(b, each)
        assert b.metric("epd_encoder_cache_entries", level="media") == 3
        assert b.metric("epd_encoder_cache_evictions_total", level="media") == 7
        await answered(b, picture(10))
        assert (b.model.decoded[10:], len(computed(b))) == ([10], 10)


async def test_without_the_first_level_only_the_tower_is_spared() -> None:
    async with bench(media_cache_bytes=0) as b:
        for _ in range(2):
            answer = await answered(b, PICTURE)
            assert "digest" not in answer.items[0].timings
        assert (b.model.decoded, computed(b)) == ([8, 8], [8])
        assert (lookups(b, "media"), lookups(b, "embeddings")) == ({}, {"miss": 1, "hit": 1})


async def test_without_caches_each_picture_is_computed_for_itself() -> None:
    async with bench(embedding_cache_bytes=0) as b:
        await answered(b, PICTURE, PICTURE)
        await answered(b, PICTURE, content_hash=TENANT)
        await answered(b, PICTURE, content_hash=TENANT)
        assert (b.model.decoded, computed(b)) == ([8] * 4, [8] * 4)
        assert lookups(b, "media") == lookups(b, "embeddings") == {}
        await b.assert_empty()


class Reticent(Model):
    """Only its tower can tell how many tokens a picture takes."""

    def preprocess(self, image: Image.Image, form: str, param: str | None) -> MediaItem:
        item = super().preprocess(image, form, param)
        item.num_tokens = 0
        return item

    def encode(self, items: Sequence[MediaItem]) -> None:
        for item in items:
            item.num_tokens = int(item.features["pixel_values"][0])
        super().encode(items)


@pytest.mark.parametrize("kept", [True, False])
async def test_a_picture_that_comes_again_is_held_against_the_budget_before_the_tower(kept: bool) -> None:
    async with bench(half=Reticent(), embedding_cache_bytes=2**20 if kept else ENTRY_BYTES) as b:
        await answered(b, PICTURE)
        if not kept:
            await answered(b, picture(7))
        before = len(computed(b))
        with pytest.raises(InvalidRequest, match="8 tokens, but only 7"):
            await done(b.call(PICTURE, token_budget=7))
        assert len(computed(b)) == before
        await answered(b, PICTURE, token_budget=8)


class Batching(Model):
    """Gives each item of a batch its part of one tensor, as towers do."""

    def encode(self, items: Sequence[MediaItem]) -> None:
        super().encode(items)
        for level in range(3):
            whole = torch.cat([torch.full((item.num_tokens, 2), float(item.num_tokens)) for item in items])
            parts = whole.split([item.num_tokens for item in items])
            for item, part in zip(items, parts, strict=True):
                if level:
                    item.deepstack = (*item.deepstack, part)
                else:
                    item.embeds = part


async def test_kept_tensors_own_their_memory_and_are_the_ones_that_are_sent() -> None:
    faults = Recorder()
    async with bench(faults, Batching()) as b:
        b.model.tower.open.clear()
        calls = [b.call(picture(1))]
        await b.model.tower.until_reached()
        calls += [b.call(*pictures(5))]
        await until(lambda: b.metric("epd_encoder_queue_items") == 5)
        b.model.tower.open.set()
        await asyncio.gather(*map(done, calls))
        assert [len(batch) for batch in b.model.batches] == [1, 5]
        first = {outgoing.header.content_hash: outgoing.tensors for outgoing in faults.sent}
        faults.sent.clear()
        await done(b.call(picture(1), *pictures(5)))
        assert len(faults.sent) == 6
        for outgoing in faults.sent:
            assert outgoing.tensors.keys() == {"embeds", "deepstack.0", "deepstack.1"}
            for name, tensor in outgoing.tensors.items():
                assert tensor.untyped_storage().nbytes() == tensor.nbytes
                assert tensor.data_ptr() == first[outgoing.header.content_hash][name].data_ptr()


# --------------------------------------------------------------------------------------------------------------- digests


@dataclass
class Purposes:
    """What raw bytes were hashed for, and by which threads."""

    noted: list[str] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)


@pytest.fixture
def purposes(monkeypatch: pytest.MonkeyPatch) -> Purposes:
    purposes, hash_bytes = Purposes(), ContentHasher.hash_bytes

    def noted(hasher: ContentHasher, data: bytes, purpose: str) -> str:
        purposes.noted.append(purpose)
        purposes.threads.add(threading.current_thread().name.rstrip("0123456789"))
        return hash_bytes(hasher, data, purpose)

    monkeypatch.setattr(ContentHasher, "hash_bytes", noted)
    return purposes


async def test_digests_cover_how_the_processor_is_configured_and_never_block_the_event_loop(purposes: Purposes) -> None:
    for config in ({"size": 8, "mean": [0.5]}, {"mean": [0.5], "size": 8}, {"size": 9, "mean": [0.5]}):
        model = Model()
        model.processor.config = config
        async with bench(half=model) as b:
            await answered(b, PICTURE)
    first, same, other = purposes.noted
    assert first == same != other
    assert first.startswith("image/")
    assert purposes.threads == {"media_"}
