"""MiDashengLM: a tiny checkpoint in files as published, split in two, and the undivided model, by code of its own.

Transformers has no class for it, so the names and shapes of weights are written out here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2_5OmniTextConfig, Qwen2_5OmniThinkerTextModel
from transformers.audio_utils import load_audio

from tests.chats import Part, Sound, data_url
from tests.families.dasheng import embeddings, triangles
from tests.families.parts import SPREAD, WIDTH, make_tokenizer, mrope, text

TEMPLATE = """\
{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>\
{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
RATE = 16_000
PATCH = 4 * 160
"""Samples of one patch."""
CHUNK = 16
"""Patches of one chunk: 0.64 seconds; of the published models 252."""
TOWER = {
    "model_type": "midashenglm_dasheng_encoder",
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
    "mlp_ratio": 2.0,
    "patch_size": [64, 4],
    "patch_stride": [64, 4],
    "target_length": 4 * CHUNK,
}
TOWER_DEFAULTS = {
    "input_channels": 1,
    "qkv_bias": True,
    "init_values": None,
    "sample_rate": RATE,
    "win_length": 512,
    "n_fft": 512,
    "hop_length": 160,
    "center": True,
    "n_mels": 64,
    "f_min": 0.0,
    "f_max": 8000.0,
}
"""What a published configuration leaves out, since it is so by default."""
TOGETHER = 5
"""Patches of one token."""


def midashenglm(folder: Path, tower: dict[str, Any] | None = None) -> Path:
    """A checkpoint with random weights in ``folder``. ``tower`` changes the audio tower's configuration."""
    tokenizer = make_tokenizer(TEMPLATE, "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
    decoder = text(tokenizer, tie_word_embeddings=False)
    del decoder["head_dim"]
    config = {
        "architectures": ["MiDashengLMModel"],
        "auto_map": {
            "AutoConfig": "configuration_midashenglm.MiDashengLMConfig",
            "AutoModelForCausalLM": "modeling_midashenglm.MiDashengLMModel",
        },
        "model_type": "midashenglm",
        "audio_encoder_config": {**TOWER, **(tower or {})},
        "audio_token_id": tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
        "subsample_factor": TOGETHER,
        "text_config": {
            "model_type": "qwen2_5_omni_text",
            **decoder,
            "rope_scaling": {"mrope_section": mrope()["mrope_section"], "rope_type": "default", "type": "default"},
            "rope_theta": mrope()["rope_theta"],
        },
    }
    tokenizer.save_pretrained(folder)
    processor = {"processor_class": "MiDashengLMProcessor"}
    sampling = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": RATE, "do_normalize": False}
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    for name, content in {
        "config.json": config,
        "processor_config.json": {"auto_map": {"AutoProcessor": "processing_midashenglm.MiDashengLMProcessor"}, **processor},
        "preprocessor_config.json": {**processor, **sampling},
        "generation_config.json": {"eos_token_id": end, "pad_token_id": tokenizer.pad_token_id},
    }.items():
        (folder / name).write_text(json.dumps(content, indent=2))
    torch.manual_seed(1)
    _save_in_two(folder, {**_audio_weights(config["audio_encoder_config"]), **_decoder_weights(config["text_config"])})
    return folder


def _audio_weights(config: dict[str, Any]) -> dict[str, Tensor]:
    """All tensors of the audio half, with biases and scales that are not 0 and 1, so that forgetting one is found out."""
    whole = {**TOWER_DEFAULTS, **config}
    width, inner, mels = whole["embed_dim"], int(whole["embed_dim"] * whole["mlp_ratio"]), whole["n_mels"]

    def linear(name: str, rows: int, columns: int, bias: bool = True) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.weight", torch.randn(rows, columns) / columns**0.5
        if bias:
            yield f"{name}.bias", torch.randn(rows) * 0.1

    def norm(name: str, size: int = width) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.weight", 1 + torch.randn(size) * 0.1
        yield f"{name}.bias", torch.randn(size) * 0.1

    def audio() -> Iterator[tuple[str, Tensor]]:
        yield "front_end.0.spectrogram.window", torch.hann_window(whole["win_length"])
        yield "front_end.0.mel_scale.fb", torch.from_numpy(triangles(whole).T.copy()).float()
        yield from norm("init_bn", mels)
        yield "init_bn.running_mean", torch.randn(mels) * 5 - 20
        yield "init_bn.running_var", 200 + 100 * torch.rand(mels)
        yield "init_bn.num_batches_tracked", torch.tensor(1000)
        yield "patch_embed.proj.weight", torch.randn(width, 1, *whole["patch_size"]) / 16
        yield "patch_embed.proj.bias", torch.randn(width) * 0.1
        yield "time_pos_embed", torch.randn(1, width, 1, whole["target_length"] // whole["patch_stride"][1]) * 0.3
        yield "freq_pos_embed", torch.randn(1, width, 1, 1) * 0.3
        for number in range(whole["depth"]):
            block = f"blocks.{number}"
            yield from norm(f"{block}.norm1")
            yield from linear(f"{block}.attn.qkv", 3 * width, width, whole["qkv_bias"])
            yield from linear(f"{block}.attn.proj", width, width)
            yield from norm(f"{block}.norm2")
            yield from linear(f"{block}.mlp.fc1", inner, width)
            yield from linear(f"{block}.mlp.fc2", width, inner)
            if whole["init_values"] is not None:
                yield f"{block}.ls1.gamma", torch.randn(width)
                yield f"{block}.ls2.gamma", torch.randn(width)
        yield from norm("norm")

    projector = [*linear("net.0", WIDTH, TOGETHER * width), *linear("net.2", WIDTH, WIDTH)]
    return {
        **{f"audio_encoder.{name}": tensor for name, tensor in audio()},
        **{f"audio_projector.{name}": tensor for name, tensor in projector},
    }


def _decoder_weights(config: dict[str, Any]) -> dict[str, Tensor]:
    decoder = Qwen2_5OmniThinkerTextModel(Qwen2_5OmniTextConfig(**config))
    weights = {f"decoder.model.{name}": tensor for name, tensor in decoder.state_dict().items()}
    for tensor in weights.values():
        if tensor.ndim == 1:
            tensor.add_(torch.randn_like(tensor) * 0.1)
    return {**weights, "decoder.lm_head.weight": torch.randn(config["vocab_size"], config["hidden_size"]) * SPREAD}


def _save_in_two(folder: Path, weights: dict[str, Tensor]) -> None:
    """Into two files and their index; parts of both halves are in both."""
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    places = {name: files[number % 2] for number, name in enumerate(sorted(weights))}
    for file in files:
        save_file({name: weights[name].contiguous() for name in places if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


class Undivided:
    """The model in one piece: the audio half from its formulas, transformers' decoder with its three axes of positions."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        self.tower: dict[str, Any] = {**TOWER_DEFAULTS, **config["audio_encoder_config"]}
        weights: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            weights |= load_file(file)
        self.weights = {name: tensor.double().numpy() for name, tensor in weights.items() if not name.startswith("decoder.")}
        self.audio_token: int = config["audio_token_id"]
        self._decoder: Any = Qwen2_5OmniThinkerTextModel(Qwen2_5OmniTextConfig(**config["text_config"])).eval()
        self._decoder.load_state_dict(
            {name.removeprefix("decoder.model."): weights[name] for name in weights if name.startswith("decoder.model.")}
        )
        self.head = weights["decoder.lm_head.weight"]
        self.tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
        self._end = self.tokenizer.convert_tokens_to_ids("<|im_end|>")

    def embeddings(self, samples: np.ndarray) -> np.ndarray:
        """What stands for a sound, ``(tokens, hidden)`` float64."""
        return embeddings(samples, self.tower, self.weights, TOGETHER)

    def expand(self, token_ids: Sequence[int], sounds: Sequence[np.ndarray]) -> list[int]:
        """The prompt with each sound's token as often as it has embeddings, counted as the published processor does."""
        left = list(sounds)
        expanded: list[int] = []
        for token in token_ids:
            expanded += [token] * ((1 + len(left.pop(0)) // 160) // 4 // 5) if token == self.audio_token else [token]
        return expanded

    @torch.inference_mode()
    def greedy(self, token_ids: Sequence[int], sounds: Sequence[np.ndarray], count: int) -> list[int]:
        """The likeliest tokens after an expanded prompt with these ``sounds`` (16 kHz): ``count``, or up to one that ends."""
        ids = torch.tensor([token_ids])
        embeds = self._decoder.embed_tokens(ids)
        if sounds:
            rows = np.concatenate([self.embeddings(samples) for samples in sounds])
            embeds[ids == self.audio_token] = torch.from_numpy(rows).float()
        answer: list[int] = []
        while len(answer) < count and self._end not in answer:
            hidden = self._decoder(inputs_embeds=embeds, use_cache=False).last_hidden_state[0, -1]
            answer.append(int((self.head @ hidden).argmax()))
            embeds = torch.cat([embeds, self._decoder.embed_tokens(torch.tensor([[answer[-1]]]))], dim=1)
        return answer

    def answer(self, parts: Sequence[Part], max_tokens: int = 64) -> tuple[list[int], list[int]]:
        """Token ids of the expanded prompt, and of the greedy answer, as ``tests.chats.Undivided`` has them."""
        sounds = [_samples(part.data) for part in parts if isinstance(part, Sound)]
        content = [{"type": "audio"} if isinstance(part, Sound) else {"type": "text", "text": part} for part in parts]
        asked = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=True, add_generation_prompt=True, return_dict=True
        )
        token_ids = self.expand(asked["input_ids"], sounds)
        return token_ids, self.greedy(token_ids, sounds, max_tokens)


def _samples(data: bytes) -> np.ndarray:
    """A WAV file's samples of one channel, at the rate that the model hears, as transformers reads it."""
    samples: np.ndarray = load_audio(data_url(data, "audio/wav"), sampling_rate=RATE)
    return samples
