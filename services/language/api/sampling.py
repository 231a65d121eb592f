"""What the completions APIs have in common: how tokens are chosen, how much is answered, and in which form."""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeAlias

from pydantic import ConfigDict, Field, Tag, field_validator, model_validator

from services.language.api.parts import RequestModel, by_form, json_of, wrong
from services.language.engine.interface import Sampling
from services.language.output.format import AnswerFormat

_MAX_FORM = 2**17
"""Characters of a regular expression or a grammar; of longer ones no grammar is made anyway, though it may take long to see."""

TokenId = Annotated[int, Field(ge=0, lt=2**31)]


Unserved: TypeAlias = dict[str, tuple[object, ...]]
"""Known fields that are not served, with the values that ask for nothing."""

UNSERVED_SAMPLING: Unserved = {
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "prompt_logprobs": (),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "truncate_prompt_tokens": (),
    "skip_special_tokens": (True,),
    "thinking_token_budget": (),
    "logprob_token_ids": ([],),
    "return_tokens_as_token_ids": (False,),
    "repetition_detection": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "grammar": ("",),
    "json_schema": (),
    "typical_p": (1,),
    "mirostat": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "dynatemp_range": (0,),
    "repeat_penalty": (1,),
    "n_predict": (-1,),
    "n_probs": (0,),
    "lora": ([],),
}


class StreamOptions(RequestModel):
    """``include_usage`` asks for a last event with the usage."""

    include_usage: bool = Field(False, description="A last event has the usage.")


class StructuredOutputs(RequestModel):
    """The form of the answer, as vLLM asks for it: one of these."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    json_schema: (
        Annotated[
            Annotated[dict[str, Any], Tag("(object)")] | Annotated[bool, Tag("(bool)")] | Annotated[str, Tag("(text)")],
            by_form("(object)", "(bool)", "(text)"),
        ]
        | None
    ) = Field(None, alias="json", description="A JSON schema, or its text.")
    json_object: bool | None = Field(None, description="True for any JSON object.")
    regex: str | None = Field(None, max_length=_MAX_FORM, description="A regular expression that all of the answer matches.")
    choice: list[str] | None = Field(None, min_length=1, max_length=1024, description="Texts, one of which is the answer.")
    grammar: str | None = Field(None, max_length=_MAX_FORM, description="A grammar in llguidance's Lark.")

    @field_validator("json_schema")
    @classmethod
    def _read(cls, value: dict[str, Any] | bool | str | None) -> dict[str, Any] | bool | str | None:
        if not isinstance(value, str):
            return value
        try:
            schema: dict[str, Any] | bool = json_of(value)
        except ValueError as error:
            raise ValueError(f"the schema is not JSON: {error}") from error
        return schema

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(getattr(self, name) is not None for name in type(self).model_fields) != 1:
            raise ValueError("give exactly one of json, json_object, regex, choice and grammar")
        return self

    def answer_format(self) -> AnswerFormat | None:
        """The form that is asked for."""
        if self.json_schema is not None:
            return AnswerFormat("json_schema", self.json_schema, "structured_outputs.json")
        if self.regex is not None:
            return AnswerFormat("regex", self.regex, "structured_outputs.regex")
        if self.choice is not None:
            return AnswerFormat("choice", self.choice, "structured_outputs.choice")
        if self.grammar is not None:
            return AnswerFormat("grammar", self.grammar, "structured_outputs.grammar")
        return AnswerFormat("json_object", None, "structured_outputs.json_object") if self.json_object else None


class SamplingFields(RequestModel):
    """The fields of both completions APIs. OpenAI's clients send null for what they leave out."""

    model: str | None = Field(None, description="The served model's name, or nothing.")
    max_tokens: int | None = Field(None, ge=1, description="The most tokens of an answer; what the context has room for.")
    temperature: float = Field(1.0, ge=0, le=2, description="0 takes the most likely token always.")
    top_p: float = Field(1.0, gt=0, le=1, description="Only the most likely tokens, as many as are so probable together.")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="Answers are the same again, whatever else is served.")
    stop: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list,
        max_length=16,
        description="A string, or several, that end an answer.",
        json_schema_extra={"type": ["string", "array"]},
    )
    stream: bool = Field(False, description="Answer by events, as the text comes.")
    stream_options: StreamOptions | None = Field(None, description="What a stream tells besides.")
    n: int = Field(1, ge=1, le=16, description="Answers to one prompt.")
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict, max_length=1024, description="What is added to the logits of tokens, by token id."
    )
    presence_penalty: float = Field(0.0, ge=-2, le=2, description="Taken from the logits of tokens that the answer has.")
    frequency_penalty: float = Field(0.0, ge=-2, le=2, description="The same for each time that the answer has them.")
    # Beyond OpenAI's, as vLLM has them.
    top_k: int = Field(0, ge=-1, lt=2**31, description="Only so many of the most likely tokens; 0 or -1 is all.")
    min_p: float = Field(0.0, ge=0, le=1, description="Only tokens at least so likely, in parts of the most likely one.")
    repetition_penalty: float = Field(1.0, gt=0, le=10, description="Past 1, tokens of prompt and answer get less likely.")
    min_tokens: int = Field(0, ge=0, lt=2**31, description="No end token ends an answer before.")
    stop_token_ids: list[TokenId] = Field(default_factory=list, max_length=64, description="Tokens that end an answer, too.")
    ignore_eos: bool = Field(False, description="Go on where the model would end.")
    include_stop_str_in_output: bool = Field(False, description="Leave the stop string in the answer.")
    return_token_ids: bool = Field(False, description="Also answer with the tokens of prompt and answer.")
    structured_outputs: StructuredOutputs | None = Field(None, description="The form of the answer, as vLLM asks for it.")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        present = {name: value for name, value in values.items() if value is not None}
        if isinstance(present.get("stop"), str):
            # Some clients send an empty string for none.
            present["stop"] = [present["stop"]] if present["stop"] else []
        return present

    @property
    def token_limit(self) -> int | None:
        """The most tokens that the caller wants."""
        return self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """How many other tokens are to be told beside each, with log-probabilities; None for no log-probabilities."""
        return None

    def sampling(self) -> Sampling:
        """The sampling parameters; the token limit is completed when the prompt's length is known."""
        return Sampling(
            max_tokens=self.token_limit or 1,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_k=max(0, self.top_k),
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            seed=self.seed,
            stop_token_ids=frozenset(self.stop_token_ids),
            logprobs=self.alternatives,
        )


def refuse_unserved(values: dict[str, Any], unserved: Unserved) -> None:
    """Known fields that would change the answer are refused rather than silently left out.

    Raises:
        ValidationError: one asks for something.
    """
    for name, harmless in unserved.items():
        if values.get(name) is not None and values[name] not in harmless:
            raise wrong(name, "this server does not support it; leave it out")
