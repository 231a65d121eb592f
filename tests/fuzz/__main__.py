"""``python -m tests.fuzz``: many thousands of broken messages for what reads the data socket.

At random by default; with ``--guided``, by what code a message reaches (Atheris, ``pip install -e '.[fuzz]'``). Prints what
became of them. The first that breaks a promise ends it; ``--only NUMBER``, or ``--input FILE`` of a guided run, gives it again.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import structlog

Case = Callable[[random.Random], str]


def make_case() -> Case:
    """A message that the random numbers choose, for one target or the other; says what became of it."""
    from tests.fuzz.mutations import mutated
    from tests.fuzz.targets import ReceiverTarget, check_reading

    target = ReceiverTarget()

    def case(rng: random.Random) -> str:
        kind = rng.randrange(4)
        if kind == 0:
            original = rng.choice(target.samples.all)
            return f"read: {check_reading(mutated(rng, original), original)}"
        if kind < 3:
            original = rng.choice(target.samples.all)
            return f"receive: {target.check(mutated(rng, original), original)}"
        original, end = target.lent.message()
        try:
            return f"receive from shared memory: {target.check(mutated(rng, original), original)}"
        finally:
            end()

    return case


class Chosen(random.Random):
    """Random numbers that a fuzzer chooses; zeros when it has no more to say."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._data = data
        self._at = 0

    def getrandbits(self, k: int, /) -> int:
        size = (k + 7) // 8
        taken = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(taken, "little") >> (8 * len(taken) - k if len(taken) == size else 0)

    def random(self) -> float:
        return self.getrandbits(16) / 2**16


def report(outcomes: Counter[str], began: float) -> None:
    seconds = time.monotonic() - began
    print(f"{outcomes.total()} messages in {seconds:.0f} s", flush=True)
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:9} {outcome}", flush=True)


def at_random(cases: int, seed: int, only: int | None) -> None:
    case, outcomes, began = make_case(), Counter[str](), time.monotonic()
    for number in range(cases) if only is None else (only,):
        try:
            outcomes[case(random.Random(f"{seed}/{number}"))] += 1
        except BaseException:
            print(f"failed: python -m tests.fuzz --seed {seed} --only {number}", flush=True)
            raise
    report(outcomes, began)


def guided(cases: int, seed: int) -> None:
    """Does not return: the fuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["shared", "services.language.embeddings"]):
        case = make_case()
    outcomes, began = Counter[str](), time.monotonic()

    def one(data: bytes) -> None:
        outcomes[case(Chosen(data))] += 1
        if outcomes.total() == cases:
            report(outcomes, began)

    options = [f"-runs={cases}", f"-seed={seed or 1}", "-max_len=512", "-len_control=10", "-timeout=20"]
    options.append(f"-artifact_prefix={tempfile.gettempdir()}/epd-fuzz-")
    atheris.Setup([sys.argv[0], *options], one)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--guided", action="store_true")
    parser.add_argument("--only", type=int, help="this one of a random run")
    parser.add_argument("--input", type=Path, help="what a guided run has left behind")
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if args.input is not None:
        print(make_case()(Chosen(args.input.read_bytes())))
    elif args.guided:
        guided(args.cases, args.seed)
    else:
        at_random(args.cases, args.seed, args.only)


if __name__ == "__main__":
    main()
