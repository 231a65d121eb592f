"""One load test from its beginning to its end: everything that a run has seen, for others to judge."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import replace
from datetime import UTC, datetime
from threading import Event, Thread

import locust

from services.loadtest.deployment import Choice, Deployment, open_deployment
from services.loadtest.generators import Generators, be_worker_of
from services.loadtest.observe import Observer
from services.loadtest.options import Options
from services.loadtest.progress import Progress
from services.loadtest.rehearsal import CannotRun, model_of, rehearse
from services.loadtest.run import Fault, Run
from services.loadtest.scenario import Scenario
from services.loadtest.timeline import Timeline
from services.loadtest.traffic.plan import Plan


def conduct(options: Options) -> Run:
    """Runs a whole load test.

    Raises:
        CannotRun, ValueError: it could not be run, and nothing is to be judged.
    """
    scenario = options.scenario
    choice = Choice(
        logs=options.report / "logs",
        target=options.target,
        encoders=options.encoders,
        docker=options.docker,
        compose_project=options.project,
        secret_file=options.secret_file,
        helper_image=options.helper_image,
        ray=options.ray,
        api_key=options.api_key,
    )
    with open_deployment(scenario, choice) as deployment:
        deployment.check(scenario.actions())
        model = options.model or model_of(deployment.url, options.api_key)
        rehearse(options, deployment.url, model)
        return run(options, deployment, model)


def run(options: Options, deployment: Deployment, model: str) -> Run:
    """Runs the load and the faults side by side."""
    scenario, plan = options.scenario, plan_of(options, deployment.url, model)
    clock = plan.clock
    zero = clock.now()

    def now() -> float:
        return clock.now() - zero

    timeline = Timeline(scenario.actions(), deployment, now, deployment.recovery)
    observer = Observer(deployment, now)
    progress = Progress(sys.stderr, scenario.lasts, timeline.current)
    stop = Event()
    faults = Thread(target=timeline.run, args=(stop,), name="timeline")

    def begin() -> None:
        nonlocal zero
        zero = clock.now()
        faults.start()
        observer.start()

    def tick() -> None:
        if not options.quiet:
            progress.count(plan.ledger.news())
            progress.tick(now())

    began = datetime.now(UTC)
    try:
        Generators(options, plan, deployment.url, model).run(begin, tick)
    except RuntimeError as error:
        raise CannotRun(str(error)) from error
    finally:
        stop.set()
        if faults.ident is not None:
            faults.join()
        timeline.finish()
        observer.stop()
        progress.end()
    seconds = now()
    return Run(
        scenario=scenario,
        target=deployment.url,
        model=model,
        began=began.isoformat(timespec="seconds"),
        seconds=seconds,
        semantics=options.semantics,
        encoders=deployment.encoders,
        records=plan.ledger.records(zero),
        faults=sorted([*timeline.faults, *surges(scenario)], key=lambda fault: fault.ordered),
        samples=observer.samples,
        generator=plan.ledger.generator(),
        leftovers=observer.leftovers(),
        notes=notes_of(options),
    )


def notes_of(options: Options) -> list[str]:
    """Where the load came from."""
    system = f"{platform.platform()}, Python {platform.python_version()}, Locust {locust.__version__}"
    notes = [f"generator: {os.cpu_count()} cores, {system}"]
    if options.target is None:
        notes.append("the pair ran on the machine that made the load, and shared its cores with it")
    return notes


def surges(scenario: Scenario) -> list[Fault]:
    """The times of more load than at first, as what they are: a thing that is done to the deployment."""
    usual = scenario.traffic.load_at(0)
    unit = "/s" if scenario.traffic.open_loop else " users"
    found: list[Fault] = []
    for step in sorted(scenario.traffic.steps, key=lambda step: step.at):
        if found and found[-1].cleared is None:
            found[-1] = replace(found[-1], lifting=step.at, cleared=step.at)
        if step.load > usual:
            found.append(Fault(f"load {step.load:g}{unit}", "load", (), False, step.at, applied=step.at))
    return found


def be_worker(options: Options) -> None:
    """Makes load for a master elsewhere.

    Raises:
        CannotRun: the server does not say what model it has.
    """
    assert options.target is not None
    model = options.model or model_of(options.target, options.api_key)
    be_worker_of(options, plan_of(options, options.target, model))


def plan_of(options: Options, url: str, model: str) -> Plan:
    """The traffic against a server."""
    return Plan(options.scenario, url, model, semantics=options.semantics, seed=options.seed, api_key=options.api_key)
