"""How many bytes may be on their way to one receiver: callers wait for room in turn, for as long as it makes progress."""

from __future__ import annotations

import asyncio
from collections import deque


class Window:
    """Counts the bytes that were handed over and have not left memory yet. One message that is alone is never too large.

    ``progressed`` is when, by the event loop's clock, the receiver was last seen to take something.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.queued = 0
        self.progressed = float("-inf")

    async def enter(self, size: int, began: float, timeout: float) -> None:
        """Returns when ``size`` bytes are counted as queued; those that come later come after. What has no size passes.

        Raises:
            TimeoutError: nothing has moved for ``timeout`` seconds, of which those before ``began`` do not count.
        """
        if not size or (not self._waiting and self._has_room(size)):
            self.queued += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, turn)
        self._waiting.append(entry)
        try:
            while not turn.done():
                left = self.patience(began, timeout) - asyncio.get_running_loop().time()
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait([turn], timeout=left)
        except BaseException:
            if turn.done():
                self.leave(size)
            else:
                self._waiting.remove(entry)
                self._let_in()
            raise

    def patience(self, began: float, timeout: float) -> float:
        """Until when to wait, by the event loop's clock, for something that began to wait at ``began``."""
        return max(began, self.progressed) + timeout

    def sent(self, size: int = 0) -> None:
        """The receiver took something: ``size`` bytes have left memory."""
        self.progressed = asyncio.get_running_loop().time()
        self.leave(size)

    def leave(self, size: int) -> None:
        """``size`` bytes are not on their way any more, whatever became of them."""
        self.queued -= size
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            self.queued += size
            turn.set_result(None)

    def _has_room(self, size: int) -> bool:
        return self.queued == 0 or self.queued + size <= self._limit
