"""The encoder's short cuts change nothing: patches, towers and token counts are those of transformers."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import Qwen2VLImageProcessorPil, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from examples.scenes import draw, random_scene
from services.encoder.models.generic import open_half
from services.encoder.models.patches import Patches, preprocess_by
from shared import products
from shared.errors import InvalidMedia
from shared.halves import load_half
from shared.products import product, use_products

CPU = torch.device("cpu")
SIZES = [(26, 28), (332, 27), (500, 19), (7, 1), (200, 1), (64, 64), (97, 211), (640, 360)]
MODES = ["RGB", "L", "LA", "RGBA", "P", "PA", "1", "CMYK", "YCbCr", "F"]
MEANS = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}


def noise(size: tuple[int, int], mode: str = "RGB", seed: int = 0) -> Image.Image:
    """A random picture; a mode that can be transparent is so here and there."""
    width, height = size
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 4), dtype=np.uint8)
    picture = Image.fromarray(pixels, "RGBA")
    return picture.convert("P").convert(mode) if mode == "PA" else picture.convert(mode)


def forbidden(*_: Any, **__: Any) -> Any:
    raise AssertionError("this must not be called")


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    """Equal in names, dtypes, shapes and every bit."""
    return found.keys() == wanted.keys() and all(
        found[name].dtype == wanted[name].dtype and torch.equal(found[name], wanted[name]) for name in wanted
    )


# ------------------------------------------------------------------------------------------------------------ pictures


def fast(processor: Qwen2VLImageProcessorPil) -> Patches:
    """What replaces the processor, which must be there."""
    found = preprocess_by(processor)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"patch_size": 16, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
        {"size": {"shortest_edge": 4000, "longest_edge": 4200}, "patch_size": 16},
        {"do_rescale": False},
        {"do_normalize": False},
        {"do_rescale": False, "do_normalize": False},
        {"rescale_factor": 1 / 127.5, "temporal_patch_size": 1, "merge_size": 1},
        {"resample": Image.Resampling.LANCZOS, "temporal_patch_size": 3, "merge_size": 4, "patch_size": 8},
    ],
)
def test_patches_are_the_stock_processors_bit_for_bit(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    stock = Qwen2VLImageProcessorPil(**MEANS | settings)
    processor = copy.deepcopy(stock)
    preprocess = fast(processor)
    monkeypatch.setattr(processor, "preprocess", forbidden)
    for seed, size in enumerate(SIZES):
        for mode in MODES:
            picture = noise(size, mode, seed)
            assert same(preprocess(picture), dict(stock(images=[picture], return_tensors="pt"))), (size, mode)


def test_a_colour_that_stands_for_transparency_becomes_white() -> None:
    stock = Qwen2VLImageProcessorPil()
    picture = Image.new("RGB", (56, 56), (10, 20, 30))
    opaque = fast(stock)(picture)
    picture.info["transparency"] = (10, 20, 30)
    found = fast(stock)(picture)
    assert same(found, dict(stock(images=[picture], return_tensors="pt")))
    assert not same(found, opaque)


class OtherProcessor(Qwen2VLImageProcessorPil):  # type: ignore[misc]
    """A family's own variant, which may do anything."""


@pytest.mark.parametrize(
    "processor",
    [
        Qwen2VLImageProcessorPil(do_resize=False),
        Qwen2VLImageProcessorPil(do_convert_rgb=False),
        Qwen2VLImageProcessorPil(do_center_crop=True, crop_size={"height": 56, "width": 56}),
        Qwen2VLImageProcessorPil(do_pad=True),
        OtherProcessor(),
    ],
)
def test_what_is_not_covered_is_left_to_the_processor(processor: Qwen2VLImageProcessorPil) -> None:
    assert preprocess_by(processor) is None


def test_a_picture_that_is_too_narrow_is_refused_with_the_stock_message(demo_model: Path) -> None:
    half = open_half(demo_model, "cpu")
    for size in ((1093, 5), (1, 201)):
        picture = Image.new("RGB", size)
        with pytest.raises(ValueError, match="aspect ratio must be smaller than 200") as stock:
            half.processor.image_processor(images=[picture], return_tensors="pt")
        with pytest.raises(InvalidMedia) as ours:
            half.preprocess(picture, param="messages.0")
        assert (ours.value.message, ours.value.param) == (str(stock.value), "messages.0")


