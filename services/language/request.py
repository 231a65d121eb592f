"""A request as the pair takes it, free of HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.language.deadline import Deadline
from services.language.engine.interface import Sampling
from services.language.output.format import AnswerFormat, ToolChoice
from services.language.prompt.conversation import Conversation
from services.language.timeline import Timeline


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What the API asks of the pair, free of HTTP.

    ``max_tokens`` None means as many as the context has room for; it and the model's end tokens complete ``sampling``.
    ``deadline`` is that of the whole answer; ``forwarded`` are headers that encoders get to see. ``mm_hashes`` are the hashes
    that the caller supplied, one for each media item or none at all; they mean something for its ``tenant`` only. With
    ``prompt_token_ids`` the prompt is these, and of the conversation only the media count; with a ``text`` it is that, with
    the tokenizer's own beginning where ``special_tokens`` are wanted. A ``plain`` answer is text that goes on from the prompt,
    and no message with reasoning and calls. ``with_stop`` leaves a stop string in the text. ``timeline`` is told where the time
    goes.
    """

    request_id: str
    conversation: Conversation
    stops: list[str]
    max_tokens: int | None
    sampling: Sampling
    deadline: Deadline
    forwarded: Mapping[str, str] = field(default_factory=dict)
    ignore_eos: bool = False
    answers: int = 1
    mm_hashes: Sequence[str | None] = ()
    tenant: str = field(default="", repr=False)
    prompt_token_ids: Sequence[int] | None = None
    text: str | None = None
    special_tokens: bool = True
    with_stop: bool = False
    answer_format: AnswerFormat | None = None
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    plain: bool = False
    timeline: Timeline = field(default_factory=Timeline)
