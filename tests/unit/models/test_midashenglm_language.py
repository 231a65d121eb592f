"""MiDashengLM's language half is the published decoder, and with embeddings of sounds answers as the undivided model does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from services.encoder.media import Sound as Decoded
from services.encoder.models.generic import EncoderHalf, open_half
from services.language.engine.interface import EngineRequest, Prompt, Sampling
from services.language.engine.torch.core import EngineCore
from services.language.engine.torch.runner import Runner
from services.language.models.facts import LanguageFacts
from services.language.prompt.expansion import expand
from shared.identity import ContentHasher
from tests.chats import Part
from tests.families.media import samples, sound
from tests.families.midashenglm import RATE, Undivided, midashenglm
from tests.unit.engine.harness import run

CPU, FLOAT = torch.device("cpu"), torch.float32
TOKENS = 12
CASES: dict[str, list[tuple[int, float] | str]] = {
    "text only": ["Hello! What can you do?"],
    "one sound": [(1, 0.7), "What is this?"],
    "another sound": [(2, 0.7), "What is this?"],
    "two adjacent sounds": [(3, 0.7), (4, 0.7), "Which one is louder?"],
    "sound after text": ["Listen: ", (5, 0.7), " What is it?"],
    "different lengths": [(6, 0.2), (7, 1.9), "\n", (8, 3.0), "All?"],
    "nothing but a sound": [(9, 1.0)],
}
"""Text, and sounds by seed and seconds."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return midashenglm(tmp_path_factory.mktemp("midashenglm"))


@pytest.fixture(scope="module")
def undivided(folder: Path) -> Undivided:
    return Undivided(folder)


@pytest.fixture(scope="module")
def facts(folder: Path) -> LanguageFacts:
    return LanguageFacts(folder, "cpu", "float32")


@pytest.fixture(scope="module")
def encoder(folder: Path) -> EncoderHalf:
    return open_half(folder, "cpu", "float32")


def parts_of(case: Sequence[tuple[int, float] | str]) -> list[Part]:
    return [part if isinstance(part, str) else sound(*part) for part in case]


def request(
    facts: LanguageFacts, encoder: EncoderHalf, undivided: Undivided, case: Sequence[tuple[int, float] | str]
) -> EngineRequest:
    """What the service would have the engine compute for a message."""
    content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "audio"} for part in case]
    asked = facts.tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=True, add_generation_prompt=True, return_dict=True
    )
    items = [encoder.preprocess(Decoded(heard(*part), RATE)) for part in case if not isinstance(part, str)]
    for item in items:
        item.set_hash(ContentHasher(b"a secret of tests").hash(item.features))
    if items:
        encoder.encode(items)
    ids, spans = expand(asked["input_ids"], items, facts.half.placeholders, facts.half.media_ids)
    assert ids == undivided.answer(parts_of(case), 0)[0]
    stop = Sampling(TOKENS, temperature=0, stop_token_ids=facts.eos_ids)
    return EngineRequest("r", Prompt(ids, facts.half.positions(ids, spans), spans), stop)


def heard(seed: int, seconds: float) -> np.ndarray:
    """The samples as a WAV file of 16 bits has them."""
    return ((samples(seed, seconds) * 32_767).astype("<i2") / 32_768).astype(np.float32)


def test_answers_are_those_of_the_undivided_model(
    folder: Path, facts: LanguageFacts, encoder: EncoderHalf, undivided: Undivided
) -> None:
    core = EngineCore(Runner.load(folder, "cpu", "float32", block_size=4), 512, 4, 64, 64)
    answers = run(core, {number: request(facts, encoder, undivided, case) for number, case in enumerate(CASES.values())})
    for (name, case), answer in zip(CASES.items(), answers.values(), strict=True):
        assert answer == undivided.answer(parts_of(case), TOKENS)[1], name


def test_answers_depend_on_what_is_heard(undivided: Undivided) -> None:
    """Else the test above would prove nothing."""
    assert len({tuple(undivided.answer(parts_of(case), TOKENS)[1]) for case in CASES.values()}) == len(CASES)


def test_positions_count_tokens(facts: LanguageFacts) -> None:
    """The configuration has three axes of positions, of the model that its decoder comes from; sounds use one."""
    assert not facts.half.by_grid
    positions = facts.half.positions([5, 6, 7, 8], [])
    assert positions.ids.tolist() == [[0, 1, 2, 3]]
    assert positions.following == 4


def test_the_audio_token_is_the_placeholder(facts: LanguageFacts) -> None:
    audio = facts.tokenizer.convert_tokens_to_ids("<|AUDIO|>")
    assert facts.half.placeholders == {"audio": audio}
    assert facts.half.media_ids == {audio}


# -------------------------------------------------------------------------------------------------------------- loading


def changed(folder: Path, remove: str = "", tie: bool = False, **more: torch.Tensor) -> Path:
    """The checkpoint with one file of weights, without those that begin with ``remove``."""
    midashenglm(folder)
    weights = {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}
    for file in folder.glob("model*"):
        file.unlink()
    kept = {name: tensor for name, tensor in weights.items() if not (remove and name.startswith(remove))}
    save_file({**kept, **more}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["tie_word_embeddings"] = tie
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_other_halfs_tensors_are_not_read(tmp_path: Path) -> None:
    half = LanguageFacts(changed(tmp_path, "audio_"), "cpu", "float32").half
    model = half.load(tmp_path, CPU, FLOAT)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert dict(model.named_parameters()).keys() == set(file.keys())
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, file.get_tensor(name)), name


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    half = LanguageFacts(changed(tmp_path, "decoder.model.norm"), "cpu", "float32").half
    with pytest.raises(ValueError, match=r"lacks weights of the language half.*decoder\.model\.norm\.weight"):
        half.load(tmp_path, CPU, FLOAT)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    half = LanguageFacts(changed(tmp_path, **{"decoder.model.norm.weight": torch.zeros(7)}), "cpu", "float32").half
    with pytest.raises(ValueError, match=r"do not fit its configuration.*decoder\.model\.norm\.weight"):
        half.load(tmp_path, CPU, FLOAT)


def test_the_head_is_the_checkpoints_own(tmp_path: Path, undivided: Undivided) -> None:
    """Published configurations need not say so, and transformers takes that for the embeddings being the head, too."""
    half = LanguageFacts(changed(tmp_path / "silent", tie=True), "cpu", "float32").half
    assert torch.equal(half.load(tmp_path / "silent", CPU, FLOAT).lm_head.weight, undivided.head)
    half = LanguageFacts(changed(tmp_path / "headless", "decoder.lm_head", tie=True), "cpu", "float32").half
    with pytest.raises(ValueError, match=r"decoder\.lm_head\.weight"):
        half.load(tmp_path / "headless", CPU, FLOAT)


def test_quantized_weights_that_cannot_be_loaded_are_refused(tmp_path: Path) -> None:
    config = json.loads((midashenglm(tmp_path) / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    half = LanguageFacts(tmp_path, "cpu", "float32").half
    with pytest.raises(ValueError, match="quantized by gptq, which cannot be loaded here"):
        half.load(tmp_path, CPU, FLOAT)
