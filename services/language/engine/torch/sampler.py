"""From logits to tokens, for the whole batch at once."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass

import torch
from torch import Tensor

from services.language.engine.interface import Sampling, TokenLogprobs
from services.language.engine.torch.guide import Allowed
from services.language.engine.torch.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Sampled:
    """The token of each sequence, its log-probabilities where asked for, and whether its logits were all finite. ``wishes`` are
    the probabilities of the end where a grammar forbids it, by row."""

    tokens: list[int]
    logprobs: list[TokenLogprobs | None]
    finite: list[bool]
    wishes: dict[int, float]


def sample(logits: Tensor, sequences: List[Sequence], allowed: Allowed | None = None) -> Sampled:
    """Chooses a token for each row of ``logits`` ``(n, vocabulary)`` float32. The rows do not influence each other; those in
    ``allowed`` keep to it. Log-probabilities are the model's, before that."""
    # A sum is finite only if all its numbers are (their magnitudes are far from overflow).
    finite = torch.isfinite(logits.sum(-1)).tolist()
    logprobs = _logprobs(logits, sequences)
    adjusted = _adjust(logits, sequences)
    wishes: dict[int, float] = {}
    if allowed is not None:
        adjusted, wishes = _guide(adjusted, sequences, allowed)
    greedy = adjusted.argmax(-1)
    tokens = greedy.tolist()
    drawing = [row for row, sequence in enumerate(sequences) if sequence.sampling.temperature > 0 and finite[row]]
    if drawing:
        drawn = _draw(adjusted[drawing], [sequences[row] for row in drawing])
        for row, token in zip(drawing, drawn, strict=True):
            tokens[row] = token
    chosen = [make(token) if make is not None else None for make, token in zip(logprobs, tokens, strict=True)]
    return Sampled(tokens, chosen, finite, wishes)


class _Row:
    """Log-probabilities of one row, completed when its token is known."""

    def __init__(self, row: Tensor, count: int) -> None:
        self._row = row
        self._count = count

    def __call__(self, token: int) -> TokenLogprobs:
        top: tuple[tuple[int, float], ...] = ()
        if self._count:
            values, ids = self._row.topk(min(self._count, self._row.shape[0]))
            top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
        return TokenLogprobs(float(self._row[token]), top)


def _logprobs(logits: Tensor, sequences: List[Sequence]) -> list[_Row | None]:
    wanted = [row for row, sequence in enumerate(sequences) if sequence.sampling.logprobs is not None]
    found: list[_Row | None] = [None] * len(sequences)
    if wanted:
        table = torch.log_softmax(logits[wanted], -1)
        for at, row in enumerate(wanted):
            found[row] = _Row(table[at], sequences[row].sampling.logprobs or 0)
    return found


def _adjust(logits: Tensor, sequences: List[Sequence]) -> Tensor:
    """Biases, penalties and forbidden tokens. A row that asks for none is not touched; without any, nothing is copied."""
    adjusted = logits
    for row, sequence in enumerate(sequences):
        sampling = sequence.sampling
        changes = (
            sampling.logit_bias
            or sampling.repetition_penalty != 1
            or sampling.presence_penalty
            or sampling.frequency_penalty
            or (sampling.stop_token_ids and sequence.produced < sampling.min_tokens)
        )
        if not changes:
            continue
        if adjusted is logits:
            adjusted = logits.clone()
        _adjust_row(adjusted[row], sequence)
    return adjusted


def _adjust_row(row: Tensor, sequence: Sequence) -> None:
    sampling = sequence.sampling
    if sampling.repetition_penalty != 1:
        # Placeholders of some families lie outside the vocabulary.
        seen = torch.tensor(sorted(token for token in set(sequence.tokens) if token < len(row)), device=row.device)
        values = row[seen]
        row[seen] = torch.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
    if (sampling.presence_penalty or sampling.frequency_penalty) and sequence.counts:
        ids = torch.tensor(list(sequence.counts), device=row.device)
        counts = torch.tensor(list(sequence.counts.values()), dtype=row.dtype, device=row.device)
        row[ids] -= sampling.presence_penalty + sampling.frequency_penalty * counts
    if sampling.logit_bias:
        ids = torch.tensor(list(sampling.logit_bias), device=row.device)
        row[ids] += torch.tensor(list(sampling.logit_bias.values()), dtype=row.dtype, device=row.device)
    if sequence.produced < sampling.min_tokens:
        row[list(sampling.stop_token_ids)] = -torch.inf


