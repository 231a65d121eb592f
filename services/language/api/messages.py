"""The messages of a conversation, and the tools that an answer may call."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, Tag, field_validator, model_validator

from services.language.api.parts import Part, RequestModel, TextPart, by_form, json_of, wrong
from services.language.output.format import AnswerFormat, Tool, ToolChoice

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class FunctionCall(RequestModel):
    """A call in a message of the assistant's; ``arguments`` is JSON text, or the object itself."""

    name: Name
    arguments: dict[str, Any] = Field(default_factory=dict, json_schema_extra={"type": ["object", "string"]})

    @field_validator("arguments", mode="before")
    @classmethod
    def _read(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return json_of(value) if value.strip() else {}
        except ValueError as error:
            raise ValueError(f"arguments are not JSON: {error}") from error


class ToolCall(RequestModel):
    id: str | None = Field(None, max_length=256)
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(RequestModel):
    """One message; media parts are for users."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(description="Whose it is.")
    content: (
        Annotated[
            Annotated[str, Tag("(text)")] | Annotated[list[Part], Field(max_length=1024), Tag("(list)")],
            by_form("(text)", "(list)"),
        ]
        | None
    ) = Field(None, description="Text, or at most 1024 parts; an assistant's message may have none.")
    name: str | None = Field(None, max_length=256, description="Who speaks, for templates that tell.")
    tool_calls: list[ToolCall] | None = Field(None, max_length=128, description="What an assistant called.")
    tool_call_id: str | None = Field(None, max_length=256, description="The call that a tool's message answers.")
    reasoning_content: str | None = Field(None, description="What an assistant thought; reasoning is another name of it.")

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, values: Any) -> Any:
        if isinstance(values, dict) and "reasoning" in values and "reasoning_content" not in values:
            return values | {"reasoning_content": values["reasoning"]}
        return values

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise wrong("content", f"a message of role {self.role} needs content")
        if self.role != "user" and isinstance(self.content, list) and any(part.type != "text" for part in self.content):
            raise wrong("content", f"a message of role {self.role} takes text only")
        if self.tool_calls and self.role != "assistant":
            raise wrong("tool_calls", f"a message of role {self.role} has none")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates read it: of media only the kinds."""
        # Chat templates know the older name of the developer's role.
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role}
        if isinstance(self.content, list):
            message["content"] = [
                {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": part.modality}
                for part in self.content
            ]
        else:
            message["content"] = self.content or ""
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump(exclude_none=True) for call in self.tool_calls]
        for key in ("name", "tool_call_id", "reasoning_content"):
            if getattr(self, key) is not None:
                message[key] = getattr(self, key)
        return message


class Function(RequestModel):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(RequestModel):
    """A tool that may be called."""

    type: Literal["function"]
    function: Function

    def tool(self) -> Tool:
        """It, free of the API."""
        function = self.function
        return Tool(function.name, function.description, function.parameters, bool(function.strict))


class NamedFunction(RequestModel):
    name: Name


class NamedTool(RequestModel):
    """The one tool that is to be called."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(RequestModel):
    """A schema with a name. The answer always keeps to it, ``strict`` or not."""

    name: str | None = Field(None, max_length=64)
    description: str | None = None
    schema_: Annotated[
        Annotated[dict[str, Any], Tag("(object)")] | Annotated[bool, Tag("(bool)")], by_form("(object)", "(bool)")
    ] = Field(True, alias="schema")
    strict: bool | None = None


class ResponseFormat(RequestModel):
    """The form that the answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise wrong("json_schema", "it is missing")
        return self

    def answer_format(self) -> AnswerFormat | None:
        """The form, free of the API; None for text."""
        if self.type == "json_schema" and self.json_schema is not None:
            return AnswerFormat("json_schema", self.json_schema.schema_, "response_format.json_schema.schema")
        return AnswerFormat("json_object") if self.type == "json_object" else None


def choice_of(wanted: Literal["none", "auto", "required"] | NamedTool | None, parallel: bool) -> ToolChoice:
    """Which tools are to be called."""
    if isinstance(wanted, NamedTool):
        return ToolChoice("required", wanted.function.name, parallel)
    return ToolChoice(wanted or "auto", None, parallel)
