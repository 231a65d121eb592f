"""How much the encoder takes on: a bound on items and on bytes, with an honest word on when to come again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from shared.errors import EncoderOverloaded, InvalidRequest
from shared.pace import Pace


class Admission:
    """Counts what is in work. ``held`` is in bytes of bodies, media and features.

    Bytes are known only as they come. A call that is alone is never refused for them, so that each can run some time.
    """

    def __init__(self, max_items: int, max_bytes: int, pace: Pace | None = None) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._calls = 0
        self._pace = pace or Pace()
        self.held = 0

    @property
    def items(self) -> int:
        """Items in work."""
        return self._pace.open

    @contextmanager
    def body(self, held: int) -> Iterator[Share]:
        """Inside it, the body of a call arrives, of which ``held`` bytes are known; later, that call is in work by the same
        share. Ends with nothing held.

        Raises:
            EncoderOverloaded: there is no room for it, or for any item in it, now.
        """
        self._check_items(1)
        self._check_bytes(held, others=self._calls)
        self._calls += 1
        share = Share(self)
        try:
            share.hold(held)
            yield share
        finally:
            share.release(share.held)
            self._calls -= 1

    @contextmanager
    def call(self, items: int, held: int, body: Share | None = None) -> Iterator[Share]:
        """Inside it, a call of so many ``items`` is in work, which comes with ``held`` bytes: those that are left of its
        ``body``, where it has come in one. Ends with nothing held.

        Raises:
            EncoderOverloaded: there is no room for it now.
            InvalidRequest: there never will be.
        """
        if items > self._max_items:
            raise InvalidRequest(f"A call may have at most {self._max_items} items; this one has {items}.", param="items")
        self._check_items(items)
        with nullcontext(body) if body is not None else self.body(0) as share:
            share.become(held)
            self._pace.begin(items)
            try:
                yield share
            finally:
                share.release(share.held)
                self._pace.end(items)

    def hold(self, count: int) -> None:
        """Accounts for ``count`` bytes more.

        Raises:
            EncoderOverloaded: they are too many, and the call is not alone.
        """
        self._check_bytes(count, others=self._calls - 1)
        self.held += count

    def _check_items(self, count: int) -> None:
        excess = self.items + count - self._max_items
        if excess > 0:
            raise EncoderOverloaded(
                f"The encoder has {self.items} of at most {self._max_items} items in work.",
                retry_after=self._pace.time_for(excess),
            )

    def _check_bytes(self, count: int, others: int) -> None:
        excess = self.held + count - self._max_bytes
        if excess > 0 and others:
            # As many items as hold the excess, if all hold the same.
            items = math.ceil(self.items * min(1.0, excess / max(1, self.held)))
            raise EncoderOverloaded(
                f"The encoder holds {self.held} of at most {self._max_bytes} bytes; there is no room for {count} more.",
                retry_after=self._pace.time_for(items),
            )


class Share:
    """What one call holds, in bytes."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.held = 0

    def hold(self, count: int) -> None:
        """The call holds ``count`` bytes more.

        Raises:
            EncoderOverloaded: there is no room for them.
        """
        self._admission.hold(count)
        self.held += count

    def become(self, count: int) -> None:
        """What the call holds are ``count`` bytes from now on, in place of what it held.

        Raises:
            EncoderOverloaded: they are more, and there is no room for them.
        """
        if count > self.held:
            self.hold(count - self.held)
        else:
            self.release(self.held - count)

    def release(self, count: int) -> None:
        """The call holds ``count`` bytes less."""
        self._admission.held -= count
        self.held -= count
