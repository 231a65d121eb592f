"""Neither service answers any request with 500, or otherwise than its OpenAPI document says; ``make fuzz-api`` tries more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from tests.openapi.hooks import MODEL
from tests.openapi.runs import KEY, pair_to_fuzz, run
from tests.processes import Service

EXAMPLES = 20

Services = tuple[Service, Service]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with pair_to_fuzz(tmp_path_factory.mktemp("openapi")) as both:
        yield both


@pytest.mark.parametrize("which", [0, 1], ids=["encoder", "language"])
def test_some_hundred_requests_are_answered_as_the_document_says(services: Services, tmp_path: Path, which: int) -> None:
    done = run(services[which], tmp_path, EXAMPLES, thorough=False)
    assert not done.failures, done.log
    # Requests that are always refused would prove nothing.
    work = ("POST /encode", "POST /v1/subscribe") if which == 0 else ("POST /v1/chat/completions", "POST /v1/completions")
    assert all(done.accepted[each] for each in work), done.accepted


def documents(services: Services) -> list[dict[str, Any]]:
    return [httpx.get(f"{service.url}/openapi.json", trust_env=False).json() for service in services]


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_every_operation_has_a_tag_a_summary_and_documented_failures(services: Services) -> None:
    for document in documents(services):
        for name, operation in operations(document):
            assert operation["summary"], name
            assert operation["tags"], name
            assert "422" not in operation["responses"], name
            assert "400" in operation["responses"] or "requestBody" not in operation, name


def test_every_example_follows_its_schema(services: Services) -> None:
    seen = 0
    for document in documents(services):
        for name, operation in operations(document):
            described = [operation.get("requestBody", {}), *operation["responses"].values()]
            for content in (content for each in described for content in each.get("content", {}).items()):
                kind, media = content
                if kind != "application/json":
                    continue
                shown = [each["value"] for each in media.get("examples", {}).values()]
                shown += [media["example"]] if "example" in media else []
                schema = media["schema"] | {"components": document["components"]}
                for example in shown:
                    seen += 1
                    errors = [error.message for error in Draft202012Validator(schema).iter_errors(example)]
                    assert errors == [], (name, example)
    assert seen > 40


def test_keys_are_declared_where_they_are_asked_for(services: Services) -> None:
    _, language = services
    document = documents(services)[1]
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for name, operation in operations(document):
        method, path = name.split()
        if method != "GET" or "{" in path:
            continue
        answer = httpx.get(f"{language.url}{path}", trust_env=False)
        assert (answer.status_code == 401) == ("security" in operation), name
    known = httpx.get(f"{language.url}/v1/models/{MODEL}", headers={"authorization": f"Bearer {KEY}"}, trust_env=False)
    assert known.status_code == 200


def test_no_page_is_loaded_from_elsewhere(services: Services) -> None:
    for service in services:
        for path in ("/docs", "/redoc"):
            assert httpx.get(f"{service.url}{path}", trust_env=False).status_code == 404
