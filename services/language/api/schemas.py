"""OpenAI's chat-completions schema, as far as it is served.

One rule for fields: those that are unknown are ignored; those that are known, change the answer, and are not served yet are
refused with ``invalid_request`` rather than silently left out.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from services.language.api.parts import Part, RequestModel

TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class Message(RequestModel):
    """One message; media parts are for users."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Part], Field(max_length=1024)] | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message of role {self.role} needs content")
        if self.role != "user" and isinstance(self.content, list) and any(part.type != "text" for part in self.content):
            raise ValueError(f"a message of role {self.role} takes text only")
        return self


class StreamOptions(RequestModel):
    include_usage: bool = False


_UNSERVED: dict[str, tuple[object, ...]] = {
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "audio": (),
    "modalities": (["text"],),
}
"""Known fields that are not served, with the values that ask for nothing."""


class ChatCompletionRequest(RequestModel):
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

    # Beyond OpenAI's, and before what depends on it: the prompt's tokens. Of the messages only the media count then.
    prompt_token_ids: list[TokenId] | None = Field(None, min_length=1, max_length=2**20)
    messages: list[Message] = Field(max_length=4096)
    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list, max_length=4)
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=16)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] = Field(default_factory=dict, max_length=1024)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    # Beyond OpenAI's, as vLLM has them.
    top_k: int = Field(0, ge=-1, lt=2**31)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0, le=10)
    min_tokens: int = Field(0, ge=0, lt=2**31)
    stop_token_ids: list[TokenId] = Field(default_factory=list, max_length=64)
    ignore_eos: bool = False
    return_token_ids: bool = False
    # A hash for each media item, or null: equal ones of one caller stand for equal items.
    mm_hashes: list[str | None] | None = Field(None, max_length=4096)

    @model_validator(mode="before")
    @classmethod
    def _normalize(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        for name, harmless in _UNSERVED.items():
            if values.get(name) is not None and values[name] not in harmless:
                raise ValueError(f"{name} is not supported by this server")
        # OpenAI's clients send null for what they leave out.
        present = {name: value for name, value in values.items() if value is not None}
        if isinstance(present.get("stop"), str):
            present["stop"] = [present["stop"]]
        if "prompt_token_ids" in present:
            present.setdefault("messages", [])
        return present

    @field_validator("messages")
    @classmethod
    def _check_messages(cls, messages: list[Message], info: ValidationInfo) -> list[Message]:
        if not messages and not info.data.get("prompt_token_ids"):
            raise ValueError("a request needs at least one message, or prompt_token_ids")
        return messages

    @model_validator(mode="after")
    def _check_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        return self

    @property
    def token_limit(self) -> int | None:
        """The most tokens that the caller wants."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class PromptTokensDetails(BaseModel):
    cached_tokens: int = 0


class Usage(BaseModel):
    """Token counts; a media item counts as many prompt tokens as it takes in the model's context."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()


class AnswerMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str


class TopLogprob(BaseModel):
    """A token's text, its bytes, and the natural logarithm of its probability before any sampling parameter is applied."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None = None


class _WithTokenIds(BaseModel):
    """``token_ids`` is there only where it was asked for (``return_token_ids``)."""

    logprobs: ChoiceLogprobs | None = None
    token_ids: list[int] | None = None

    @model_serializer(mode="wrap")
    def _leave_out_what_was_not_asked_for(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        if self.token_ids is None:
            del fields["token_ids"]
        return fields


class Choice(_WithTokenIds):
    index: int = 0
    message: AnswerMessage
    finish_reason: Literal["stop", "length"]


class ChatCompletion(BaseModel):
    """Answer of ``POST /v1/chat/completions``."""

    prompt_token_ids: list[int] | None = None

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str
    choices: list[Choice]
    usage: Usage


class Delta(BaseModel):
    """What one event adds; fields that it does not add are absent, as OpenAI has it."""

    role: Literal["assistant"] | None = None
    content: str | None = None

    @model_serializer(mode="wrap")
    def _only_what_is_there(self, handler: SerializerFunctionWrapHandler) -> dict[str, str]:
        return {name: value for name, value in handler(self).items() if value is not None}


class ChunkChoice(_WithTokenIds):
    index: int = 0
    delta: Delta
    finish_reason: Literal["stop", "length"] | None = None


class ChatCompletionChunk(BaseModel):
    """One event of a streamed answer."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


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
