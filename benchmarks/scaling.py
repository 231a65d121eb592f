"""``python -m benchmarks.scaling``: the capacity model against pairs of one, two and three encoders on this machine.

Each encoder is the real service with a share of one core, so that encoders are what runs out, as they are where towers are
large. One is measured as ``python -m services.loadtest plan --measure`` does it; from these figures alone the model says what
all pairs will do. Then they are loaded, by the load tester's generator in a process of its own: random arrivals at shares of
what is predicted as the most, and as many users as keep all encoders busy. Every picture is new. ``--write PAGE`` puts the
table into a page.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the process that makes the load must not import it before Locust
    from services.loadtest.capacity.inputs import Inputs

LOADS = (0.3, 0.6, 0.85)
USERS = 32
"""Of each encoder, where they are to be saturated."""
WARM = 2.0
"""Seconds at the beginning of a load that do not count."""
ANSWER = 4
"""Tokens."""
LIVENESS = 30
"""Seconds: with a small share of a core, signs of life may be late."""

TEXT = """\
`python -m benchmarks.scaling`: one encoder is measured by `plan --measure`, and from that the model predicts one, two and
three. Each encoder is the real service with the demo model and {share:.0%} of a core (a control group's quota); the language
service has the torch engine and all that is left. Pictures of 64 x 64 pixels, each a new one; {answer} tokens of answer,
streamed. Open loop: random arrivals for {seconds:g} s at a share of what is predicted as the most, the first {warm:g} s left
out; predicted for as many as came. Saturated: {users} users an encoder, without pauses. Each cell: predicted / measured =
ratio."""


@dataclass(frozen=True)
class Load:
    """What clients saw: requests and answers a second, times to the first token in seconds, requests that failed, and by how
    much the generator's 99th percentile was late, in seconds."""

    asked: float
    rate: float
    mean: float
    p95: float
    failed: int
    late: float


def generate(port: int, traffic: str, lasts: float) -> None:
    """The generator: prints what it saw. Locust patches what is imported after it, so this has a process of its own."""
    import locust  # noqa: F401, I001
    from services.loadtest.scenario import Scenario
    from services.loadtest.statistics import percentile
    from services.loadtest.traffic.loop import make_load_alone
    from services.loadtest.traffic.plan import Plan
    import numpy as np

    scenario = Scenario.model_validate({"name": "x", "title": "x", "lasts": lasts, "traffic": json.loads(traffic)})
    plan = Plan(scenario, f"http://127.0.0.1:{port}", "demo_model", semantics=False)
    make_load_alone(plan)
    assert plan.ledger.began is not None
    everything = plan.ledger.records(plan.ledger.began)
    records = [record for record in everything if WARM <= record.due <= lasts]
    firsts = np.array([record.first - record.sent for record in records if record.ok and record.first is not None])
    made = [record for record in everything if record.ok and WARM <= record.ended <= lasts]
    failed = sum(not record.ok for record in records)
    late = plan.ledger.generator().late_p99
    asked, rate = (len(some) / (lasts - WARM) for some in (records, made))
    print(json.dumps(asdict(Load(asked, rate, float(firsts.mean()), percentile(firsts, 0.95), failed, late))))


def load(port: int, lasts: float, **traffic: object) -> Load:
    """Runs a generator in a process of its own."""
    given = {**traffic, "mix": {"image": 1}, "streaming": 1, "max_tokens": ANSWER, "deadline": 30}
    command = [sys.executable, "-m", "benchmarks.scaling", "--generate", str(port), json.dumps(given), "--seconds", str(lasts)]
    return Load(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]))


def inputs_of(measured: dict[str, dict[str, Any]], rate: float) -> Inputs:
    """Inputs for the traffic that is made here. What crosses between the services is in what was measured."""
    from services.loadtest.capacity.inputs import Inputs

    traffic = {"rate": rate, "pictures": 1, "text_tokens": 14, "answer_tokens": ANSWER, "tokens_per_picture": 4}
    return Inputs.model_validate({**measured, "traffic": traffic, "network": {"bytes_per_second": 0, "seconds": 0}})


def cell(predicted: float, measured: float, scale: float, unit: str) -> str:
    """Both and their ratio."""
    digits = 0 if scale > 1 else 1
    if math.isinf(predicted):
        return f"no end / {scale * measured:.{digits}f} {unit}"
    return f"{scale * predicted:.{digits}f} / {scale * measured:.{digits}f} {unit} = {predicted / measured:.2f}"


def rows(share: float, counts: Sequence[int], lasts: float) -> Iterator[tuple[str, ...]]:
    """The table's rows."""
    from benchmarks.quota import limited
    from services.loadtest.capacity.measure import Pair, measure
    from services.loadtest.capacity.model import predict
    from services.loadtest.capacity.table import seconds
    from tests.processes import UNCACHED, Service

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        there = [Service("encoder", Path(folder), threads=1, log_level="warning", **UNCACHED) for _ in range(max(counts))]
        cores = sorted(os.sched_getaffinity(0))
        for index, encoder in enumerate(there):
            stack.enter_context(encoder.start())
            stack.enter_context(limited(encoder.process.pid, share, cores[index % len(cores)]))
        measured: dict[str, dict[str, Any]] = {}
        for count in counts:
            urls = ",".join(encoder.url for encoder in there[:count])
            options: dict[str, Any] = {"encoders": urls, "embedding_cache_bytes": 0, "liveness_timeout": LIVENESS}
            with Service("language", Path(folder), threads=1, log_level="warning", **options) as language:
                language.wait_until_ready(encoders=count)
                if not measured:
                    measured = measure(Pair(language.url)).tables()
                    print(measured, flush=True)
                most = predict(inputs_of(measured, 1.0), count, 1).limit
                for used in LOADS:
                    seen = load(language.port, lasts, rate=used * most)
                    # For as many as came: near the limit it matters that chance made them some more or fewer.
                    told = predict(inputs_of(measured, seen.asked), count, 1)
                    yield (
                        str(count),
                        f"{used:.0%}",
                        cell(min(seen.asked, most), seen.rate, 1, "/s"),
                        cell(told.ttft.mean, seen.mean, 1000, "ms"),
                        cell(told.ttft.p95, seen.p95, 1000, "ms"),
                        str(seen.failed),
                        seconds(seen.late),
                    )
                seen = load(language.port, lasts, users=USERS * count)
                full = cell(most, seen.rate, 1, "/s")
                yield str(count), "saturated", full, "", "", str(seen.failed), seconds(seen.late)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.06, help="of a core, for each encoder")
    parser.add_argument("--encoders", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, default=15.0, help="length of each load")
    parser.add_argument("--write", type=Path, help="page to write the table into, such as docs/scaling.md")
    parser.add_argument("--generate", nargs=2, metavar=("PORT", "TRAFFIC"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.generate is not None:
        generate(int(args.generate[0]), args.generate[1], args.seconds)
        return
    from benchmarks.pages import report  # these import torch, which is not for the processes above
    from benchmarks.tables import table

    heads = ("encoders", "load", "requests/s", "first token, mean", "first token, p95", "failed", "generator late, p99")
    text = TEXT.format(share=args.share, answer=ANSWER, seconds=args.seconds, warm=WARM, users=USERS)
    found = []
    for row in rows(args.share, args.encoders, args.seconds):
        print(" | ".join(row), flush=True)
        found.append(row)
    report("Predicted and measured", text, table(heads, found), args.write)


if __name__ == "__main__":
    main()
