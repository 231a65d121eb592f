"""JSON schemas as grammars: what an answer of a schema may look like."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from shared.errors import InvalidRequest

MOST_NESTED = 64
"""Levels of a schema's own JSON."""

MOST_MEMBERS = 1000
"""Of one object. Any of those that may be left out may follow any before it, so its grammar grows with their square."""

_WRITTEN = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
_EXACT = 2**53 - 1
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"))
_LONGEST = {"email": 254, "hostname": 253, "uri": 2048}
_MANY = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SEVERAL = ("anyOf", "allOf", "oneOf", "prefixItems")
_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedProperties")
_OPEN = frozenset(("additionalProperties", "patternProperties", "unevaluatedProperties", "minProperties", "propertyNames"))
_COMBINED = frozenset(("allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if", "not", "dependentSchemas"))


def json_rule(schema: Mapping[str, Any] | bool) -> str:
    """The expression of a llguidance grammar for JSON of ``schema``.

    It is somewhat narrower than the schema where that leaves open what nobody means, and what a weak model would go on with
    until its limit of tokens. White space is at most a space after a comma or a colon. Objects have no members but those that
    are declared, where any are and nothing is said of others. Integers stay within what a double holds exactly, numbers within
    the same bounds, and texts of some formats within their formats' longest. A format that is unknown means nothing, as in
    JSON Schema.

    Raises:
        InvalidRequest: it is no schema, nested too deeply, or too wide.
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise InvalidRequest("A JSON schema has to be an object that says what an answer may be.")
    if not _nested_within(schema, MOST_NESTED):
        raise InvalidRequest(f"The JSON schema is nested more than {MOST_NESTED} levels deep.")
    if any(isinstance(named := part.get("properties"), Mapping) and len(named) > MOST_MEMBERS for part in _parts(schema)):
        raise InvalidRequest(f"The JSON schema has an object of more than {MOST_MEMBERS} properties.")
    # Members that one part of a combination declares would be undeclared ones of another.
    closing = not any("allOf" in part or ("properties" in part and not _COMBINED.isdisjoint(part)) for part in _parts(schema))
    return "%json " + json.dumps({**_narrowed(schema, closing), "x-guidance": _WRITTEN}, ensure_ascii=False)


def _nested_within(value: Any, levels: int) -> bool:
    """Whether JSON has no more than so many levels; told without recursion."""
    level = [value]
    for _ in range(levels):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, Mapping) else outer if isinstance(outer, list) else ())
        ]
        if not level:
            return True
    return False


def _subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names of keywords with what they hold: a schema, several, or several by name."""
    for keyword, value in schema.items():
        if (
            (keyword in _MANY and isinstance(value, Mapping))
            or (keyword in _SEVERAL and isinstance(value, list))
            or (keyword in _ONE and isinstance(value, Mapping))
        ):
            yield keyword, value


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """A schema and all within it."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    for keyword, value in _subschemas(schema):
        for inner in [value] if keyword in _ONE else value if keyword in _SEVERAL else value.values():
            yield from _parts(inner)


def _narrowed(schema: Any, closing: bool) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    made = dict(schema)
    for keyword, value in _subschemas(schema):
        if keyword in _ONE:
            made[keyword] = _narrowed(value, closing)
        elif keyword in _SEVERAL:
            made[keyword] = [_narrowed(inner, closing) for inner in value]
        else:
            made[keyword] = {name: _narrowed(inner, closing) for name, inner in value.items()}
    types = made.get("type")
    types = types if isinstance(types, list) else [types]
    if closing and made.get("properties") and _OPEN.isdisjoint(made):
        made["additionalProperties"] = False
    if ("integer" in types or "number" in types) and "enum" not in made and "const" not in made:
        _bound(made)
    text_format = made.get("format")
    if isinstance(text_format, str):
        if text_format not in _FORMATS:
            del made["format"]
        elif text_format in _LONGEST:
            made.setdefault("maxLength", _LONGEST[text_format])
    return made


def _bound(schema: dict[str, Any]) -> None:
    """Gives numbers the bounds that are missing, where those that are there do not lie beyond them."""
    least, most = (
        schema.get(bound, schema.get(f"exclusive{bound.title()}", default))
        for bound, default in (("minimum", -_EXACT), ("maximum", _EXACT))
    )
    if not all(isinstance(bound, int | float) and abs(bound) <= _EXACT for bound in (least, most)):
        return
    if "minimum" not in schema and "exclusiveMinimum" not in schema:
        schema["minimum"] = -_EXACT
    if "maximum" not in schema and "exclusiveMaximum" not in schema:
        schema["maximum"] = _EXACT
