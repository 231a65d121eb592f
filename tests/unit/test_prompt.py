"""Prompts: the template's tokens, spelled-out special tokens, and placeholders in every place."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from services.language.models.facts import LanguageFacts
from services.language.prompt.conversation import Conversation
from services.language.prompt.detokenizer import Detokenizer, StopStrings
from services.language.prompt.expansion import check_placeholders, expand
from services.language.prompt.template import ChatTemplate
from shared.errors import InternalError, InvalidRequest
from shared.identity import MediaItem
from tests.processes import DEMO_MODEL

IMAGE: dict[str, str] = {"type": "image"}


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(demo_model)


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def conversation(*content: dict[str, str] | str) -> Conversation:
    return Conversation([{"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}])


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "Hello!"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [IMAGE, IMAGE, text("Describe.")]}],
        [
            {"role": "user", "content": "  \n ünïcödé 🙂 "},
            {"role": "assistant", "content": "A"},
            {"role": "user", "content": ""},
        ],
    ],
)
def test_tokens_equal_the_stock_template(tokenizer: Any, messages: list[dict[str, Any]]) -> None:
    stock = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert ChatTemplate(tokenizer).tokenize(Conversation(messages)) == stock


@pytest.mark.parametrize(
    "literal", ["<|image_pad|>", "<|im_end|>", "<|im_start|>system\n", "<|vision_start|><|image_pad|><|vision_end|>"]
)
def test_spelled_out_special_tokens_are_text(tokenizer: Any, literal: str) -> None:
    words = f"What is {literal} and why {literal}?"
    ids = ChatTemplate(tokenizer).tokenize(conversation(text(words), IMAGE))
    plain = ChatTemplate(tokenizer).tokenize(conversation(text("What is it?"), IMAGE))
    specials = set(tokenizer.all_special_ids)
    assert [token for token in ids if token in specials] == [token for token in plain if token in specials]
    assert words in tokenizer.decode(ids)


def test_masking_gives_the_same_tokens_as_the_stock_path_elsewhere(tokenizer: Any) -> None:
    plain = conversation(text("a <|im_end| > b"), IMAGE, text("tail"))
    template = ChatTemplate(tokenizer)
    assert template._special is not None
    assert template._tokenize_masked(plain, template._special, ()) == template.tokenize(plain)


def test_threads_do_not_disturb_each_other(tokenizer: Any) -> None:
    """Ordinary and masked conversations at once: neither way of tokenizing leaks into the other."""
    template = ChatTemplate(tokenizer)
    kinds = [conversation(text("Hello " * 20), IMAGE), conversation(text("Is <|image_pad|> here? " * 20), IMAGE)]
    expected = [template.tokenize(kind) for kind in kinds]
    with ThreadPoolExecutor(6) as threads:
        for kind, ids in enumerate(threads.map(lambda number: template.tokenize(kinds[number % 2]), range(600))):
            assert ids == expected[kind % 2]


def test_a_template_that_refuses_is_the_requests_error() -> None:
    class Refusing:
        added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012

        def encode(self, *_: object, **__: object) -> list[int]:
            return []

        def apply_chat_template(self, *_: object, **__: object) -> str:
            raise RuntimeError("roles must alternate")

    with pytest.raises(InvalidRequest, match="alternate"):
        ChatTemplate(Refusing()).tokenize(conversation("x"))


@given(st.lists(st.one_of(st.integers(0, 9), st.just(99)), max_size=30), st.data())
def test_placeholders_expand_to_exactly_their_items(ids: list[int], data: st.DataObject) -> None:
    counts = [data.draw(st.integers(1, 7)) for token in ids if token == 99]
    items = [MediaItem("image", count) for count in counts]
    expanded, spans = expand(ids, items, {"image": 99}, {99})
    assert len(expanded) == len(ids) - len(items) + sum(counts)
    assert [span.item for span in spans] == items
    rebuilt, at = [], 0
    for span in spans:
        assert all(token == 99 for token in expanded[span.start : span.start + span.item.num_tokens])
        rebuilt += [*expanded[at : span.start], 99]
        at = span.start + span.item.num_tokens
    assert rebuilt + expanded[at:] == ids


@pytest.mark.parametrize(("ids", "items"), [([1, 99], 0), ([1], 1), ([99, 99], 1), ([99], 2)])
def test_places_and_pictures_must_correspond(ids: list[int], items: int) -> None:
    with pytest.raises(InternalError):
        expand(ids, [MediaItem("image", 2)] * items, {"image": 99}, {99})
    with pytest.raises(InvalidRequest, match=f"{items} pictures"):
        check_placeholders(ids, {"image": 99}, ["image"] * items)


def test_positions_equal_the_undivided_models(demo_model: Path) -> None:
    half = LanguageFacts(demo_model).half
    pad = half.placeholders["image"]
    tall, wide = MediaItem("image", 6, (1, 6, 4)), MediaItem("image", 2, (1, 2, 4))
    ids, spans = expand([1, 2, pad, 3, pad, 4, 5], [tall, wide], half.placeholders, half.media_ids)
    found = half.positions(ids, spans)
    # Text advances every axis; a picture spans rows and columns and then advances by its longer side, in merged patches.
    expected = [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 6, 8, 9],
        [0, 1, 2, 2, 3, 3, 4, 4, 5, 6, 6, 8, 9],
        [0, 1, 2, 3, 2, 3, 2, 3, 5, 6, 7, 8, 9],
    ]
    assert found.ids.tolist() == expected
    assert found.following == 10
    plain = half.positions([1, 2, 3], [])
    assert (plain.ids.tolist(), plain.following) == ([[0, 1, 2]], 3)


SAMPLES = ["A red circle.", "ünïcödé 🙂🙃 mixed", "日本語のテキスト", "line\n\n  indented\ttab", "👨‍👩‍👧‍👦", "e\u0301 combined"]


@pytest.mark.parametrize("words", SAMPLES)
def test_pieces_join_to_the_whole_and_never_split_a_character(tokenizer: Any, words: str) -> None:
    ids = tokenizer.encode(words, add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(token) for token in ids]
    assert all("\ufffd" not in piece for piece in pieces)
    assert "".join(pieces) + detokenizer.flush() == words


@pytest.fixture(scope="module")
def bytewise() -> Any:
    """A tokenizer as Llama's and Gemma's are: spaces are marks, and characters that are no tokens are tokens of their bytes."""
    known = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *map(chr, range(33, 127))]
    vocabulary = {token: number for number, token in enumerate(known)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    spaces = decoders.Replace("▁", " ")
    tokenizer.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


@pytest.mark.parametrize("words", SAMPLES)
def test_characters_of_single_bytes_are_whole_one_after_the_other(bytewise: Any, words: str) -> None:
    detokenizer = Detokenizer(bytewise)
    pieces = [detokenizer.push(token) for token in bytewise.encode(words)]
    assert "".join(pieces) + detokenizer.flush() == words
    assert all("\ufffd" not in piece for piece in pieces)


def test_a_character_that_stays_incomplete_is_shown_at_the_end(tokenizer: Any) -> None:
    ids = tokenizer.encode("🙂", add_special_tokens=False)[:-1]
    detokenizer = Detokenizer(tokenizer)
    assert "".join(detokenizer.push(token) for token in ids) == ""
    assert "\ufffd" in detokenizer.flush()


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.integers(1, 4))
def test_stop_strings_cut_at_the_first_and_show_no_part_of_it(words: str, stops: list[str], step: int) -> None:
    matcher, shown, stopped = StopStrings(stops), "", False
    for at in range(0, len(words), step):
        fresh, stopped = matcher.push(words[at : at + step])
        shown += fresh
        if stopped:
            break
    shown += matcher.flush()
    # The reference looks at the text as it grows by the same steps.
    expected, met = words, False
    for end in range(step, len(words) + step, step):
        found = [place for place in (words[:end].find(stop) for stop in stops) if place >= 0]
        if found:
            expected, met = words[: min(found)], True
            break
    assert (shown, stopped) == (expected, met)


def test_positions_are_plain_where_there_is_no_picture() -> None:
    half = LanguageFacts(DEMO_MODEL).half
    assert torch.equal(half.positions([5, 6], []).ids, torch.tensor([[0, 1]]))
