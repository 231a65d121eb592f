"""Where features and embeddings live on their way: derived, once, from the one setting that owns it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from shared.control import Transport
from shared.identity import ContentHasher, MediaItem


class ResidencySettings(Protocol):
    """What residency is derived from."""

    @property
    def mm_feature_transport(self) -> Transport: ...
    @property
    def ipc_pool_handle_cache(self) -> bool: ...


class Family(Protocol):
    """What a family of models wants."""

    @property
    def precompute_hash_before_cpu_transfer(self) -> bool:
        """Hash and pad ids are computed on the device, then features move to the CPU until the tower takes them."""
        ...


@dataclass(frozen=True)
class Residency:
    """``mm_feature_transport`` decides; the flags say what follows from it for this instance."""

    mm_feature_transport: Transport
    use_cuda_ipc: bool = field(init=False)
    use_ipc_pool_handle_cache: bool = field(init=False)
    _handle_cache: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "use_cuda_ipc", self.mm_feature_transport == "cuda_ipc")
        object.__setattr__(self, "use_ipc_pool_handle_cache", self.use_cuda_ipc and self._handle_cache)

    @classmethod
    def of(cls, settings: ResidencySettings) -> Residency:
        """What the settings now in force mean."""
        return cls(settings.mm_feature_transport, settings.ipc_pool_handle_cache)

    def prepared(self, item: MediaItem, hasher: ContentHasher, family: Family, supplied: str | None = None) -> None:
        """To be called once an item has its features: gives it its hash, computed where the features are, or the one that was
        ``supplied``; only then what is to wait on the CPU moves there.

        Raises:
            InternalError: the item has no features to hash.
        """
        item.set_hash(supplied or hasher.hash(item.identifying))
        if family.precompute_hash_before_cpu_transfer and not self.use_cuda_ipc:
            item.features = to_cpu(item.features)
            self.encoded(item)

    def encoded(self, item: MediaItem) -> None:
        """To be called once an item has its embeddings: they leave the device, unless they cross as memory of the GPU."""
        if not self.use_cuda_ipc:
            item.embeds, item.deepstack = to_cpu(item.embeds), to_cpu(item.deepstack)


def to_cpu(value: Any) -> Any:
    """``value`` with all tensors in it on the CPU, through lists, tuples and dictionaries; everything else is left alone."""
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: to_cpu(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple takes its parts one by one
        return type(value)(*(to_cpu(each) for each in value))
    if isinstance(value, list | tuple):
        return type(value)(to_cpu(each) for each in value)
    return value
