"""``python -m tests.openapi [--cases N]``: at least N requests to both services, made of their OpenAPI documents.

Exits with 1 where one was answered with 500, or otherwise than the documents say.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.openapi.runs import pair_to_fuzz, run

EXAMPLES = 120
"""Random requests an operation, beside those that the schemas name."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.openapi")
    parser.add_argument("--cases", type=int, default=5000, help="requests that there must be at least")
    wanted = parser.parse_args().cases
    cases, failures = 0, 0
    with tempfile.TemporaryDirectory() as name, pair_to_fuzz(Path(name)) as services:
        for service in services:
            began = time.monotonic()
            done = run(service, Path(name) / f"{service.name}-run", EXAMPLES, thorough=True)
            print(f"{service.name}: {done.cases} requests in {time.monotonic() - began:.0f} s; {len(done.failures)} failures")
            print("  valid and answered with success:", ", ".join(f"{each} {n}" for each, n in done.accepted.items() if n))
            if done.failures:
                print(done.log)
            cases, failures = cases + done.cases, failures + len(done.failures)
    print(f"{cases} requests, {failures} failures")
    if cases < wanted:
        print(f"these are fewer than the {wanted} that were wanted", file=sys.stderr)
    return int(failures > 0 or cases < wanted)


if __name__ == "__main__":
    sys.exit(main())
