"""``python -m benchmarks.latency``: one picture at a time through the pair, against the undivided model called in a loop.

The floor is transformers' own processor, modules and ``generate`` in this process, without HTTP, hashing, wire or verification.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import torch

from examples.scenes import png, random_exam
from tests.chats import Undivided, exam_parts, user
from tests.processes import DEMO_MODEL, Service

WARM_UP = 3


def timed(work: Callable[[int], object], runs: int) -> list[float]:
    """Seconds of each run, after those that do not count; ``work`` gets another number each time."""
    seconds = []
    for run in range(WARM_UP + runs):
        began = time.perf_counter()
        work(run)
        seconds.append(time.perf_counter() - began)
    return seconds[WARM_UP:]


def row(name: str, seconds: list[float], floor: float | None = None) -> str:
    """One line of the table: p50 and p99 in milliseconds, and the ratio of p50 to the floor's."""
    p50, p99 = statistics.median(seconds), statistics.quantiles(seconds, n=100)[98]
    ratio = "" if floor is None else f"{p50 / floor:.2f} x"
    return f"| {name} | {1e3 * p50:.1f} ms | {1e3 * p99:.1f} ms | {ratio} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    runs = parser.parse_args().runs
    torch.set_num_threads(1)
    rng = random.Random(0)
    # Every picture is another one: those that come again are measured apart.
    exams = [exam_parts(random_exam(rng), seed) for seed in range(WARM_UP + runs)]
    undivided = Undivided(DEMO_MODEL)
    floor = timed(lambda run: undivided.answer(exams[run]), runs)
    with (
        tempfile.TemporaryDirectory() as folder,
        Service("encoder", Path(folder)).start(wait=False) as encoder,
        Service("language", Path(folder), encoders=encoder.url).start(wait=False) as language,
        httpx.Client(base_url=language.url, timeout=60, trust_env=False) as client,
    ):
        language.wait_until_ready(encoders=1)

        def ask(body: object) -> None:
            client.post("/v1/chat/completions", json=body).raise_for_status()

        def first_token(body: dict[str, Any]) -> float:
            """Seconds to the first token."""
            began = time.perf_counter()
            with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
                answer.raise_for_status()
                for line in answer.iter_lines():
                    if '"content":"' in line and '"content":""' not in line:
                        return time.perf_counter() - began
            raise RuntimeError("no token came")

        bodies = [user(*parts) for parts in exams]
        pair = timed(lambda run: ask(bodies[run]), runs)
        scene = random_exam(random.Random(1)).scenes[0]
        larges = [user(png(scene, 1024, seed), "How many objects are there?") for seed in range(WARM_UP + runs)]
        one_large = timed(lambda run: ask(larges[run]), runs)
        same_large = timed(lambda _: ask(larges[0]), runs)
        text = timed(lambda _: ask(user("Hello!")), runs)
        mediums = [user(png(scene, 512, runs + seed), "How many objects are there?") for seed in range(runs)]
        new = [first_token(body) for body in mediums]
        again = [first_token(body) for body in mediums]
        found = [line for line in client.get("/metrics").text.splitlines() if line.startswith("epd_cache_lookups_total{")]
    base = statistics.median(floor)
    print("| one request at a time, demo model | p50 | p99 | p50 / floor |")
    print("|---|---|---|---|")
    print(row("floor: undivided model in one process, no HTTP", floor, base))
    print(row("the pair, end to end over HTTP", pair, base))
    print(row("the pair, one 1024x1024 PNG, short answer", one_large))
    print(row("the pair, the same PNG again and again", same_large))
    print(row("the pair, text only", text))
    print(row("first token, a new 512x512 PNG", new))
    print(row("first token, the same pictures again", again))
    ratio = statistics.median(again) / statistics.median(new)
    print(f"\nFirst token of a picture that came before: {ratio:.2f} x the first time.")
    print("\n".join(found))


if __name__ == "__main__":
    main()
