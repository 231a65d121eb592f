"""What the command line asks for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.loadtest.scenario import Scenario, load, seconds, shipped

REPORTS = Path("build/loadtest")

EPILOG = """
examples:
  python -m services.loadtest encoder-crash                     starts a pair of its own on free ports, with the demo model
  python -m services.loadtest my.toml --web                     … and shows Locust's page meanwhile
  python -m services.loadtest calm --target http://host:8000 --no-semantics
  python -m services.loadtest encoder-hang --docker             a composed pair, faults by the Docker engine
  python -m services.loadtest replica-crash --target http://host:8000 --ray auto     a fleet, whose replicas are killed
  python -m services.loadtest calm --target http://host:8000 --master --expect-workers 2     and on other machines:
  python -m services.loadtest calm --target http://host:8000 --worker --master-host HOST
  python -m services.loadtest --judge build/loadtest/calm/report.json
  python -m services.loadtest plan --help                       how many encoders and language services a load needs

exit status: 0 if every verdict holds, 1 if one does not, 2 if the test could not be run
"""


@dataclass(frozen=True, slots=True)
class Options:
    """One load test, as it was asked for. Of ``--list`` and ``--judge`` there is nothing here: they test nothing."""

    scenario: Scenario
    named: str
    """What the scenario was called by: its name, or its file."""
    report: Path
    target: str | None = None
    encoders: tuple[str, ...] = ()
    secret_file: Path | None = None
    docker: bool = False
    project: str | None = None
    ray: str | None = None
    helper_image: str = "epd-loadtest"
    model: str | None = None
    api_key: str | None = None
    semantics: bool = True
    seed: int = 0
    quiet: bool = False
    web: bool = False
    web_port: int = 8089
    csv: bool = False
    processes: int = 0
    master: bool = False
    worker: bool = False
    master_host: str = "127.0.0.1"
    master_port: int = 5557
    expect_workers: int = 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    line = argparse.ArgumentParser(
        prog="python -m services.loadtest",
        description="Loads an OpenAI-compatible server, makes its encoders fail, and judges what its clients got.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    line.add_argument("scenario", nargs="?", help=f"one of {', '.join(shipped())}, or a TOML file")
    line.add_argument("--list", action="store_true", help="show the scenarios that come with the tool")
    line.add_argument("--judge", type=Path, metavar="REPORT.json", help="judge a saved run again, and write its report anew")
    line.add_argument("--report", type=Path, help=f"folder for the report; {REPORTS}/SCENARIO without it")
    line.add_argument(
        "--duration", metavar="TIME", help="how long the load lasts, such as 2h; without it, as the scenario says"
    )
    line.add_argument("--seed", type=int, default=0, help="seed of what is asked when")
    line.add_argument("--quiet", action="store_true", help="no progress line")

    target = line.add_argument_group("target", "without any of these, a pair of its own is started and ended")
    target.add_argument("--target", metavar="URL", help="base URL of the server, without /v1")
    target.add_argument(
        "--encoder", metavar="URL", action="append", default=[], help="an encoder whose fault route may be used"
    )
    target.add_argument("--secret-file", type=Path, help="deployment secret, where the encoders need a token")
    target.add_argument("--docker", action="store_true", help="the parts are containers: faults by the Docker engine")
    target.add_argument("--project", help="compose project of the containers; without it, the tool's own, or the only one")
    target.add_argument(
        "--ray", metavar="ADDRESS", help="--target is a fleet on this Ray cluster (auto: this machine's): kill its replicas"
    )
    target.add_argument("--helper-image", default="epd-loadtest", help="image that has tc and iptables, for network faults")
    target.add_argument("--model", help="name of the model; without it, the first of /v1/models")
    target.add_argument(
        "--api-key", help="sent as Authorization: Bearer; of several with commas, as EPD_API_KEY has them, the first"
    )
    target.add_argument("--no-semantics", action="store_true", help="do not judge answers: the model is not the demo model")

    generator = line.add_argument_group("generator", "Locust's")
    generator.add_argument("--web", action="store_true", help="serve Locust's page while the load runs")
    generator.add_argument("--web-port", type=int, default=8089)
    generator.add_argument("--csv", action="store_true", help="write Locust's statistics as CSV and HTML beside the report")
    generator.add_argument("--processes", type=int, default=0, help="make the load with so many processes of this machine")
    generator.add_argument("--master", action="store_true", help="make the load with workers on other machines")
    generator.add_argument("--worker", action="store_true", help="be one of them; needs the same scenario and --target")
    generator.add_argument("--master-host", default="127.0.0.1", help="where a worker finds the master")
    generator.add_argument("--master-port", type=int, default=5557, help="where the master listens, on all addresses")
    generator.add_argument("--expect-workers", type=int, default=1, help="workers that the master waits for")
    return line


def options_of(asked: argparse.Namespace) -> Options:
    """The options that a command line gives.

    Raises:
        ValueError: they contradict each other, or there is no such scenario; the message says what to change.
    """
    if asked.scenario is None:
        raise ValueError("name a scenario: --list shows those that there are")
    scenario = load(asked.scenario)
    if asked.duration is not None:
        scenario = scenario.lasting(_duration(asked.duration))
    if asked.worker and asked.target is None:
        raise ValueError("a worker needs --target, the server that it loads")
    if asked.processes < 0 or asked.expect_workers < 1:
        raise ValueError("--processes and --expect-workers are numbers of generators")
    if sum((asked.worker, asked.master, asked.processes > 0)) > 1:
        raise ValueError("give only one of --worker, --master and --processes")
    if asked.docker and asked.encoder:
        raise ValueError("--docker finds the encoders by itself: leave --encoder out")
    if asked.ray and (asked.docker or asked.encoder):
        raise ValueError("--ray finds the encoders by itself: leave --encoder and --docker out")
    return Options(
        scenario=scenario,
        named=asked.scenario,
        report=asked.report or REPORTS / scenario.name,
        target=asked.target.rstrip("/").removesuffix("/v1") if asked.target else None,
        encoders=tuple(url.rstrip("/") for url in asked.encoder),
        secret_file=asked.secret_file,
        docker=asked.docker,
        project=asked.project,
        ray=asked.ray,
        helper_image=asked.helper_image,
        model=asked.model,
        api_key=(asked.api_key or "").split(",")[0].strip() or None,
        semantics=not asked.no_semantics,
        seed=asked.seed,
        quiet=asked.quiet,
        web=asked.web,
        web_port=asked.web_port,
        csv=asked.csv,
        processes=asked.processes,
        master=asked.master,
        worker=asked.worker,
        master_host=asked.master_host,
        master_port=asked.master_port,
        expect_workers=asked.processes or asked.expect_workers,
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, read; argparse's exit with status 2 where it is none."""
    return parser().parse_args(arguments)


def _duration(text: str) -> float:
    found = seconds(text)
    assert isinstance(found, float)
    return found
