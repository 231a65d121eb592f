"""The decoding process: ``python -m services.encoder.sandbox``. It decodes what its parent sends it, and nothing else."""

from __future__ import annotations

import importlib
import math
import resource
import signal
import sys
import time

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


def main() -> None:
    """Decodes one file. Whatever is wrong with it is said; whatever is wrong with the decoder ends the process."""
    channel = Channel(sys.stdin.buffer, sys.stdout.buffer)
    order = msgspec.json.decode(channel.line(), type=Order)
    decoder = importlib.import_module(f"services.encoder.sandbox.{order.kind}")
    confine(order)
    try:
        decoder.decode(channel, order, channel.read(order.size))
    except Refusal as refusal:
        channel.say(Refused(str(refusal)))
    except MemoryError:
        megabytes = order.memory // 2**20
        channel.say(Refused(f"The {decoder.WORD} needs more than the {megabytes} MiB of memory that decoding it may take."))


if __name__ == "__main__":
    main()
