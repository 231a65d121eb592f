"""The schema of the older completions API: texts, or token ids, that the model goes on from."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from services.language.api.messages import ResponseFormat
from services.language.api.parts import wrong
from services.language.api.sampling import UNSERVED_SAMPLING, SamplingFields, TokenId, Unserved, refuse_unserved
from services.language.output.format import AnswerFormat

MAX_PROMPTS = 128
MAX_CHOICES = 128
MAX_TOKENS = 2**17
"""Token ids in all prompts of one request together."""

Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]


def _kind(prompt: Any) -> str | None:
    """What form a prompt has; None where it has none."""
    first = prompt[0] if isinstance(prompt, list) and prompt else prompt
    if isinstance(first, list | int):
        return "(lists)" if isinstance(first, list) else "(tokens)"
    return "(texts)" if isinstance(prompt, list) else "(text)"


Prompts = Annotated[
    Annotated[Text, Tag("(text)")]
    | Annotated[list[Text], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("(texts)")]
    | Annotated[Tokens, Tag("(tokens)")]
    | Annotated[list[Tokens], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("(lists)")],
    Discriminator(_kind),
]

UNSERVED: Unserved = {"suffix": ("",), "prompt_embeds": (), **UNSERVED_SAMPLING}


class CompletionRequest(SamplingFields):
    """Body of ``POST /v1/completions``. Fields that are unknown are ignored, as in chats."""

    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        json_schema_extra={"example": {"model": "demo_model", "prompt": "A red circle", "max_tokens": 16, "temperature": 0}},
    )

    prompt: Prompts = Field(description="A text or its token ids, or a list of either; each has choices of its own, in order.")
    max_tokens: int | None = Field(16, ge=1, description="The most tokens of an answer.")
    logprobs: int | None = Field(None, ge=0, le=20, description="So many likeliest tokens beside each one of the text.")
    echo: bool = Field(False, description="Let the text begin with the prompt.")
    response_format: ResponseFormat | None = Field(None, description="The form that the answer must have.")
    add_special_tokens: bool = Field(True, description="Put before a text what the tokenizer begins with.")

    @model_validator(mode="before")
    @classmethod
    def _normalize(cls, values: Any) -> Any:
        if isinstance(values, dict):
            # As many as are wanted leave no choice of the best.
            refuse_unserved(values, UNSERVED | {"best_of": (values.get("n") or 1,)})
        return values

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.echo and self.logprobs is not None:
            raise wrong("echo", "the tokens of prompts have no log-probabilities here: leave echo or logprobs out")
        if (choices := len(self.prompts()) * self.n) > MAX_CHOICES:
            raise wrong("n", f"{choices} choices are wanted of one request; at most {MAX_CHOICES} are given")
        if self.response_format is not None and self.response_format.type != "text" and self.structured_outputs is not None:
            raise wrong("structured_outputs", "it and response_format exclude each other")
        return self

    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or its token ids."""
        if isinstance(self.prompt, list) and not isinstance(self.prompt[0], int):
            return [*self.prompt]
        return [self.prompt]

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def answer_format(self) -> AnswerFormat | None:
        """The form that the answer must have; None for any."""
        if self.structured_outputs is not None:
            return self.structured_outputs.answer_format()
        return None if self.response_format is None else self.response_format.answer_format()
