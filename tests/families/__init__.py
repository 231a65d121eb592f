"""Tiny checkpoints with random weights, one builder a family; each is made in a second or two, in a temporary folder."""

from __future__ import annotations

import pkgutil
from pathlib import Path

BUILDERS = {
    "qwen2_vl": "tests.families.qwen:qwen2_vl",
    "qwen2_5_vl": "tests.families.qwen:qwen2_5_vl",
    "qwen3_vl": "tests.families.qwen:qwen3_vl",
    "qwen3_vl_moe": "tests.families.qwen:qwen3_vl_moe",
    "llava": "tests.families.llava:llava",
    "llava_onevision": "tests.families.llava:llava_onevision",
    "pixtral": "tests.families.mistral:pixtral",
    "mistral3": "tests.families.mistral:mistral3",
    "gemma3": "tests.families.gemma:gemma3",
    "idefics3": "tests.families.idefics:idefics3",
    "smolvlm": "tests.families.idefics:smolvlm",
    "internvl": "tests.families.internvl:internvl",
    "glm4v": "tests.families.glm:glm4v",
    "glm4v_moe": "tests.families.glm:glm4v_moe",
    "ernie4_5_vl_moe": "tests.families.ernie:ernie4_5_vl_moe",
    "qwen2_audio": "tests.families.sounds:qwen2_audio",
    "midashenglm": "tests.families.midashenglm:midashenglm",
    "kimi_k25": "tests.families.kimi:kimi_k25",
}
"""By name, which is the ``model_type``, or what goes by another one (Pixtral is a ``llava``)."""

ALSO_CALLED = {"pixtral": "llava"}
"""The ``model_type`` of those that do not go by it."""

SOUNDED = ("qwen2_audio", "midashenglm")
"""Those that take sounds; all others take pictures."""

PICTURED = tuple(name for name in BUILDERS if name not in SOUNDED)

FILMED = (
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"),
    *("llava_onevision", "smolvlm", "internvl", "glm4v", "glm4v_moe", "ernie4_5_vl_moe", "kimi_k25"),
)
"""Those that take videos, where torchvision is installed."""

NOT_MIXED = ("smolvlm", "glm4v", "glm4v_moe")
"""Those of which transformers cannot take both pictures and videos in one prompt."""

NEED_TORCHVISION = ("pixtral", "mistral3", "kimi_k25")
"""Those whose processor transformers does not have without it."""


def make(name: str, folder: Path, **options: int) -> Path:
    """The tiny checkpoint called ``name``, in ``folder``: config, weights, tokenizer with chat template, and processor.
    ``options`` are those of its builder."""
    return Path(pkgutil.resolve_name(BUILDERS[name])(folder, **options))
