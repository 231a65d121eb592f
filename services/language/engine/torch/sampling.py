"""From logits to a token."""

from __future__ import annotations

import torch
from torch import Tensor

from services.language.engine.interface import Sampling


def new_generator(seed: int | None) -> torch.Generator:
    """The source of randomness of one request: seeded by the caller, or by the system."""
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed & 0xFFFF_FFFF_FFFF_FFFF)
    return generator


def sample(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """A token id from ``logits`` ``(vocabulary,)`` float32.

    Nucleus sampling (Holtzman et al., 2020): the smallest set of most likely tokens whose probability reaches ``top_p``.
    """
    if sampling.temperature == 0:
        return int(logits.argmax())
    probabilities = torch.softmax(logits.cpu() / sampling.temperature, dim=-1)
    if sampling.top_p < 1:
        ordered, order = probabilities.sort(descending=True)
        # A token stays if those before it have not reached top_p; the first one always does.
        ordered[ordered.cumsum(-1) - ordered >= sampling.top_p] = 0
        return int(order[torch.multinomial(ordered, 1, generator=generator)])
    return int(torch.multinomial(probabilities, 1, generator=generator))
