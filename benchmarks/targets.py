"""The speed that issue 3 asks for, and whether a run reached it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.floor import NEW_TOKENS, Floor
from benchmarks.load import percentile
from benchmarks.scenarios import CONTEXTS, SATURATING, Load, Measured

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class Peer:
    """A figure of another system, measured elsewhere: on another machine of this class (2 cores, AVX-512, float32)."""

    name: str
    load: str
    requests_per_second: float


TRANSFORMERS_SERVE = Peer("transformers serve 5.24", "tiny, pictures, 1 stream", 3.3)
VLLM_TEXT = Peer("vLLM 0.32, one process group", "tiny, text only, 8 streams", 11.8)
VLLM_PAIR = Peer("vLLM 0.32, encoder and language instance", "tiny, pictures, 8 streams", 3.6)
VLLM_PICTURES = {
    ("tiny", 1): Peer("vLLM 0.32, one process group", "tiny, pictures, 1 stream", 1.6),
    ("tiny", 8): Peer("vLLM 0.32, one process group", "tiny, pictures, 8 streams", 6.3),
    ("tiny", 32): Peer("vLLM 0.32, one process group", "tiny, pictures, 32 streams", 7.7),
    ("small", 1): Peer("vLLM 0.32, one process group", "small, pictures, 1 stream", 0.32),
    ("small", 8): Peer("vLLM 0.32, one process group", "small, pictures, 8 streams", 0.83),
}
PEERS = (TRANSFORMERS_SERVE, VLLM_TEXT, VLLM_PAIR, *VLLM_PICTURES.values())


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table. ``ratio`` is the measured value over the floor's, where the floor has such a value."""

    name: str
    target: str
    measured: str
    ratio: float | None
    met: bool


def results(model: str, measured: Measured, floor: Floor) -> Iterator[Result]:
    """The targets that apply to ``model``."""
    if model == "tiny":
        yield from one_stream(measured, floor)
        yield from text(measured, floor)
    yield from pictures(model, measured, floor)
    first, again = measured.prefix
    gain = first / again
    yield Result("2,000-token prefix known: TTFT against new", "≥ 5 x faster", times(gain, first, again), None, gain >= 5)
    yield from growth(measured)
    for kind, loads in (("text", measured.text), ("pictures", measured.pictures)):
        p50, p99 = (percentile(loads[SATURATING].health, share) for share in (0.5, 0.99))
        yield Result(f"/health beside 32 streams, {kind}: p99", "≤ 50 ms", f"{ms(p99)} (p50 {ms(p50)})", None, p99 <= 0.05)
    failed = {status: count for status, count in sorted(measured.statuses.items()) if status != "200"}
    told = ", ".join(f"{status}: {count}" for status, count in failed.items()) or "none"
    yield Result(f"requests that failed, of {measured.statuses.total()}", "none", told, None, not failed)


def one_stream(measured: Measured, floor: Floor) -> Iterator[Result]:
    """A picture a request, one request at a time."""
    report = measured.pictures[1].report
    ttft, tpot = report.ttft_p50 / floor.ttft, report.tpot_p50 / floor.decode
    yield Result("pictures, 1 stream: TTFT p50", f"≤ 1.2 x floor ({ms(floor.ttft)})", ms(report.ttft_p50), ttft, ttft <= 1.2)
    yield Result(
        "pictures, 1 stream: time per token p50", f"≤ 1.3 x floor ({ms(floor.decode)})", ms(report.tpot_p50), tpot, tpot <= 1.3
    )
    yield beats("pictures, 1 stream", measured.pictures[1], 1.2, TRANSFORMERS_SERVE, picture_rate(floor, 1))


