"""The families of models that are served, and where the two halves of each are adapted.

A family is what a checkpoint's ``model_type`` says. Most need no code: the generic halves serve whatever transformers calls
uniformly. Families from elsewhere come from modules that ``EPD_FAMILIES`` names, each with a ``FAMILY``: see docs/models.md.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import AutoConfig
from transformers.utils import is_torchvision_available

from shared.foreign import read_part
from shared.identity import Modality

EXTRAS = {"torchvision": "torchvision", "video": "av", "audio": "soundfile", "smolvlm": "num2words"}
"""The extras of this package that media and processors need, each with a module that is there where it is installed."""

GENERIC_ENCODER = "services.encoder.models.generic:EncoderHalf"
GENERIC_LANGUAGE = "services.language.models.generic:LanguageHalf"


@dataclass(frozen=True, slots=True)
class Family:
    """One family. ``encoder`` and ``language`` are the classes of its halves, as ``module:name``; each service imports its own.

    ``extras`` are those of this package that serving it needs; videos always need ``video`` and sounds ``audio``, where
    ``modalities`` has them. ``configuration`` names its configuration class where transformers has none.
    """

    model_type: str
    title: str
    modalities: tuple[Modality, ...] = ("image",)
    encoder: str = GENERIC_ENCODER
    language: str = GENERIC_LANGUAGE
    extras: tuple[str, ...] = ()
    configuration: str | None = None

    def half(self, name: str) -> Any:
        """The class of ``encoder`` or ``language``."""
        return pkgutil.resolve_name(getattr(self, name))

    def needed(self) -> tuple[str, ...]:
        """The extras that an encoder needs for it and that are not installed."""
        wanted = (*self.extras, *(("audio",) if self.modalities == ("audio",) else ()))
        return tuple(extra for extra in wanted if find_spec(EXTRAS[extra]) is None)

    def require_extras(self) -> None:
        """Raises ValueError where ``needed`` are not installed."""
        if missing := self.needed():
            wanted = f"pip install 'epd-pair[{','.join(missing)}]'"
            raise ValueError(f"models of the family {self.model_type} need what is not installed: {wanted}")

    def here(self) -> tuple[Modality, ...]:
        """What it takes of ``modalities`` with what is installed: transformers' processors of videos need torchvision."""
        missing = () if is_torchvision_available() and find_spec(EXTRAS["video"]) else ("video",)
        return tuple(each for each in self.modalities if each not in missing)


_PICTURES: tuple[Modality, ...] = ("image",)
_SOUNDS: tuple[Modality, ...] = ("audio",)
_ALSO_VIDEOS: tuple[Modality, ...] = ("image", "video")
_ENCODERS, _LANGUAGES = "services.encoder.models", "services.language.models"

