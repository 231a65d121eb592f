"""Trains the demo model from scratch: ``python -m examples.train_demo_model --out examples/demo_model``.

A Qwen3-VL of under two million parameters with its own byte-level tokenizer, trained on the scenes of ``examples.scenes``. It
is seeded, needs about an hour on two cores, and can be stopped and resumed (``--state``). The forward pass used for training
takes two short cuts that leave the mathematics alone, and checks both against the stock path before the first step:
pictures are drawn and cut into patches in bulk, and the tower attends over all of them in one call, since they have one size.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer
from transformers import (
    AttentionInterface,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessorPil,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from examples.scenes import (
    BACKGROUND,
    COLOUR_TABLE,
    ORDINALS,
    TALK,
    USUAL,
    Question,
    Scene,
    Weights,
    ask,
    draw,
    draw_cells,
    lay_out,
    random_exam,
    random_scene,
    small_talk,
)

SIDE = 64  # pixels; the processor scales every square picture to it
PATCH = 16
MERGE = 2
TOKENS = (SIDE // PATCH // MERGE) ** 2
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
SYSTEM = ("You are a helpful assistant.", "You answer questions about pictures.")

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>
{%- elif part.type == 'text' -%}{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""


# ------------------------------------------------------------------------------------------------ the empty checkpoint


def build_tokenizer(rng: random.Random) -> PreTrainedTokenizerFast:
    """A byte-level BPE over the language of the scenes; any other text falls back to bytes."""
    corpus = [
        *SYSTEM,
        *TALK,
        *TALK.values(),
        "system\n",
        "user\n",
        "assistant\n",
        *(f"The {o} picture:" for o in ORDINALS),
    ]
    for _ in range(6000):
        exam = random_exam(rng)
        corpus += [exam.question.text, exam.question.answer, small_talk(rng).answer]
    tokenizer = Tokenizer(models.BPE())
    words = Regex(r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=640, min_frequency=1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=list(SPECIAL),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3VLForConditionalGeneration:
    """Random weights of the demo model's shape."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 2048,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
            },
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 3,
            "hidden_size": 96,
            "intermediate_size": 256,
            "num_heads": 4,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "out_hidden_size": 128,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    model = Qwen3VLForConditionalGeneration(config)
    model.generation_config.eos_token_id = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    model.generation_config.pad_token_id = ids["<|endoftext|>"]
    return model


def build_image_processor() -> Qwen2VLImageProcessorPil:
    """Scales any square picture to ``SIDE``; the margins keep floating-point rounding from losing a row of patches."""
    return Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=MERGE,
        temporal_patch_size=2,
        size={"shortest_edge": SIDE * SIDE - 96, "longest_edge": SIDE * SIDE + 104},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )


# --------------------------------------------------------------------------------------------------------------- data


