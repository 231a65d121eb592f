"""Qwen2-Audio: sounds as features of at most two seconds, with their count in the prompt."""

from __future__ import annotations

from pathlib import Path

from transformers import Qwen2AudioConfig, WhisperFeatureExtractor

from tests.families.parts import SPREAD, make_tokenizer, save, text

TEMPLATE = """\
{% set sounds = namespace(count=0) %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'audio' %}{% set sounds.count = sounds.count + 1 %}\
Audio {{ sounds.count }}: <|audio_bos|><|AUDIO|><|audio_eos|>
{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def qwen2_audio(folder: Path) -> Path:
    tokenizer = make_tokenizer(TEMPLATE, "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
    config = Qwen2AudioConfig(
        audio_config={
            "num_mel_bins": 16,
            "d_model": 32,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "max_source_positions": 100,
            "initializer_range": SPREAD,
        },
        text_config={"model_type": "qwen2", **text(tokenizer)},
        audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
    )
    return save(folder, config, tokenizer, "Qwen2AudioProcessor", [WhisperFeatureExtractor(feature_size=16, chunk_length=2)])
