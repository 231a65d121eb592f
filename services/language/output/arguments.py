"""Arguments of tools: the schemas of what they may be, and how a grammar spells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.language.output.format import Tool
from services.language.output.schema import json_rule
from shared.errors import InvalidRequest

_REFERENCES = 16
_TYPES: dict[type, str] = {str: "string", bool: "boolean", dict: "object", list: "array", type(None): "null"}
_ALL = frozenset({*_TYPES.values(), "integer", "number"})


def arguments_of(tool: Tool) -> dict[str, Any]:
    """The schema of the tool's arguments, an object's.

    Raises:
        InvalidRequest: it is none.
    """
    schema: dict[str, Any] = {"type": "object", **(tool.parameters or {})}
    named, required = schema.get("properties", {}), schema.get("required", [])
    if schema["type"] != "object" or not isinstance(named, dict) or not isinstance(required, list):
        raise InvalidRequest(f"The parameters of {tool.name} are no JSON schema of an object.", param="tools")
    return schema


def arguments_rule(tool: Tool) -> str:
    """The expression of a llguidance grammar for the tool's arguments as JSON.

    Raises:
        InvalidRequest: their schema is none of an object, or nested too deeply.
    """
    return value_rule(arguments_of(tool))


def value_rule(schema: Mapping[str, Any]) -> str:
    """The expression of a llguidance grammar for JSON of a ``schema`` among a tool's parameters.

    Raises:
        InvalidRequest: it is nested too deeply.
    """
    try:
        return json_rule(schema)
    except InvalidRequest as error:
        error.param = "tools"
        raise


def resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """``schema`` itself, or what it refers to within ``root``; one that asks nothing where it refers elsewhere."""
    for _ in range(_REFERENCES):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if reference is None:
            return schema
        schema = root
        for step in str(reference).removeprefix("#").strip("/").split("/"):
            schema = schema.get(step) if isinstance(schema, Mapping) else None
    return {}


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The types of JSON that ``schema`` may allow."""
    found: set[str] = set()
    waiting, seen = [schema], set()
    while waiting:
        one = resolved(waiting.pop(), root)
        if id(one) in seen:
            continue
        seen.add(id(one))
        named = one.get("type")
        if (values := choices_of(one)) is not None:
            found.update(map(type_of, values))
        elif isinstance(named, str | list):
            found.update(name for name in ([named] if isinstance(named, str) else named) if isinstance(name, str))
        elif several := alternatives_of(one) or one.get("allOf"):
            waiting += several if isinstance(several, list) else []
        else:
            return _ALL
    return frozenset(found)


def choices_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that ``schema`` lists; None where it lists none."""
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum")
    return listed if isinstance(listed, list) and listed else None


def alternatives_of(schema: Mapping[str, Any]) -> list[Any]:
    """The schemas of which a value must have one, if there are such."""
    several = schema.get("anyOf") or schema.get("oneOf")
    return several if isinstance(several, list) else []


def type_of(value: Any) -> str:
    """The type that JSON schemas call a value's."""
    return _TYPES.get(type(value), "integer" if isinstance(value, int) else "number")
