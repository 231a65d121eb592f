"""Products and norms of a model, each by the quickest of torch's means that compute it exactly.

Only the classes of modules change, so parameters, their names and state dicts stay what they are.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# Multiplications below which oneDNN's longer set-up (some 15 us a call) costs more than it saves.
_WORTH_ONEDNN = 1_200_000


def use_products(model: nn.Module) -> None:
    """Changes, in place, convolutions that patch embeddings are written as, root-mean-square norms that are written out in
    six operations where torch has one, and linear layers where that pays."""
    for module in model.modules():
        if type(module) is nn.Linear and type(module.weight) is nn.Parameter and mkl_is_slow():
            module.__class__ = ProductLinear
        elif _is_rms_norm(module):
            module.__class__ = _fused(type(module))  # type: ignore[arg-type]
        elif type(module) in (nn.Conv2d, nn.Conv3d) and _is_plain(module):
            module.__class__ = ProductConv2d if type(module) is nn.Conv2d else ProductConv3d


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias`` for ``(..., k)``, ``(n, k)`` and ``(n,)``, equal to torch's own to rounding.

    float32 on a CPU is MKL's in torch; oneDNN, which torch has too and uses for convolutions, is reached by no public function.
    """
    large = x.numel() * weight.shape[0] >= _WORTH_ONEDNN
    if large and x.dtype is torch.float32 and x.device.type == "cpu" and not torch.is_grad_enabled() and mkl_is_slow():
        result: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
        return result
    return functional.linear(x, weight, bias)


@cache
def mkl_is_slow() -> bool:
    """Whether this is an AMD processor with AVX-512, which MKL does not use there: oneDNN was measured to be twice as fast."""
    cpus = Path("/proc/cpuinfo")
    return (
        torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and cpus.exists()
        and "AuthenticAMD" in cpus.read_text()
    )


class ProductLinear(nn.Linear):
    """A linear layer by ``product``."""

    def forward(self, input: Tensor) -> Tensor:
        # Decided here too: a decoding step makes dozens of small products, and each call counts.
        if input.numel() * self.out_features < _WORTH_ONEDNN:
            return functional.linear(input, self.weight, self.bias)
        return product(input, self.weight, self.bias)


class ProductConv2d(nn.Conv2d):
    """A convolution that is one product where its input is exactly one kernel large, as single patches are."""

    def forward(self, input: Tensor) -> Tensor:
        return _of_patches(self, input) if input.shape[2:] == self.kernel_size else super().forward(input)


class ProductConv3d(nn.Conv3d):
    """The same for video patches. Measured on one core for 1,024 patches of 2x16x16 to 64 channels: 1.1 ms against 6.6."""

    def forward(self, input: Tensor) -> Tensor:
        return _of_patches(self, input) if input.shape[2:] == self.kernel_size else super().forward(input)


def _is_rms_norm(module: nn.Module) -> bool:
    """Whether a module is a float32 norm by root mean square, as tried on numbers: other families scale or shift by more."""
    weight, epsilon = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if not type(module).__name__.endswith("RMSNorm") or not isinstance(epsilon, float) or not isinstance(weight, Tensor):
        return False
    if weight.dtype is not torch.float32 or weight.is_meta:
        return False
    sample = torch.linspace(-3, 5, weight.numel(), device=weight.device).view(1, 1, -1)
    with torch.no_grad():
        return torch.allclose(module(sample), functional.rms_norm(sample, weight.shape, weight, epsilon), rtol=1e-6, atol=0)


@cache
def _fused(norm: type[nn.Module]) -> type[nn.Module]:
    """The same class of norm with torch's one operation as its forward."""

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        return functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)

    return type(norm.__name__, (norm,), {"forward": forward})


def _of_patches(convolution: nn.Conv2d | nn.Conv3d, patches: Tensor) -> Tensor:
    """``(n, channels, *kernel)`` to ``(n, width, 1, 1)`` or ``(n, width, 1, 1, 1)``."""
    found = product(patches.flatten(1), convolution.weight.flatten(1), convolution.bias)
    return found.view(*found.shape, *(1 for _ in convolution.kernel_size))


def _is_plain(convolution: nn.Module) -> bool:
    """Whether a convolution over one kernel is the product of all weights with all of it."""
    assert isinstance(convolution, nn.Conv2d | nn.Conv3d)
    return set(convolution.padding) == {0} and set(convolution.dilation) == {1} and convolution.groups == 1
