"""How families of models spell calls of tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from services.language.output import glm, hermes, kimi, mistral
from services.language.output.calls import CallReader
from services.language.output.format import Tool
from services.language.output.marks import Mark


class Dialect(Protocol):
    """One way to spell calls.

    Calls begin with ``opening``, whose text is ``trigger``. ``kept`` are the special tokens among the dialect's marks, which
    decoding must not leave out.
    """

    @property
    def name(self) -> str: ...

    @property
    def trigger(self) -> str: ...

    @property
    def opening(self) -> Mark: ...

    @property
    def kept(self) -> frozenset[int]: ...

    def rule(self, tools: Sequence[Tool], parallel: bool, opened: bool = False) -> str:
        """The body of a rule of a llguidance grammar (Lark) that spells a call of one of ``tools``, or several where
        ``parallel``: with the trigger, or what follows one that is there already (``opened``). Rules that it needs follow on
        lines of their own, with names that begin with ``call_``."""
        ...

    def reader(self, tools: Sequence[Tool] = ()) -> CallReader:
        """What reads calls, of ``tools`` for example, out of one answer."""
        ...


def dialect_of(tokenizer: Any, template: str) -> Dialect:
    """The dialect that ``template`` spells calls in; Hermes' where it knows none."""
    if kimi.SECTION in template:
        return kimi.Kimi(tokenizer)
    if glm.KEY in template:
        return glm.Glm(tokenizer, template)
    if mistral.TRIGGER in template:
        return mistral.Mistral(tokenizer, template)
    return hermes.Hermes(tokenizer)
