"""What a fleet costs one language service, and what becomes of its requests when a third of the fleet dies at once.

    python -m benchmarks.fleet --write docs/fleet-size.md

The service's own pool, failover and receiver run with simulated encoders (``benchmarks/simulation.py``); only signs of life are
also sent by another process over real connections, to see what receiving them costs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import cast

import structlog
import zmq
from prometheus_client import generate_latest

from benchmarks.pages import report
from benchmarks.simulation import Life, Load, Options, SimulatedEncoder, Simulation, encoders_of, simulation, until, until_ready
from benchmarks.tables import table
from services.language.embeddings.assembly import Assembler
from services.language.embeddings.encoder import Encoder, EncoderList, Share
from services.language.embeddings.receiver import Receiver
from services.language.embeddings.traffic import Traffic
from services.language.prompt.conversation import MediaSource
from shared.lifecycle import settle
from shared.telemetry import Metrics
from shared.wire import Heartbeat

RATE, ITEMS = 100.0, 2  # requests a second, and pictures in each
CALM, AFTER = 5.0, 8.0  # seconds of load before encoders die, and after
USED, LONGEST = 0.4, 2.0  # the part of the fleet that is busy, as long as no item takes more than so many seconds
DYING = 0.3
CHOICES = 1000


@dataclass(frozen=True)
class Costs:
    """``choice`` are microseconds for one item by what the fleet is like; ``signs`` and ``looks`` are a second; sizes are in
    bytes, other times in seconds."""

    ready: float
    choice: dict[str, float]
    signs: float
    sign_bytes: float
    looks: float
    memory: float
    view: tuple[int, float]
    metrics: tuple[int, float]
    cpu: float


@dataclass(frozen=True)
class Storm:
    """A fleet of which a part dies under load. ``codes`` counts requests by how they ended, ``most_asked`` is how often an item
    was asked for at most, ``attempts`` how often on average. ``last_failure`` and those that begin with ``stall`` are seconds,
    rates are answers a second; ``loads`` are the items at the busiest encoder, and on average, at the end."""

    codes: Counter[str]
    most_asked: int
    attempts: float
    last_failure: float
    stall_before: float
    stall: float
    rate_before: float
    rate_after: float
    loads: tuple[int, float]


def sources() -> Iterator[MediaSource]:
    """Pictures that were never seen before."""
    for index in count():
        yield MediaSource(index, "image", "messages", digest=f"{index:032x}")


def seconds_of(act: Callable[[], object], times: int = 1, rounds: int = 5) -> float:
    """The thread's time for one call of ``times`` in a row, in the best of several rounds: others use the machine too."""

    def once() -> float:
        began = time.thread_time()
        for _ in range(times):
            act()
        return (time.thread_time() - began) / times

    return min(once() for _ in range(rounds))


async def costs(number: int) -> Costs:
    """What so many encoders cost, at rest and for each item."""
    tracemalloc.start()
    encoders = encoders_of(number, 1.0)
    before = tracemalloc.get_traced_memory()[0]
    async with simulation(encoders) as service:
        await until_ready(service, number)
        memory = (tracemalloc.get_traced_memory()[0] - before) / number
    tracemalloc.stop()
    async with simulation(encoders_of(number, 1.0)) as service:
        fleet, pool = service.fleet, service.pool
        ready = await until_ready(service, number)
        await asyncio.sleep(2.0)
        looks, signs, sign_bytes, began = fleet.looks, fleet.beats, fleet.beat_bytes, time.perf_counter()
        await asyncio.sleep(5.0)
        seconds = time.perf_counter() - began
        looks, signs, sign_bytes = fleet.looks - looks, fleet.beats - signs, fleet.beat_bytes - sign_bytes
        choice = await choices(service, number)
        view = _made(lambda: EncoderList(data=pool.describe()).model_dump_json().encode())
        exposed = _made(lambda: generate_latest(service.metrics.registry))
    cpu = await cpu_of_signs(number)
    return Costs(ready, choice, signs / seconds, sign_bytes / seconds, looks / seconds, memory, view, exposed, cpu)


