"""``python -m services.encoder.sandbox``: begins a process for each file that its parent sends, which decodes that and ends."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any

import msgspec

from services.encoder.sandbox.channel import Channel, Refusal
from services.encoder.sandbox.messages import Order, Refused

_PATIENCE = 20  # wall-clock seconds for each second of processor time


def confine(order: Order) -> None:
    """From here on no file and no connection can be opened; memory and time are bounded; nothing large can be written."""
    with open("/proc/self/statm", "rb") as statm:
        taken = int(statm.read().split()[0]) * resource.getpagesize()
    seconds = math.ceil(time.process_time() + order.seconds)
    for what, limit in (
        (resource.RLIMIT_AS, taken + order.size + order.memory),
        (resource.RLIMIT_NOFILE, 0),
        (resource.RLIMIT_FSIZE, 2**16),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    signal.alarm(_PATIENCE * seconds)  # a library that waits for itself uses no processor time


def decode(decoder: Any, connection: socket.socket) -> None:
    """Decodes one file. Whatever is wrong with it is said; whatever is wrong with the decoder ends the process."""
    channel = Channel(connection.makefile("rb"), connection.makefile("wb"))
    order = msgspec.json.decode(channel.line(), type=Order)
    confine(order)
    try:
        decoder.decode(channel, order, channel.read(order.size))
    except Refusal as refusal:
        channel.say(Refused(str(refusal)))
    except MemoryError:
        megabytes = order.memory // 2**20
        channel.say(Refused(f"The {decoder.WORD} needs more than the {megabytes} MiB of memory that decoding it may take."))


def end_of(child: int, control: socket.socket) -> int:
    """Waits for a child's end, and says how it ended. Where the parent's end comes first, the child's follows."""
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([control.fileno(), ended], [], [])
    os.close(ended)
    if control.fileno() in ready:  # the parent says nothing in the meantime
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    """Until the parent ends: is told a kind of files and given a connection, and begins a copy of itself that decodes one.

    The copy knows nothing of other files, and has no way to the parent but for that connection.
    """
    control = socket.socket(fileno=sys.stdin.fileno())
    while True:
        kind, connections, _, _ = socket.recv_fds(control, 64, 1)
        if not kind:
            return
        decoder = importlib.import_module(f"services.encoder.sandbox.{kind.decode()}")
        with socket.socket(fileno=connections[0]) as connection:
            child = os.fork()
            if not child:
                control.close()
                decode(decoder, connection)
                os._exit(0)
        with contextlib.suppress(BrokenPipeError):
            control.send(str(end_of(child, control)).encode())


if __name__ == "__main__":
    main()
