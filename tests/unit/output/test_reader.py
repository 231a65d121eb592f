"""Messages: reasoning first, then content and calls, however the text is cut into pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.language.output.format import Parts
from services.language.output.reader import MessageReader
from services.language.output.reasoning import Thinking, thinking_of
from services.language.prompt.detokenizer import Detokenizer
from tests.unit.output.dialects import dialect_named, spelled, tokenizer_with

CALL = spelled("hermes", [("clock", {})])


def read(reader: MessageReader, *pieces: str) -> Parts:
    found = [*map(reader.push, pieces), reader.flush()]
    content, reasoning = "".join(part.content for part in found), "".join(part.reasoning for part in found)
    return Parts(content, reasoning, tuple(delta for part in found for delta in part.calls))


@pytest.mark.parametrize(
    ("open", "text", "reasoning", "content"),
    [
        (False, "<think>\nHm.\n</think>\n\nRed.", "Hm.", "Red."),
        (False, "\n<think>Hm.  Yes.</think>Red.\n", "Hm.  Yes.", "Red.\n"),
        (False, "<think>\n\n</think>\n\nRed.", "", "Red."),
        (False, " Red, <think> is a mark. </think>", "", " Red, <think> is a mark. </think>"),
        (False, "<thinking>Red.", "", "<thinking>Red."),
        (False, "<thi", "", "<thi"),
        (False, "  ", "", "  "),
        (True, "Hm.\n</think>\n\nRed.", "Hm.", "Red."),
        (True, "\n<think>\nHm.</think>Red.", "Hm.", "Red."),
        (True, "a </thin </think >b</think>c</think>d", "a </thin </think >b", "c</think>d"),
        (True, "Hm. </thi", "Hm. </thi", ""),
        (True, "Hm.\n", "Hm.\n", ""),
    ],
)
def test_reasoning_is_what_is_between_its_marks(open: bool, text: str, reasoning: str, content: str) -> None:
    for pieces in ([text], list(text)):
        assert read(MessageReader(Thinking(), open, None), *pieces) == Parts(content, reasoning)


pieces_of_text = st.lists(st.sampled_from(["<think>", "</think>", "<", "th", ">", " ", "\n", "x", "ü"]), max_size=12)


@given(pieces_of_text, st.booleans(), st.data())
def test_any_text_reads_the_same_in_any_pieces(parts: list[str], open: bool, data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = data.draw(st.sets(st.integers(0, len(text))))
    pieces = [text[start:end] for start, end in pairwise(sorted(cuts | {0, len(text)}))]
    assert read(MessageReader(Thinking(), open, None), *pieces) == read(MessageReader(Thinking(), open, None), text)


def test_calls_come_after_reasoning_and_not_within() -> None:
    _, hermes = dialect_named("hermes")
    reader = MessageReader(Thinking(), True, hermes.reader())
    assert reader.thinking
    within = reader.push(f"Maybe {CALL}? ")
    assert within.reasoning == f"Maybe {CALL}?"
    assert (reader.thinking, reader.called) == (True, False)
    after = read(reader, f"</think>\nLook:\n{CALL}")
    assert (reader.thinking, reader.called) == (False, True)
    assert after.content == "Look:"
    assert [delta.name for delta in after.calls if delta.name] == ["clock"]


def test_without_reasoning_there_are_only_content_and_calls() -> None:
    _, hermes = dialect_named("hermes")
    reader = MessageReader(None, False, hermes.reader())
    found = read(reader, f"<think>a</think>{CALL}")
    assert (found.content, found.reasoning, reader.called) == ("<think>a</think>", "", True)
    assert read(MessageReader(None, False, None), "a ", "b") == Parts("a b")


def test_the_template_tells_the_marks() -> None:
    tokenizer = tokenizer_with(["<think>", "</think>"], special=False)
    assert thinking_of(tokenizer, "{{ messages }}") is None
    assert thinking_of(tokenizer, "… assistant\n<think>\n") == Thinking("<think>", "</think>")
    assert thinking_of(tokenizer, "{{ content.split('</think>') }}") == Thinking("<think>", "</think>")
    assert thinking_of(tokenizer, "[THINK]{{ x }}[/THINK]") == Thinking("[THINK]", "[/THINK]")
    assert thinking_of(tokenizer, "◁think▷") == Thinking("◁think▷", "◁/think▷")


def test_marks_that_are_special_tokens_are_text_for_the_reader() -> None:
    tokenizer = tokenizer_with(["[THINK]", "[/THINK]"], special=True)
    thinking = thinking_of(tokenizer, "[THINK]")
    assert thinking is not None
    assert len(thinking.kept) == 2
    detokenizer = Detokenizer(tokenizer, thinking.kept)
    pieces = [detokenizer.push(token) for token in tokenizer.encode("[THINK]Hm.[/THINK]Red.<|im_end|>")]
    assert read(MessageReader(thinking, False, None), *pieces, detokenizer.flush()) == Parts("Red.", "Hm.")


def test_a_prompt_may_leave_reasoning_open() -> None:
    thinking = Thinking()
    assert thinking.open_in("<|im_start|>assistant\n<think>\n")
    assert not thinking.open_in("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not thinking.open_in("<|im_start|>assistant\n")
    assert thinking.open_in("Hm, I", continued="<think>Hm, I")
    assert not thinking.open_in("It is", continued="<think>Hm.</think>It is")
