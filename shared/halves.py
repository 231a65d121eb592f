"""Where a vision-language model is cut in two, and how to load one half without paying for the other.

The transformers class of the checkpoint is built on the meta device (no memory), the other half is taken out of it, and only
then are weights read: tensors of the missing half are never touched, neither on disk nor in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText, AutoModelForMultimodalLM, PreTrainedModel
from transformers.utils import is_accelerate_available
from transformers.utils import logging as transformers_logging

from shared.checkpoint import count_parameters
from shared.foreign import foreign_model, read_part
from shared.quantization import quantization_of, require_quantizer, unpacking, unpacks
from shared.weights import Stored, names_read

Half = Literal["vision", "language"]

_NAMED = 5


@dataclass(frozen=True, slots=True)
class Sketch:
    """A half as it would be loaded, without any numbers: parameters by module, the bytes that they take in memory, and names of
    the stored tensors that are read for them."""

    parameters: dict[str, int]
    weight_bytes: int
    names: frozenset[str]


def load_half(
    folder: Path, half: Half, device: torch.device, dtype: torch.dtype, config: Any = None, own: Any = None
) -> PreTrainedModel:
    """The checkpoint's own class with one half in it, in evaluation mode, frozen, on ``device``. ``config`` is the checkpoint's
    configuration, where that was read already; ``own`` the class of the half, where it is not cut out of another.

    Of a checkpoint in several files, only those are opened that have tensors of this half. A quantized one is loaded by
    transformers' quantizer, which keeps weights packed where it can compute with them on this machine.

    Raises:
        ValueError: the checkpoint is of no family that can be cut, lacks weights of this half, or is quantized in a way that
            cannot be loaded here; or it needs code of its own.
        OSError: the weights cannot be read.
    """
    config = unpacking(read_part(AutoConfig, folder) if config is None else config)
    require_quantizer(config)
    # Some quantizers place weights only while they are loaded.
    place = {"device_map": {"": device}} if quantization_of(config) and is_accelerate_available() else {}
    model = _load(_loader(config, half, own), half, folder, config=config, dtype=dtype, **place)
    return cast(PreTrainedModel, (model if place else model.to(device)).eval().requires_grad_(False))


def sketch_half(config: Any, half: Half, dtype: torch.dtype, tensors: Mapping[str, Stored], own: Any = None) -> Sketch:
    """What ``load_half`` would load of a checkpoint with these ``tensors``, found out without reading any.

    Whether all is there is seen too, except where weights are quantized: what those become depends on what is in them.

    Raises:
        ValueError: as ``load_half``.
    """
    config = unpacking(config)
    require_quantizer(config)
    counts = count_parameters(empty_half(config, half, own).named_parameters())
    stored = {name: tensor.sketch() for name, tensor in tensors.items()}
    loader = _loader(config, half, own, sketch=True)
    try:
        model = _load(loader, half, None, config=config, dtype=dtype, state_dict=stored)
        weight_bytes = sum(each.numel() * each.element_size() for each in (*model.parameters(), *model.buffers()))
    except _Quantized as found:
        weight_bytes = (
            sum(counts.values()) * dtype.itemsize if found.unpacked else sum(tensors[name].size for name in loader.names)
        )
    return Sketch(counts, weight_bytes, frozenset(loader.names))


def empty_half(config: Any, half: Half, own: Any = None) -> PreTrainedModel:
    """The half without weights (on the meta device), for what only needs the configuration, such as rotary positions.

    Raises:
        ValueError: the checkpoint is of no family that can be cut.
    """
    with torch.device("meta"):
        model = (own or whole_class(config))(config)
    if own is None:
        remove_other_half(model, half)
    return cast(PreTrainedModel, model)


class _Quantized(Exception):
    """The sketch of a quantized half ends here. ``unpacked``: whether weights are plain numbers once they are loaded."""

    def __init__(self, unpacked: bool) -> None:
        super().__init__()
        self.unpacked = unpacked


def _load(loader: Any, half: Half, source: Path | None, **options: Any) -> Any:
    """What ``loader`` loads.

    Raises:
        ValueError: weights are missing, or of another shape than the configuration says.
        RuntimeError: transformers did not load by way of ``loader``, so that the half would be the whole.
    """
    transformers_logging.disable_progress_bar()
    options |= {"output_loading_info": True, "local_files_only": True, "use_safetensors": True, "ignore_mismatched_sizes": True}
    model, report = loader.from_pretrained(source, **options)
    if not loader.cut:
        raise RuntimeError("this version of transformers loads weights in another way than the halves are cut for")
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"the checkpoint lacks weights of the {half} half: {_some(missing)}")
    return model


def _loader(config: Any, half: Half, own: Any, sketch: bool = False) -> Any:
    """A subclass of the checkpoint's class that loads one half; a sketch notes ``names`` of what that is made of.

    The model is whole until its weights are read: whatever transformers decides before, such as which layers are quantized and
    how published names become its own, is decided as for the undivided model.
    """
    whole: Any = own or whole_class(config)

    class Loader(whole):  # type: ignore[misc]
        cut, names = False, set[str]()
        # Tensors of the other half are unexpected on purpose; missing ones are checked after loading.
        _keys_to_ignore_on_load_unexpected = (r".*",)

        @staticmethod
        def _load_pretrained_model(model: Any, state_dict: Any, files: Any, plan: Any, *rest: Any) -> Any:
            if own is None:
                remove_other_half(model, half)
            Loader.cut = True
            if sketch:
                Loader.names = names_read(model, state_dict, plan.weight_mapping or [])
                plan = replace(plan, device_map={"": torch.device("meta")})
                if plan.hf_quantizer is not None:
                    raise _Quantized(unpacks(plan.hf_quantizer))
            else:
                files = _files_of(model, files, plan)
            loaded = whole._load_pretrained_model(model, state_dict, files, plan, *rest)
            _check(loaded[0], half)
            return loaded

    # transformers looks conversions of weights up by these, and would take another module for foreign code.
    Loader.__name__, Loader.__module__ = whole.__name__, whole.__module__
    return Loader


def _files_of(model: Any, files: list[str], plan: Any) -> list[str]:
    """Those of a checkpoint's files that have tensors of ``model``.

    Raises:
        ValueError: none has, or one is no safetensors file: others may run code when they are read.
    """
    if foreign := [file for file in files if not file.endswith(".safetensors")]:
        raise ValueError(f"{foreign[0]} is not in the safetensors format")
    if plan.sharded_metadata is None:
        return files
    places: dict[str, str] = plan.sharded_metadata["weight_map"]
    folder = Path(plan.pretrained_model_name_or_path)
    wanted = {folder / places[name] for name in names_read(model, places, plan.weight_mapping or [])}
    if not wanted:
        raise ValueError("the checkpoint's index names no weights of this half")
    return [file for file in files if Path(file) in wanted]


def _check(report: Any, half: Half) -> None:
    """Raises ValueError where weights cannot become the half's."""
    for name, reason in sorted(report.conversion_errors.items()):
        raise ValueError(f"the checkpoint's weights of the {half} half cannot be converted: {name}: {reason}")
    if report.mismatched_keys:
        shapes = [f"{name} is {list(found)} and not {list(wanted)}" for name, found, wanted in sorted(report.mismatched_keys)]
        raise ValueError(f"the checkpoint's weights do not fit its configuration: {_some(shapes)}")


