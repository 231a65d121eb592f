"""An OpenAPI document as the text of a page: operations, and the objects that they take and give."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_LIMITS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} entries",
    "pattern": "matches `{}`",
}


class Page:
    """The lines for one document."""

    def __init__(self, document: dict[str, Any], prefix: str) -> None:
        self._document = document
        self._prefix = prefix
        self._schemas: dict[str, Any] = document["components"]["schemas"]
        self._used: list[str] = []

    def lines(self) -> list[str]:
        """All of it: operations in the order of the document, then objects in the order in which they are named."""
        lines = [""]
        for path, operations in self._document["paths"].items():
            for method, operation in operations.items():
                lines += self._operation(f"{method.upper()} {path}", operation)
        lines += [f"### {self._prefix}: objects", ""]
        for name in self._used:  # which grows
            lines += self._object(name)
        return lines

    def _operation(self, name: str, operation: dict[str, Any]) -> Iterator[str]:
        yield from (f"### `{name}`", "", f"{operation['summary']}.")
        if tokens := [token for asked in operation.get("security", ()) for token in asked]:
            yield from ("", f"Takes a bearer token: {', '.join(f'`{token}`' for token in tokens)}.")
        for parameter in operation.get("parameters", ()):
            about = parameter.get("description", "")
            yield from (
                "",
                f"In the {parameter['in']}, `{parameter['name']}`: {self._kind(parameter['schema'])}. {about}".rstrip(),
            )
        body = operation.get("requestBody", {}).get("content", {})
        if body:
            yield from (
                "",
                "Takes " + "; or ".join(f"`{kind}`: {self._kind(media['schema'])}" for kind, media in body.items()) + ".",
            )
        yield ""
        for status, response in sorted(operation["responses"].items()):
            yield f"* **{status}** {self._response(response)}"
        yield ""
        for kind, media in body.items():
            for title, shown in media.get("examples", {}).items():
                yield from (f"{title.capitalize()} (`{kind}`):", "", "```json", _example(shown["value"]), "```", "")

    def _response(self, response: dict[str, Any]) -> str:
        about = response["description"].replace("Successful Response", "").strip()
        forms = []
        for kind, media in response.get("content", {}).items():
            codes = [f"`{code}`" for code in media.get("examples", {})]
            if codes:
                forms.append(f"Codes: {', '.join(codes)}.")
            elif kind == "text/event-stream":
                forms.append(f"Or `{kind}`.")
            else:
                forms.append(f"`{kind}`: {self._kind(media.get('schema', {}))}.")
        return " ".join([about, *forms]).strip()

    def _object(self, name: str) -> Iterator[str]:
        schema = self._schemas[name]
        yield from (f"#### {self._anchor(name)}", "", _flat(schema.get("description", "")), "")
        if "enum" in schema:
            yield from (f"One of {_values(schema['enum'])}.", "")
        if "properties" in schema:
            yield from ("| field | type | default | limits | meaning |", "|---|---|---|---|---|")
            required = schema.get("required", ())
            for field, about in schema["properties"].items():
                yield self._row(field, about, field in required)
            yield ""

    def _row(self, field: str, about: dict[str, Any], required: bool) -> str:
        default = about.get("default")
        shown = "required" if required else "" if default is None else f"`{json.dumps(default)}`"
        limits = ", ".join(dict.fromkeys(_limits(about)))
        return f"| `{field}` | {self._kind(about)} | {shown} | {limits} | {_flat(about.get('description', ''))} |".replace(
            "  |", " |"
        )

    def _kind(self, schema: dict[str, Any]) -> str:
        """A schema's type in words."""
        if "$ref" in schema:
            return self._named(schema["$ref"].rpartition("/")[2])
        for among in ("anyOf", "oneOf", "allOf"):
            if among in schema:
                kinds = dict.fromkeys(self._kind(each) for each in schema[among] if each.get("type") != "null")
                return " or ".join(kinds)
        if "const" in schema:
            return _values([schema["const"]])
        if "enum" in schema:
            return _values(schema["enum"])
        types = schema.get("type", "any")
        if types == "array":
            return f"list of {self._kind(schema.get('items', {}))}"
        if types == "object" and isinstance(schema.get("additionalProperties"), dict):
            return f"object of {self._kind(schema['additionalProperties'])}"
        if isinstance(types, list):
            rest = {key: value for key, value in schema.items() if key != "type"}
            return " or ".join(self._kind({"type": each} | (rest if each in ("array", "object") else {})) for each in types)
        return str(schema.get("contentMediaType") or (f"binary {types}" if schema.get("format") == "binary" else types))

    def _named(self, name: str) -> str:
        if name not in self._used:
            self._used.append(name)
        return f"[{name}](#{self._anchor(name).lower().replace(':', '').replace(' ', '-')})"

    def _anchor(self, name: str) -> str:
        return f"{self._prefix}: {name}"


def _limits(schema: dict[str, Any]) -> Iterator[str]:
    for key, text in _LIMITS.items():
        if key in schema:
            yield text.format(str(schema[key]).replace("|", "\\|"))
    for each in schema.get("anyOf", ()):
        yield from _limits(each)
    if "items" in schema and "$ref" not in schema["items"]:
        yield from (f"each {limit}" for limit in _limits(schema["items"]))


def _example(value: dict[str, Any]) -> str:
    """A request with a line for each field."""
    fields = [f'"{name}": {json.dumps(field, ensure_ascii=False)}' for name, field in value.items()]
    return "{\n  " + ",\n  ".join(fields) + "\n}"


def _values(values: list[Any]) -> str:
    return ", ".join(f"`{json.dumps(value)}`" for value in values)


def _flat(text: str) -> str:
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())