async def choices(service: Simulation, number: int) -> dict[str, float]:
    """Microseconds to give one item to an encoder, and to note that it is done."""
    pool, pictures = service.pool, sources()

    def assign(avoiding: frozenset[Encoder] = frozenset()) -> None:
        [share] = pool.assign([next(pictures)], avoiding)
        pool.report(share, None)

    measured = {"all well": 1e6 * seconds_of(assign, CHOICES)}
    held: list[Share] = [share for _ in range(round(0.9 * 8 * number)) for share in pool.assign([next(pictures)])]
    measured["nine tenths of all places taken"] = 1e6 * seconds_of(assign, CHOICES)
    tried = frozenset({held[0].encoder})
    measured["moved to the least loaded"] = 1e6 * seconds_of(lambda: assign(tried), CHOICES)
    for share in held:
        share.release()
    for encoder in list(service.fleet.encoders.values())[: round(DYING * number)]:
        service.fleet.end(encoder, Life.KILLED)
    await until_ready(service, number - round(DYING * number))
    measured["three tenths dead"] = 1e6 * seconds_of(assign, CHOICES)
    return measured


def _made(make: Callable[[], bytes]) -> tuple[int, float]:
    """How large something is, and the seconds that it takes to make."""
    return len(make()), seconds_of(make)


async def cpu_of_signs(number: int) -> float:
    """The part of a core that it takes to receive the signs of life of so many encoders, each over its own connection."""
    seconds, heard = 4.0, 0

    def hear(encoder_id: str, heartbeat: Heartbeat | None) -> None:  # noqa: ARG001
        nonlocal heard
        heard += 1

    receiver = Receiver(cast(Assembler, None), "127.0.0.1", 0, 2**20, 2**20, Metrics())
    receiver.on_sign = hear
    async with receiver:
        interval = Traffic(Options.health_interval, Options.liveness_timeout).beat(number)
        command = [sys.executable, "-m", "benchmarks.fleet", "--send", str(receiver.port), str(number), str(interval)]
        sender = await asyncio.create_subprocess_exec(*command)
        try:
            await until(lambda: heard > 2 * number)  # all are connected
            heard, began, used = 0, time.perf_counter(), time.process_time()
            await asyncio.sleep(seconds)
            rate = heard / (time.perf_counter() - began)
            return (time.process_time() - used) / heard * min(rate, number / interval)
        finally:
            sender.terminate()
            await sender.wait()


