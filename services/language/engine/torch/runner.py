"""Runs the language half over the tokens of a step."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from services.language.engine.interface import EngineStartError
from services.language.engine.torch.attention import NAME, KVPool, LayerShape, Probe, PromptPart, Step, register
from services.language.engine.torch.limits import check_decoder
from services.language.engine.torch.scheduler import Chunk
from services.language.engine.torch.sequence import Sequence
from services.language.models.generic import LanguageHalf
from services.language.models.latent import use_latents
from shared.checkpoint import count_parameters, pick_device, pick_dtype
from shared.families import open_family
from shared.products import use_products


@dataclass(slots=True)
class Pictures:
    """The parts of pictures in a row, in order: first and last place with the embeddings' rows, and deepstack rows by level."""

    parts: list[tuple[int, int, Tensor]] = field(default_factory=list)
    levels: list[list[Tensor]] = field(default_factory=list)


class Runner:
    """The model and its pool. Everything here blocks, and is called from one thread."""

    def __init__(
        self, half: LanguageHalf, model: PreTrainedModel, device: torch.device, dtype: torch.dtype, block_size: int
    ) -> None:
        register()
        self.half = half
        self.device = device
        self.dtype = dtype
        use_latents(model)
        use_products(model)
        self._model: Any = model
        self._decoder: Any = self._model.get_decoder()
        self._decoder.config._attn_implementation = NAME
        self._axes = 3 if half.by_grid else 1
        self._block_size = block_size
        self.shapes = self._probe()
        self.pool: KVPool | None = None

    @classmethod
    def load(cls, folder: Path, device: str, dtype: str, block_size: int, families: str = "", trusted: bool = False) -> Runner:
        """The language half of a checkpoint.

        Raises:
            EngineStartError: it cannot be paged.
            ValueError: its family is not served, or it lacks weights.
            OSError: it cannot be read.
        """
        family, config = open_family(folder, families, trusted)
        half: LanguageHalf = family.half("language")(config, family.modalities)
        where = pick_device(device)
        kind = pick_dtype(dtype, where)
        return cls(half, half.load(folder, where, kind), where, kind, block_size)

    @property
    def context_length(self) -> int:
        """Tokens that the model was made for."""
        return int(self._decoder.config.max_position_embeddings)

    def parameters(self) -> dict[str, int]:
        """Numbers of parameters by module."""
        return count_parameters(self._model.named_parameters())

    def bytes_per_token(self) -> int:
        """Bytes that one token takes in the pool."""
        return sum(shape.numbers for shape in self.shapes.values()) * self.dtype.itemsize

    def allocate(self, num_blocks: int) -> None:
        """Allocates the pool, once."""
        self.pool = KVPool(self.shapes, num_blocks, self._block_size, self.dtype, self.device)

    def _probe(self) -> dict[int, LayerShape]:
        """Sends one token through the model to learn what each layer stores.

        Raises:
            EngineStartError: a layer does not attend through transformers' interface, so it cannot be paged.
        """
        check_decoder(self._model.config.model_type, self._decoder.config)
        probe = Probe()
        none = torch.zeros(0, dtype=torch.long)
        step = Step(probe, none, none.view(0, 0), none, [])
        at = torch.zeros(self._axes, 1, dtype=torch.long)
        try:
            self._forward(torch.zeros(1, dtype=torch.long), at, step, Pictures(), {})
        except (NotImplementedError, TypeError) as error:
            raise EngineStartError(f"{self._model.config.model_type} cannot run on the paged engine: {error}") from error
        layers: int = self._decoder.config.num_hidden_layers
        if len(probe.shapes) != layers:
            raise EngineStartError(
                f"{self._model.config.model_type} cannot run on the paged engine: only {len(probe.shapes)} of its {layers} "
                "layers attend over keys and values (others may be recurrent or linear)"
            )
        return probe.shapes

    @torch.inference_mode()
    def run(self, chunks: List[Chunk]) -> Tensor:
        """Computes the chunks, single tokens first; logits ``(n, vocabulary)`` float32 of those that complete, in order."""
        assert self.pool is not None
        ids = torch.tensor([token for chunk in chunks for token in chunk.sequence.tokens[chunk.start : chunk.end]])
        positions = self._positions(chunks)
        rows, at = [], 0
        for chunk in chunks:
            at += chunk.end - chunk.start
            if chunk.completes:
                rows.append(at - 1)
        hidden = self._forward(ids, positions, self._step(chunks), self._pictures(chunks), self._token_inputs(chunks))
        if not rows:
            return hidden.new_zeros(0, 0, dtype=torch.float32)
        if len(rows) < hidden.shape[0]:
            hidden = hidden[torch.tensor(rows, device=self.device)]
        logits: Tensor = self._model.lm_head(hidden)
        return logits.float()

    def _forward(self, ids: Tensor, positions: Tensor, step: Step, pictures: Pictures, inputs: dict[str, Tensor]) -> Tensor:
        """Hidden states ``(tokens, hidden)`` of the packed row; ``inputs`` are the family's own, ``(tokens,)`` each."""
        for first, last, _ in pictures.parts:
            ids[first:last] = 0  # some families' placeholders lie outside the vocabulary
        embeds = self._decoder.get_input_embeddings()(self.half.embedded(ids).to(self.device)).unsqueeze(0)
        extra: dict[str, Any] = {name: values.unsqueeze(0).to(self.device) for name, values in inputs.items()}
        if pictures.parts:
            mask = torch.zeros(1, ids.shape[0], dtype=torch.bool, device=self.device)
            for first, last, rows in pictures.parts:
                embeds[0, first:last] = rows.to(self.device, self.dtype)
                mask[0, first:last] = True
            if pictures.levels:
                deep = [torch.cat(level).to(self.device, self.dtype) for level in pictures.levels]
                extra |= {"visual_pos_masks": mask, "deepstack_visual_embeds": deep}
        at = positions.to(self.device)
        output = self._decoder(
            inputs_embeds=embeds,
            position_ids=at.unsqueeze(1) if self._axes > 1 else at,
            use_cache=False,
            return_dict=True,
            step=step,
            **extra,
        )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def _positions(self, chunks: List[Chunk]) -> Tensor:
        """``(axes, tokens)``: the prompts' own, then one more for each token of an answer, the same on all axes."""
        parts: list[Tensor] = []
        answers: list[int] = []

        def flush() -> None:
            if answers:
                parts.append(torch.tensor(answers).expand(self._axes, -1))
                answers.clear()

        for chunk in chunks:
            length, known = chunk.sequence.prompt_length, chunk.sequence.request.prompt.positions
            if chunk.start < length:
                flush()
                parts.append(known.ids[:, chunk.start : min(chunk.end, length)].expand(self._axes, -1))
            offset = known.following - length
            answers += range(offset + max(chunk.start, length), offset + chunk.end)
        flush()
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _token_inputs(self, chunks: List[Chunk]) -> dict[str, Tensor]:
        """What the family's decoder takes besides, for the tokens of prompts and of answers."""
        runs: list[tuple[bool, list[int]]] = []
        for chunk in chunks:
            tokens, end = chunk.sequence.tokens, min(max(chunk.start, chunk.sequence.prompt_length), chunk.end)
            for prompt, some in ((True, tokens[chunk.start : end]), (False, tokens[end : chunk.end])):
                if some and runs and runs[-1][0] == prompt:
                    runs[-1][1].extend(some)
                elif some:
                    runs.append((prompt, some))
        found = [self.half.token_inputs(some, prompt) for prompt, some in runs]
        return {name: torch.cat([each[name] for each in found]) for name in found[0]}

    def _pictures(self, chunks: List[Chunk]) -> Pictures:
        """What the row shows of pictures."""
        found = Pictures()
        at = 0
        for chunk in chunks:
            for first, last, offset, item in chunk.sequence.pictures_between(chunk.start, chunk.end):
                assert item.embeds is not None
                rows = slice(offset, offset + last - first)
                found.parts.append((at + first - chunk.start, at + last - chunk.start, item.embeds[rows]))
                found.levels = found.levels or [[] for _ in item.deepstack]
                for level, deep in zip(found.levels, item.deepstack, strict=True):
                    level.append(deep[rows])
            at += chunk.end - chunk.start
        return found

    def _step(self, chunks: List[Chunk]) -> Step:
        """Where the row's tokens go in the pool, and what they look at."""
        assert self.pool is not None
        size = self._block_size
        slots: list[int] = []
        decoding: list[Sequence] = []
        parts: list[PromptPart] = []
        at = 0
        for chunk in chunks:
            blocks = chunk.sequence.blocks
            slots += [blocks[place // size] * size + place % size for place in range(chunk.start, chunk.end)]
            count = chunk.end - chunk.start
            if count == 1:
                decoding.append(chunk.sequence)
            else:
                held = torch.tensor(blocks[: -(-chunk.end // size)], device=self.device)
                parts.append(PromptPart(at, at + count, chunk.end, held, self._reach(chunk)))
            at += count
        lengths = [sequence.computed + 1 for sequence in decoding]
        width = max((-(-length // size) for length in lengths), default=0)
        rows = [(sequence.blocks + [0] * width)[:width] for sequence in decoding]
        tables = torch.tensor(rows, dtype=torch.long).view(len(rows), width)
        return Step(
            self.pool,
            torch.tensor(slots, device=self.device),
            tables.to(self.device),
            torch.tensor(lengths, dtype=torch.long, device=self.device),
            parts,
        )

    def _reach(self, chunk: Chunk) -> Tensor | None:
        """The last place that each of a chunk's tokens may look at, where that is not its own: the last one of its item."""
        parts = chunk.sequence.pictures_between(chunk.start, chunk.end) if self.half.bidirectional else []
        if not parts:
            return None
        reach = torch.arange(chunk.start, chunk.end)
        for first, last, _, _ in parts:
            reach[first - chunk.start : last - chunk.start] = last - 1
        return reach.to(self.device)