FAMILIES = (
    Family("qwen2_vl", "Qwen2-VL", _ALSO_VIDEOS),
    Family("qwen2_5_vl", "Qwen2.5-VL", _ALSO_VIDEOS),
    Family("qwen3_vl", "Qwen3-VL", _ALSO_VIDEOS),
    Family("qwen3_vl_moe", "Qwen3-VL MoE", _ALSO_VIDEOS),
    Family(
        "kimi_k25",
        "Kimi K2.5",
        _ALSO_VIDEOS,
        f"{_ENCODERS}.kimi_k25:KimiEncoderHalf",
        f"{_LANGUAGES}.kimi_k25:KimiLanguageHalf",
        extras=("torchvision",),
    ),
    Family(
        "ernie4_5_vl_moe",
        "ERNIE 4.5 VL MoE",
        _ALSO_VIDEOS,
        f"{_ENCODERS}.ernie4_5_vl_moe:ErnieEncoderHalf",
        f"{_LANGUAGES}.ernie4_5_vl_moe:ErnieLanguageHalf",
    ),
    Family(
        "midashenglm",
        "MiDashengLM",
        _SOUNDS,
        f"{_ENCODERS}.midashenglm:MiDashengEncoderHalf",
        f"{_LANGUAGES}.midashenglm:MiDashengLanguageHalf",
        configuration="shared.midashenglm:MiDashengLMConfig",
    ),
    Family("qwen2_audio", "Qwen2-Audio", _SOUNDS, f"{_ENCODERS}.qwen2_audio:Qwen2AudioEncoderHalf"),
    Family("internvl", "InternVL", _ALSO_VIDEOS),
    Family("llava", "LLaVA 1.5, Pixtral", _PICTURES),
    Family(
        "llava_onevision",
        "LLaVA-OneVision",
        _ALSO_VIDEOS,
        f"{_ENCODERS}.llava_onevision:OneVisionEncoderHalf",
        f"{_LANGUAGES}.llava_onevision:OneVisionLanguageHalf",
    ),
    Family("gemma3", "Gemma 3", _PICTURES, language=f"{_LANGUAGES}.gemma3:Gemma3LanguageHalf"),
    Family("mistral3", "Mistral 3", _PICTURES, f"{_ENCODERS}.mistral3:Mistral3EncoderHalf", extras=("torchvision",)),
    Family("idefics3", "Idefics 3", _PICTURES),
    Family(
        "smolvlm",
        "SmolVLM",
        _ALSO_VIDEOS,
        f"{_ENCODERS}.smolvlm:SmolVLMEncoderHalf",
        f"{_LANGUAGES}.smolvlm:SmolVLMLanguageHalf",
        extras=("smolvlm",),
    ),
    Family("glm4v", "GLM-4.1V", _ALSO_VIDEOS, f"{_ENCODERS}.glm4v:GlmEncoderHalf"),
    Family("glm4v_moe", "GLM-4.5V", _ALSO_VIDEOS, f"{_ENCODERS}.glm4v:GlmEncoderHalf"),
)


def known_families(modules: str = "") -> dict[str, Family]:
    """All families by ``model_type``. ``modules`` are names of Python modules, separated by commas, with a ``FAMILY`` each;
    theirs come before ours.

    Raises:
        ValueError: a module is not there, or has none.
    """
    return {family.model_type: family for family in (*FAMILIES, *_of_modules(modules))}


def _of_modules(modules: str) -> Iterable[Family]:
    for name in filter(None, (part.strip() for part in modules.split(","))):
        try:
            found = importlib.import_module(name).FAMILY
        except (ImportError, AttributeError) as error:
            raise ValueError(f"EPD_FAMILIES names {name}, which is no module with a FAMILY: {error}") from error
        if not isinstance(found, Family):
            raise ValueError(f"EPD_FAMILIES names {name}, whose FAMILY is no shared.families.Family")
        yield found


def open_family(folder: Path, modules: str = "", trusted: bool = False) -> tuple[Family, Any]:
    """The family of a checkpoint, and its configuration.

    Raises:
        ValueError: its family is not served; or its configuration is none, or needs code of the checkpoint's own, which is not
            ``trusted``.
        OSError: it has no configuration.
    """
    written = json.loads((folder / "config.json").read_text())
    if not isinstance(written, dict):
        raise ValueError(f"{folder / 'config.json'} holds no configuration")
    model_type = str(written.get("model_type"))
    families = known_families(modules)
    family = families.get(model_type)
    if family is None:
        raise ValueError(f"models of the family {model_type} are not served; those that are: {', '.join(sorted(families))}")
    if family.configuration is not None:
        AutoConfig.register(model_type, pkgutil.resolve_name(family.configuration), exist_ok=True)
    try:
        return family, read_part(AutoConfig, folder, trusted)
    except (ValueError, OSError):
        raise
    except Exception as error:  # transformers' complaints about wrong values are of many kinds
        raise ValueError(f"transformers cannot read {folder / 'config.json'}: {error}") from error


def media_token(config: Any, modality: Modality) -> int | None:
    """The token whose embeddings come from items of this kind, as the configuration says; None if it says none."""
    for name in (f"{modality}_token_id", f"{modality}_token_index"):
        token: int | None = getattr(config, name, None)
        if token is not None:
            return token
    return None
