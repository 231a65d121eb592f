"""``python -m services.loadtest plan``: says what a fleet can do, or how large it must be."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from services.loadtest.capacity.inputs import example, read, written
from services.loadtest.capacity.measure import Pair, measure
from services.loadtest.capacity.sizing import plan
from services.loadtest.capacity.table import lines, to_json

GOOD, TOO_MUCH, WRONG = 0, 1, 2

EPILOG = """
examples:
  python -m services.loadtest plan --example > pair.toml            a file to fill in
  python -m services.loadtest plan pair.toml                        how many of each its load needs
  python -m services.loadtest plan pair.toml --encoders 3 --languages 1 --rate 50
  python -m services.loadtest plan pair.toml --measure http://127.0.0.1:8000 --save measured.toml
  python -m services.loadtest plan pair.toml --set traffic.repeated=0.5 --set 'language.step_seconds="20ms"' --json

exit status: 0 if the fleet can do it, 1 if it cannot, 2 if there is no plan
"""


def command(arguments: Sequence[str] | None = None) -> int:
    """Does what the command line says; returns the exit status."""
    asked = _parser().parse_args(arguments)
    if asked.example:
        print(example(), end="")
        return GOOD
    try:
        if asked.file is None and asked.measure is None and asked.rate is None:
            raise ValueError("name a TOML file with the inputs (--example prints one), or give --rate, or --measure a pair")
        measured = None if asked.measure is None else measure(Pair(asked.measure, asked.encoder, asked.api_key, asked.model))
        if measured is not None and asked.save is not None:
            asked.save.write_text(written(measured.tables()))
        if measured is not None and asked.file is None and asked.rate is None:
            print(written(measured.tables()), end="")
            return GOOD
        found = plan(read(asked.file, _changes(asked), {} if measured is None else measured.tables()))
    except (ValueError, OSError) as error:
        print(f"no plan: {error}", file=sys.stderr)
        return WRONG
    print(to_json(found) if asked.json else "\n".join(lines(found)))
    return GOOD if found.prediction.stable else TOO_MUCH


def _parser() -> argparse.ArgumentParser:
    line = argparse.ArgumentParser(
        prog="python -m services.loadtest plan",
        description="How many encoders and language services a load needs, or what those that there are will do under it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    line.add_argument("file", nargs="?", type=Path, help="TOML file with the inputs")
    line.add_argument("--example", action="store_true", help="print such a file")
    line.add_argument("--rate", type=float, help="requests a second (traffic.rate)")
    line.add_argument("--encoders", type=int, help="encoders that there are (fleet.encoders); else the plan says how many")
    line.add_argument("--languages", type=int, help="language services that there are (fleet.languages)")
    line.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="another input, in TOML; may be repeated"
    )
    line.add_argument("--json", action="store_true", help="print JSON")
    measuring = line.add_argument_group("measuring", "takes half a minute of a pair that nobody else uses")
    measuring.add_argument("--measure", metavar="URL", help="base URL of a language service that has one encoder")
    measuring.add_argument("--encoder", metavar="URL", help="its encoder; without it, as /v1/encoders says")
    measuring.add_argument("--api-key", help="sent as Authorization: Bearer")
    measuring.add_argument("--model", help="name of the model; without it, the first of /v1/models")
    measuring.add_argument("--save", type=Path, metavar="FILE", help="write what was measured into a TOML file")
    return line


def _changes(asked: argparse.Namespace) -> list[str]:
    flags = (("traffic.rate", asked.rate), ("fleet.encoders", asked.encoders), ("fleet.languages", asked.languages))
    return [*asked.set, *(f"{key}={value}" for key, value in flags if value is not None)]
