"""``python -m benchmarks.load --url http://127.0.0.1:8000 --model tiny --concurrency 8 --requests 64 --pictures 1``

A closed-loop load on any OpenAI-compatible server: as many streams as ``--concurrency`` says, each with a new request as
soon as the last one has ended. Bodies are made before the clock starts.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx

from benchmarks.prompts import Prompts, bodies
from benchmarks.stream import ChatStream
from benchmarks.transport import LeanTransport

HEADERS = {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"}
CLIENT_TIMEOUT = 180.0  # seconds for a whole request
UNLIMITED = httpx.Limits(max_connections=None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request. ``status`` is the HTTP status, with ``broken`` after it where the stream ended badly, or an error's name."""

    status: str
    began: float
    ended: float
    stream: ChatStream

    @property
    def completed(self) -> bool:
        return self.status == "200"

    @property
    def ttft(self) -> float | None:
        """Seconds from sending the request to its first token."""
        return None if self.stream.first is None else self.stream.first - self.began

    @property
    def tpot(self) -> float | None:
        """Seconds a token, after the first."""
        if self.stream.first is None or self.stream.last is None or self.stream.tokens < 2:
            return None
        return (self.stream.last - self.stream.first) / (self.stream.tokens - 1)


@dataclass(frozen=True, slots=True)
class Report:
    """A load in figures, times in seconds. ``statuses`` counts requests; ``driver_cpu`` is the driver's share of one core."""

    concurrency: int
    requests: int
    completed: int
    statuses: dict[str, int]
    elapsed: float
    requests_per_second: float
    tokens_per_second: float
    prompt_tokens: float
    completion_tokens: float
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    driver_cpu: float
    ttfts: list[float] = field(repr=False)


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile; ``share`` is in 0..1. Not a number where there are no values."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def mean(values: Sequence[float]) -> float:
    """The mean; not a number where there are no values."""
    return sum(values) / len(values) if values else math.nan


async def ask(client: httpx.AsyncClient, url: str, body: bytes) -> Outcome:
    """Sends one request and reads its stream to the end."""
    stream = ChatStream()
    began = time.perf_counter()
    try:
        async with asyncio.timeout(CLIENT_TIMEOUT), client.stream("POST", url, content=body, headers=HEADERS) as response:
            status = str(response.status_code)
            async for chunk in response.aiter_raw():
                stream.feed(chunk, time.perf_counter())
        if status == "200" and (stream.error or not stream.done):
            status = "200 broken"
    except (httpx.HTTPError, TimeoutError, OSError) as error:
        status = type(error).__name__
    return Outcome(status, began, time.perf_counter(), stream)


async def drive(url: str, requests: Sequence[bytes], concurrency: int, seconds: float = math.inf) -> Report:
    """Runs ``requests`` against base URL ``url``; none is begun after ``seconds``, and those that run are waited for."""
    endpoint = f"{url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
    outcomes: list[Outcome] = []
    transport = LeanTransport() if endpoint.startswith("http:") else httpx.AsyncHTTPTransport(limits=UNLIMITED)
    async with httpx.AsyncClient(transport=transport, timeout=None) as client:
        queue = iter(requests)
        # Whatever was loaded before must not be traversed by the collector in the middle of a measurement.
        gc.collect()
        gc.freeze()
        began, cpu = time.perf_counter(), time.process_time()

        async def worker(queue: Iterator[bytes]) -> None:
            for body in queue:
                outcomes.append(await ask(client, endpoint, body))
                if time.perf_counter() - began > seconds:
                    return

        await asyncio.gather(*(worker(queue) for _ in range(concurrency)))
        elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
        gc.unfreeze()
    return report(outcomes, concurrency, elapsed, cpu)


def report(outcomes: Sequence[Outcome], concurrency: int, elapsed: float, cpu: float) -> Report:
    """Only completed requests count in rates and times."""
    good = sorted((outcome for outcome in outcomes if outcome.completed), key=lambda outcome: outcome.began)
    ttfts = [outcome.ttft for outcome in good if outcome.ttft is not None]
    tpots = [outcome.tpot for outcome in good if outcome.tpot is not None]
    return Report(
        concurrency=concurrency,
        requests=len(outcomes),
        completed=len(good),
        statuses=dict(sorted(Counter(outcome.status for outcome in outcomes).items())),
        elapsed=elapsed,
        requests_per_second=len(good) / elapsed,
        tokens_per_second=sum(outcome.stream.tokens for outcome in good) / elapsed,
        prompt_tokens=mean([outcome.stream.prompt_tokens for outcome in good if outcome.stream.prompt_tokens is not None]),
        completion_tokens=mean([outcome.stream.tokens for outcome in good]),
        ttft_p50=percentile(ttfts, 0.5),
        ttft_p99=percentile(ttfts, 0.99),
        tpot_p50=percentile(tpots, 0.5),
        tpot_p99=percentile(tpots, 0.99),
        driver_cpu=cpu / elapsed,
        ttfts=ttfts,
    )


def lines(result: Report) -> Iterator[str]:
    """The report for people."""
    counts = ", ".join(f"{status}: {count}" for status, count in result.statuses.items())
    yield f"requests            {result.requests} at {result.concurrency} streams ({counts}) in {result.elapsed:.2f} s"
    yield f"requests/s          {result.requests_per_second:.2f}"
    yield f"output tokens/s     {result.tokens_per_second:.1f}"
    yield f"tokens a request    {result.prompt_tokens:.0f} in, {result.completion_tokens:.1f} out"
    yield f"TTFT p50, p99       {1e3 * result.ttft_p50:.1f} ms, {1e3 * result.ttft_p99:.1f} ms"
    yield f"per token p50, p99  {1e3 * result.tpot_p50:.2f} ms, {1e3 * result.tpot_p99:.2f} ms"
    yield f"driver              {100 * result.driver_cpu:.0f} % of one core"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="base URL of the server, with or without /v1")
    parser.add_argument("--model", required=True, help="name of the model in the API")
    parser.add_argument("--concurrency", type=int, default=8, help="streams at once")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no request after this time")
    parser.add_argument("--warmup", type=int, default=1, help="requests before, which do not count")
    parser.add_argument("--pictures", type=int, default=0, help="pictures in each request")
    parser.add_argument("--side", type=int, default=512, help="width and height of each picture, pixels")
    parser.add_argument("--text-tokens", type=int, default=16, help="words in each request, one token each")
    parser.add_argument("--shared-tokens", type=int, default=0, help="words before them that all requests share")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--standard", action="store_true", help="only fields that OpenAI's API has (no ignore_eos)")
    parser.add_argument("--json", type=Path, help="file for the report as JSON")
    args = parser.parse_args()
    prompts = Prompts(args.pictures, args.side, args.text_tokens, args.shared_tokens, args.max_tokens, args.seed, args.standard)
    made = bodies(prompts, args.model, args.warmup + args.requests)
    if args.warmup:
        asyncio.run(drive(args.url, made[: args.warmup], 1))
    result = asyncio.run(drive(args.url, made[args.warmup :], args.concurrency, args.seconds))
    print("\n".join(lines(result)))
    if args.json:
        args.json.write_text(json.dumps(asdict(result), indent=1))


if __name__ == "__main__":
    main()
