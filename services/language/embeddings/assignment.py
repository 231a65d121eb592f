"""Items are given to encoders that can be asked now."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterable

from services.language.embeddings.choice import Choice
from services.language.embeddings.encoder import Encoder, Share, State
from services.language.prompt.conversation import MediaSource
from shared.errors import EncoderOverloaded, EncoderUnavailable
from shared.pace import Pace


class Assignment:
    """Keeps account of the encoders that are ready and whose circuit lets a request pass. ``why_none`` is asked for words when
    there are none."""

    def __init__(self, why_none: Callable[[], str]) -> None:
        self._why_none = why_none
        self._choice: Choice[Encoder] = Choice()
        self._pace = Pace()
        # Ready encoders whose circuit lets nothing pass, by the time at which it will. The last entry of each is the valid one.
        self._pauses: list[tuple[float, int, Encoder]] = []
        self._paused: dict[Encoder, int] = {}
        self._numbers = itertools.count()

    def settle(self, encoder: Encoder) -> None:
        """To be called whenever state, capacity, load or circuit of an encoder have changed."""
        if encoder.state is State.READY and encoder.breaker.admits():
            self._paused.pop(encoder, None)
            self._choice.put(encoder)
            return
        self._choice.remove(encoder)
        self._paused.pop(encoder, None)
        if encoder.state is State.READY:
            number = self._paused[encoder] = next(self._numbers)
            heapq.heappush(self._pauses, (encoder.breaker.admits_at(), number, encoder))

    def check(self, items: int, avoiding: frozenset[Encoder] = frozenset()) -> None:
        """Whether encoders could be asked for ``items`` items now.

        Raises:
            EncoderUnavailable: none is healthy, or none besides those to avoid.
            EncoderOverloaded: those that are have no room.
        """
        self._resume()
        usable, room = self._choice.without(avoiding)
        if not usable:
            raise EncoderUnavailable(self._why_none())
        if items > room:
            wait = self._pace.time_for(items - room)
            raise EncoderOverloaded("Every healthy encoder has as many items in work as it takes.", retry_after=wait)

    def assign(self, sources: Iterable[MediaSource], avoiding: frozenset[Encoder] = frozenset()) -> list[Share]:
        """Gives each source to an encoder: by affinity at first, and where encoders are avoided, to the least loaded.

        Raises:
            EncoderUnavailable: none is healthy, or none besides those to avoid.
            EncoderOverloaded: those that are have no room.
        """
        sources = list(sources)
        self.check(len(sources), avoiding)
        shares: dict[Encoder, Share] = {}
        for source in sources:
            encoder = self._choice.least_loaded(avoiding) if avoiding else self._choice.choose(source.routing_key)
            if encoder not in shares:
                shares[encoder] = Share(encoder, self._released)
            shares[encoder].add(source)
            self._choice.put(encoder)
        self._pace.begin(len(sources))
        for encoder in shares:  # not before: one that is being probed gets no other request, but all that it gets of this one
            self.settle(encoder)
        return list(shares.values())

    def _released(self, share: Share) -> None:
        self._pace.end(len(share.sources))
        self.settle(share.encoder)

    def _resume(self) -> None:
        """Lets encoders in again whose circuit lets a request pass by now."""
        now = time.monotonic()
        while self._pauses and self._pauses[0][0] <= now:
            _, number, encoder = heapq.heappop(self._pauses)
            if self._paused.get(encoder) == number:
                self.settle(encoder)
