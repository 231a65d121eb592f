"""InternVL: tiles of the shape that fits a picture best, and a small view of it all. Its settings lie in one file."""

from __future__ import annotations

from pathlib import Path

from transformers import GotOcr2ImageProcessorPil, InternVLConfig

from tests.families.parts import make_tokenizer, save, text, tower

TEMPLATE = """\
{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' %}{{ '<IMG_CONTEXT>\\n' }}{% elif part.type == 'video' %}{{ '<video>\\n' }}\
{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def internvl(folder: Path) -> Path:
    named = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    tokenizer = make_tokenizer(TEMPLATE, named=named)
    config = InternVLConfig(
        vision_config=tower(image_size=(32, 32), patch_size=(8, 8)),
        text_config={"model_type": "qwen2", **text(tokenizer)},
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    square = {"size": {"height": 32, "width": 32}}
    return save(
        folder,
        config,
        tokenizer,
        "InternVLProcessor",
        [GotOcr2ImageProcessorPil(**square, crop_to_patches=True, max_patches=6)],
        {"image_seq_length": 4},
        {"video_processor_type": "InternVLVideoProcessor", **square, "do_sample_frames": True, "num_frames": 4},
        nested=True,
    )
