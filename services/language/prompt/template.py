"""The chat template and the tokenizer. What people write is text, even where it spells a special token."""

from __future__ import annotations

import copy
import inspect
import json
import math
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from services.language.prompt.contents import Reads, readable, reads_of
from services.language.prompt.conversation import Conversation
from services.language.prompt.tooling import as_objects, has_calls, in_words, knows_tools
from shared.errors import InvalidRequest

_OF_JINJA = ("dict", "namespace", "range", "lipsum", "cycler", "joiner", "raise_exception", "strftime_now", "messages")
"""Names that templates expect to mean something."""

_MOST_KWARGS = 65_536
"""Characters of JSON that variables for the template may have."""

_MOST_NUMBER = 2**24
"""No number is greater: templates may repeat something as often as one says."""


class ChatTemplate:
    """Renders and tokenizes conversations of one checkpoint. ``check_length`` gets the number of characters of each prompt
    before it is tokenized, and raises where these are too many."""

    def __init__(
        self,
        tokenizer: Any,
        placeholders: Collection[int] = (),
        check_length: Callable[[int], None] = lambda length: None,  # noqa: ARG005
    ) -> None:
        self._tokenizer = tokenizer
        self._check_length = check_length
        names = [tokenizer.convert_ids_to_tokens(token) for token in placeholders]
        self._places = re.compile("|".join(map(re.escape, names))) if names else None
        # Splitting special tokens is a state of the tokenizer, which threads share: each way has an instance of its own.
        self._literal = copy.deepcopy(tokenizer)
        self._literal.encode("", split_special_tokens=True)
        self._with_tools: dict[str, bool] = {}
        self._reads: dict[str | None, dict[str, Reads]] = {}
        bare = tokenizer.encode("")
        self._beginning: list[int] = bare[:1] if bare and bare[0] == tokenizer.bos_token_id else []
        specials = {str(token): token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special_ids: dict[str, int] = specials
        longest_first = sorted(specials, key=len, reverse=True)
        self._special = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if specials else None

    def tokenize(self, conversation: Conversation, edges: Sequence[tuple[str, str]] = ()) -> list[int]:
        """Token ids of the prompt, with one placeholder a media item; ``edges`` is the text right before and after each.

        The same ids as ``apply_chat_template`` of transformers' processors, except that special tokens spelled out in a message
        stay text: a beginning that the tokenizer wants is added where the template has not written it.

        Raises:
            InvalidRequest: the template refuses the conversation (roles out of order, for example), its variables are no such,
                or the prompt is too long.
        """
        self._check_kwargs(conversation.kwargs)
        if self._special is not None and any(self._special.search(text) for text in conversation.texts()):
            return self._tokenize_masked(conversation, self._special, edges)
        rendered = self._render(conversation, edges)
        self._check_length(len(rendered))
        ids: list[int] = self._tokenizer.encode(rendered, add_special_tokens=False)
        return self._begun(rendered, ids)

    def _begun(self, rendered: str, ids: list[int]) -> list[int]:
        begun = self._beginning and not rendered.startswith(self._tokenizer.bos_token)
        return [*self._beginning, *ids] if begun else ids

    def encode(self, text: str, special_tokens: bool) -> list[int]:
        """Tokens of a raw prompt, in which special tokens may be spelled out; with the tokenizer's own ones if wanted."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special_tokens)
        return ids

    def plain(self, text: str) -> list[int]:
        """Tokens of a piece of plain text by itself."""
        ids: list[int] = self._literal.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

    def _render(
        self, conversation: Conversation, edges: Sequence[tuple[str, str]], mask: Callable[[str], str] | None = None
    ) -> str:
        """The prompt's text, with every text that somebody wrote as ``mask`` changes it."""
        try:
            if mask is not None:
                conversation = _changed(conversation, mask)
            messages, tools = conversation.messages, conversation.tools
            objects = as_objects(tools) or None
            if (tools or has_calls(messages)) and not self._knows_tools(
                self._tokenizer.get_chat_template(conversation.template, objects)
            ):
                messages, objects = in_words(messages, tools), None
            messages = readable(messages, self._reads_of(conversation.template))
            rendered: str = self._tokenizer.apply_chat_template(
                messages,
                tools=objects,
                chat_template=conversation.template,
                tokenize=False,
                add_generation_prompt=conversation.add_generation_prompt and not conversation.continue_final_message,
                continue_final_message=conversation.continue_final_message,
                **conversation.kwargs,
            )
        except Exception as error:  # a template is a program of the checkpoint's; whatever it raises is about the messages
            raise InvalidRequest(f"The model's chat template refuses these messages: {error}", param="messages") from error
        if not edges or self._places is None:
            return rendered
        waiting = iter(edges)

        def widened(match: re.Match[str]) -> str:
            before, after = next(waiting)
            return f"{before}{match[0]}{after}"

        return self._places.sub(widened, rendered)

    def _knows_tools(self, template: str) -> bool:
        if template not in self._with_tools:
            self._with_tools[template] = knows_tools(template)
        return self._with_tools[template]

    def _reads_of(self, template: str | None) -> dict[str, Reads]:
        """How the ``template``, or the checkpoint's own, reads contents."""
        if template not in self._reads:
            self._reads[template] = reads_of(
                lambda messages: str(self._tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False))
            )
        return self._reads[template]

    def _check_kwargs(self, kwargs: Mapping[str, Any]) -> None:
        """Variables must leave alone what the service, the tokenizer or Jinja sets, and be small.

        Raises:
            InvalidRequest: they do not.
        """
        if not kwargs:
            return
        own = {*inspect.signature(self._tokenizer.apply_chat_template).parameters, *self._tokenizer.special_tokens_map}
        if taken := (own | set(_OF_JINJA)) & set(kwargs):
            text = f"{', '.join(sorted(taken))} cannot be set by chat_template_kwargs."
            raise InvalidRequest(text, param="chat_template_kwargs")
        try:
            size = len(json.dumps(dict(kwargs), default=repr))
        except RecursionError as error:
            raise InvalidRequest("chat_template_kwargs is nested too deeply.", param="chat_template_kwargs") from error
        if size > _MOST_KWARGS:
            text = f"chat_template_kwargs has {size} characters of JSON; at most {_MOST_KWARGS} are accepted."
            raise InvalidRequest(text, param="chat_template_kwargs")
        if _greatest(kwargs) > _MOST_NUMBER:
            text = f"chat_template_kwargs has a number beyond {_MOST_NUMBER}."
            raise InvalidRequest(text, param="chat_template_kwargs")

    def _tokenize_masked(
        self, conversation: Conversation, special: re.Pattern[str], edges: Sequence[tuple[str, str]]
    ) -> list[int]:
        """Masks spelled-out special tokens while the template renders, so that only the template's own are split at."""
        names = list(self._special_ids)
        # What no template changes, in whatever form it writes texts.
        nonce = f"x{secrets.token_hex(8)}"
        masks = {token: f"{nonce}x{number}x" for number, token in enumerate(names)}
        masked = re.compile(f"{nonce}x([0-9]+)x")
        rendered = self._render(conversation, edges, lambda text: special.sub(lambda match: masks[match[0]], text))
        self._check_length(len(masked.sub(lambda match: names[int(match[1])], rendered)))
        ids: list[int] = []
        for piece in special.split(rendered):
            if piece in self._special_ids:
                ids.append(self._special_ids[piece])
            elif piece:
                ids.extend(self.plain(masked.sub(lambda match: names[int(match[1])], piece)))
        return self._begun(rendered, ids)


def _changed(conversation: Conversation, change: Callable[[str], str]) -> Conversation:
    """The conversation with all of ``texts()`` changed."""
    tools = tuple(
        replace(
            tool,
            name=change(tool.name),
            description=_strings_changed(tool.description, change),
            parameters=_strings_changed(tool.parameters, change),
        )
        for tool in conversation.tools
    )
    kwargs = {name: _strings_changed(value, change) for name, value in conversation.kwargs.items()}
    return replace(conversation, messages=_strings_changed(conversation.messages, change), tools=tools, kwargs=kwargs)


def _strings_changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _strings_changed(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_strings_changed(each, change) for each in value]
    return value


def _greatest(value: Any) -> float:
    """The greatest amount of a number in what JSON can hold."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return max(map(_greatest, value), default=0)
    if isinstance(value, float) and math.isnan(value):
        return math.inf  # nothing is greater than it, which would hide all that follow
    return abs(value) if isinstance(value, int | float) else 0
