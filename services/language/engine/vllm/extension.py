"""What runs in each of vLLM's workers beside its own code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor


class WorkerExtension:
    """Mixed into vLLM's worker class; its methods are called by name."""

    def count_parameters(self: Any) -> dict[str, int]:
        """Numbers of parameters that this worker holds, by module. Tensors that several modules share count once. Weights of
        linear layers that vLLM keeps packed for a CPU count by their layer's sizes: an empty tensor has their place."""
        counted: dict[str, int] = {}
        seen: set[int] = set()
        for path, module in self.model_runner.get_model().named_modules():
            sizes = [parameter.numel() for parameter in module.parameters(recurse=False) if id(parameter) not in seen]
            seen.update(map(id, module.parameters(recurse=False)))
            if 0 in sizes and hasattr(module, "input_size_per_partition"):
                sizes.append(module.input_size_per_partition * module.output_size_per_partition)
            if sizes:
                name = path.partition(".")[0]
                counted[name] = counted.get(name, 0) + sum(sizes)
        return counted

    def scrub_pool(self: Any) -> None:
        """Zeroes what is not finite in the key/value pool. Attention reads blocks as a whole and weighs by zero what is not the
        sequence's, and zero times NaN is NaN: the next sequence that got such a block would fail as well."""
        for tensor in _tensors(self.model_runner.kv_caches):
            if tensor.is_floating_point() and tensor.itemsize > 1:  # torch cannot do it in eight bits
                tensor.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def _tensors(caches: Any) -> Iterator[Tensor]:
    """Of layers that keep several tensors there is a list each."""
    for cache in caches:
        if isinstance(cache, Tensor):
            yield cache
        else:
            yield from _tensors(cache)