def _guide(adjusted: Tensor, sequences: List[Sequence], allowed: Allowed) -> tuple[Tensor, dict[int, float]]:
    """Logits without what grammars forbid, whatever else was asked for; of what they allow, something always stays. Where a
    form is unfinished, what closes it gets the logit of the end at least; also returns how probable the end was there, by row.
    """
    device = adjusted.device
    rows = torch.tensor(allowed.rows, device=device)
    table = adjusted[rows]
    wanted = [[end in sequences[row].sampling.stop_token_ids for end in allowed.ends] for row in allowed.rows]
    ends = table[:, allowed.ends].masked_fill(~torch.tensor(wanted, device=device), -torch.inf)
    wishes = (ends.logsumexp(-1) - table.logsumexp(-1)).exp().tolist()
    places = [at for at, closing in enumerate(allowed.closing) for _ in closing]
    if places and allowed.ends:
        tokens = [token for closing in allowed.closing for token in closing]
        table[places, tokens] = torch.maximum(table[places, tokens], ends.amax(-1)[places])
    # A bias or a minimum of tokens may have forbidden all that the grammar allows.
    table.clamp_(min=torch.finfo(table.dtype).min).masked_fill_(~allowed.tokens.to(device), -torch.inf)
    if len(allowed.rows) < len(sequences):
        table = adjusted.index_copy(0, rows, table)
    return table, {
        row: wish for row, wish, unfinished in zip(allowed.rows, wishes, allowed.unfinished, strict=True) if unfinished
    }


def _draw(logits: Tensor, sequences: List[Sequence]) -> list[int]:
    """Draws by inversion: one uniform number a row, from the row's own generator, against cumulated probabilities.

    Rows that restrict their choice are drawn from sorted probabilities, the others as they are, so a row's draw never depends
    on what its neighbours ask for.
    """
    # Counted from the maximum, since a tiny temperature would overflow.
    relative = logits - logits.amax(-1, keepdim=True)
    scaled = torch.softmax(relative / _column([sequence.sampling.temperature for sequence in sequences], logits.device), -1)
    restricted = [row for row, sequence in enumerate(sequences) if _restricts(sequence.sampling)]
    free = [row for row in range(len(sequences)) if row not in set(restricted)]
    tokens = [0] * len(sequences)
    if free:
        at = _invert(scaled[free], [sequences[row] for row in free])
        for row, token in zip(free, at[:, 0].tolist(), strict=True):
            tokens[row] = token
    if restricted:
        chosen = [sequences[row] for row in restricted]
        ordered, order = scaled[restricted].sort(dim=-1, descending=True, stable=True)
        at = _invert(ordered * _kept(ordered, [sequence.sampling for sequence in chosen]), chosen)
        for row, token in zip(restricted, order.gather(-1, at)[:, 0].tolist(), strict=True):
            tokens[row] = token
    return tokens


def _column(values: list[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device)[:, None]


def _restricts(sampling: Sampling) -> bool:
    return bool(sampling.top_k) or sampling.top_p < 1 or sampling.min_p > 0


def _kept(ordered: Tensor, settings: List[Sampling]) -> Tensor:
    """Which of the sorted probabilities stay, never less than one token.

    ``top_k``, ``top_p`` (Holtzman et al., 2020) and ``min_p`` (Nguyen et al., 2024) each keep a beginning of the order.
    """
    device, size = ordered.device, ordered.shape[-1]
    kept = torch.arange(size, device=device) < _column([float(sampling.top_k or size) for sampling in settings], device)
    # A token stays if those before it have not reached top_p.
    kept &= ordered.cumsum(-1) - ordered < _column([sampling.top_p for sampling in settings], device)
    kept &= ordered >= ordered[:, :1] * _column([sampling.min_p for sampling in settings], device)
    kept[:, 0] = True
    return kept


def _invert(weights: Tensor, sequences: List[Sequence]) -> Tensor:
    """Places ``(n, 1)`` at which the cumulated weights pass a uniform share of their sum."""
    cumulated = weights.double().cumsum(-1)
    uniform = torch.cat([torch.rand(1, generator=sequence.generator, dtype=torch.float64) for sequence in sequences])
    target = (uniform.to(weights.device) * cumulated[:, -1])[:, None]
    # Rounding must not lead past the last place that has any weight.
    last = weights.shape[-1] - 1 - (weights > 0).flip(-1).int().argmax(-1, keepdim=True)
    return torch.minimum(torch.searchsorted(cumulated, target, right=True), last)
