"""One request's media on their way, and what it does with each item that arrives."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from services.language.deadline import Deadline
from services.language.embeddings.cache import EmbeddingCache
from services.language.embeddings.receiver import Holding
from services.language.prompt.conversation import MediaSource
from services.language.timeline import ItemTime, Source
from shared.errors import EmbeddingIncompatible, InvalidMedia, InvalidRequest
from shared.flight import Flight
from shared.identity import MediaItem

_COMPUTED_HASH = re.compile(r"[0-9a-f]{32}")


@dataclass
class Job:
    """``items`` are those that arrived and verified, by index: from the cache, from whichever attempt, or from another request.

    ``wire_id`` is what its messages are known by; ``forwarded`` are headers that encoders get to see. ``flights`` are those of
    the items that it asks for, by index; others may wait for them. ``elapsed`` is how many seconds after the job's ``began``
    each of them was there.
    """

    wire_id: str
    media: Sequence[MediaSource]
    token_budget: int
    deadline: Deadline
    forwarded: Mapping[str, str]
    holding: Holding
    cache: EmbeddingCache
    items: dict[int, MediaItem] = field(default_factory=dict)
    flights: dict[int, Flight[MediaItem]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    began: float = field(default_factory=time.perf_counter)
    elapsed: dict[int, float] = field(default_factory=dict)

    @property
    def missing(self) -> list[MediaSource]:
        """The media whose items are not there yet."""
        return [source for source in self.media if source.index not in self.items]

    @property
    def tokens_left(self) -> int:
        """What the missing items may take."""
        return self.token_budget - sum(item.prompt_tokens for item in self.items.values())

    def check_tokens(self) -> None:
        """What is there must fit: what came from the cache, or for another request, no encoder has counted for this one.

        Raises:
            InvalidRequest: it does not.
        """
        if self.tokens_left < 0:
            needed = self.token_budget - self.tokens_left
            text = f"The media need {needed} tokens, but only {max(0, self.token_budget)} are left for them in the context."
            raise InvalidRequest(text, param="messages")

    def arrived(self, index: int, item: MediaItem) -> None:
        """An item that was asked for is verified: it is this request's, and theirs who wait for the same.

        Raises:
            EmbeddingIncompatible: it is of another kind, or goes by a hash that cannot be its own.
        """
        source = self.media[index]
        check_own(source, item)
        self.items[index] = item
        self.elapsed[index] = time.perf_counter() - self.began
        self.cache.keep(source, item)
        if index in self.flights:
            self.flights[index].land(item)

    def times(self, cached: Container[int]) -> list[ItemTime]:
        """Where each item came from, and where its time went; those in ``cached`` were here before."""
        found = []
        for source in self.media:
            index, item = source.index, self.items[source.index]
            if index not in self.elapsed:
                known: Source = "language" if index in cached else "shared"
                found.append(ItemTime(index, item.modality, item.prompt_tokens, known))
                continue
            spent = dict(item.timings)
            wire = max(0.0, self.elapsed[index] - sum(spent.values()))
            whence: Source = "computed" if "tower" in spent else "encoder"
            found.append(ItemTime(index, item.modality, item.prompt_tokens, whence, item.encoder_id, spent, wire))
        return found

    def given_up(self, source: MediaSource, error: BaseException) -> None:
        """Ends the flight of an item that does not come, since the request ends with ``error``. Equal bytes are equally bad;
        but a request that ends because of another picture has failed at nothing here."""
        flight = self.flights.get(source.index)
        if flight is None:
            return
        if not isinstance(error, InvalidMedia):
            flight.lose(failed=isinstance(error, Exception))
        elif error.param != source.param:
            flight.lose(failed=False)
        else:
            # What a caller supplied names neither the bytes nor the way to them.
            flight.lose(failed=True, error=error if source.supplied is None else None)


def check_own(source: MediaSource, item: MediaItem) -> None:
    """An item is of the kind that was asked for. It goes by the hash that its caller supplied, else by one that was computed:
    by any other, the cache could give it to others, in place of their own.

    Raises:
        EmbeddingIncompatible: it does not.
    """
    if item.modality != source.modality:
        raise EmbeddingIncompatible(f"Item {source.index} came as {item.modality}; it is {source.modality}.")
    told = item.content_hash
    if told != source.supplied if source.supplied is not None else _COMPUTED_HASH.fullmatch(told) is None:
        raise EmbeddingIncompatible(f"Item {source.index} came under the content hash {told!r}, which cannot be its own.")
