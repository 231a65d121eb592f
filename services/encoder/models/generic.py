"""The encoder half of any family that transformers calls uniformly: a processor, and ``get_image_features`` and its kin."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers.video_utils import VideoMetadata

from services.encoder.media import Media, Sound, Video
from services.encoder.models.detail import low_settings
from services.encoder.models.layouts import Layouts
from services.encoder.models.patches import preprocess_by
from services.encoder.models.processor import load_processor
from shared.checkpoint import count_parameters, pick_device, pick_dtype
from shared.control import LOW_DETAIL
from shared.errors import media_errors
from shared.families import Family, media_token, open_family
from shared.halves import Sketch, load_half, sketch_half
from shared.identity import MediaItem, Modality
from shared.products import use_products
from shared.weights import Stored

_TEXT = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")
"""What processors return for the text; all else goes to the tower."""


class EncoderHalf:
    """Processor and tower of one checkpoint. Methods block; the pipeline calls them in threads. A family file overrides what
    differs.

    ``precompute_hash_before_cpu_transfer`` is what ``shared.residency.Family`` says. ``modalities`` are those that can be taken
    with what is installed; the family's others are ``lacking``.
    """

    precompute_hash_before_cpu_transfer = False

    def __init__(self, folder: Path, config: Any, family: Family, device: str, dtype: str, trusted: bool = False) -> None:
        self.config = config
        self.trusted = trusted
        self.modalities = family.here()
        self.lacking = tuple(modality for modality in family.modalities if modality not in self.modalities)
        self.device = pick_device(device)
        self.dtype = pick_dtype(dtype, self.device)
        self.model_type: str = config.model_type
        self.processor: Any = self.load_processor(folder)
        self._model: Any = self.load(folder, config, self.device, self.dtype)
        use_products(self._model)
        self._media_ids = frozenset(
            token for token in (media_token(config, modality) for modality in family.modalities) if token is not None
        )
        self._patches = preprocess_by(getattr(self.processor, "image_processor", None))

    def load_processor(self, folder: Path) -> Any:
        """What makes features of media; has ``to_dict``."""
        return load_processor(folder, self.config, self.modalities, self.trusted)

    @staticmethod
    def load(folder: Path, config: Any, device: torch.device, dtype: torch.dtype) -> Any:
        """The weights of this half.

        Raises:
            ValueError: the checkpoint lacks some.
            OSError: they cannot be read.
        """
        return load_half(folder, "vision", device, dtype, config)

    @staticmethod
    def sketch(config: Any, dtype: torch.dtype, tensors: Mapping[str, Stored]) -> Sketch:
        """What ``load`` would load of a checkpoint with these ``tensors``.

        Raises:
            ValueError: as ``load``.
        """
        return sketch_half(config, "vision", dtype, tensors)

    @property
    def parameters(self) -> dict[str, int]:
        """Numbers of parameters by module."""
        return count_parameters(self._model.named_parameters())

    @property
    def sound_rate(self) -> int:
        """Samples of a sound for each second, as the tower wants them."""
        return int(self.processor.feature_extractor.sampling_rate)

    def choose_frames(self, total: int, fps: float, duration: float) -> list[int]:
        """Which frames of a video the family looks at, by its processor's rules.

        Raises:
            ValueError: the video is too short for them.
        """
        sampler = self.processor.video_processor
        if not self.samples_frames:
            return list(range(total))
        # The processor's own call passes all of its settings along, too.
        settings = {name: getattr(sampler, name, None) for name in sampler.valid_kwargs.__annotations__}
        metadata = VideoMetadata(total_num_frames=total, fps=fps, duration=duration)
        return [int(at) for at in sampler.sample_frames(metadata, **settings)]

    @property
    def samples_frames(self) -> bool:
        """Whether the family chooses among a video's frames at all."""
        return bool(self.processor.video_processor.do_sample_frames)

    def preprocess(self, media: Media, form: str = "", param: str | None = None) -> MediaItem:
        """The processor's features of one item, on the device, and what stands for it in the prompt. ``num_tokens`` is 0 where
        only the tower can tell. ``form`` is what the language service asks for, in words: those of the language half's
        ``forms``, and ``LOW_DETAIL``.

        Raises:
            InvalidMedia: the processor cannot take it (too narrow, for example).
        """
        with media_errors(param):
            item = self.features(media, form)
        item.features = {name: value.to(self.device) for name, value in item.features.items()}
        return item

    def low_detail(self) -> dict[str, Any]:
        """The keyword arguments by which the family's processor looks at a picture in low detail; none where it cannot."""
        return low_settings(self.processor.image_processor)

    def features(self, media: Media, form: str) -> MediaItem:
        """An item with its features on the CPU.

        Raises:
            ValueError: the processor cannot take it.
        """
        if isinstance(media, Image.Image):
            low = self.low_detail() if LOW_DETAIL in form.split() else {}
            if self._patches is not None:
                features = self._patches(media, low.get("size"))
                item = MediaItem("image", 0, features=features)
                item.grid_thw = grid = _grid(features["image_grid_thw"])
                item.num_tokens = math.prod(grid) // self.config.vision_config.spatial_merge_size**2
                return item
            try:
                return self.processed("image", images=[media], **low)
            except ValueError as error:
                width, height = media.size
                ratio = max(width, height) / min(width, height)
                text = f"The model's processor cannot take a picture of {width}x{height}, whose ratio is {ratio:.4g}: {error}"
                raise ValueError(text) from error
        if isinstance(media, Sound):
            return self.processed("audio", audio=[media.samples], sampling_rate=media.rate)
        return self.processed("video", videos=[_frames(media)], video_metadata=[_metadata(media)], do_sample_frames=False)

    def processed(self, modality: Modality, places: int = 1, **given: Any) -> MediaItem:
        """What the processor makes of an item beside its placeholder, or of the first of several with as many ``places``; then
        the features are those of all."""
        placeholder: str = getattr(self.processor, f"{modality}_token")
        outputs = self.processor(
            text=[placeholder * places],
            **given,
            return_tensors="pt",
            add_special_tokens=False,
            return_text_replacement_offsets=True,
        )
        tokens = outputs["input_ids"][0].tolist()
        tokens = tokens[: len(tokens) // places]
        replacements = outputs.get("text_replacement_offsets")
        layout = self._layouts.of(tokens, replacements[0][0]["replacement"] if replacements else None)
        item = MediaItem(modality, layout.count(self._media_ids), layout=layout)
        if not item.num_tokens:
            raise ValueError(f"The {modality} is too short or too small: the model's processor makes no tokens of it.")
        seconds = outputs.get("second_per_grid_ts")
        if seconds is not None:
            item.seconds_per_grid = float(seconds[0])
        item.features = {
            name: value
            for name, value in outputs.items()
            if isinstance(value, Tensor) and name not in _TEXT and name != "second_per_grid_ts"
        }
        grids = item.features.get(f"{modality}_grid_thw")
        if grids is not None and len(grids) == 1:
            item.grid_thw = _grid(grids)
        return item

    @cached_property
    def _layouts(self) -> Layouts:
        return Layouts(self.processor.tokenizer)

    @torch.inference_mode()
    def encode(self, items: Sequence[MediaItem]) -> None:
        """Runs the tower over all ``items``, those that fit together at once, and writes their ``embeds`` and ``deepstack``, on
        the device."""
        for _, alike in groupby(sorted(items, key=_kind), key=_kind):
            self._encode(list(alike))
        for item in items:
            assert item.embeds is not None
            if item.layout is not None and item.embeds.shape[0] != item.num_tokens:
                raise RuntimeError(f"the tower made {item.embeds.shape[0]} tokens of an item that has {item.num_tokens}")
            item.num_tokens = item.embeds.shape[0]

    def _encode(self, items: Sequence[MediaItem]) -> None:
        names = items[0].features.keys()
        inputs = {name: torch.cat([item.features[name] for item in items]).to(self.device) for name in names}
        inputs = {name: value.to(self.dtype) if value.is_floating_point() else value for name, value in inputs.items()}
        output = self.tower(items[0].modality, inputs)
        levels: Sequence[Sequence[Tensor]] = getattr(output, "deepstack_features", None) or ()
        rows = list(_rows_of(items, output.pooler_output))
        for index, (item, parts) in enumerate(zip(items, rows, strict=True)):
            item.embeds = parts
            item.deepstack = tuple(level[index] for level in levels)

    def tower(self, modality: Modality, inputs: dict[str, Tensor]) -> Any:
        """What transformers' class makes of the features of alike items; ``pooler_output`` has their embeddings."""
        kind = "image" if modality == "video" and not any("video" in name for name in inputs) else modality
        return getattr(self._model, f"get_{kind}_features")(**inputs, return_dict=True)

    def warm_up(self) -> None:
        """Runs one small item of each kind through everything, so that the first request does not pay for lazy set-up."""
        small: list[Media] = []
        if "image" in self.modalities:
            small.append(Image.new("RGB", (64, 64), "white"))
        if "audio" in self.modalities:
            small.append(Sound(np.zeros(self.sound_rate, dtype=np.float32), self.sound_rate))
        for media in small:
            self.encode([self.preprocess(media)])


def open_half(
    folder: Path, device: str = "auto", dtype: str = "auto", families: str = "", trusted: bool = False
) -> EncoderHalf:
    """The encoder half of a checkpoint, by its family. ``families`` names modules with more of them.

    Raises:
        ValueError: its family is not served, weights are missing, or it needs a library that is not installed.
        OSError: a file cannot be read.
    """
    family, config = open_family(folder, families, trusted)
    family.require_extras()
    half: EncoderHalf = family.half("encoder")(folder, config, family, device, dtype, trusted)
    return half


def _kind(item: MediaItem) -> tuple[object, ...]:
    """What must be equal of items that the tower takes together: all shapes, but for the numbers of patches."""
    packed = item.grid_thw is not None
    shapes = ((name, *value.shape[1 if packed else 0 :]) for name, value in sorted(item.features.items()))
    return item.modality, packed, *shapes


def _rows_of(items: Sequence[MediaItem], output: Tensor | Sequence[Tensor]) -> Iterator[Tensor]:
    """Each item's share of the tower's output, ``(tokens, hidden)``: one part, or as many as it has rows in some feature
    (tiles, pictures of a video).

    Raises:
        RuntimeError: the output cannot be shared out so.
    """
    counts = [1] * len(items)
    if len(output) != len(items):
        for name in items[0].features:
            counts = [len(item.features[name]) for item in items]
            if sum(counts) == len(output):
                break
        else:
            raise RuntimeError(f"the tower returned {len(output)} parts for {len(items)} items")
    at = 0
    for count in counts:
        parts = [part.reshape(-1, part.shape[-1]) for part in output[at : at + count]]
        yield parts[0] if count == 1 else torch.cat(parts)
        at += count


def _grid(grids: Tensor) -> tuple[int, int, int]:
    time, height, width = grids[0].tolist()
    return time, height, width


def _frames(video: Video) -> Tensor:
    """``(n, 3, height, width)`` uint8."""
    return torch.from_numpy(video.frames).permute(0, 3, 1, 2)


def _metadata(video: Video) -> VideoMetadata:
    return VideoMetadata(
        total_num_frames=video.total_frames, fps=video.fps, duration=video.duration, frames_indices=list(video.indices)
    )
