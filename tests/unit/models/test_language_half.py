"""Positions and templates of the language halves, and what adapters say of prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from services.language.engine.interface import Span
from services.language.models.facts import LanguageFacts
from services.language.models.generic import LanguageHalf
from services.language.prompt.conversation import Conversation
from services.language.prompt.expansion import check_modalities, edges_of, expand
from services.language.prompt.template import ChatTemplate
from shared.errors import InvalidRequest
from shared.families import FAMILIES, known_families, open_family
from shared.identity import Grid, MediaItem, Modality
from shared.layout import Layout
from tests.families import make


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LanguageFacts]:
    names = ("qwen2_5_vl", "qwen3_vl", "gemma3", "llava", "llava_onevision")
    return {name: LanguageFacts(make(name, tmp_path_factory.mktemp(name)), "cpu", "float32") for name in names}


def picture(tokens: int, grid: tuple[int, int, int]) -> MediaItem:
    return MediaItem("image", tokens, grid)


def test_items_that_touch_have_the_positions_that_they_have_with_text_between(checkpoints: dict[str, LanguageFacts]) -> None:
    half = checkpoints["qwen2_5_vl"].half
    pad, items = half.placeholders["image"], [picture(6, (1, 6, 4)), picture(2, (1, 2, 4)), picture(4, (1, 4, 4))]
    touching, spans = expand([1, pad, pad, pad, 2, 3], items, half.placeholders, half.media_ids)
    found = half.positions(touching, spans)
    apart, spread = expand([1, pad, 5, pad, 5, pad, 2, 3], items, half.placeholders, half.media_ids)
    wanted = half.positions(apart, spread)
    # A token between takes one position, and all after it come one later.
    kept = torch.tensor([at for at, token in enumerate(apart) if token != 5])
    late = torch.tensor([sum(token == 5 for token in apart[:at]) for at in kept.tolist()])
    assert torch.equal(found.ids, wanted.ids[:, kept] - late)
    assert found.following == wanted.following - 2


def test_a_picture_between_texts_moves_on_by_its_longer_side(checkpoints: dict[str, LanguageFacts]) -> None:
    half = checkpoints["qwen3_vl"].half
    pad = half.placeholders["image"]
    ids, spans = expand([1, pad, 2], [picture(6, (1, 6, 4))], half.placeholders, half.media_ids)
    found = half.positions(ids, spans)
    assert found.ids.tolist() == [[0, 1, 1, 1, 1, 1, 1, 4], [0, 1, 1, 2, 2, 3, 3, 4], [0, 1, 2, 1, 2, 1, 2, 4]]
    assert found.following == 5


def test_a_video_of_parted_frames_has_a_span_a_frame(checkpoints: dict[str, LanguageFacts]) -> None:
    half = checkpoints["qwen3_vl"].half
    token = half.placeholders["video"]
    video = MediaItem("video", 8, (2, 4, 4), Layout(((7, 2), (token, 4), (8, 1), (7, 2), (token, 4), (8, 1))))
    ids, spans = expand([1, token, 2], [video], half.placeholders, half.media_ids)
    assert [(span.start, span.offset, span.tokens) for span in spans] == [(3, 0, 4), (10, 4, 4)]
    found = half.positions(ids, spans).ids
    # Each frame begins where the text before it ends, and rows and columns begin anew.
    assert found[0, 3:7].tolist() == [3, 3, 3, 3]
    assert found[1, 3:7].tolist() == [3, 3, 4, 4]
    assert found[2, 10:14].tolist() == [8, 9, 8, 9]


def test_a_time_step_of_a_video_takes_as_many_positions_as_seconds(checkpoints: dict[str, LanguageFacts]) -> None:
    half = checkpoints["qwen2_5_vl"].half
    token, steps = half.placeholders["video"], []
    for seconds in (1.0, 2.0):
        video = MediaItem("video", 8, (2, 4, 4), seconds_per_grid=seconds)
        ids, spans = expand([1, token], [video], half.placeholders, half.media_ids)
        found = half.positions(ids, spans).ids
        steps.append(int(found[0, 5] - found[0, 1]))
    assert steps[1] == 2 * steps[0] > 0


def test_a_video_that_does_not_say_its_time_has_steps_of_a_second(checkpoints: dict[str, LanguageFacts]) -> None:
    half = checkpoints["qwen2_5_vl"].half
    token = half.placeholders["video"]
    videos = [MediaItem("video", 8, (2, 4, 4), seconds_per_grid=seconds) for seconds in (None, 1.0)]
    ids, spans = expand([token, 1, token], videos, half.placeholders, half.media_ids)
    found = half.positions(ids, spans).ids
    assert found[0, 4] - found[0, 0] == found[0, 13] - found[0, 9] > 0


def test_only_layouts_that_have_positions_and_known_tokens_fit(checkpoints: dict[str, LanguageFacts]) -> None:
    facts = checkpoints["qwen3_vl"]
    image, video = facts.half.placeholders["image"], facts.half.placeholders["video"]

    def fits(modality: Modality, grid: Grid, *runs: tuple[int, int]) -> bool:
        return facts.half.fits(MediaItem(modality, 4 * grid[0], grid, Layout(runs)))

    assert fits("image", (1, 4, 4), (image, 4))
    assert fits("image", (1, 4, 4), (7, 2), (image, 4), (8, 1))
    assert fits("video", (2, 4, 4), (7, 2), (video, 4), (8, 1), (video, 4))
    assert not fits("image", (1, 4, 4), (facts.vocab_size, 1), (image, 4))
    assert not fits("image", (1, 4, 4), (image, 2), (7, 1), (image, 2))
    assert not fits("video", (2, 4, 4), (video, 8))
    assert not fits("video", (2, 4, 4), (video, 3), (7, 1), (video, 2), (7, 1), (video, 3))
    # Pictures of other families may be in parts.
    llava = checkpoints["llava"].half
    token = llava.placeholders["image"]
    assert llava.fits(MediaItem("image", 4, layout=Layout(((token, 2), (7, 1), (token, 2)))))


def test_text_at_the_edges_becomes_tokens_with_the_text_beside_it(checkpoints: dict[str, LanguageFacts]) -> None:
    facts = checkpoints["gemma3"]
    template = ChatTemplate(facts.tokenizer, facts.half.placeholders.values())
    content = [{"type": "text", "text": "a\n"}, {"type": "image"}, {"type": "text", "text": "\nb"}]
    conversation = Conversation([{"role": "user", "content": content}])
    mark = facts.half.placeholders["image"]
    item = MediaItem("image", 2, layout=Layout(((mark, 1), (99, 2)), "\n\n", "\n\n"))
    assert edges_of([item]) == [("\n\n", "\n\n")]
    assert edges_of([picture(1, (1, 2, 2))]) == []
    widened = template.tokenize(conversation, edges_of([item]))
    at = widened.index(mark)
    rendered = facts.tokenizer.apply_chat_template(conversation.messages, tokenize=False, add_generation_prompt=True)
    before, after = rendered.split(facts.tokenizer.convert_ids_to_tokens(mark))
    assert widened[:at] == facts.tokenizer.encode(before + "\n\n", add_special_tokens=False)
    assert widened[at + 1 :] == facts.tokenizer.encode("\n\n" + after, add_special_tokens=False)
    # Tokens of its own they would not be.
    assert widened != [*template.plain(before), *template.plain("\n\n"), mark, *template.plain("\n\n"), *template.plain(after)]


def test_a_beginning_is_added_where_the_template_does_not_write_it(checkpoints: dict[str, LanguageFacts]) -> None:
    facts = checkpoints["llava"]
    template = ChatTemplate(facts.tokenizer, facts.half.placeholders.values())
    for words in ("Hello", "Hello <image>"):  # spelled out, it is text
        conversation = Conversation([{"role": "user", "content": [{"type": "text", "text": words}]}])
        ids = template.tokenize(conversation)
        assert ids.count(facts.tokenizer.bos_token_id) == 1
        assert ids[0] == facts.tokenizer.bos_token_id
        assert facts.half.placeholders["image"] not in ids


def test_one_picture_of_several_is_prepared_otherwise_than_one_alone(checkpoints: dict[str, LanguageFacts]) -> None:
    forms = checkpoints["llava_onevision"].half.forms
    assert forms(["image"]) == [""]
    assert forms(["image", "video"]) == ["", ""]
    assert forms(["image", "video", "image"]) == ["several", "", "several"]


def test_what_a_model_does_not_take_is_refused_by_name(checkpoints: dict[str, LanguageFacts]) -> None:
    half = checkpoints["llava"].half
    check_modalities(["image"], half.placeholders, ["a"])
    with pytest.raises(InvalidRequest, match="takes no sounds, only text, pictures") as error:
        check_modalities(["image", "audio"], half.placeholders, ["a", "b"])
    assert error.value.param == "b"


def test_spans_without_a_grid_have_plain_positions(checkpoints: dict[str, LanguageFacts]) -> None:
    half = checkpoints["llava"].half
    found = half.positions([1, 2, 3], [Span(1, MediaItem("image", 2), 0, 2)])
    assert (found.ids.tolist(), found.following) == ([[0, 1, 2]], 3)


def test_every_family_has_both_halves() -> None:
    for family in FAMILIES:
        assert issubclass(family.half("language"), LanguageHalf)
        assert hasattr(family.half("encoder"), "preprocess")


def test_the_seeds_families_have_its_attributes() -> None:
    hashed_first = {family.model_type for family in FAMILIES if family.half("encoder").precompute_hash_before_cpu_transfer}
    assert hashed_first == {"kimi_k25", "ernie4_5_vl_moe", "midashenglm"}
    tokenized_once = {family.model_type for family in FAMILIES if family.half("language").prefer_tokenized_input}
    assert tokenized_once == {"kimi_k25"}


@pytest.mark.parametrize(
    ("modules", "told"),
    [
        ("no.such.module", "no.such.module"),
        ("json", "no module with a FAMILY"),
        ("tests.unit.models.bad_family", "whose FAMILY"),
    ],
)
def test_families_from_elsewhere_must_be_families(modules: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        known_families(modules)


def test_a_family_that_is_not_served_is_refused_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match=r"family bert are not served; those that are: .*qwen3_vl"):
        open_family(tmp_path)


@pytest.mark.parametrize("written", ["[]", "7", '{"model_type": "qwen2_vl", "text_config": 5}', '{"model_type": ["llava"]}'])
def test_a_configuration_that_is_none_is_refused_with_a_sentence(tmp_path: Path, written: str) -> None:
    (tmp_path / "config.json").write_text(written)
    with pytest.raises(ValueError, match=r"config\.json|not served"):
        open_family(tmp_path)


def test_marks_are_seen_in_prompts_only(tmp_path: Path) -> None:
    half: Any = LanguageFacts(make("ernie4_5_vl_moe", tmp_path), "cpu", "float32").half
    token = half.placeholders["image"]
    begin = half.config.image_start_token_id
    assert half.token_inputs([1, begin, token, 2], prompt=True)["moe_mm_token_type_ids"].tolist() == [0, 1, 1, 0]
    assert half.token_inputs([1, begin, token, 2], prompt=False)["moe_mm_token_type_ids"].tolist() == [0, 0, 0, 0]
