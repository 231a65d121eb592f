"""One item of a call, on the one path that there is."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.encoder.admission import Share
from services.encoder.faults.base import Call
from shared.control import EncodeItem
from shared.identity import MediaItem


@dataclass(eq=False, slots=True)
class Job:
    """One item of a call.

    ``raw`` are its bytes, from when they are there until nobody needs them any more; ``share`` counts them. ``item`` is what
    its call gets, from when it is known what it is; in the end it has embeddings. ``timings`` are the seconds that were spent
    for this call, by stage.
    """

    call: Call
    entry: EncodeItem
    share: Share
    raw: bytes | None
    timings: dict[str, float] = field(default_factory=dict)
    item: MediaItem = field(init=False)

    def let_go(self) -> None:
        """Its bytes are not needed any more."""
        if self.raw is not None:
            self.share.release(len(self.raw))
            self.raw = None

    def become(self, item: MediaItem) -> None:
        """It is ``item`` for its call, with timings of its own."""
        self.item = item.again()
        self.item.timings = self.timings
