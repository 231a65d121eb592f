"""OpenAI's chat-completions schema, as far as it is served.

One rule for fields: those that are unknown are ignored; those that are known, change the answer, and are not served are refused
with ``invalid_request`` rather than silently left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, Tag, ValidationInfo, field_validator, model_validator

from services.language.api.messages import Message, NamedTool, ResponseFormat, ToolDefinition, choice_of
from services.language.api.parts import by_form, wrong
from services.language.api.sampling import UNSERVED_SAMPLING, SamplingFields, TokenId, Unserved, refuse_unserved
from services.language.output.format import AnswerFormat, ToolChoice

UNSERVED: Unserved = {
    "audio": (),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "web_search_options": (),
    "best_of": (1,),
    "echo": (False,),
    "chat_template": (),
    "documents": ([],),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    **UNSERVED_SAMPLING,
}


class ChatCompletionRequest(SamplingFields):
    """Body of ``POST /v1/chat/completions``."""

    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        json_schema_extra={
            "example": {
                "model": "demo_model",
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}},
                            {"type": "text", "text": "Describe the picture."},
                        ],
                    }
                ],
                "temperature": 0,
            }
        },
    )

    # Before what depends on it.
    prompt_token_ids: list[TokenId] | None = Field(
        None, min_length=1, max_length=2**20, description="The prompt's tokens. Of the messages only the media count then."
    )
    messages: list[Message] = Field(max_length=4096, description="The conversation so far.")
    max_completion_tokens: int | None = Field(None, ge=1, description="The newer name of max_tokens.")
    logprobs: bool = Field(False, description="Also answer with the log-probability of each token.")
    top_logprobs: int = Field(0, ge=0, le=20, description="And with those of so many of the likeliest tokens beside it.")
    response_format: ResponseFormat | None = Field(None, description="The form that the answer must have.")
    tools: list[ToolDefinition] = Field(default_factory=list, max_length=128, description="What the answer may call.")
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag("(text)")] | Annotated[NamedTool, Tag("(object)")],
            by_form("(text)", "(object)"),
        ]
        | None
    ) = Field(None, description="Whether it calls, and what; auto where there are tools.")
    parallel_tool_calls: bool = Field(True, description="False for at most one call in an answer.")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        None, description="Told to the chat template; none also asks it for no reasoning."
    )
    # Beyond OpenAI's.
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, max_length=64, description="Variables for the checkpoint's chat template."
    )
    add_generation_prompt: bool = Field(True, description="End the prompt with the beginning of an answer.")
    continue_final_message: bool = Field(False, description="Go on with the last message, instead of answering it.")
    include_reasoning: bool = Field(True, description="Answer with what the model thought, too.")
    return_timings: bool = Field(False, description="Answer with where the time went, too.")
    mm_hashes: list[str | None] | None = Field(
        None,
        max_length=4096,
        description="A hash for each media item, or null: equal ones of one caller stand for equal items.",
    )

    _inline: Mapping[str, memoryview] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _normalize(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        refuse_unserved(values, UNSERVED)
        if values.get("prompt_token_ids") is not None:
            return {"messages": []} | values
        return values

    @field_validator("messages")
    @classmethod
    def _check_messages(cls, messages: list[Message], info: ValidationInfo) -> list[Message]:
        if not messages and not info.data.get("prompt_token_ids"):
            raise ValueError("a request needs at least one message, or prompt_token_ids")
        return messages

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise wrong("top_logprobs", "top_logprobs needs logprobs to be true")
        if self.continue_final_message and "add_generation_prompt" in self.model_fields_set and self.add_generation_prompt:
            raise wrong("continue_final_message", "it and add_generation_prompt exclude each other")
        names = [tool.function.name for tool in self.tools]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise wrong("tools", f"there are two functions named {repeated.pop()}")
        if self.tool_choice == "required" and not names:
            raise wrong("tool_choice", "required needs tools")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise wrong("tool_choice", f"{self.tool_choice.function.name} is none of the tools")
        if self.response_format is not None and self.response_format.type != "text" and self.structured_outputs is not None:
            raise wrong("structured_outputs", "it and response_format exclude each other")
        return self

    def with_inline(self, inline: Mapping[str, memoryview]) -> Self:
        """The same request, some of whose URLs stand for longer ones, as bytes: those of ``inline``."""
        body = self.model_copy()
        body._inline = inline
        return body

    def inline(self, url: str) -> memoryview | None:
        """The longer data URL that ``url`` stands for, if it does."""
        return self._inline.get(url)

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def alternatives(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    def answer_format(self) -> AnswerFormat | None:
        """The form that the answer must have; None for any."""
        if self.structured_outputs is not None:
            return self.structured_outputs.answer_format()
        return None if self.response_format is None else self.response_format.answer_format()

    def choice(self) -> ToolChoice:
        """Which tools are to be called."""
        return choice_of(self.tool_choice, self.parallel_tool_calls)

    def template_kwargs(self) -> dict[str, Any]:
        """Variables for the chat template. Families have different names for whether there is to be any reasoning."""
        if self.reasoning_effort is None:
            return self.chat_template_kwargs
        quiet = {"enable_thinking": False, "thinking": False} if self.reasoning_effort == "none" else {}
        return {"reasoning_effort": self.reasoning_effort} | quiet | self.chat_template_kwargs


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "epd"
    max_model_len: int


class ModelList(BaseModel):
    """Answer of ``GET /v1/models``."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