def send(port: int, number: int, interval: float) -> None:
    """Sends signs of life as so many encoders do, until it is ended."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, number + 16)
    sockets = [context.socket(zmq.PUSH) for _ in range(number)]
    frames = [SimulatedEncoder(f"encoder-{index:08x}", 1.0).heartbeat().model_dump_json().encode() for index in range(number)]
    for socket in sockets:
        socket.connect(f"tcp://127.0.0.1:{port}")
    due = time.perf_counter()
    while True:
        for socket, frame in zip(sockets, frames, strict=True):
            due += interval / number
            time.sleep(max(0.0, due - time.perf_counter()))
            socket.send(frame)


async def storm(number: int, rate: float = RATE, calm: float = CALM, after: float = AFTER) -> Storm:
    """Three tenths of the encoders die under load: every other one is killed, of the rest nothing is heard any more."""
    # Each encoder computes two items at a time.
    seconds = min(LONGEST, USED * 2 * number / (rate * ITEMS))
    async with simulation(encoders_of(number, seconds)) as service:
        await until_ready(service, number)
        settle()
        load = Load(service, rate, ITEMS, timeout=30.0)
        running = asyncio.create_task(load.run(calm + after))
        await asyncio.sleep(calm)
        died = time.perf_counter()
        for index, encoder in enumerate(list(service.fleet.encoders.values())[: round(DYING * number)]):
            service.fleet.end(encoder, Life.CUT_OFF if index % 2 else Life.KILLED)
        await running
        asked = service.fleet.asked
        answers = [each.ended for each in load.ended if each.code == "ok"]
        failures = [each.ended - died for each in load.ended if each.code != "ok"]
        begin, end = died - calm / 2, died + after
        _, most, mean = [each for each in load.loads if each[0] < end][-1]
        return Storm(
            codes=Counter(each.code for each in load.ended),
            most_asked=max(asked.values()),
            attempts=sum(asked.values()) / len(asked),
            last_failure=max(failures, default=0.0),
            stall_before=max(busy for at, busy in load.stretches if at < died),
            stall=max(busy for at, busy in load.stretches if at >= died),
            rate_before=sum(begin <= at < died for at in answers) / (died - begin),
            rate_after=sum(end - after / 2 <= at < end for at in answers) / (after / 2),
            loads=(most, mean),
        )


def rows(numbers: Sequence[int], found: Sequence[tuple[Costs, Storm]]) -> Iterator[Sequence[str]]:
    """What was measured, one line each; the last column compares the largest fleet with the smallest."""

    def row(name: str, form: str, value: Callable[[Costs, Storm], float], compared: bool = True) -> Sequence[str]:
        values = [value(*each) for each in found]
        ratio = f"{values[-1] / values[0]:.1f}" if compared and values[0] else ""
        return name, *(format(each, form) for each in values), ratio

    for what in found[0][0].choice:
        yield row(f"an item is given to an encoder: {what} (µs)", ".1f", partial(_choice, what))
    yield row("signs of life a second", ".0f", lambda costs, _: costs.signs)
    yield row("… kilobytes a second", ".1f", lambda costs, _: costs.sign_bytes / 1e3)
    yield row("… part of a core to receive them", ".1%", lambda costs, _: costs.cpu)
    yield row("looks (HTTP) a second", ".0f", lambda costs, _: costs.looks)
    yield row("memory of an encoder (KiB)", ".1f", lambda costs, _: costs.memory / 1024)
    yield row("all are ready after a start (s)", ".2f", lambda costs, _: costs.ready)
    yield row("`/v1/encoders` (kB)", ".0f", lambda costs, _: costs.view[0] / 1e3)
    yield row("… time to make it (ms)", ".1f", lambda costs, _: 1e3 * costs.view[1])
    yield row("`/metrics` (kB)", ".0f", lambda costs, _: costs.metrics[0] / 1e3)
    yield row("… time to make it (ms)", ".1f", lambda costs, _: 1e3 * costs.metrics[1])
    yield "**three tenths die at once**", *("" for _ in numbers), ""
    yield row("requests", ".0f", lambda _, storm: storm.codes.total(), compared=False)
    yield row("… answered", ".0f", lambda _, storm: storm.codes["ok"], compared=False)
    for code in sorted({code for _, storm in found for code in storm.codes} - {"ok"}):
        yield row(f"… `{code}`", ".0f", partial(_count, code), compared=False)
    yield row("times that an item was asked for, at most", ".0f", lambda _, storm: storm.most_asked, compared=False)
    yield row("… on average", ".3f", lambda _, storm: storm.attempts)
    yield row("last failure after (s)", ".2f", lambda _, storm: storm.last_failure)
    yield row("answers a second before", ".0f", lambda _, storm: storm.rate_before)
    yield row("… and 4 to 8 s after", ".0f", lambda _, storm: storm.rate_after)
    yield row("items in work at the busiest encoder, at the end", ".0f", lambda _, storm: storm.loads[0])
    yield row("… on average", ".2f", lambda _, storm: storm.loads[1])
    yield row("longest that the event loop computed at a stretch before (ms)", ".0f", lambda _, storm: 1e3 * storm.stall_before)
    yield row("… and in the storm (ms)", ".0f", lambda _, storm: 1e3 * storm.stall)


def _choice(what: str, costs: Costs, _: Storm) -> float:
    return costs.choice[what]


def _count(code: str, _: Costs, storm: Storm) -> float:
    return storm.codes[code]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoders", type=int, nargs="+", default=[10, 100, 1000], help="sizes of the fleet")
    parser.add_argument("--write", type=Path, help="page whose section is to be replaced")
    parser.add_argument("--send", nargs=3, metavar=("PORT", "ENCODERS", "INTERVAL"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.send:
        send(int(args.send[0]), int(args.send[1]), float(args.send[2]))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    found = [(asyncio.run(costs(number)), asyncio.run(storm(number))) for number in args.encoders]
    heads = ("encoders", *(f"{number:,}" for number in args.encoders), f"{args.encoders[-1]:,} : {args.encoders[0]:,}")
    text = (
        f"{RATE:g} requests a second with {ITEMS} new pictures each, which keep {USED:.0%} of the fleet busy, or less where a "
        f"picture would take longer than {LONGEST:g} s. "
        "Every other encoder that dies is killed, so that its connections break; of the rest nothing is heard any more. "
        "A failed item is moved once (`EPD_ENCODER_RETRIES=1`)."
    )
    report("Measured", text, table(heads, rows(args.encoders, found)), args.write)


if __name__ == "__main__":
    main()