def test_token_counts_are_what_the_processor_foretells() -> None:
    rng = random.Random(1)
    for patch, merge in ((14, 2), (16, 2), (16, 1)):
        processor = Qwen2VLImageProcessorPil(
            patch_size=patch, merge_size=merge, size={"shortest_edge": 64 * 64, "longest_edge": 200 * 200}
        )
        preprocess = fast(processor)
        for _ in range(100):
            width, height = rng.randint(1, 199), rng.randint(1, 199)
            found = preprocess(Image.new("RGB", (width, height)))
            patches = processor.get_number_of_image_patches(height, width)
            assert int(found["image_grid_thw"].prod()) == found["pixel_values"].shape[0] == patches


# ------------------------------------------------------------------------------------------------------------- towers


def qwen3_vl() -> Any:
    return Qwen3VLVisionModel(
        Qwen3VLVisionConfig(
            depth=4,
            hidden_size=64,
            intermediate_size=256,
            num_heads=4,
            out_hidden_size=96,
            num_position_embeddings=64,
            deepstack_visual_indexes=[0, 2],
        )
    )


def qwen2_5_vl() -> Any:
    return Qwen2_5_VisionTransformerPretrainedModel(
        Qwen2_5_VLVisionConfig(
            depth=4, hidden_size=64, intermediate_size=256, num_heads=4, out_hidden_size=96, fullatt_block_indexes=[3]
        )
    )


def qwen2_vl() -> Any:
    return Qwen2VisionTransformerPretrainedModel(Qwen2VLVisionConfig(depth=4, embed_dim=64, hidden_size=96, num_heads=4))


def outputs(tower: Any, patches: Tensor, grid: Tensor) -> list[Tensor]:
    """Tokens ``(tokens, width)`` after the merger, and those of each deepstack level."""
    with torch.inference_mode():
        output = tower(patches, grid_thw=grid, return_dict=True)
    return [output.pooler_output, *(getattr(output, "deepstack_features", None) or ())]


def example(make: Callable[[], Any]) -> tuple[Any, Tensor, Tensor]:
    """A tower of random weights, patches of three pictures, and their grids."""
    torch.manual_seed(0)
    tower = make().eval().requires_grad_(False)
    grid = torch.tensor([[1, 16, 20], [1, 4, 4], [1, 16, 20]])
    width = next(module for module in tower.modules() if isinstance(module, nn.Conv3d)).weight[0].numel()
    return tower, torch.randn(int(grid.prod(1).sum()), width), grid


