"""Grammars that answers keep to: which tokens may come next."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher
from torch import Tensor

from services.language.output.vocabulary import Vocabulary, reason_of
from shared.lru import ByteLRU

MARKS = ('"', "}", "]", ",", "x", "\n")
"""What tells of a place in JSON whether it is in a string, where an ``x`` may come, and what may end there."""

Mask = np.ndarray[tuple[int, int], np.dtype[np.bool_]]

_COMPILERS = 2
_KEPT = 16
"""Grammars whose matchers are kept."""


class Guide:
    """Where one sequence is in its grammar, and how probable it is that its model would have ended by now, had it been free to.

    A model that was not trained for a form has nothing to say where the form has room left. With its end merely forbidden it
    says something anyway: another sentence, another element, until the limit of tokens. So its wish to end counts, in two ways.
    What brings the answer nearer to its end (``closing_of``) is as probable as the end at least, so that a sentence that is
    over ends the string around it; the sampler does that. And once the model would have ended with a probability of a half or
    more, lists and objects take no more than they must (``over``). A model that knows the form expects no end inside of it, so
    for such a one nothing changes; nor does anything where the form is not ``json``, of which nobody knows what closes it.
    """

    def __init__(self, matcher: LLMatcher, json: bool = True) -> None:
        self.matcher = matcher
        self.json = json
        self._surviving = 1.0

    @property
    def ended(self) -> bool:
        """Whether nothing may follow: the grammar is complete and has no longer form, or an end token was taken."""
        return self.matcher.is_stopped()

    @property
    def over(self) -> bool:
        """Whether the model would rather have ended by now."""
        return self._surviving < 0.5

    @property
    def problem(self) -> str | None:
        """Why the grammar cannot be followed any further, if so."""
        return reason_of(self.matcher) if self.matcher.is_error() else None

    def wish(self, probability: float) -> None:
        """The model would have ended here, where it may not, with this probability."""
        self._surviving *= 1 - probability

    def take(self, token: int) -> None:
        """Goes on by one token of the answer."""
        self.matcher.consume_token(token)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the guided rows of a step may choose from.

    ``rows`` are places in the batch and ``tokens`` ``(rows, vocabulary)`` bool, on the CPU. ``unfinished`` says which of the
    rows may not end within the form that they have begun, ``closing`` which tokens bring these nearer to their ends. ``ends``
    are the model's end tokens.
    """

    rows: list[int]
    tokens: Tensor
    unfinished: list[bool]
    closing: list[list[int]]
    ends: list[int]


class Guides:
    """Makes guides of grammars in threads, and masks of guides.

    ``vocabulary`` opens the tokens and is called once, when the first grammar comes. Reading ``wakeup`` tells that a guide was
    made since.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary], threads: int = 1) -> None:
        self._open = vocabulary
        self._vocabulary: Vocabulary | None = None
        self._marks: list[tuple[str, int]] = []
        self._lock = Lock()
        self._kept: ByteLRU[str, LLMatcher] = ByteLRU(_KEPT)
        self._executor = LLExecutor(threads)
        self._threads = ThreadPoolExecutor(_COMPILERS, thread_name_prefix="grammars")
        self.wakeup, self._waker = socket.socketpair()
        self.wakeup.setblocking(False)
        self._waker.setblocking(False)

    def make(self, grammar: str) -> Future[Guide]:
        """The guide of one sequence; ``GrammarError`` where its grammar cannot be compiled."""
        future = self._threads.submit(self._make, grammar)
        future.add_done_callback(lambda _: self._wake())
        return future

    def settle(self) -> None:
        """Takes note of the guides that were made so far: ``wakeup`` is silent until the next."""
        with suppress(BlockingIOError):
            while self.wakeup.recv(4096):
                pass

    def allowed(self, guides: Sequence[Guide | None], vocabulary: int) -> Allowed | None:
        """What the rows of a step may choose from, of ``vocabulary`` tokens; None where none is guided.

        Where a guide turns out to have a ``problem``, what comes next does not matter; its sequence has to end.
        """
        guided = {row: guide for row, guide in enumerate(guides) if guide is not None}
        if not guided:
            return None
        assert self._vocabulary is not None
        tokens = self._masks([guide.matcher for guide in guided.values()], vocabulary)
        ends = [token for token in self._vocabulary.end_ids if token < vocabulary]
        marked = [(mark, token) for mark, token in self._marks if token < vocabulary]
        may_end: list[bool] = np.asarray(tokens[:, ends].any(axis=1)).tolist()
        may_mark: list[list[bool]] = tokens[:, [token for _, token in marked]].tolist()
        unfinished, closing = [], []
        for at, guide in enumerate(guided.values()):
            open_to = [known for known, may in zip(marked, may_mark[at], strict=True) if may]
            marks = {mark for mark, _ in open_to}
            unfinished.append(guide.json and not may_end[at] and not _is_free(marks))
            closes_by = closing_of(marks) if unfinished[-1] else ""
            closing.append([token for mark, token in open_to if mark == closes_by])
            if guide.over and closes_by in {"}", "]"}:
                tokens[at] = False
                tokens[at, closing[-1]] = True
        return Allowed(list(guided), torch.from_numpy(tokens), unfinished, closing, ends)

    def _masks(self, matchers: list[LLMatcher], vocabulary: int) -> Mask:
        """``(matchers, vocabulary)``: which tokens each lets come next."""
        assert self._vocabulary is not None
        words = -(-len(self._vocabulary.tokens) // 32)
        bits = np.zeros((len(matchers), words), dtype=np.int32)
        pairs = [(matcher, at) for at, matcher in enumerate(matchers)]
        self._executor.unsafe_compute_mask_ptr(pairs, bits.ctypes.data, 4 * words, len(matchers))
        # A model may have more logits than there are tokens, or fewer.
        table = np.zeros((len(matchers), max(vocabulary, 32 * words)), dtype=np.uint8)
        table[:, : 32 * words] = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")
        tokens = table.view(np.bool_)[:, :vocabulary]
        # Whether the matcher is in error or the model has none of its tokens: whatever is chosen then, the guide will not take.
        tokens[~tokens.any(axis=1)] = True
        return tokens

    def _make(self, grammar: str) -> Guide:
        json = "%json" in grammar
        with self._lock:
            if self._vocabulary is None:
                opened = self._open()
                self._marks = [(mark, token) for mark in MARKS for token in opened.ids_of(mark)]
                self._vocabulary = opened
            kept = self._kept.get(grammar)
            if kept is not None:
                return Guide(kept.deep_copy(), json)
        matcher = self._vocabulary.compile(grammar)
        with self._lock:
            self._kept.put(grammar, matcher.deep_copy(), 1)
        return Guide(matcher, json)

    def _wake(self) -> None:
        # Where the socket takes no more, it has been told often enough.
        with suppress(BlockingIOError):
            self._waker.send(b"1")


def closing_of(marks: Collection[str]) -> str:
    """Which of those of ``MARKS`` that may come next brings JSON nearer to its end; "" where none does.

    Inside a string that is the quote. Elsewhere at most one bracket may come, and it closes; a quote beside it would open one
    more string. A comma alone ends a value that others have to follow.
    """
    brackets = {"}", "]"}.intersection(marks)
    if "x" not in marks and len(brackets) == 1:
        return brackets.pop()
    if '"' in marks:
        return '"'
    return "," if "," in marks and not brackets and "x" not in marks else ""


def _is_free(marks: Collection[str]) -> bool:
    """Whether what comes next is text of no form: no string of JSON has a newline in it."""
    return "x" in marks and "\n" in marks