def text(measured: Measured, floor: Floor) -> Iterator[Result]:
    """Text only.

    The rate of decoding is what 32 streams get between their first and last tokens, while other prompts are computed beside
    them; output tokens/s are over the whole load, prefill, its start and its end included.
    """
    report = measured.text[32].report
    for name, rate in (("rate of decoding", 32 / report.tpot_p50), ("output tokens/s", report.tokens_per_second)):
        share = rate / floor.text_batch_rate
        target = f"≥ 0.7 x floor's batch-32 decoding ({floor.text_batch_rate:.0f})"
        yield Result(f"text, 32 streams: {name}", target, f"{rate:.0f}", share, share >= 0.7)
    yield beats("text, 8 streams", measured.text[8], 3, VLLM_TEXT, text_rate(floor, 8))
    yield beats("text, 32 streams", measured.text[32], 3, VLLM_TEXT, text_rate(floor, 32))


def pictures(model: str, measured: Measured, floor: Floor) -> Iterator[Result]:
    """A picture a request, many streams."""
    factor = 1.5 if model == "tiny" else 1.2
    for streams in (8, 32):
        rate = picture_rate(floor, streams)
        if (model, streams) in VLLM_PICTURES:
            peer = VLLM_PICTURES[model, streams]
            yield beats(f"pictures, {streams} streams", measured.pictures[streams], factor, peer, rate)
        if (model, streams) == ("tiny", 8):
            yield beats("pictures, 8 streams", measured.pictures[8], 2.5, VLLM_PAIR, rate)


def growth(measured: Measured) -> Iterator[Result]:
    """How time and memory grow."""
    if measured.memory_requests:
        before, after = measured.memory
        grown = (after - before) / MEBIBYTE
        told = f"{grown:+.1f} MiB ({before / MEBIBYTE:.0f} → {after / MEBIBYTE:.0f})"
        name = f"language service's memory over {measured.memory_requests:,} requests"
        yield Result(name, "flat (≤ 16 MiB more)", told, None, grown <= 16)
    for few, many in ((1, 8), (8, 32)):
        short, long = measured.text[few].report.tpot_p50, measured.text[many].report.tpot_p50
        yield linear(f"text, {few} → {many} streams: time per token p50", short, long, many / few)
    short, long = (measured.context[tokens].report.tpot_p50 for tokens in CONTEXTS)
    yield linear(f"context of {CONTEXTS[0]} → {CONTEXTS[1]} tokens: time per token p50", short, long, CONTEXTS[1] / CONTEXTS[0])


def linear(name: str, short: float, long: float, limit: float) -> Result:
    """Growth that is no worse than linear."""
    grown = long / short
    return Result(name, f"grows ≤ {limit:g} x", times(grown, short, long), None, grown <= limit)


def times(factor: float, before: float, after: float) -> str:
    """A factor and the times (seconds) that it came of, for people."""
    return "not measured" if math.isnan(factor) else f"{factor:.2f} x ({ms(before)} → {ms(after)})"


def beats(name: str, load: Load, factor: float, peer: Peer, floor_rate: float) -> Result:
    """Requests/s against a peer's figure."""
    rate, wanted = load.report.requests_per_second, factor * peer.requests_per_second
    target = f"≥ {wanted:.2f} ({factor:g} x {peer.requests_per_second:g}, {peer.name}, measured elsewhere)"
    return Result(f"{name}: requests/s", target, f"{rate:.2f}", rate / floor_rate, rate >= wanted)


def picture_rate(floor: Floor, streams: int) -> float:
    """Requests/s that the floor's parts give one after another, decoding 32 streams in one batch and any other one by one."""
    step = floor.decode_batch / 32 if streams == 32 else floor.decode
    return 1 / (floor.ttft + (NEW_TOKENS - 1) * step)


def text_rate(floor: Floor, streams: int) -> float:
    """The same without a picture."""
    step = floor.text_decode_batch / 32 if streams == 32 else floor.text_decode
    return 1 / (floor.text_prefill + (NEW_TOKENS - 1) * step)


def ms(seconds: float) -> str:
    """Seconds as milliseconds for people."""
    return "not measured" if math.isnan(seconds) else f"{1e3 * seconds:.1f} ms"
