"""``python -m benchmarks.failures``: how fast failures turn into answers, and what others notice of them.

Real processes with the demo model, real signals and the encoder's own faults. ``--write PAGE`` puts the table between the marks
of a page.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import torch

from benchmarks.health import HealthSampler
from benchmarks.transport import LeanTransport
from tests.chaos.fleet import Fleet, fleet
from tests.chats import Undivided
from tests.load import Case, Outcome, ask, ask_all, cases, check, codes, percentile, text_case
from tests.processes import DEMO_MODEL

LIVENESS = 2.0  # seconds, the default
CLIENTS = 48
SLOW = {"kind": "delay", "at": "fetch", "seconds": 0.3}
GONE = {"encoder_failed", "encoder_unavailable", "encoder_lost"}
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    bound: str
    measured: str
    met: bool

    def __str__(self) -> str:
        return f"| {self.what} | {self.bound} | {self.measured} | {'yes' if self.met else '**no**'} |"


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def many(wanted: Sequence[Case], number: int) -> list[Case]:
    return list(islice(cycle(wanted), number))


def surge(services: Fleet, wanted: Sequence[Case], number: int) -> Iterator[Row]:
    """``number`` pictures in one instant."""
    with HealthSampler(services.language.url) as language, HealthSampler(services.encoders[0].url) as encoder:
        began = time.monotonic()
        outcomes = asyncio.run(ask_all(services.language.url, many(wanted, number)))
        seconds = time.monotonic() - began
    check(outcomes, number, {"encoder_overloaded", "engine_overloaded"})
    found = codes(outcomes)
    rest = ", ".join(f"{count} {code}" for code, count in found.items() if code != "ok")
    answered = f"{found['ok']} right{', ' + rest if rest else ''}, in {seconds:.1f} s"
    yield Row(f"{number} pictures at once, one encoder: answers", "every one 200 or 503", answered, True)
    for name, sampler in (("language", language), ("encoder", encoder)):
        worst = percentile(sampler.latencies, 0.99)
        measured = f"{ms(worst)} (of {len(sampler.latencies)})"
        yield Row(f"… `/health` of the {name} service meanwhile, p99", "≤ 50 ms", measured, worst <= 0.05)


async def when_busy(services: Fleet, wanted: Sequence[Case], event: Callable[[], None]) -> tuple[list[Outcome], float]:
    """What came of ``wanted``, and when ``event`` happened: as soon as every encoder has many of them in work."""
    asked = asyncio.create_task(ask_all(services.language.url, wanted, CLIENTS))
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client, asyncio.timeout(30):
        while True:
            views = (await client.get(f"{services.language.url}/v1/encoders")).json()["data"]
            if all(view["in_flight"] >= CLIENTS // len(views) // 2 for view in views):
                break
            await asyncio.sleep(0.01)
    event()
    return await asked, time.monotonic()


def killed(folder: Path, wanted: Sequence[Case], victims: int) -> Iterator[Row]:
    """``kill -9`` of one or both of two encoders that have work."""
    with fleet(folder, encoders=2, encoder={"faults_enabled": True}) as services:
        services.set_faults(SLOW)
        died: list[float] = []

        def kill() -> None:
            for encoder in services.encoders[:victims]:
                encoder.process.kill()
            died.append(time.monotonic())

        outcomes, _ = asyncio.run(when_busy(services, many(wanted, 4 * CLIENTS), kill))
        check(outcomes, 4 * CLIENTS, GONE)
        if victims == 1:
            found = codes(outcomes)
            whole = f"{found['ok']} of {len(outcomes)} right"
            yield Row("one of two encoders killed under load", "failover", whole, found["ok"] == len(outcomes))
            return
        waited = [outcome.ended - died[0] for outcome in outcomes if outcome.status == 503 and outcome.began < died[0]]
        p50, p99 = percentile(waited, 0.5), percentile(waited, 0.99)
        measured = f"p50 {ms(p50)}, p99 {ms(p99)} (of {len(waited)})"
        yield Row("both of two encoders killed under load: death to 503", "p99 ≤ 100 ms", measured, p99 <= 0.1)


def stopped(folder: Path, wanted: Sequence[Case]) -> Iterator[Row]:
    """``kill -STOP`` of the only encoder, and ``kill -CONT``."""
    with fleet(folder, encoder={"faults_enabled": True}) as services:
        services.set_faults(SLOW)
        [encoder] = services.encoders
        began: list[float] = []

        def stop() -> None:
            encoder.process.send_signal(signal.SIGSTOP)
            began.append(time.monotonic())

        outcomes, _ = asyncio.run(when_busy(services, many(wanted, CLIENTS), stop))
        check(outcomes, CLIENTS, GONE)
        worst = max(outcome.ended for outcome in outcomes) - began[0]
        bound = LIVENESS + 0.5
        yield Row("encoder stopped under load: last 503 after", f"≤ {bound:g} s", f"{worst:.2f} s", worst <= bound)
        encoder.process.send_signal(signal.SIGCONT)
        back = time.monotonic()
        served = until_served(services, wanted[0]) - back
        yield Row("… and continued: first 200 after", f"≤ {2 * LIVENESS:g} s", f"{served:.2f} s", served <= 2 * LIVENESS)


def until_served(services: Fleet, case: Case) -> float:
    """When the first 200 was there; asks all the time."""

    async def again() -> float:
        async with httpx.AsyncClient(transport=LeanTransport()) as client, asyncio.timeout(60):
            while True:
                outcome = await ask(client, services.language.url, case)
                if outcome.status == 200:
                    check([outcome], 1, set())
                    return outcome.ended
                await asyncio.sleep(0.01)

    return asyncio.run(again())


def recovery(folder: Path, wanted: Sequence[Case]) -> Iterator[Row]:
    """Each kind of fault, in force until the circuit is open, then cleared."""
    kinds: list[dict[str, Any]] = [
        {"kind": "hang"},
        {"kind": "error"},
        {"kind": "drop"},
        {"kind": "corrupt"},
        {"kind": "nan"},
        {"kind": "wrong_fingerprint"},
        {"kind": "overload"},
    ]
    times: dict[str, float] = {}
    with fleet(folder, encoder={"faults_enabled": True}) as services:
        for fault in kinds:
            services.set_faults(fault)
            outcomes = asyncio.run(ask_all(services.language.url, many(wanted, 16)))
            check(outcomes, 16, set(codes(outcomes)) - {"ok"})
            services.set_faults()
            clear = time.monotonic()
            times[fault["kind"]] = until_served(services, wanted[0]) - clear
    worst = max(times, key=lambda kind: times[kind])
    measured = f"at most {times[worst]:.2f} s ({worst})"
    bound = 2 * LIVENESS
    yield Row(f"fault cleared, of {len(kinds)} kinds: first 200 after", f"≤ {bound:g} s", measured, times[worst] <= bound)


@asynccontextmanager
async def pictures_beside(url: str, wanted: Sequence[Case], rate: float) -> AsyncIterator[list[Outcome]]:
    """Picture requests at ``rate`` a second, whatever becomes of them."""
    outcomes: list[Outcome] = []

    async def one(client: httpx.AsyncClient, case: Case) -> None:
        outcomes.append(await ask(client, url, case))

    async def run() -> None:
        async with httpx.AsyncClient(transport=LeanTransport()) as client, asyncio.TaskGroup() as group:
            for case in cycle(wanted):
                group.create_task(one(client, case))
                await asyncio.sleep(1 / rate)

    task = asyncio.create_task(run())
    try:
        yield outcomes
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def texts(url: str, number: int) -> list[float]:
    """Seconds of ``number`` text requests, one after the other; all must be right."""
    async with httpx.AsyncClient(transport=LeanTransport()) as client:
        outcomes = [await ask(client, url, text_case()) for _ in range(number)]
    check(outcomes, number, set())
    assert all(outcome.status == 200 for outcome in outcomes)
    return [outcome.seconds for outcome in outcomes]


def unnoticed(folder: Path, wanted: Sequence[Case]) -> Iterator[Row]:
    """Text beside pictures, with a working encoder and with one that hangs, in turn."""
    calm: list[float] = []
    failing: list[float] = []
    with fleet(folder, encoder={"faults_enabled": True}) as services:

        async def beside(into: list[float]) -> None:
            async with pictures_beside(services.language.url, wanted, 20):
                into += await texts(services.language.url, 150)

        for _ in range(4):
            services.set_faults()
            until_served(services, wanted[0])
            asyncio.run(beside(calm))
            services.set_faults({"kind": "hang"})
            asyncio.run(beside(failing))
    ratio = percentile(failing, 0.99) / percentile(calm, 0.99)
    measured = f"{ratio:.2f} x ({ms(percentile(calm, 0.99))} → {ms(percentile(failing, 0.99))})"
    yield Row("text beside 20 pictures/s, the encoder hanging: p99 against calm", "≤ 1.2 x", measured, ratio <= 1.2)


def rows() -> Iterator[Row]:
    wanted = cases(Undivided(DEMO_MODEL))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with fleet(folder) as services:
            asyncio.run(ask_all(services.language.url, many(wanted, 32), 4))
            yield from surge(services, wanted, 200)
            yield from surge(services, wanted, 1000)
        yield from killed(folder, wanted, 1)
        yield from killed(folder, wanted, 2)
        yield from stopped(folder, wanted)
        yield from recovery(folder, wanted)
        yield from unnoticed(folder, wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="page to write the table into")
    page: Path | None = parser.parse_args().write
    torch.set_num_threads(1)
    lines = ["| what | bound | measured | met |", "|---|---|---|---|"]
    print("\n".join(lines))
    for row in rows():
        print(row, flush=True)
        lines.append(str(row))
    if page is not None:
        text = page.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        page.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")


if __name__ == "__main__":
    main()
