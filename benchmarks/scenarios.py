"""What is measured on a running pair, and the figures that come of it."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from benchmarks.health import HealthSampler
from benchmarks.load import Report, drive, percentile
from benchmarks.prompts import Prompts, bodies
from benchmarks.usage import cpu, rss
from tests.processes import Service

STREAMS = (1, 8, 32)
SATURATING = 32  # streams beside which /health is sampled
CONTEXTS = (500, 2000)  # tokens of text
PREFIX = 2000  # tokens
WARM_UP = 1_000_000  # seeds from here on belong to requests that do not count


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure. ``text`` and ``pictures`` are requests by streams; no load begins a request after ``seconds``."""

    text: dict[int, int]
    pictures: dict[int, int]
    seconds: float
    prefixes: int
    memory_requests: int
    floor_runs: int


EFFORTS = {
    "tiny": Effort({1: 100, 8: 400, 32: 1600}, {1: 60, 8: 160, 32: 320}, 40.0, 5, 2000, 30),
    "small": Effort({1: 6, 8: 24, 32: 64}, {1: 6, 8: 24, 32: 64}, 60.0, 2, 0, 5),
}
QUICK = {
    "tiny": Effort({1: 16, 8: 64, 32: 320}, {1: 8, 8: 24, 32: 64}, 10.0, 2, 200, 10),
    "small": Effort({1: 2, 8: 8, 32: 32}, {1: 2, 8: 8, 32: 32}, 20.0, 1, 0, 2),
}


@dataclass(frozen=True, slots=True)
class Load:
    """One load: its report, the cores that each service kept busy, and ``/health`` latencies (s) where they were sampled."""

    report: Report
    language_cores: float
    encoder_cores: float
    health: list[float]


@dataclass(slots=True)
class Measured:
    """Everything about one model on the pair. ``text`` and ``pictures`` are by streams, ``context`` by tokens of text.

    ``prefix`` is the seconds to the first token after a prefix that is new, and after one that is known; ``memory`` is the
    language service's resident bytes before and after ``memory_requests``. ``statuses`` counts all requests that were measured.
    """

    text: dict[int, Load] = field(default_factory=dict)
    pictures: dict[int, Load] = field(default_factory=dict)
    context: dict[int, Load] = field(default_factory=dict)
    prefix: tuple[float, float] = (math.nan, math.nan)
    memory: tuple[int, int] = (0, 0)
    memory_requests: int = 0
    statuses: Counter[str] = field(default_factory=Counter)


class Pair:
    """Loads on a running pair whose API knows the model as ``model``. Every load has pictures and texts of its own."""

    def __init__(self, language: Service, encoder: Service, model: str) -> None:
        self._language = language
        self._encoder = encoder
        self._model = model
        self._seed = 0
        self._statuses: Counter[str] = Counter()

    def measure(self, effort: Effort) -> Measured:
        """All scenarios, one after another."""
        measured = Measured(memory_requests=effort.memory_requests)
        for streams in STREAMS:
            busy = streams == SATURATING
            measured.text[streams] = self.load(Prompts(), streams, effort.text[streams], effort.seconds, busy)
        for streams in STREAMS:
            busy = streams == SATURATING
            measured.pictures[streams] = self.load(Prompts(pictures=1), streams, effort.pictures[streams], effort.seconds, busy)
        for tokens in CONTEXTS:
            measured.context[tokens] = self.load(Prompts(text_tokens=tokens), 1, 4, effort.seconds)
        measured.prefix = self.prefix_reuse(effort.prefixes)
        if effort.memory_requests:
            measured.memory = self.memory(effort.memory_requests)
        measured.statuses = self._statuses
        return measured

    def load(self, prompts: Prompts, streams: int, requests: int, seconds: float, health: bool = False) -> Load:
        """Warms up, with a request a stream where that is little beside the load, then measures."""
        self._drive(replace(prompts, seed=WARM_UP + self._seed), streams, min(streams, max(1, requests // 4)), seconds)
        pids = self._language.process.pid, self._encoder.process.pid
        with HealthSampler(self._language.url) if health else nullcontext() as sampler:
            before = [cpu(pid) for pid in pids]
            report = self._drive(replace(prompts, seed=self._seed), streams, requests, seconds)
            language, encoder = ((cpu(pid) - then) / report.elapsed for pid, then in zip(pids, before, strict=True))
        self._statuses.update(report.statuses)
        return Load(report, language, encoder, sampler.latencies if sampler is not None else [])

    def prefix_reuse(self, prefixes: int) -> tuple[float, float]:
        """Median seconds to the first token after a prefix of 2,000 tokens: the first time, and when it is known."""
        first, again = [], []
        for number in range(prefixes + 1):
            report = self._drive(Prompts(shared_tokens=PREFIX, max_tokens=4, seed=self._seed), 1, 4)
            self._statuses.update(report.statuses)
            if number and report.completed == report.requests:  # the very first pays for set-up
                first.append(report.ttfts[0])
                again.extend(report.ttfts[1:])
        return percentile(first, 0.5), percentile(again, 0.5)

    def memory(self, requests: int) -> tuple[int, int]:
        """Resident bytes of the language service before and after so many short requests, at 8 streams."""
        short = Prompts(text_tokens=8, max_tokens=2)
        self.load(short, 8, 100, 60.0)
        before = rss(self._language.process.pid)
        self.load(short, 8, requests, 120.0)
        return before, rss(self._language.process.pid)

    def _drive(self, prompts: Prompts, streams: int, requests: int, seconds: float = math.inf) -> Report:
        self._seed += 1
        return asyncio.run(drive(self._language.url, bodies(prompts, self._model, requests), streams, seconds))
