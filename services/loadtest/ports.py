"""Ports of this machine."""

from __future__ import annotations

import random
import socket

_RANGE = range(15_000, 32_000)


def free_port() -> int:
    """A port of loopback that was free a moment ago. Not one of those that the system gives to outgoing connections: one of
    these may have it before the service that it is for.

    Raises:
        OSError: none is free.
    """
    for _ in range(100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.choice(_RANGE)))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no port is free")
