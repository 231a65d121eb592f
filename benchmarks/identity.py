"""``python -m benchmarks.identity``: how fast the content hash is, against SHA-256 of the same bytes in the same run.

One core. Both are run in turns, so that a noisy machine slows both; the medians count. ``--write PAGE`` puts the table into a
page.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.pages import report
from benchmarks.tables import table
from shared.identity import ContentHasher

MIB = 2**20
PATCH = 1536  # float32 values of a patch, as Qwen's processors make them
SIZES = (1, 6, 64)  # MiB of features
TARGETS = {6: 5.0}  # times SHA-256

TEXT = """\
`python -m benchmarks.identity`: features in float32, hashed on one core, and `hashlib.sha256` of the same bytes in the same
run, which uses the processor's own instructions for SHA-256 where it has them (flag `sha_ni`). Medians of runs in turns."""


@dataclass(frozen=True)
class Speed:
    """Bytes per second of both, for features of ``size`` MiB."""

    size: int
    hasher: float
    sha256: float

    @property
    def ratio(self) -> float:
        return self.hasher / self.sha256


def measure(size: int, rounds: int) -> Speed:
    """Medians over ``rounds`` runs of each, in turns."""
    features = torch.randn(size * MIB // (4 * PATCH), PATCH, generator=torch.Generator().manual_seed(size))
    raw = features.view(torch.uint8).numpy().data
    hasher = ContentHasher(b"a secret of benchmarks")
    seconds: dict[str, list[float]] = {"hasher": [], "sha256": []}
    for round_ in range(rounds + 1):
        for name, work in (("hasher", lambda: hasher.hash({"x": features})), ("sha256", lambda: hashlib.sha256(raw).digest())):
            took = _timed(work)
            if round_:  # the first one warms up
                seconds[name].append(took)
    return Speed(size, *(features.nbytes / statistics.median(seconds[name]) for name in ("hasher", "sha256")))


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def lines(speeds: list[Speed]) -> Iterator[str]:
    """The table."""
    heads = ("features", "content hash", "SHA-256", "ratio", "target", "met")
    rows = []
    for speed in speeds:
        target = TARGETS.get(speed.size)
        met = "" if target is None else "yes" if speed.ratio >= target else "**no**"
        rates = (f"{rate / 1e9:.2f} GB/s" for rate in (speed.hasher, speed.sha256))
        rows.append((f"{speed.size} MiB", *rates, f"{speed.ratio:.1f}", "" if target is None else f"≥ {target:g}", met))
    return table(heads, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--write", type=Path, help="page to write the table into, such as docs/performance.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    speeds = [measure(size, args.rounds if size < SIZES[-1] else max(5, args.rounds // 5)) for size in SIZES]
    report("Content hash", TEXT, lines(speeds), args.write)


if __name__ == "__main__":
    main()
