"""Idefics 3 and SmolVLM: a picture is cut into rows of tiles, and each tile is announced by tokens that say where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Idefics3Config, Idefics3ImageProcessorPil, SmolVLMConfig, SmolVLMImageProcessorPil

from tests.families.parts import make_tokenizer, save, text, tower

MARKS = (
    "<fake_token_around_image>",
    "<image>",
    "<end_of_utterance>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)
SIZES = {"size": {"longest_edge": 128}, "max_image_size": {"longest_edge": 32}}
TURNS = """\
{% for message in messages %}{{ message.role | capitalize }}{% if message.content[0].type == 'image' %}:{% else %}: {% endif %}\
{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% elif part.type == 'image' %}<image>\
{% elif part.type == 'video' %}<video>{% endif %}{% endfor %}<end_of_utterance>
{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"""


def _config(config: type[Any], tokenizer: Any) -> Any:
    return config(
        vision_config=tower(),
        text_config={"model_type": "llama", **text(tokenizer)},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
    )


def idefics3(folder: Path) -> Path:
    tokenizer = make_tokenizer("<|begin_of_text|>" + TURNS, *MARKS, bos="<|begin_of_text|>")
    pictures = Idefics3ImageProcessorPil(**SIZES)
    return save(folder, _config(Idefics3Config, tokenizer), tokenizer, "Idefics3Processor", [pictures], {"image_seq_len": 4})


def smolvlm(folder: Path) -> Path:
    named = {"fake_image_token": "<fake_token_around_image>", "image_token": "<image>", "global_image_token": "<global-img>"}
    named |= {"end_of_utterance_token": "<end_of_utterance>", "video_token": "<video>"}
    tokenizer = make_tokenizer("<|im_start|>" + TURNS, *MARKS, named=named)
    return save(
        folder,
        _config(SmolVLMConfig, tokenizer),
        tokenizer,
        "SmolVLMProcessor",
        [SmolVLMImageProcessorPil(**SIZES)],
        {"image_seq_len": 4},
        {
            "video_processor_type": "SmolVLMVideoProcessor",
            "size": {"longest_edge": 32},
            "max_image_size": {"longest_edge": 32},
            "video_sampling": {"fps": 1, "max_frames": 8, "video_size": {"longest_edge": 32}},
        },
    )
