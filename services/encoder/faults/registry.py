"""The faults that are set, as the pipeline sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count

from services.encoder.faults.base import Call, Fault, Outgoing, Sender, Stage
from shared.control import EncodeItem
from shared.errors import InvalidRequest

_MAX_FAULTS = 64


class Faults:
    """Faults happen in the order in which they were set. Nothing is set at first."""

    def __init__(self) -> None:
        self._faults: dict[str, Fault] = {}
        self._numbers = count(1)

    @property
    def faults(self) -> Mapping[str, Fault]:
        """What is set, by id."""
        return self._faults

    def add(self, faults: Sequence[Fault]) -> dict[str, Fault]:
        """Sets all of them, and returns them by their ids.

        Raises:
            InvalidRequest: these would be more than 64; none of them is set.
        """
        if len(self._faults) + len(faults) > _MAX_FAULTS:
            raise InvalidRequest(f"At most {_MAX_FAULTS} faults can be set; {len(self._faults)} are.")
        added = {f"fault-{next(self._numbers)}": fault for fault in faults}
        self._faults |= added
        return added

    async def remove(self, fault_id: str) -> Fault:
        """Clears one fault and returns it; what it held up is gone by then.

        Raises:
            KeyError: no such fault is set.
        """
        fault = self._faults.pop(fault_id)
        await fault.clear()
        return fault

    async def clear(self) -> dict[str, Fault]:
        """Clears all and returns them by their ids; what they held up is gone by then."""
        cleared, self._faults = self._faults, {}
        await asyncio.gather(*(fault.clear() for fault in cleared.values()))
        return cleared

    @property
    def muted(self) -> bool:
        """Whether heartbeats are to be withheld."""
        return any(fault.muted for fault in self._faults.values())

    async def at(self, stage: Stage, call: Call, item: EncodeItem | None = None) -> None:
        """Lets the faults of a stage happen; ``item`` is None where the stage is the whole call's."""
        for fault in tuple(self._faults.values()):
            await fault.reach(stage, call, item)

    def sender(self, call: Call, send: Sender) -> Sender:
        """``send`` with all that the faults make of it."""
        for fault in reversed(self._faults.values()):
            send = _through(fault, call, send)
        return send

    async def aclose(self) -> None:
        """Ends what faults still have going."""
        await asyncio.gather(*(fault.aclose() for fault in self._faults.values()))


def _through(fault: Fault, call: Call, onward: Sender) -> Sender:
    async def send(outgoing: Outgoing) -> None:
        await fault.send(call, outgoing, onward)

    return send
