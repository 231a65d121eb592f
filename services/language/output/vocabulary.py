"""A checkpoint's tokens as grammars see them, and what compiles a grammar for them."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Collection
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.hf import from_tokenizer

_REASONING = re.compile(r"\W/?think\W", re.IGNORECASE)

_EXCERPT = re.compile(r"\s*\d+ \||<")
_PLACE = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: ")

_FACTOR = re.compile(r'"multipleOf"\s*:\s*([0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)')
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_MOST_FACTOR, _DIGITS = 10_000, 9
_MOST_MULTIPLE = 100_000
"""Multiples are told by remainders, for each of which the lexer has a state, and no limit counts these: 999,983 took 7 s. What
has to be a multiple of several factors has states for each remainder by their least common multiple."""

_TRIED = 4
"""Tokens by which a grammar is tried: some find at the second that they have too many ways to go on."""

LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=50_000,
    step_max_items=20_000,
    max_lexer_states=50_000,
    max_grammar_size=20_000,
    verbose_errors=False,
)
"""What a grammar may cost, in llguidance's units; none of them is of time, so what compiles once compiles everywhere."""


class GrammarError(ValueError):
    """A grammar cannot be compiled, or cannot be followed any further; the reason in a sentence."""


class Vocabulary:
    """The tokens of a checkpoint. What is text and what is not differs from llguidance's own view, which takes each added token
    within angle brackets for a special one: here only those are special that the tokenizer says are, and of these not the marks
    of reasoning. So free text may have whatever a model was trained to write, and grammars spell it as text.

    Raises:
        GrammarError: the tokenizer is none of the tokenizers library, whose tokens nothing tells the bytes of; or no token ends
            an answer.
    """

    def __init__(self, tokenizer: Any, end_ids: Collection[int]) -> None:
        if not end_ids:
            raise GrammarError("this model has no token that ends an answer")
        try:
            plain = from_tokenizer(tokenizer, slices=[])
        except ValueError as error:
            raise GrammarError("this model's tokenizer does not tell the bytes of its tokens") from error
        source = _Source(tokenizer, plain, sorted(end_ids))
        self.tokens: list[bytes] = source.tokens
        self.end_ids = frozenset(end_ids)
        self.llguidance = LLTokenizer(source, eos_token=sorted(end_ids))  # type: ignore[arg-type]

    def ids_of(self, text: str) -> list[int]:
        """All tokens that are exactly this text."""
        raw = text.encode()
        return [token for token, spelled in enumerate(self.tokens) if spelled == raw]

    def compile(self, grammar: str) -> LLMatcher:
        """A matcher at the beginning of ``grammar``. Blocks for as long as that takes, without the interpreter's lock.

        Raises:
            GrammarError: it is no grammar, nothing matches it, or it costs more than ``LIMITS``, as far as its beginning tells.
        """
        _check_factors(grammar)
        matcher = LLMatcher(self.llguidance, grammar, log_level=0, limits=LIMITS)
        trial = matcher.deep_copy()
        for _ in range(_TRIED):
            allowed = np.frombuffer(trial.compute_bitmask(), np.uint8)
            if trial.is_error():
                raise GrammarError(reason_of(trial))
            trial.consume_token(int(np.unpackbits(allowed, bitorder="little").argmax()))
            if trial.is_stopped():
                break
        return matcher


class _Source:
    """The tokens as llguidance asks for them; called with text, their ids, by which it spells what has only one spelling."""

    def __init__(self, tokenizer: Any, plain: LLTokenizer, end_ids: list[int]) -> None:
        # Of its own, so that no thread changes its settings; and without the space that some tokenizers put before a text.
        self._plain = plain
        added = tokenizer.added_tokens_decoder.items()
        known = set(tokenizer.get_vocab().values())
        self.is_tokenizer_wrapper = True
        self.tokens = [plain.decode_bytes([token]) for token in range(plain.vocab_size)]
        self.eos_token_id = end_ids[0]
        self.bos_token_id: int | None = None
        special = {token for token, entry in added if entry.special and not _REASONING.fullmatch(entry.content)}
        self.special_token_ids = sorted(special.union(end_ids, set(range(plain.vocab_size)) - known))

    def __call__(self, text: str | bytes) -> list[int]:
        return self._plain.tokenize_bytes(text.encode() if isinstance(text, str) else text)


def _check_factors(grammar: str) -> None:
    """Raises GrammarError where what is asked to be a multiple of something takes too many states."""
    # A client's own grammar is a string of JSON here, and may spell a keyword in JSON's other ways.
    texts = [each["lark_grammar"] for each in json.loads(grammar)["grammars"]] if grammar.startswith("{") else [grammar]
    found = {factor for text in texts for factor in _FACTOR.findall(_ESCAPE.sub(lambda match: chr(int(match[1], 16)), text))}
    if any(float(factor) > _MOST_FACTOR for factor in found):
        raise GrammarError(f"a multipleOf is more than {_MOST_FACTOR}")
    if any(round(float(factor), _DIGITS) != float(factor) or not float(factor) for factor in found):
        raise GrammarError(f"a multipleOf has more than {_DIGITS} digits after its point, or is 0")
    # As whole numbers of the least digit that any of them has.
    scale = next(10**digits for digits in range(_DIGITS + 1) if all(round(float(one), digits) == float(one) for one in found))
    if math.lcm(*(round(float(factor) * scale) for factor in found)) > _MOST_MULTIPLE:
        raise GrammarError(f"the least common multiple of all multipleOf is more than {_MOST_MULTIPLE}")


def reason_of(matcher: LLMatcher) -> str:
    """Why a matcher is in error, on one line: without its state, and the excerpt of a grammar that its client never saw."""
    told = itertools.takewhile(lambda line: not _EXCERPT.match(line), matcher.get_error().splitlines())
    reason = " ".join(" ".join(told).split())
    if reason.startswith("NoExtension"):
        return "nothing matches it"
    return _PLACE.sub("", reason).removeprefix("Parser Error: ")[:500].rstrip(".")
