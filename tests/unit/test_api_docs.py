"""The page of the API says what the code does: its tables are the OpenAPI documents, and what it says of fields is tried."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest

from benchmarks.pages import write_section
from services.encoder.app import create_app as create_encoder
from services.encoder.settings import EncoderSettings
from services.language.api.body import parse
from services.language.api.parts import RequestModel
from services.language.api.schemas import UNSERVED, ChatCompletionRequest
from services.language.api.text_request import CompletionRequest
from services.language.app import create_app as create_language
from services.language.settings import LanguageSettings
from shared.errors import InvalidRequest
from tests.processes import ROOT
from tests.unit.api_page import Page

PAGE = ROOT / "docs" / "api.md"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


def sections() -> dict[str, list[str]]:
    """What is generated of the page. ``UPDATE_DOCS=1 make test`` writes it."""
    language = create_language(LanguageSettings(faults_enabled=True, api_key="one"))
    encoder = create_encoder(EncoderSettings(faults_enabled=True))
    return {
        "language": Page(language.openapi(), "Language").lines(),
        "encoder": Page(encoder.openapi(), "Encoder").lines(),
    }


def test_the_page_is_the_openapi_documents() -> None:
    for name, lines in sections().items():
        if os.environ.get("UPDATE_DOCS"):
            write_section(PAGE, name, lines)
        assert "\n".join([f"<!-- {name} -->", *lines, f"<!-- end of {name} -->"]) in PAGE.read_text(), name


@pytest.mark.parametrize("model", [ChatCompletionRequest, CompletionRequest])
def test_every_field_of_a_request_has_a_meaning(model: type[RequestModel]) -> None:
    assert [name for name, field in model.model_fields.items() if not field.description] == []


def compared() -> dict[str, str]:
    """What the table of compatibility says of each field."""
    table = PAGE.read_text().split("<!-- compatibility -->")[1].split("<!-- end of compatibility -->")[0]
    rows = re.findall(r"^\| (`.*?) \|(?:.*?\|){3} (served|ignored|refused)", table, re.MULTILINE)
    return {name: fate for names, fate in rows for name in re.findall(r"`([\w.]+)`", names)}


def test_every_field_that_is_served_or_refused_is_in_the_table() -> None:
    told = compared()
    served = {name for name, fate in told.items() if fate == "served"}
    assert set(ChatCompletionRequest.model_fields) <= served
    assert {name for name, fate in told.items() if fate == "refused"} == set(UNSERVED)


@pytest.mark.parametrize(("name", "fate"), compared().items() if PAGE.exists() else [])
def test_the_table_says_what_becomes_of_a_field(name: str, fate: str) -> None:
    def ask(value: Any) -> ChatCompletionRequest:
        return parse(json.dumps(HELLO | {name: value}).encode(), "demo", 1000)

    if fate == "refused":
        with pytest.raises(InvalidRequest) as caught:
            ask("x" * 3)
        assert caught.value.param == name
    elif fate == "ignored":
        assert ask(["what", {"ever": 1}]) == ask(None)
    else:
        assert name in ChatCompletionRequest.model_fields
