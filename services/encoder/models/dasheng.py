"""The Dasheng audio tower: a vision transformer over patches of a mel spectrogram, each as high as all mels.

Modules are named as in the published checkpoints.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from services.encoder.models.mel import LogMel
from shared.midashenglm import DashengConfig

_EPSILON = 1e-6
_CHUNKS_AT_ONCE = 16
"""Chunks of one pass through the blocks, which bounds the memory that a long sound takes."""


class Dasheng(nn.Module):
    """The tower. Up to its patches it computes in float32, then in the dtype of its weights.

    A sound that is longer than a chunk is several, which do not attend to each other and have the same positions.

    Raises:
        ValueError: the configuration has patches of another kind.
    """

    def __init__(self, config: DashengConfig) -> None:
        super().__init__()
        config.check()
        self._config = config
        self.front_end = LogMel(config)
        self.init_bn = nn.BatchNorm2d(config.n_mels)
        self.init_bn.num_batches_tracked = None  # which counts steps of training
        self.patch_embed = PatchEmbedding(config)
        self.time_pos_embed = nn.Parameter(torch.zeros(1, config.embed_dim, 1, config.chunk_patches))
        self.freq_pos_embed = nn.Parameter(torch.zeros(1, config.embed_dim, 1, 1))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.embed_dim, eps=_EPSILON)

    def forward(self, sounds: Sequence[Tensor]) -> list[Tensor]:
        """Of each sound, ``(samples,)`` float32, the patches, ``(patches, embed_dim)``.

        Chunks of equal length go through the blocks together, so no sound is padded to the length of another.
        """
        alike: dict[tuple[int, int], list[tuple[int, int, Tensor]]] = defaultdict(list)
        for number, samples in enumerate(sounds):
            heard = self._config.heard_patches(samples.shape[0])
            start = 0
            for chunk in torch.split(self._patches(samples), self._config.chunk_patches):
                alike[chunk.shape[0], min(chunk.shape[0], max(0, heard - start))].append((number, start, chunk))
                start += chunk.shape[0]
        done: dict[tuple[int, int], Tensor] = {}
        for (_, heard), chunks in alike.items():
            for first in range(0, len(chunks), _CHUNKS_AT_ONCE):
                several = chunks[first : first + _CHUNKS_AT_ONCE]
                rows = self._encode(torch.stack([chunk for _, _, chunk in several]), heard)
                done.update({(number, start): row for (number, start, _), row in zip(several, rows, strict=True)})
        return [torch.cat([done[place] for place in sorted(done) if place[0] == number]) for number in range(len(sounds))]

    def _patches(self, samples: Tensor) -> Tensor:
        """``(patches, embed_dim)``, without positions."""
        decibels = self.front_end(samples)
        level = self.init_bn(decibels[None, :, None]).transpose(1, 2)
        patches: Tensor = self.patch_embed.proj(level.to(self.norm.weight.dtype))
        return patches[0, :, 0].T

    def _encode(self, chunks: Tensor, heard: int) -> Tensor:
        """``(chunks, patches, embed_dim)``, of which the first ``heard`` patches are attended to."""
        positions = self.time_pos_embed[0, :, 0, : chunks.shape[1]] + self.freq_pos_embed[0, :, 0]
        x = chunks + positions.T
        for block in self.blocks:
            x = block(x, heard)
        result: Tensor = self.norm(x)
        return result


class PatchEmbedding(nn.Module):
    """Patches of a ``(1, 1, mels, frames)`` spectrogram, as a convolution."""

    def __init__(self, config: DashengConfig) -> None:
        super().__init__()
        size = (config.n_mels, config.patch_frames)
        self.proj = nn.Conv2d(1, config.embed_dim, kernel_size=size, stride=size)


class Block(nn.Module):
    """Attention, then two layers of perceptrons, each added to what it is given, after norms before them."""

    def __init__(self, config: DashengConfig) -> None:
        super().__init__()
        width = config.embed_dim
        self.norm1 = nn.LayerNorm(width, eps=_EPSILON)
        self.attn = Attention(config)
        self.ls1 = nn.Identity() if config.init_values is None else LayerScale(width)
        self.norm2 = nn.LayerNorm(width, eps=_EPSILON)
        self.mlp = Perceptron(width, int(width * config.mlp_ratio))
        self.ls2 = nn.Identity() if config.init_values is None else LayerScale(width)

    def forward(self, x: Tensor, heard: int) -> Tensor:
        """``(chunks, patches, width)`` to the same."""
        x = x + self.ls1(self.attn(self.norm1(x), heard))
        result: Tensor = x + self.ls2(self.mlp(self.norm2(x)))
        return result


class Attention(nn.Module):
    """Every patch attends to the first ``heard`` ones of its chunk, after them and before."""

    def __init__(self, config: DashengConfig) -> None:
        super().__init__()
        self._heads: int = config.num_heads
        self.qkv = nn.Linear(config.embed_dim, 3 * config.embed_dim, bias=config.qkv_bias)
        self.proj = nn.Linear(config.embed_dim, config.embed_dim)

    def forward(self, x: Tensor, heard: int) -> Tensor:
        """``(chunks, patches, width)`` to the same. Where nothing was heard, what is attended to is 0."""
        chunks, patches, width = x.shape
        query, key, value = self.qkv(x).view(chunks, patches, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        if heard:
            found = scaled_dot_product_attention(query, key[:, :, :heard], value[:, :, :heard])
        else:
            found = torch.zeros_like(query)
        result: Tensor = self.proj(found.transpose(1, 2).reshape(chunks, patches, width))
        return result


class LayerScale(nn.Module):
    """A factor for each number of a patch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """``(..., width)`` to the same."""
        return x * self.gamma


class Perceptron(nn.Module):
    """Two linear layers with the exact Gaussian error linear unit between them."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """``(..., width)`` to the same."""
        result: Tensor = self.fc2(gelu(self.fc1(x)))
        return result


class Projector(nn.Module):
    """Some patches in a row become one token: side by side, through two linear layers. What is left over is dropped."""

    def __init__(self, patches: int, width: int, hidden: int) -> None:
        super().__init__()
        self._patches = patches
        self.net = nn.Sequential(nn.Linear(patches * width, hidden), nn.GELU(), nn.Linear(hidden, hidden))

    def forward(self, x: Tensor) -> Tensor:
        """``(patches, width)`` to ``(tokens, hidden)``."""
        tokens = x.shape[0] // self._patches
        result: Tensor = self.net(x[: tokens * self._patches].reshape(tokens, -1))
        return result
