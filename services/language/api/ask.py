"""From a request's body to what is asked of the pair, free of HTTP."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastapi import Request

from services.language.api.parts import ImagePart, TextPart
from services.language.api.schemas import ChatCompletionRequest
from services.language.deadline import Deadline
from services.language.prompt.conversation import Conversation, MediaSource
from services.language.request import ChatRequest
from shared.errors import InvalidRequest
from shared.http import request_id_of

TIMEOUT_HEADER = "x-request-timeout"
"""Seconds that the caller gives the request; it can only lower what the settings give."""

FORWARDED_PREFIX = "x-epd-"
"""Headers that begin so are passed on to encoders, whose faults can match them."""

_MAX_FORWARDED = 8
_MAX_FORWARDED_SIZE = 8192


@dataclass(frozen=True, slots=True)
class Caller:
    """What the headers of a request say: who asks, until when, and what encoders get to see."""

    request_id: str
    deadline: Deadline
    forwarded: dict[str, str]
    tenant: str

    @classmethod
    def of(cls, request: Request, seconds: float) -> Caller:
        """The caller of a request that arrives now, and has ``seconds``.

        Raises:
            InvalidRequest: a header is malformed, or there are too many.
        """
        return cls(request_id_of(request), deadline_of(request, seconds), forwarded_of(request), tenant_of(request))


def deadline_of(request: Request, seconds: float) -> Deadline:
    """The deadline of a request that arrives now: ``seconds``, or less if its header says so.

    Raises:
        InvalidRequest: the header holds no positive number.
    """
    deadline = Deadline(seconds)
    wished = request.headers.get(TIMEOUT_HEADER)
    if wished is None:
        return deadline
    try:
        value = float(wished)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise InvalidRequest(f"{TIMEOUT_HEADER} must be a positive number of seconds, not {wished!r}.", param=TIMEOUT_HEADER)
    return deadline.lowered(value, own=False)


def forwarded_of(request: Request) -> dict[str, str]:
    """The headers that encoders get to see.

    Raises:
        InvalidRequest: there are too many, or they are too long: encoders would refuse them, and seem to have failed.
    """
    forwarded = {name: value for name, value in request.headers.items() if name.startswith(FORWARDED_PREFIX)}
    if len(forwarded) > _MAX_FORWARDED:
        text = f"{len(forwarded)} headers begin with {FORWARDED_PREFIX}; at most {_MAX_FORWARDED} are passed on."
        raise InvalidRequest(text, param=FORWARDED_PREFIX)
    if (size := sum(map(len, forwarded.values()))) > _MAX_FORWARDED_SIZE:
        text = f"The headers that begin with {FORWARDED_PREFIX} have {size} bytes; at most {_MAX_FORWARDED_SIZE} are passed on."
        raise InvalidRequest(text, param=FORWARDED_PREFIX)
    return forwarded


def tenant_of(request: Request) -> str:
    """Whose the hashes are that a request supplies: whoever has its credentials; nobody in particular without any."""
    scheme, _, credentials = request.headers.get("authorization", "").strip().partition(" ")
    return f"{scheme.lower()} {credentials.strip()}".strip()


def ask_of(body: ChatCompletionRequest, caller: Caller) -> ChatRequest:
    """The request: media in order, each with its place.

    Raises:
        InvalidRequest: there are hashes, but not one for each media item.
    """
    media: list[MediaSource] = []
    for at, message in enumerate(body.messages):
        for part_at, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if not isinstance(part, TextPart):
                param = f"messages.{at}.content.{part_at}.{part.type}"
                detail = part.image_url.detail if isinstance(part, ImagePart) else "auto"
                inline = body.inline(part.url)
                media.append(MediaSource(len(media), part.modality, param, url=part.url, detail=detail, inline=inline))
    if body.mm_hashes is not None and len(body.mm_hashes) != len(media):
        text = f"mm_hashes has {len(body.mm_hashes)} entries, but the request has {len(media)} media items."
        raise InvalidRequest(text, param="mm_hashes")
    return ChatRequest(
        request_id=caller.request_id,
        conversation=Conversation(
            [message.for_template() for message in body.messages],
            tuple(media),
            tools=tuple(tool.tool() for tool in body.tools) if body.tool_choice != "none" else (),
            kwargs=body.template_kwargs(),
            add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
            continue_final_message=body.continue_final_message,
        ),
        stops=body.stop,
        with_stop=body.include_stop_str_in_output,
        max_tokens=body.token_limit,
        sampling=body.sampling(),
        deadline=caller.deadline,
        forwarded=caller.forwarded,
        ignore_eos=body.ignore_eos,
        answers=body.n,
        mm_hashes=body.mm_hashes or (),
        tenant=caller.tenant,
        prompt_token_ids=body.prompt_token_ids,
        answer_format=body.answer_format(),
        tool_choice=body.choice(),
    )