def draw_batch(scenes: list[Scene], rng: np.random.Generator) -> np.ndarray:
    """Pictures of all scenes at ``SIDE`` pixels, ``(n, SIDE, SIDE, 3)`` float32 in 0..255, with a little variation."""
    cell = SIDE // 2
    canvas = np.full((len(scenes), 2, cell, 2, cell, 3), BACKGROUND, dtype=np.float32)
    canvas += rng.uniform(-6, 6, size=(len(scenes), 1, 1, 1, 1, 1)).astype(np.float32)
    index = [(i, thing) for i, scene in enumerate(scenes) for thing in scene.things]
    count = len(index)
    colours = COLOUR_TABLE[[thing.colour for _, thing in index]] + rng.uniform(-10, 10, (count, 3)).astype(np.float32)
    shapes = np.array([thing.shape for _, thing in index])
    centres = rng.uniform(0.43, 0.57, (count, 2)).astype(np.float32)
    radii = rng.uniform(0.26, 0.39, count).astype(np.float32)
    # Drawn finer and averaged for half of the batches, as a scaled-down large picture would be.
    scale = 2 if rng.random() < 0.5 else 1
    cells = draw_cells(np.clip(colours, 0, 255), shapes, centres, radii, cell * scale)
    if scale > 1:
        cells = cells.reshape(count, cell, scale, cell, scale, 3).mean((2, 4))
    for (i, thing), drawn in zip(index, cells, strict=True):
        canvas[i, thing.position // 2, :, thing.position % 2] = drawn
    flat = canvas.reshape(len(scenes), SIDE, SIDE, 3)
    flat += rng.normal(0, 2, flat.shape).astype(np.float32)
    return np.rint(np.clip(flat, 0, 255))


def patchify(pictures: np.ndarray) -> Tensor:
    """``(n, SIDE, SIDE, 3)`` in 0..255 to the processor's patches, ``(n * 16, 3 * 2 * PATCH * PATCH)`` float32."""
    blocks = SIDE // PATCH // MERGE
    x = torch.from_numpy(pictures.astype(np.float32)).permute(0, 3, 1, 2) / 127.5 - 1.0
    x = x.reshape(len(pictures), 3, blocks, MERGE, PATCH, blocks, MERGE, PATCH).permute(0, 2, 5, 3, 6, 1, 4, 7)
    x = x.unsqueeze(6).expand(-1, -1, -1, -1, -1, -1, 2, -1, -1)
    return x.reshape(len(pictures) * (SIDE // PATCH) ** 2, 3 * 2 * PATCH * PATCH)


@dataclass
class Batch:
    """``ids``, ``labels`` are ``(b, s)``; ``positions`` is ``(3, b, s)``; ``patches`` is ``(pictures * 16, 1536)``.

    ``cells`` is ``(pictures * 4, 2)``: colour and shape in each cell, which is one token each; 8 and 4 for an empty one.
    """

    ids: Tensor
    labels: Tensor
    positions: Tensor
    patches: Tensor
    cells: Tensor


def cells_of(scenes: Sequence[Scene]) -> Tensor:
    """What each cell, and so each token, of each picture shows: ``(scenes * 4, 2)``."""
    cells = torch.tensor([[8, 4]]).repeat(4 * len(scenes), 1)
    for i, scene in enumerate(scenes):
        for thing in scene.things:
            cells[4 * i + thing.position] = torch.tensor([thing.colour, thing.shape])
    return cells


class Writer:
    """Turns questions into token ids, labels and positions, as the chat template and the processor would."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.encode = lru_cache(maxsize=200_000)(lambda text: tuple(tokenizer.encode(text, add_special_tokens=False)))
        self.pad = tokenizer.convert_tokens_to_ids("<|endoftext|>")
        self.image = tokenizer.convert_tokens_to_ids("<|image_pad|>")
        self.tokenizer = tokenizer

    def conversation(
        self, rng: random.Random, most_pictures: int, weights: Weights
    ) -> tuple[list[int], list[int], list[Scene]]:
        """Ids, labels (-100 outside answers), and the scenes in order."""
        ids: list[int] = []
        labels: list[int] = []

        def add(text: str, learn: bool = False) -> None:
            tokens = self.encode(text)
            ids.extend(tokens)
            labels.extend(tokens if learn else [-100] * len(tokens))

        if rng.random() < 0.25:
            add(f"<|im_start|>system\n{rng.choice(SYSTEM)}<|im_end|>\n")
        scenes: list[Scene] = []
        if rng.random() >= 0.08:
            shares = ((1,), (3, 2), (4, 3, 3))[most_pictures - 1]
            count = rng.choices(range(1, most_pictures + 1), shares)[0]
            scenes = [random_scene(rng) for _ in range(count)]
        turns = rng.choice((1, 1, 2, 3, 4))
        shown = rng.randrange(1, turns) if turns > 1 and rng.random() < 0.15 else 0  # the turn that brings the pictures
        for turn in range(turns):
            visible = scenes if turn >= shown else []
            question: Question = (
                ask(rng, scenes, weights) if visible and (turn == shown or rng.random() > 0.03) else small_talk(rng)
            )
            if visible and question.kind == "no picture":
                question = ask(rng, scenes, weights)
            layout = lay_out(rng, len(scenes), question.text) if turn == shown else (question.text,)
            picture = "<|vision_start|>" + "<|image_pad|>" * TOKENS + "<|vision_end|>"
            content = "".join(picture if isinstance(part, int) else part for part in layout)
            add(f"<|im_start|>user\n{content}<|im_end|>\n")
            add("<|im_start|>assistant\n")
            add(f"{question.answer}<|im_end|>", learn=True)
            add("\n")
        return ids, labels, scenes

    def positions(self, ids: list[int]) -> np.ndarray:
        """M-RoPE positions ``(3, s)``: text advances all three, a picture spans its grid and then advances by its side."""
        side = SIDE // PATCH // MERGE
        grid = np.stack([np.zeros(TOKENS), *np.divmod(np.arange(TOKENS), side)])
        columns, at, i = [], 0, 0
        while i < len(ids):
            if ids[i] == self.image:
                columns.append(grid + at)
                at, i = at + side, i + TOKENS
            else:
                columns.append(np.full((3, 1), at))
                at, i = at + 1, i + 1
        return np.concatenate(columns, axis=1).astype(np.int64)

    def batch(self, rng: random.Random, size: int, most_pictures: int, weights: Weights = USUAL) -> Batch:
        rows = [self.conversation(rng, most_pictures, weights) for _ in range(size)]
        length = max(len(ids) for ids, _, _ in rows)
        ids = torch.full((size, length), self.pad)
        labels = torch.full((size, length), -100)
        positions = torch.zeros(3, size, length, dtype=torch.long)
        for i, (row, row_labels, _) in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            labels[i, : len(row)] = torch.tensor(row_labels)
            positions[:, i, : len(row)] = torch.from_numpy(self.positions(row))
        scenes = [scene for _, _, row_scenes in rows for scene in row_scenes]
        pictures = draw_batch(scenes, np.random.default_rng(rng.getrandbits(32)))
        return Batch(ids, labels, positions, patchify(pictures), cells_of(scenes))


# ------------------------------------------------------------------------------------------------------------ training


def attend_per_picture(
    _module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object
) -> tuple[Tensor, None]:
    """All pictures have 16 patches, so attention within each is one batched call. Tensors are ``(1, heads, n * 16, dim)``."""
    patches = (SIDE // PATCH) ** 2

    def split(x: Tensor) -> Tensor:
        return x.view(x.shape[1], -1, patches, x.shape[-1]).transpose(0, 1)

    out = functional.scaled_dot_product_attention(split(query), split(key), split(value))
    return out.transpose(1, 2).reshape(1, -1, query.shape[1], query.shape[-1]), None


class Probe(torch.nn.Module):
    """A linear reading of each token, used only in training: it tells the tower what is worth seeing from the first step on."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.colour = torch.nn.Linear(width, 9)
        self.shape = torch.nn.Linear(width, 5)

    def forward(self, tokens: Tensor, cells: Tensor) -> Tensor:
        """Mean cross-entropy of colours and shapes; tokens ``(n, width)``, cells ``(n, 2)``."""
        colour = functional.cross_entropy(self.colour(tokens), cells[:, 0])
        return colour + functional.cross_entropy(self.shape(tokens), cells[:, 1])


def see(model: Qwen3VLForConditionalGeneration, patches: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The tower's tokens ``(pictures * 4, width)``, and those of each deepstack level."""
    pictures = patches.shape[0] // (SIDE // PATCH) ** 2
    grid = torch.tensor([[1, SIDE // PATCH, SIDE // PATCH]]).repeat(pictures, 1)
    whole = torch.tensor([0, patches.shape[0]], dtype=torch.int32)
    seen = model.model.visual(patches, grid_thw=grid, cu_seqlens=whole, return_dict=True)
    return seen.pooler_output, list(seen.deepstack_features)


def forward(model: Qwen3VLForConditionalGeneration, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits for the labelled tokens ``(labels, vocabulary)``, and the tower's tokens."""
    inner = model.model
    tokens, deepstack = see(model, batch.patches)
    mask = batch.ids == inner.config.image_token_id
    embeds = inner.language_model.embed_tokens(batch.ids).masked_scatter(mask[..., None], tokens)
    hidden = inner.language_model(
        inputs_embeds=embeds,
        position_ids=batch.positions,
        visual_pos_masks=mask,
        deepstack_visual_embeds=deepstack,
        use_cache=False,
    ).last_hidden_state
    return model.lm_head(hidden[:, :-1][batch.labels[:, 1:] != -100]), tokens


def check_short_cuts(model: Qwen3VLForConditionalGeneration, writer: Writer) -> None:
    """The fast path equals the stock one: patches as the processor's, logits as the undivided forward's."""
    scene = random_scene(random.Random(3))
    picture = draw(scene, SIDE)
    stock = build_image_processor()(images=[picture], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(patchify(np.asarray(picture)[None]), stock, atol=1e-6, rtol=0)
    batch = writer.batch(random.Random(5), 4, 3)
    grid = torch.tensor([[1, 4, 4]]).repeat(batch.patches.shape[0] // 16, 1)
    with torch.no_grad():
        fast, _ = forward(model, batch)
        vision = model.config.vision_config
        vision._attn_implementation, chosen = "sdpa", vision._attn_implementation
        whole = model(
            input_ids=batch.ids,
            pixel_values=batch.patches,
            image_grid_thw=grid,
            mm_token_type_ids=(batch.ids == writer.image).int(),
        ).logits
        vision._attn_implementation = chosen
        torch.testing.assert_close(fast, whole[:, :-1][batch.labels[:, 1:] != -100], atol=1e-4, rtol=1e-4)


def teach_to_see(model: Qwen3VLForConditionalGeneration, probe: Probe, steps: int, seed: int) -> None:
    """Trains the tower alone, through the probe; cheap, since no language is involved."""
    parameters = [*model.model.visual.parameters(), *probe.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * schedule(step, steps)
        rng = random.Random(f"see/{seed}/{step}")
        scenes = [random_scene(rng) for _ in range(64)]
        patches = patchify(draw_batch(scenes, np.random.default_rng(rng.getrandbits(32))))
        tokens, deepstack = see(model, patches)
        loss = sum((probe(level, cells_of(scenes)) for level in deepstack), probe(tokens, cells_of(scenes)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"seeing {step + 1} loss {loss.item():.4f}", flush=True)


def evaluate(model: Qwen3VLForConditionalGeneration, writer: Writer, count: int, seed: int) -> float:
    """The share of ``count`` conversations in which every token of every answer is right, given what precedes it."""
    rng = random.Random(seed)
    right = 0
    with torch.no_grad():
        for _ in range(count // 50):
            batch = writer.batch(rng, 50, 3)
            target = batch.labels[:, 1:]
            hit = torch.ones_like(target, dtype=torch.bool)
            hit[target != -100] = forward(model, batch)[0].argmax(-1) == target[target != -100]
            right += int(hit.all(-1).sum())
    return right / count


@dataclass(frozen=True)
class Stage:
    """Steps with one mixture of questions, under a learning rate that warms up to ``lr`` and falls with ``horizon`` as its end.

    ``pictures`` are the steps at which a conversation may have one picture more.
    """

    steps: int
    horizon: int
    lr: float
    weights: Weights
    pictures: tuple[int, ...] = ()


STAGES = (
    Stage(5000, 6000, 2e-3, USUAL, pictures=(720, 1200)),
    # By then all is learned but to find a thing by its shape, which takes practice.
    Stage(1500, 2500, 1.2e-3, {"describe": 2, "count": 1, "position": 2, "colour": 8}),
)


def schedule(step: int, horizon: int) -> float:
    """Linear warm-up over 100 steps, then a cosine to 2 %."""
    if step < 100:
        return (step + 1) / 100
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - 100) / max(1, horizon - 100)))


def batches(writer: Writer, seed: int, start: int, size: int) -> Iterator[tuple[int, float, Batch]]:
    """One batch a step, each seeded by its number, with the step's learning rate."""
    first = 0
    for stage in STAGES:
        for step in range(max(start, first), first + stage.steps):
            most = 3 - sum(step - first < begins for begins in stage.pictures)
            batch = writer.batch(random.Random(f"{seed}/{step}"), size, most, stage.weights)
            yield step, stage.lr * schedule(step - first, stage.horizon), batch
        first += stage.steps


def save_state(path: Path, model: Qwen3VLForConditionalGeneration, probe: Probe, optimizer: Optimizer, step: int) -> None:
    """Everything that resuming needs, as plain tensors."""
    tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"probe/{name}": tensor for name, tensor in probe.state_dict().items()}
    for index, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{name}": tensor for name, tensor in moments.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    # Tied weights share memory, which the format does not allow.
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, path, {"step": str(step)})


def load_state(path: Path, model: Qwen3VLForConditionalGeneration, probe: Probe, optimizer: Optimizer) -> int:
    """The inverse of ``save_state``; returns the number of steps done."""
    moments: dict[int, dict[str, Tensor]] = {}
    weights: dict[str, dict[str, Tensor]] = {"model": {}, "probe": {}}
    with safe_open(path, "pt") as file:
        step = int(file.metadata()["step"])
        for key in file.keys():  # noqa: SIM118  (not a mapping)
            owner, name = key.split("/", 1)
            if owner == "optimizer":
                index, moment = name.split("/")
                moments.setdefault(int(index), {})[moment] = file.get_tensor(key)
            else:
                weights[owner][name] = file.get_tensor(key)
    model.load_state_dict(weights["model"])
    probe.load_state_dict(weights["probe"])
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("examples/demo_model"), help="folder of the checkpoint")
    parser.add_argument("--state", type=Path, default=Path("build/demo_model.safetensors"), help="where to save and resume")
    parser.add_argument("--seeing-steps", type=int, default=400, help="steps that train the tower alone, at first")
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    AttentionInterface.register("per_picture", attend_per_picture)
    tokenizer = build_tokenizer(random.Random(args.seed))
    model = build_model(tokenizer)
    model.config.vision_config._attn_implementation = "per_picture"
    writer = Writer(tokenizer)
    check_short_cuts(model, writer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)

    probe = Probe(model.config.text_config.hidden_size)
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [*(p for p in model.parameters() if p.ndim <= 1), *probe.parameters()]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}], lr=STAGES[0].lr, betas=(0.9, 0.98)
    )
    start = 0
    if args.state.exists():
        start = load_state(args.state, model, probe, optimizer)
    else:
        teach_to_see(model, probe, args.seeing_steps, args.seed)
    began, running = time.monotonic(), 0.0
    last = sum(stage.steps for stage in STAGES)
    for step, lr, batch in batches(writer, args.seed, start, args.batch):
        for group in optimizer.param_groups:
            group["lr"] = lr
        target = batch.labels[:, 1:]
        logits, tokens = forward(model, batch)
        loss = functional.cross_entropy(logits, target[target != -100])
        total = loss + 0.1 * probe(tokens, batch.cells)
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running = loss.item() if not running else 0.98 * running + 0.02 * loss.item()
        if (step + 1) % 50 == 0:
            rate = (time.monotonic() - began) / (step + 1 - start)
            print(f"step {step + 1} loss {running:.4f} {rate:.2f} s/step", flush=True)
        if (step + 1) % 500 == 0 or step + 1 == last:
            model.eval()
            exact = evaluate(model, writer, 200, seed=1)
            model.train()
            print(f"step {step + 1} exact conversations {exact:.3f}", flush=True)
            save_state(args.state, model, probe, optimizer, step + 1)
            model.save_pretrained(args.out)
            tokenizer.save_pretrained(args.out)
            build_image_processor().save_pretrained(args.out)


if __name__ == "__main__":
    main()
