"""One setting owns where features live, and all else follows from it, per instance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from services.encoder.models.generic import EncoderHalf
from services.encoder.settings import EncoderSettings
from services.language.settings import LanguageSettings
from shared.control import Transport
from shared.errors import InternalError
from shared.identity import ContentHasher, MediaItem
from shared.residency import Residency, to_cpu


class Recorder(TorchFunctionMode):
    """Notes every copy to the CPU and every product, in order: a device that tests can have anywhere.

    Torch has no device but the CPU here, so what is recorded is that the move is asked for, and when.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "cpu":
            self.seen.append(f"{args[0].dtype} to the cpu".removeprefix("torch."))
        elif name == "_int_mm":
            self.seen.append("hash")
        return func(*args, **(kwargs or {}))


class Plain:
    precompute_hash_before_cpu_transfer = False


class Precomputing:
    precompute_hash_before_cpu_transfer = True


@pytest.fixture(scope="module")
def hasher() -> ContentHasher:
    hasher = ContentHasher(b"a secret of tests")
    hasher.hash({"x": torch.ones(1)})  # what it does once is done
    return hasher


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder() as recorder:
        yield recorder


def an_item() -> MediaItem:
    item = MediaItem("image", 4, features={"pixel_values": torch.ones(4, 6, dtype=torch.float16)})
    item.embeds, item.deepstack = torch.ones(4, 2), (torch.ones(4, 2),)
    return item


@pytest.mark.parametrize(
    ("transport", "handles", "cuda_ipc", "handle_cache"),
    [
        ("cpu", True, False, False),
        ("shm", True, False, False),
        ("cuda_ipc", True, True, True),
        ("cuda_ipc", False, True, False),
    ],
)
@pytest.mark.parametrize("settings", [EncoderSettings, LanguageSettings])
def test_the_flags_are_derived_from_the_settings_in_force(
    settings: type[EncoderSettings | LanguageSettings],
    transport: Transport,
    handles: bool,
    cuda_ipc: bool,
    handle_cache: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EPD_MM_FEATURE_TRANSPORT", transport)
    monkeypatch.setenv("EPD_IPC_POOL_HANDLE_CACHE", str(handles))
    residency = Residency.of(settings())
    assert residency.mm_feature_transport == transport
    assert (residency.use_cuda_ipc, residency.use_ipc_pool_handle_cache) == (cuda_ipc, handle_cache)


def test_the_flags_are_the_instances_own_and_no_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPD_MM_FEATURE_TRANSPORT", "cuda_ipc")
    before = Residency.of(EncoderSettings())
    monkeypatch.setenv("EPD_IPC_POOL_HANDLE_CACHE", "false")
    after = Residency.of(EncoderSettings())
    assert (before.use_ipc_pool_handle_cache, after.use_ipc_pool_handle_cache) == (True, False)


def test_a_transport_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="mm_feature_transport"):
        EncoderSettings.model_validate({"mm_feature_transport": "cuda-ipc"})


def test_the_hash_is_there_before_anything_moves(hasher: ContentHasher, recorder: Recorder) -> None:
    item = an_item()
    Residency("shm").prepared(item, hasher, Precomputing())
    # The only thing that leaves the device for the hash are its sums; then features, embeddings and levels follow.
    assert recorder.seen == ["hash", "int32 to the cpu", "float16 to the cpu", "float32 to the cpu", "float32 to the cpu"]
    assert item.pad_ids
    assert item.content_hash == hasher.hash(an_item().features)


def test_nothing_moves_under_cuda_ipc(hasher: ContentHasher, recorder: Recorder) -> None:
    residency = Residency("cuda_ipc")
    item = an_item()
    residency.prepared(item, hasher, Precomputing())
    residency.encoded(item)
    assert recorder.seen == ["hash", "int32 to the cpu"]


def test_features_of_other_families_stay_for_the_tower_and_embeddings_move_after_it(
    hasher: ContentHasher, recorder: Recorder
) -> None:
    residency = Residency("cpu")
    item = an_item()
    residency.prepared(item, hasher, Plain())
    assert recorder.seen == ["hash", "int32 to the cpu"]
    residency.encoded(item)
    assert recorder.seen[2:] == ["float32 to the cpu"] * 2


def test_a_supplied_hash_goes_by_set_hash_like_any_other(hasher: ContentHasher, recorder: Recorder) -> None:
    item = an_item()
    supplied = hasher.supplied("my-picture", "")
    Residency("cpu").prepared(item, hasher, Plain(), supplied)
    assert (item.content_hash, len(item.pad_ids), recorder.seen) == (supplied, 4, [])


@pytest.mark.parametrize("transport", ["cpu", "shm", "cuda_ipc"])
@pytest.mark.parametrize("family", [Plain(), Precomputing()])
def test_an_item_with_nothing_to_hash_is_a_clear_error(
    hasher: ContentHasher, transport: Transport, family: Plain | Precomputing
) -> None:
    item = MediaItem("image", 4)
    with pytest.raises(InternalError, match="no features to hash"):
        Residency(transport).prepared(item, hasher, family)


class Pair(NamedTuple):
    left: Any
    right: Any


def test_tensors_move_through_lists_tuples_and_dictionaries_and_all_else_is_left_alone(recorder: Recorder) -> None:
    other = object()
    value = [
        torch.ones(1),
        (torch.ones(2, dtype=torch.int64), None, [other, "text"]),
        {"a": torch.ones(3), 1: 2},
        Pair(torch.ones(4), 5),
    ]
    moved = to_cpu(value)
    assert recorder.seen == ["float32 to the cpu", "int64 to the cpu", "float32 to the cpu", "float32 to the cpu"]
    assert [type(each) for each in moved] == [Tensor, tuple, dict, Pair]
    assert moved[1][1] is None
    assert moved[1][2][0] is other
    assert (moved[2][1], moved[3].right) == (2, 5)
    assert to_cpu(other) is other
    assert to_cpu(()) == ()


def test_a_family_says_what_it_wants_by_a_class_attribute() -> None:
    assert EncoderHalf.precompute_hash_before_cpu_transfer is False