def _some(names: Sequence[str]) -> str:
    """The first few of ``names``, and how many more there are."""
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def whole_class(config: Any) -> Any:
    """The class of the undivided model: transformers', or one that the checkpoint brought along.

    Raises:
        ValueError: there is none that takes pictures, videos or sounds.
    """
    foreign = foreign_model(config)
    if foreign is not None:
        return foreign
    for auto in (AutoModelForImageTextToText, AutoModelForMultimodalLM):
        if type(config) in auto._model_mapping:
            return auto._model_mapping[type(config)]
    raise ValueError(f"transformers has no class for models of the family {config.model_type} that take media")


def remove_other_half(model: Any, half: Half) -> None:
    """Takes the modules and parameters of the other half out of ``model``, in place.

    The language half is the decoder and what stands beside the base model (the head); the vision half is all the rest.

    Raises:
        ValueError: the decoder is not a direct part of the base model.
    """
    base: nn.Module = model.base_model
    decoder = model.get_decoder()
    names = [name for name, child in base.named_children() if child is decoder]
    if len(names) != 1:
        raise ValueError(f"{type(model).__name__} keeps its decoder where the cut does not reach")
    if half == "vision":
        delattr(base, names[0])
        for name, child in list(model.named_children()):
            if child is not base:
                delattr(model, name)
    else:
        for name, _ in list(base.named_children()):
            if name != names[0]:
                delattr(base, name)
        for name, _ in list(base.named_parameters(recurse=False)):
            delattr(base, name)
    # Their classes would look for what is gone when they give first values to what has no weights, such as rotary frequencies.
    model._is_hf_initialized = base._is_hf_initialized = True  # type: ignore[assignment]
    kept = set(model.state_dict())
    model.all_tied_weights_keys = {
        name: other for name, other in model.all_tied_weights_keys.items() if name in kept and other in kept
    }
