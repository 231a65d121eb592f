"""``python -m benchmarks.autoscaling``: a fleet's encoders become more with the load, and fewer after it, over time.

Two Ray nodes on this machine, the demo model, an open loop of pictures. Each encoder takes as long for a picture as ``DELAY``
says, by its own fault, as a large tower would: so the load is what it is on any machine, and costs it little. ``--plot FILE``
draws the course of it, ``--write PAGE`` puts its figures into a section of a page.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx

from benchmarks.autoscaling_plot import Sample, draw
from benchmarks.pages import report
from benchmarks.tables import table
from benchmarks.transport import LeanTransport
from services.loadtest.deployment.route import CannotDo
from tests.chats import Undivided
from tests.fleet.deployed import UNCACHED, Deployed, Options, deployed
from tests.load import Case, Outcome, ask, cases, percentile
from tests.processes import DEMO_MODEL, wait_for

DELAY = 0.8  # seconds that each picture takes in an encoder
EACH = 4.0  # items that an encoder should have in work
LOW, HIGH = 2.0, 12.0  # pictures a second: 1.6 and 9.6 items in work, enough for one encoder and for three
MOST = 3
UP, DOWN = 2.0, 10.0  # seconds that more, or fewer, must be wanted
ENCODERS: Options = {
    "min_replicas": 1,
    "max_replicas": MOST,
    "items_per_replica": EACH,
    "upscale_delay_s": UP,
    "downscale_delay_s": DOWN,
    "look_back_s": 4,
    "metrics_interval_s": 1,
    "settings": {"faults_enabled": True, **UNCACHED},
}
LANGUAGES: Options = {"settings": UNCACHED}

TEXT = f"""
Pictures come evenly, {LOW:g} a second at first, then {HIGH:g}, then {LOW:g} again. Each encoder takes {1000 * DELAY:.0f} ms for
a picture by its fault route (`delay`), as a large tower would. It should have {EACH:g} items in work, and at most {MOST} may be
there. Serve waits for {UP:g} s until there are more encoders, and for {DOWN:g} s until there are fewer.
"""


@dataclass
class Load:
    """An open loop of pictures, ``rate`` a second, from when the block is entered until it is left."""

    url: str
    wanted: Sequence[Case]
    rate: float = LOW
    outcomes: list[Outcome] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(self._run(over)), name="load")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    async def _run(self, over: threading.Event) -> None:
        loop = asyncio.get_running_loop()

        async def one(case: Case) -> None:
            self.outcomes.append(await ask(client, self.url, case))

        async with httpx.AsyncClient(transport=LeanTransport()) as client, asyncio.TaskGroup() as group:
            due = loop.time()
            for number in count():
                if over.is_set():
                    return
                group.create_task(one(self.wanted[number % len(self.wanted)]))
                due += 1 / self.rate
                await asyncio.sleep(max(0.0, due - loop.time()))


@dataclass
class Recorder:
    """Looks at a fleet every half second, and makes each new encoder take ``DELAY`` for a picture."""

    fleet: Deployed
    load: Load
    samples: list[Sample] = field(default_factory=list)
    _slowed: set[str] = field(default_factory=set)

    def look(self, began: float) -> Sample:
        """One more sample. ``began`` is of ``time.monotonic``."""
        ready = [view for view in self.fleet.states().values() if view["state"] == "ready"]
        for view in ready:
            if view["url"] not in self._slowed:
                with suppress(CannotDo):  # it has just ended
                    self.fleet.set_fault(view["url"], kind="delay", seconds=DELAY)
                    self._slowed.add(view["url"])
        started = sum(replica.deployment == "encoders" for replica in self.fleet.replicas.look())
        items = sum(view["in_flight"] for view in ready)
        self.samples.append(Sample(time.monotonic() - began, self.load.rate, items, started, len(ready)))
        return self.samples[-1]


@contextmanager
def recording(recorder: Recorder) -> Iterator[float]:
    """Has it look until the block is left. Yields when it began, on the clock of ``time.monotonic``."""
    began, over = time.monotonic(), threading.Event()

    def go() -> None:
        while not over.wait(0.5):
            with suppress(httpx.HTTPError):
                recorder.look(began)

    thread = threading.Thread(target=go, name="recorder")
    thread.start()
    try:
        yield began
    finally:
        over.set()
        thread.join()


def course(fleet: Deployed, wanted: Sequence[Case], calm: float, patience: float) -> tuple[Recorder, float, float]:
    """Little load for ``calm`` seconds; much, until there are as many encoders as there may be, and ``calm`` seconds more;
    little, until there is one again, and ``calm`` seconds more. Returns what was seen, and the times of the two changes.

    Raises:
        AssertionError: the encoders did not become more, or fewer, within ``patience`` seconds.
    """
    recorder = Recorder(fleet, Load(fleet.url, wanted))
    with recorder.load.running(), recording(recorder) as began:

        def until(ready: int) -> float:
            change = time.monotonic()
            wait_for(lambda: recorder.samples[-1].ready == ready, patience, f"the change to {ready} encoders")
            time.sleep(calm)
            return change - began

        time.sleep(calm)
        recorder.load.rate = HIGH
        more = until(MOST)
        recorder.load.rate = LOW
        fewer = until(1)
    return recorder, more, fewer


def first(samples: Sequence[Sample], after: float, ready: int) -> float:
    """Seconds from ``after`` until so many encoders were ready."""
    return next(sample.at for sample in samples if sample.at > after and sample.ready == ready) - after


def rows(recorder: Recorder, more: float, fewer: float) -> Iterator[tuple[str, str]]:
    """The table's rows."""
    samples, outcomes = recorder.samples, recorder.load.outcomes
    for ready in range(2, MOST + 1):
        yield f"{ready} encoders ready, after the load rose", f"{first(samples, more, ready):.1f} s"
    yield "one encoder again, after the load fell", f"{first(samples, fewer, 1):.1f} s"
    yield "items in work, at most", f"{max(sample.items for sample in samples)}"
    yield "requests", f"{len(outcomes)}, {sum(outcome.status == 200 for outcome in outcomes)} of them 200"
    yield "wrong answers", f"{sum(outcome.wrong for outcome in outcomes)}"
    for share in (0.5, 0.99):
        yield f"time to the answer, p{share * 100:.0f}", f"{percentile((each.seconds for each in outcomes), share):.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calm", type=float, default=15.0, help="seconds of each part once nothing changes any more")
    parser.add_argument("--plot", type=Path, help="picture to draw, such as docs/fleet-autoscaling.png (needs Chromium)")
    parser.add_argument("--write", type=Path, help="page to write the table into, such as docs/fleet-results.md")
    args = parser.parse_args()
    wanted = cases(Undivided(DEMO_MODEL), 32)
    with tempfile.TemporaryDirectory() as folder, deployed(Path(folder)) as fleet:
        fleet.deploy(ENCODERS, LANGUAGES)
        fleet.until_ready(1)
        recorder, more, fewer = course(fleet, wanted, args.calm, 120.0)
    report("Autoscaling", TEXT.strip(), table(("what", "measured"), list(rows(recorder, more, fewer))), args.write)
    if args.plot is not None:
        draw(recorder.samples, args.plot)


if __name__ == "__main__":
    main()