def largest_difference(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    assert [tensor.shape for tensor in found] == [tensor.shape for tensor in wanted]
    return max((a.float() - b.float()).abs().max().item() for a, b in zip(found, wanted, strict=True))


@pytest.fixture(params=[False, True], ids=["mkl", "onednn"])
def onednn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both ways to multiply, on any processor, for products of any size."""
    if request.param and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(products, "mkl_is_slow", lambda: request.param)
    monkeypatch.setattr(products, "_WORTH_ONEDNN", 0)
    return bool(request.param)


@pytest.mark.parametrize("make", [qwen3_vl, qwen2_5_vl, qwen2_vl])
def test_towers_compute_the_same_without_a_convolution(
    make: Callable[[], Any], onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, patches, grid = example(make)
    tower = copy.deepcopy(stock)
    use_products(tower)
    wanted = outputs(stock, patches, grid)
    monkeypatch.setattr(nn.Conv3d, "_conv_forward", forbidden)
    if onednn:
        monkeypatch.setattr(torch.nn.functional, "linear", forbidden)
    assert largest_difference(outputs(tower, patches, grid), wanted) < 1e-5


@pytest.mark.parametrize("make", [qwen3_vl, qwen2_5_vl, qwen2_vl])
def test_parameters_stay_what_they_are(make: Callable[[], Any], onednn: bool) -> None:
    stock, _, _ = example(make)
    tower = copy.deepcopy(stock)
    use_products(tower)
    assert [name for name, _ in tower.named_parameters()] == [name for name, _ in stock.named_parameters()]
    assert all(torch.equal(a, b) for a, b in zip(tower.parameters(), stock.parameters(), strict=True))
    assert tower.state_dict().keys() == stock.state_dict().keys()
    assert any(isinstance(module, products.ProductLinear) for module in tower.modules()) == onednn


@pytest.mark.usefixtures("onednn")
def test_a_bfloat16_tower_is_close_to_float32() -> None:
    stock, patches, grid = example(qwen3_vl)
    tower = copy.deepcopy(stock).to(torch.bfloat16)
    use_products(tower)
    found = outputs(tower, patches.to(torch.bfloat16), grid)
    wanted = outputs(stock, patches, grid)
    assert all(tensor.dtype == torch.bfloat16 for tensor in found)
    assert largest_difference(found, wanted) < 0.02 * max(tensor.abs().max().item() for tensor in wanted)


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_takes_any_layout(bias: bool) -> None:
    torch.manual_seed(1)
    weight, offset = torch.randn(24, 40), torch.randn(24) if bias else None
    whole = torch.randn(3, 7, 80)
    with torch.inference_mode():
        for x in (whole[0, 0, :40], whole[0, :, :40], whole[..., ::2], whole[..., :40].transpose(0, 1), whole[:0, :, :40]):
            wanted = x.double() @ weight.double().T + (0 if offset is None else offset.double())
            torch.testing.assert_close(product(x, weight, offset).double(), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "convolution", [nn.Conv2d(3, 8, 4, 4), nn.Conv2d(3, 8, 4, 4, bias=False), nn.Conv3d(3, 8, (2, 4, 4), 4)]
)
def test_a_convolution_still_takes_more_than_one_kernel(convolution: nn.Conv2d | nn.Conv3d) -> None:
    changed = copy.deepcopy(convolution)
    use_products(changed)
    assert type(changed) is not type(convolution)
    kernel = convolution.kernel_size
    for size in (kernel, tuple(3 * side + 1 for side in kernel)):
        x = torch.randn(2, 3, *size)
        with torch.inference_mode():
            torch.testing.assert_close(changed(x), convolution(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", [{"padding": 1}, {"dilation": 2}, {"groups": 3}, {"padding": "same", "stride": 1}])
def test_convolutions_that_are_no_plain_product_stay(options: dict[str, Any]) -> None:
    convolution = nn.Conv2d(3, 6, 3, **options)
    use_products(convolution)
    assert type(convolution) is nn.Conv2d


# -------------------------------------------------------------------------------------------------------- the half as a whole


@pytest.fixture(scope="module")
def stock_model(demo_model: Path) -> Any:
    return Qwen3VLForConditionalGeneration.from_pretrained(demo_model).eval()


def test_a_half_encodes_as_the_undivided_model(demo_model: Path, stock_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    half = open_half(demo_model, "cpu", "float32")
    parameters = load_half(demo_model, "vision", CPU, torch.float32).parameters()
    assert half.parameters == {"model.visual": sum(parameter.numel() for parameter in parameters)}
    pictures = [noise(size, seed=seed) for seed, size in enumerate(SIZES)]
    stock = half.processor.image_processor
    counts = [stock.get_number_of_image_patches(p.height, p.width) // stock.merge_size**2 for p in pictures]
    with torch.inference_mode():
        inputs = stock(images=pictures, return_tensors="pt")
        wanted = stock_model.get_image_features(**inputs, return_dict=True)
    # Neither the processor nor its convolution does any of the work.
    monkeypatch.setattr(stock, "preprocess", forbidden)
    monkeypatch.setattr(nn.Conv3d, "_conv_forward", forbidden)
    items = [half.preprocess(picture) for picture in pictures]
    assert [item.num_tokens for item in items] == counts
    half.encode(items)
    for index, item in enumerate(items):
        assert item.embeds is not None
        assert item.num_tokens == counts[index] == item.embeds.shape[0]
        expected = [wanted.pooler_output[index], *(level[index] for level in wanted.deepstack_features)]
        scale = max(tensor.abs().max().item() for tensor in expected)
        assert largest_difference([item.embeds, *item.deepstack], expected) < 2e-5 * scale


def test_a_bfloat16_half_is_close_to_the_undivided_model(demo_model: Path, stock_model: Any) -> None:
    half = open_half(demo_model, "cpu", "bfloat16")
    item = half.preprocess(draw(random_scene(random.Random(8)), 224))
    half.encode([item])
    assert item.embeds is not None
    assert item.embeds.dtype == torch.bfloat16
    with torch.inference_mode():
        wanted = stock_model.get_image_features(**item.features, return_dict=True).pooler_output[0]
    assert torch.cosine_similarity(item.embeds.float(), wanted).min() > 0.99


def test_norms_by_root_mean_square_are_one_operation_and_others_stay() -> None:
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRMSNorm

    plain, other = Qwen3VLTextRMSNorm(48, 1e-6), Gemma3RMSNorm(48, 1e-6)
    for norm in (plain, other):
        torch.nn.init.normal_(norm.weight)
    hidden = torch.randn(2, 5, 48) * 10
    expected = [norm(hidden) for norm in (plain, other)]
    use_products(torch.nn.ModuleList([plain, other]))
    assert type(plain) is not Qwen3VLTextRMSNorm
    assert type(other) is Gemma3RMSNorm
    for norm, before in zip((plain, other), expected, strict=True):
        torch.testing.assert_close(norm(hidden), before, rtol=1e-6, atol=1e-6)
