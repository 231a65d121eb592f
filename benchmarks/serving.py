"""``python -m benchmarks.serving``: the pair under load, against the floor of the same run and the targets of issue 3.

For each model: makes the checkpoint, measures the floor, starts both services, runs every scenario, and measures the floor
again. The faster of the two floors counts, so that noise does not flatter the pair. Prints the tables; ``--write`` makes a page
of them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import machine
from benchmarks.checkpoints import SIZES, ensure
from benchmarks.floor import Floor, faster, measure, show
from benchmarks.pages import sections_of
from benchmarks.scenarios import EFFORTS, QUICK, Effort, Measured, Pair
from benchmarks.tables import floor_table, load_table, peer_table, target_table
from benchmarks.targets import results
from tests.processes import Service

HEADINGS = {
    "Targets": """\
A ratio to the floor is the measured time over the floor's, or the measured rate over the floor's. For requests/s the floor is
one request's work, part after part on one core; at 32 streams its decoding is a 32nd of a batch.""",
    "Loads": """\
Closed loop: each stream sends its next request when the last one has ended. 32 tokens out, temperature 0, streamed; every
picture (JPEG) and every text is another one. TTFT is the time to the first event with text. Output tokens/s are over the whole
load, prefill included.""",
    "Floor": """\
transformers' own modules called in a loop in one process (`benchmarks/floor.py`), on the same machine in the same run.""",
    "Peers": """\
Quoted from the project's notes on peers, **measured elsewhere**: on another machine of this class (2 cores, AVX-512, no GPU,
float32), not in this run. Machines differ, so the targets that rest on them are the least certain.""",
}


def run_pair(name: str, effort: Effort, threads: int) -> Measured:
    """Starts the pair with checkpoint ``name`` and runs every scenario on it."""
    model, level = ensure(name), "warning"
    with (
        tempfile.TemporaryDirectory() as folder,
        Service("encoder", Path(folder), model=model, threads=threads, log_level=level) as encoder,
        Service("language", Path(folder), model=model, threads=threads, log_level=level, encoders=encoder.url) as language,
    ):
        language.wait_until_ready(encoders=1)
        return Pair(language, encoder, name).measure(effort)


def sections(floors: Mapping[str, Floor], runs: Mapping[str, Measured]) -> Iterator[tuple[str, list[str]]]:
    """Headings and their tables."""
    yield "Targets", list(target_table({name: list(results(name, runs[name], floors[name])) for name in runs}))
    yield "Loads", list(load_table(runs))
    yield "Floor", list(floor_table(floors))
    yield "Peers", list(peer_table())


def page(title: str, facts: Sequence[str], parts: Sequence[tuple[str, list[str]]]) -> str:
    """The whole report as one Markdown page."""
    lines = [f"# {title}", "", *(f"* {fact}" for fact in facts)]
    for heading, body in parts:
        lines += ["", f"## {heading}", "", HEADINGS[heading], "", *body]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(SIZES), default=["tiny"])
    parser.add_argument("--quick", action="store_true", help="a fraction of the requests, for a first look")
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="torch threads of each process")
    parser.add_argument("--write", type=Path, help="file for the report, such as docs/performance.md")
    args = parser.parse_args()
    began, busy, commit = time.monotonic(), machine.load_average(), machine.commit()
    floors: dict[str, Floor] = {}
    runs: dict[str, Measured] = {}
    for name in args.models:
        effort = (QUICK if args.quick else EFFORTS)[name]
        floors[name] = measure(name, args.threads, effort.floor_runs)
        print(f"{time.monotonic() - began:.0f} s: floor {show(floors[name])}", flush=True)
        runs[name] = run_pair(name, effort, args.threads)
        print(f"{time.monotonic() - began:.0f} s: {name} measured on the pair", flush=True)
        floors[name] = faster(floors[name], measure(name, args.threads, effort.floor_runs))
    command = f"python -m benchmarks.serving --models {' '.join(args.models)}{' --quick' if args.quick else ''}"
    moved = "" if machine.commit() == commit else f", but {machine.commit()} when it ended"
    facts = [
        f"command: `{command}`, on {time.strftime('%Y-%m-%d')}",
        f"commit: {commit}{moved} (+: with changes that are not committed); took {time.monotonic() - began:.0f} s",
        *machine.describe(),
        f"torch threads of each process: {args.threads}; load average when it began: {busy:.2f}",
    ]
    report = page("Performance", facts, list(sections(floors, runs)))
    print(report)
    if args.write:
        args.write.write_text(report + sections_of(args.write))


if __name__ == "__main__":
    main()
