"""The language service's cache: what is found by what, who owns what is in it, and how much that may be."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
import torch
from prometheus_client import generate_latest

from services.language.embeddings.cache import EmbeddingCache
from services.language.embeddings.job import check_own
from services.language.prompt.conversation import MediaSource
from services.language.prompt.sources import prepare_sources
from shared.errors import EmbeddingIncompatible, InvalidMedia, InvalidRequest
from shared.identity import ContentHasher, MediaItem
from shared.layout import Layout
from shared.telemetry import Metrics

HASHER = ContentHasher(b"a secret for tests")
MEBI = 2**20


def source(index: int = 0, digest: str | None = "d", supplied: str | None = None, url: str | None = None) -> MediaSource:
    return MediaSource(index, "image", f"messages.{index}", url=url, digest=digest, supplied=supplied)


def item(content_hash: str = "0" * 32, tokens: int = 4) -> MediaItem:
    made = MediaItem("image", tokens, (1, 4, 4), embeds=torch.ones(tokens, 128), deepstack=(torch.ones(tokens, 128),))
    made.timings = {"tower": 1.0}
    made.set_hash(content_hash)
    return made


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def prepare(*urls: str, supplied: Any = (), tenant: str = "") -> list[MediaSource]:
    media = [MediaSource(index, "image", f"messages.{index}", url=url) for index, url in enumerate(urls)]
    return prepare_sources(media, [""] * len(media), supplied, tenant, HASHER, 1000)


def count(metrics: Metrics, name: str) -> float:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def test_a_picture_is_found_again_by_its_bytes() -> None:
    metrics = Metrics()
    cache = EmbeddingCache(MEBI, metrics)
    first, again, other = source(0, "d"), source(3, "d"), source(1, "e")
    assert cache.find(first) is None
    cache.keep(first, item())
    found = cache.find_all([other, again])
    assert list(found) == [3]
    assert (found[3].num_tokens, found[3].grid_thw, found[3].content_hash) == (4, (1, 4, 4), "0" * 32)
    assert found[3].pad_ids == item().pad_ids
    assert count(metrics, 'epd_cache_lookups_total{outcome="hit"}') == 1
    assert count(metrics, "epd_cache_bytes") == 2 * 4 * 128 * 4
    assert count(metrics, "epd_cache_items") == 1


def test_equal_features_of_different_bytes_are_kept_once() -> None:
    cache = EmbeddingCache(MEBI, metrics := Metrics())
    cache.keep(source(0, "d"), item())
    cache.keep(source(0, "e"), item())
    first, second = cache.find(source(0, "d")), cache.find(source(0, "e"))
    assert first is not None
    assert second is not None
    assert first.embeds is second.embeds
    assert count(metrics, "epd_cache_items") == 1


def test_each_request_has_an_item_of_its_own() -> None:
    cache = EmbeddingCache(MEBI, Metrics())
    kept = item()
    cache.keep(source(), kept)
    kept.timings["tower"] = 9.0
    kept.set_hash("f" * 32)
    found = cache.find(source())
    assert found is not None
    assert (found.timings, found.content_hash) == ({}, "0" * 32)
    found.timings["mine"] = 1.0
    again = cache.find(source())
    assert again is not None
    assert again.timings == {}


def test_small_items_do_not_hold_on_to_what_they_came_in() -> None:
    cache = EmbeddingCache(MEBI, Metrics())
    message = torch.ones(100_000, 128)
    small = MediaItem("image", 4, (1, 4, 4), embeds=message[:4])
    small.set_hash("0" * 32)
    cache.keep(source(), small)
    found = cache.find(source())
    assert found is not None
    assert found.embeds is not None
    assert found.embeds.untyped_storage().nbytes() == 4 * 128 * 4
    assert torch.equal(found.embeds, message[:4])


def test_what_is_behind_a_url_may_have_changed() -> None:
    cache = EmbeddingCache(MEBI, metrics := Metrics())
    fetched = source(digest=None, url="https://a/1.png")
    cache.keep(fetched, item())
    assert cache.find(fetched) is None
    assert cache.follow(fetched) is cache.lead(fetched) is None
    assert count(metrics, "epd_cache_lookups_total") == 0
    named = replace(fetched, supplied="tenant:" + "1" * 32)
    cache.keep(named, item("tenant:" + "1" * 32))
    assert cache.find(named) is not None


def test_what_was_not_used_for_longest_goes_when_the_bytes_run_out() -> None:
    metrics = Metrics()
    each = item().embedding_bytes
    cache = EmbeddingCache(3 * each * 16 // 15 + 16, metrics)
    named = [f"tenant:{number:032x}" for number in range(4)]
    for name in named[:3]:
        cache.keep(source(supplied=name), item(name))
    assert cache.find(source(supplied=named[0])) is not None
    cache.keep(source(supplied=named[3]), item(named[3]))
    there = [cache.find(source(supplied=name)) is not None for name in named]
    assert there == [True, False, True, True]
    assert count(metrics, "epd_cache_evictions_total") == 1
    assert count(metrics, "epd_cache_bytes") == 3 * each


def test_digests_have_a_bound_of_their_own() -> None:
    cache = EmbeddingCache(MEBI, Metrics())
    for number in range(1000):
        cache.keep(source(digest=f"d{number}"), item())
    there = sum(cache.find(source(digest=f"d{number}")) is not None for number in range(1000))
    assert there == MEBI // 16 // 512


def test_nothing_is_kept_nor_shared_without_bytes() -> None:
    cache = EmbeddingCache(0, metrics := Metrics())
    cache.keep(source(), item())
    assert cache.find(source()) is None
    assert cache.lead(source()) is cache.follow(source()) is None
    assert count(metrics, "epd_cache_lookups_total") == count(metrics, "epd_cache_items") == 0


def test_a_digest_is_keyed_and_of_the_bytes_alone() -> None:
    [first, second, other] = prepare(data_url(b"picture"), "data:image/jpeg;base64,cGljdHVyZQ==", data_url(b"another"))
    assert first.digest == second.digest != other.digest
    assert first.data == second.data == b"picture"
    assert first.identity == first.digest
    assert first.routing_key == second.routing_key != other.routing_key
    elsewhere = ContentHasher(b"another secret").hash_bytes(b"picture", "media")
    assert first.digest != elsewhere


def test_urls_have_no_identity_but_a_place_to_go_to() -> None:
    [first, same, other] = prepare("https://a/1.png", "https://a/1.png", "https://a/2.png")
    assert first.identity is first.digest is None
    assert first.routing_key == same.routing_key != other.routing_key


def test_supplied_hashes_are_their_tenants_alone() -> None:
    [mine, none] = prepare(data_url(b"picture"), "https://a/1.png", supplied=["mine", None], tenant="bearer me")
    [theirs, _] = prepare(data_url(b"picture"), "https://a/1.png", supplied=["mine", None], tenant="bearer them")
    [again, _] = prepare("https://a/1.png", "https://a/1.png", supplied=["mine", None], tenant="bearer me")
    assert mine.supplied is not None
    assert mine.supplied.startswith("tenant:")
    assert mine.identity == again.identity != theirs.identity
    assert none.identity is None
    # A value that looks like a computed one is none.
    [computed] = prepare(data_url(b"picture"))
    assert computed.digest is not None
    [disguised] = prepare(data_url(b"picture"), supplied=[computed.digest])
    assert disguised.identity not in (computed.digest, f"tenant:{computed.digest}")


@pytest.mark.parametrize("value", ["", "a b", "x" * 129, "ü", "a\n", "{}"])
def test_malformed_hashes_are_named_by_their_place(value: str) -> None:
    with pytest.raises(InvalidRequest, match="supplied hash") as caught:
        prepare("https://a/1.png", "https://a/2.png", supplied=["fine", value])
    assert caught.value.param == "mm_hashes.1"


def test_a_data_url_is_looked_at_though_its_hash_is_known() -> None:
    with pytest.raises(InvalidMedia) as caught:
        prepare("data:image/png;base64,!", supplied=["known"])
    assert caught.value.param == "messages.0"


MINE, THEIRS = "tenant:" + "1" * 32, "tenant:" + "2" * 32


@pytest.mark.parametrize(
    ("supplied", "told", "right"),
    [
        (None, "0" * 32, True),
        (None, "f" * 31, False),
        (None, "F" * 32, False),
        (None, "", False),
        (None, MINE, False),
        (MINE, MINE, True),
        (MINE, THEIRS, False),
        (MINE, "0" * 32, False),
    ],
)
def test_an_item_goes_by_its_own_hash_only(supplied: str | None, told: str, right: bool) -> None:
    if right:
        check_own(source(supplied=supplied), item(told))
    else:
        with pytest.raises(EmbeddingIncompatible, match="content hash"):
            check_own(source(supplied=supplied), item(told))


def test_a_layout_takes_its_share() -> None:
    cache = EmbeddingCache(MEBI, metrics := Metrics())
    long = item()
    long.layout = Layout(((7, 1), (8, 1)) * 1000)
    cache.keep(source(), long)
    assert count(metrics, "epd_cache_bytes") == 2 * 4 * 128 * 4 + 2000 * 128


def test_an_item_is_of_the_kind_that_was_asked_for() -> None:
    film = replace(source(), modality="video")
    with pytest.raises(EmbeddingIncompatible, match="came as image; it is video"):
        check_own(film, item())
    cache = EmbeddingCache(MEBI, Metrics())
    cache.keep(film, item())
    assert cache.find(film) is None
    assert cache.find(source()) is not None
