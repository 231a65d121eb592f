"""Structured output of the real pair: a model that never learned JSON answers by schemas, two hundred times of two hundred."""

from __future__ import annotations

import asyncio
import json
import random
import re
from enum import Enum
from typing import Annotated, Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from examples.scenes import COLOURS, SHAPES, png, random_scene
from tests.chats import user
from tests.conftest import Pair


class Colour(Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


class Thing(BaseModel):
    shape: Literal["circle", "square", "triangle", "cross"]
    colour: Colour
    size: int


class Drawing(BaseModel):
    title: str
    things: list[Thing]
    background: str | None = None


class Dog(BaseModel):
    kind: Literal["dog"]
    barks: bool


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Owner(BaseModel):
    name: str
    pet: Annotated[Dog | Cat, Field(discriminator="kind")]
    age: float = Field(ge=0, lt=150)


TEXT, WHOLE, NUMBER, FLAG = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))


def members(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


POINT = members(x=WHOLE, y=WHOLE)

SCHEMAS: dict[str, dict[str, Any]] = {
    "enum": members(colour={"enum": list(COLOURS)}),
    "text": members(description=TEXT),
    "short text": members(description={"type": "string", "minLength": 5, "maxLength": 20}),
    "whole numbers": members(first=WHOLE, second=WHOLE),
    "numbers": members(x=NUMBER, y={"type": "number", "minimum": 0, "exclusiveMaximum": 1}),
    "bounded": members(count={"type": "integer", "minimum": 0, "maximum": 100}),
    "flags": members(yes=FLAG, no=FLAG),
    "list of texts": members(words={"type": "array", "items": TEXT}),
    "list of numbers": {"type": "array", "items": WHOLE},
    "list of points": members(points={"type": "array", "items": POINT, "minItems": 1, "maxItems": 3}),
    "nested": members(thing=members(shape={"enum": list(SHAPES)}, where=members(row=TEXT, column=TEXT)), note=TEXT),
    "pattern": members(
        code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}, word={"type": "string", "pattern": "^[a-z]+$"}
    ),
    "formats": members(
        day={"type": "string", "format": "date"},
        mail={"type": "string", "format": "email"},
        path={"type": "string", "format": "path"},
    ),
    "any of": members(value={"anyOf": [TEXT, WHOLE, {"type": "null"}]}),
    "references": {"$defs": {"point": POINT}, **members(start={"$ref": "#/$defs/point"}, end={"$ref": "#/$defs/point"})},
    "tree": {
        "$defs": {"node": members(name=TEXT, children={"type": "array", "items": {"$ref": "#/$defs/node"}})},
        "$ref": "#/$defs/node",
    },
    "chain": {
        "$defs": {"link": members(value=WHOLE, next={"anyOf": [{"$ref": "#/$defs/link"}, {"type": "null"}]})},
        "$ref": "#/$defs/link",
    },
    "optional": {"type": "object", "properties": {"text": TEXT, "count": WHOLE}},
    "map": {"type": "object", "additionalProperties": WHOLE},
    "any object": {"type": "object"},
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": TEXT}, "required": ["a"]},
            {"properties": {"b": WHOLE}, "required": ["b"]},
        ]
    },
    "tuple": {"type": "array", "prefixItems": [TEXT, WHOLE, FLAG], "items": False, "minItems": 3},
    "pydantic, nested": Drawing.model_json_schema(),
    "pydantic, by kind": Owner.model_json_schema(),
    "pydantic, flat": Thing.model_json_schema(),
}
WORDS = ("Hello!", "Who are you?", "Describe the picture.", "How many shapes are there?")
"""Half of what is asked is about a picture. All is asked greedily, and by a seed of its own: two hundred answers."""


def by_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A response_format of OpenAI's."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def asked(name: str, number: int) -> dict[str, Any]:
    """The ``number``-th of eight requests for an answer by the schema of that name."""
    seed = 8 * list(SCHEMAS).index(name) + number
    words, sampled = WORDS[number // 2], number % 2
    picture = [png(random_scene(random.Random(seed)), seed=seed)] if "picture" in words or "shapes" in words else []
    return user(*picture, words, temperature=sampled, seed=seed, response_format=by_schema(SCHEMAS[name]))


async def test_two_hundred_answers_match_their_schemas(pair: Pair) -> None:
    turns = asyncio.Semaphore(32)

    async with openai.AsyncOpenAI(base_url=f"{pair.language.url}/v1", api_key="none", max_retries=0, timeout=200) as client:

        async def ask(name: str, number: int) -> str | None:
            """What is wrong with an answer."""
            async with turns:
                answer = await client.chat.completions.create(**asked(name, number))
            [choice] = answer.choices
            text = choice.message.content or ""
            if choice.finish_reason != "stop":
                return f"{name} {number} ends by {choice.finish_reason}: {text[:200]} … {text[-100:]}"
            try:
                jsonschema.validate(json.loads(text), SCHEMAS[name])
            except (ValueError, jsonschema.ValidationError) as error:
                return f"{name} {number}: {text[:200]}: {error}"
            return None

        wrong = await asyncio.gather(*(ask(name, number) for name in SCHEMAS for number in range(8)))
    assert len(wrong) == 200
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_all_forms_hold_streamed_or_not(pair: Pair) -> None:
    forms: list[tuple[dict[str, Any], str]] = [
        ({"response_format": {"type": "json_object"}}, r"\{.*\}"),
        ({"structured_outputs": {"choice": ["red", "green"]}}, "red|green"),
        ({"structured_outputs": {"regex": r"\d{3}-[a-f]+"}}, r"\d{3}-[a-f]+"),
        ({"structured_outputs": {"grammar": 'start: "yes" | "no"'}}, "yes|no"),
        ({"structured_outputs": {"json": members(yes=FLAG)}}, r'\{"yes": ?(true|false)\}'),
    ]
    for form, pattern in forms:
        body = user("Who are you?", seed=1, temperature=1, n=2, **form)
        with openai.OpenAI(base_url=f"{pair.language.url}/v1", api_key="none", max_retries=0) as client:
            whole = client.chat.completions.create(**_sdk(body))
            texts = [choice.message.content or "" for choice in whole.choices]
            pieces = ["", ""]
            for chunk in client.chat.completions.create(**_sdk(body), stream=True):
                for choice in chunk.choices:
                    pieces[choice.index] += choice.delta.content or ""
        assert all(re.fullmatch(pattern, text, re.DOTALL) for text in texts), (form, texts)
        assert pieces == texts


def _sdk(body: dict[str, Any]) -> dict[str, Any]:
    """A request as the official client takes it: what is not OpenAI's travels beside."""
    extra = {name: body[name] for name in ("structured_outputs",) if name in body}
    return {**{name: value for name, value in body.items() if name not in extra}, "extra_body": extra}


def test_parse_gives_objects(pair: Pair) -> None:
    with openai.OpenAI(base_url=f"{pair.language.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.parse(**user("Hello!"), response_format=Thing)
    assert isinstance(answer.choices[0].message.parsed, Thing)


@pytest.mark.parametrize(
    ("form", "param"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "strin"}}}},
            "response_format",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#/none"}}}},
            "response_format",
        ),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": "start: nothing"}}, "structured_outputs"),
    ],
)
def test_a_form_that_is_none_is_400_and_says_which(pair: Pair, form: dict[str, Any], param: str) -> None:
    response = pair.client.post("/v1/chat/completions", json=user("Hello!", **form))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["code"] == "invalid_request"
    assert error["param"].startswith(param)
