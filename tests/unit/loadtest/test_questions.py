"""What the load tester asks: bodies of the API, by the scenario's mix, with the answers that the undivided model gives."""

from __future__ import annotations

import base64
import json
from collections import Counter
from typing import Any

import pytest

from examples.scenes import TALK
from services.loadtest.run import Kind
from services.loadtest.scenario import Mix, Traffic
from services.loadtest.traffic.questions import Question, Questions
from tests.chats import Undivided
from tests.processes import DEMO_MODEL


@pytest.fixture(scope="module")
def undivided() -> Undivided:
    return Undivided(DEMO_MODEL)


def questions(mix: dict[str, float], seed: int = 0, semantics: bool = True, **traffic: Any) -> Questions:
    return Questions(Traffic(users=1, mix=Mix(**mix), **traffic), "demo_model", semantics, seed)


def parts(question: Question) -> list[bytes | str]:
    """The parts of its message: bytes are pictures, strings are text."""
    (message,) = json.loads(question.body)["messages"]
    assert message["role"] == "user"
    return [
        base64.b64decode(part["image_url"]["url"].removeprefix("data:image/png;base64,"), validate=True)
        if part["type"] == "image_url"
        else part["text"]
        for part in message["content"]
    ]


def test_kinds_come_as_often_as_the_mix_says() -> None:
    asked = questions({"text": 3, "image": 1, "broken": 0})
    kinds = Counter(asked.next().kind for _ in range(4000))
    assert set(kinds) == {Kind.TEXT, Kind.IMAGE}
    assert kinds[Kind.TEXT] / 4000 == pytest.approx(0.75, abs=0.03)


def test_a_body_is_a_chat_completion() -> None:
    asked = questions({"text": 1}, streaming=0, max_tokens=17)
    body = json.loads(asked.next().body)
    assert body.keys() == {"model", "temperature", "max_tokens", "messages"}
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("demo_model", 0, 17)
    assert json.loads(questions({"text": 1}, streaming=1).next().body)["stream"] is True


def test_shares_of_streams_and_of_those_who_leave() -> None:
    asked = questions({"text": 1}, streaming=0.25, hang_up=0.1)
    drawn = [asked.next() for _ in range(4000)]
    assert sum(each.streamed for each in drawn) / 4000 == pytest.approx(0.25, abs=0.03)
    leaving = [each.hang_up for each in drawn if each.hang_up is not None]
    assert len(leaving) / 4000 == pytest.approx(0.1, abs=0.02)
    assert 0.001 <= min(leaving) < 0.003
    assert 0.1 < max(leaving) <= 0.3


def test_a_seed_gives_the_same_questions_about_new_pictures() -> None:
    mix = {"text": 1, "image": 1, "images": 1, "huge": 1}
    one, same, other = questions(mix, seed=1), questions(mix, seed=1), questions(mix, seed=2)
    ones, sames, others = ([asked.next() for _ in range(20)] for asked in (one, same, other))
    facts = [[(each.kind, each.expected, each.streamed) for each in asked] for asked in (ones, sames, others)]
    assert facts[0] == facts[1] != facts[2]
    pictured = [each.body for each in ones + sames if each.kind is not Kind.TEXT]
    assert len(set(pictured)) == len(pictured)


def test_what_caches_may_know_is_said() -> None:
    for kind in Kind:
        question = questions({kind: 1}).next()
        assert question.kind is kind
        assert question.fresh is (kind not in (Kind.REPEATED, Kind.BROKEN))
    asked = questions({"repeated": 1}, streaming=0)
    assert len({asked.next().body for _ in range(200)}) == 8


def test_without_semantics_nothing_is_expected() -> None:
    asked = questions({kind: 1 for kind in Kind}, semantics=False)
    assert {asked.next().expected for _ in range(50)} == {None}


def test_nothing_is_expected_of_what_is_no_picture() -> None:
    assert questions({"broken": 1}).next().expected is None


@pytest.mark.parametrize(("kind", "number"), [("text", 14), ("image", 16), ("images", 32), ("repeated", 8), ("huge", 2)])
def test_what_is_expected_is_what_the_undivided_model_says(undivided: Undivided, kind: str, number: int) -> None:
    asked = questions({kind: 1})
    for _ in range(number):
        question = asked.next()
        tokens = undivided.answer(parts(question), max_tokens=32)[1]
        assert undivided.tokenizer.decode(tokens, skip_special_tokens=True) == question.expected


def test_texts_are_small_talk_whose_answer_is_known() -> None:
    asked = questions({"text": 1})
    for _ in range(50):
        question = asked.next()
        assert [TALK.get(str(part)) for part in parts(question)] == [question.expected]


def test_several_pictures_are_two_or_three() -> None:
    asked = questions({"images": 1})
    shown = Counter(sum(isinstance(part, bytes) for part in parts(asked.next())) for _ in range(60))
    assert set(shown) == {2, 3}
