"""Who gets the cores when they are scarce: event loops before computation, since they only need them for moments."""

from __future__ import annotations

import contextlib
import os
import threading

# On Linux a third of the share of a thread that has not been nice.
_NICE = 5


def be_nice() -> None:
    """Lets others go first, where this thread and those that it starts compute for long. Linux keeps this by thread."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
