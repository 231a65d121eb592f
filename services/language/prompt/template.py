"""The chat template and the tokenizer. What people write is text, even where it spells a special token."""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Collection, Sequence
from typing import Any

from services.language.prompt.conversation import Conversation
from shared.errors import InvalidRequest


class ChatTemplate:
    """Renders and tokenizes conversations of one checkpoint."""

    def __init__(self, tokenizer: Any, placeholders: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        names = [tokenizer.convert_ids_to_tokens(token) for token in placeholders]
        self._places = re.compile("|".join(map(re.escape, names))) if names else None
        # Splitting special tokens is a state of the tokenizer, which threads share: each way has an instance of its own.
        self._literal = copy.deepcopy(tokenizer)
        self._literal.encode("", split_special_tokens=True)
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
            InvalidRequest: the template refuses the conversation (roles out of order, for example).
        """
        if self._special is not None and any(self._special.search(text) for text in conversation.texts()):
            return self._tokenize_masked(conversation, self._special, edges)
        rendered = self._render(conversation.messages, conversation.template, edges)
        ids: list[int] = self._tokenizer.encode(rendered, add_special_tokens=False)
        return self._begun(rendered, ids)

    def _begun(self, rendered: str, ids: list[int]) -> list[int]:
        begun = self._beginning and not rendered.startswith(self._tokenizer.bos_token)
        return [*self._beginning, *ids] if begun else ids

    def plain(self, text: str) -> list[int]:
        """Tokens of a piece of plain text by itself."""
        ids: list[int] = self._literal.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

    def _render(self, messages: list[dict[str, Any]], template: str | None, edges: Sequence[tuple[str, str]]) -> str:
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                messages, chat_template=template, tokenize=False, add_generation_prompt=True
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

    def _tokenize_masked(
        self, conversation: Conversation, special: re.Pattern[str], edges: Sequence[tuple[str, str]]
    ) -> list[int]:
        """Masks spelled-out special tokens while the template renders, so that only the template's own are split at."""
        nonce = secrets.token_hex(8)
        masks = {token: f"\ue000{nonce}.{number}\ue001" for number, token in enumerate(self._special_ids)}

        def mask(text: str) -> str:
            return special.sub(lambda match: masks[match[0]], text)

        def unmask(text: str) -> str:
            for token, masked in masks.items():
                text = text.replace(masked, token)
            return text

        messages = []
        for message in conversation.messages:
            content = message["content"]
            if isinstance(content, str):
                content = mask(content)
            else:
                content = [part | {"text": mask(part["text"])} if part["type"] == "text" else part for part in content]
            messages.append(message | {"content": content})
        ids: list[int] = []
        rendered = self._render(messages, conversation.template, edges)
        for piece in special.split(rendered):
            if piece in self._special_ids:
                ids.append(self._special_ids[piece])
            elif piece:
                ids.extend(self.plain(unmask(piece)))
        return self._begun(rendered, ids)
