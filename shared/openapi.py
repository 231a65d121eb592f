"""What the OpenAPI documents of both services say beside FastAPI's own: how calls fail, who needs a token, and examples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from inspect import getdoc
from typing import Any

from fastapi import FastAPI

from shared.errors import EpdError, ErrorBody, body_of, headers_of

_METHODS = frozenset({"get", "put", "post", "delete", "patch"})
_ABOUT = {
    400: "The request or its media is at fault.",
    401: "An API key is asked for, and the request has none that is known.",
    404: "There is no such thing.",
    503: "Not now; `Retry-After` says when to try again.",
}

_ERROR = {"$ref": f"#/components/schemas/{ErrorBody.__name__}"}

Responses = dict[int | str, dict[str, Any]]


def failures(*errors: type[EpdError], **examples: str) -> Responses:
    """How an operation may fail, as FastAPI's ``responses``. Each error is an example of its status, with the message of that
    code in ``examples``, or what its class says of itself."""
    found: Responses = {}
    for cls in errors:
        error = cls(examples.get(cls.code) or (getdoc(cls) or "").splitlines()[0])
        about = found.setdefault(cls.status, {"model": ErrorBody, "description": _ABOUT[cls.status]})
        content = about.setdefault("content", {}).setdefault("application/json", {"examples": {}})
        content["examples"][cls.code] = {"value": body_of(error).model_dump()}
        if headers_of(error):
            schema = {"type": "integer", "minimum": 1}
            about["headers"] = {"Retry-After": {"description": "Seconds.", "required": True, "schema": schema}}
    return found


def unknown(message: str) -> Responses:
    """The failure of an operation on something that is not there."""
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": "invalid_request"}}
    content = {"application/json": {"example": body}}
    return {404: {"model": ErrorBody, "description": _ABOUT[404], "content": content}}


def json_body(schema: Mapping[str, Any], **examples: Mapping[str, Any]) -> dict[str, Any]:
    """The ``openapi_extra`` of an operation that parses its JSON body by itself. ``examples`` are values by what they show."""
    shown = {name.replace("_", " "): {"value": value} for name, value in examples.items()}
    content = {"schema": schema} | ({"examples": shown} if shown else {})
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def answer(example: Any, description: str = "The answer.", status: int = HTTPStatus.OK) -> Responses:
    """An example of what an operation answers."""
    return {int(status): {"description": description, "content": {"application/json": {"example": example}}}}


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token that some operations ask for: ``takes`` says of a method and a path whether they do. ``refused`` is how
    they fail without it, where that is no failure that they have anyway."""

    name: str
    description: str
    takes: Callable[[str, str], bool]
    refused: Responses = field(default_factory=dict)


def complete(app: FastAPI, tokens: Collection[Token] = ()) -> None:
    """Completes the OpenAPI document of ``app``: ``tokens`` are named where they are asked for, and violations of a schema are
    answered 400 as all bad requests are, not 422."""
    original = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = original()
            for path, operations in document["paths"].items():
                for method in _METHODS & operations.keys():
                    operations[method]["responses"].pop("422", None)
                    _secure(operations[method], [token for token in tokens if token.takes(method.upper(), path)])
            components = document.setdefault("components", {})
            for name in ("HTTPValidationError", "ValidationError"):
                components.get("schemas", {}).pop(name, None)
            if tokens:
                components["securitySchemes"] = {
                    token.name: {"type": "http", "scheme": "bearer", "description": token.description} for token in tokens
                }
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _secure(operation: dict[str, Any], tokens: Collection[Token]) -> None:
    """Says of an operation of a document that it takes ``tokens``."""
    if tokens:
        operation["security"] = [{token.name: []} for token in tokens]
    for token in tokens:
        for status, about in token.refused.items():
            content = {kind: {"schema": _ERROR} | shown for kind, shown in about["content"].items()}
            operation["responses"].setdefault(str(status), {"description": about["description"], "content": content})
