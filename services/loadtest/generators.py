"""Locust, as this tool uses it: in this process, in several of this machine, or with workers on others."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import gevent
from locust import stats
from locust.env import Environment
from locust.event import Events
from locust.html import get_html_report
from locust.runners import MasterRunner, Runner

from services.loadtest.options import Options
from services.loadtest.traffic.plan import Plan
from services.loadtest.traffic.shape import shape_class
from services.loadtest.traffic.users import client_class

_TICK = 0.5
_WORKERS_WITHIN = 60.0  # seconds


class Generators:
    """Makes the load of a plan. The records are in the plan's ledger."""

    def __init__(self, options: Options, plan: Plan, url: str, model: str) -> None:
        self._options = options
        self._url, self._model = url, model
        self._environment = environment_of(plan)
        # Workers of this machine need a port that nobody else has; those of others must know it.
        self._port = _free_port() if options.processes else options.master_port
        if options.master or options.processes:
            self._runner: Runner = self._environment.create_master_runner("*" if options.master else "127.0.0.1", self._port)
        else:
            self._runner = self._environment.create_local_runner()
        plan.install(self._environment)

    def run(self, begin: Callable[[], None], tick: Callable[[], None]) -> None:
        """Makes the whole load, and returns when each request has its record.

        ``begin`` is called as it begins, ``tick`` about twice a second from then on.

        Raises:
            RuntimeError: workers did not come, or went away.
        """
        with self._workers(), self._page(), self._statistics():
            self._await_workers()
            begin()
            self._runner.start_shape()
            while (shaping := self._runner.shape_greenlet) is not None and not shaping.ready():
                gevent.wait([shaping], timeout=_TICK)
                tick()
            self._runner.quit()

    def _await_workers(self) -> None:
        if not isinstance(self._runner, MasterRunner):
            return
        wanted = self._options.expect_workers
        missing = RuntimeError(f"{wanted} workers did not come within {_WORKERS_WITHIN:g} s")
        with gevent.Timeout(None if self._options.master else _WORKERS_WITHIN, missing):
            while len(self._runner.clients.ready) < wanted:
                gevent.sleep(0.05)

    @contextmanager
    def _workers(self) -> Iterator[None]:
        """Those that run on this machine."""
        options = self._options
        given = ["--worker", "--target", self._url, "--model", self._model, "--master-port", str(self._port)]
        given += ["--api-key", options.api_key] if options.api_key else []
        given += [] if options.semantics else ["--no-semantics"]
        command = [sys.executable, "-m", "services.loadtest", options.named, *given]
        started = [subprocess.Popen([*command, "--seed", str(options.seed)]) for _ in range(options.processes)]
        try:
            yield
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait()

    @contextmanager
    def _page(self) -> Iterator[None]:
        """Locust's page, where it is wanted."""
        if not self._options.web:
            yield
            return
        page = self._environment.create_web_ui("127.0.0.1", self._options.web_port)
        print(f"Locust's page: http://127.0.0.1:{self._options.web_port}", flush=True)
        try:
            yield
        finally:
            page.stop()

    @contextmanager
    def _statistics(self) -> Iterator[None]:
        """Locust's own files, where they are wanted."""
        keeping = [gevent.spawn(stats.stats_history, self._runner)] if self._options.web or self._options.csv else []
        writer = None
        if self._options.csv:
            self._options.report.mkdir(parents=True, exist_ok=True)
            files = str(self._options.report / "locust")
            writer = stats.StatsCSVFileWriter(self._environment, stats.PERCENTILES_TO_REPORT, files, full_history=True)
            keeping.append(gevent.spawn(writer.stats_writer))
        try:
            yield
        finally:
            if writer is not None:
                gevent.sleep(stats.CSV_STATS_INTERVAL_SEC)  # it writes once more, and then has all
            gevent.killall(keeping)
            if writer is not None:
                writer.close_files()
                page = get_html_report(self._environment, show_download_link=False)
                (self._options.report / "locust.html").write_text(page)


def be_worker_of(options: Options, plan: Plan) -> None:
    """Makes load for a master elsewhere until that says that it is enough."""
    environment = environment_of(plan)
    runner = environment.create_worker_runner(options.master_host, options.master_port)
    plan.install(environment)
    runner.greenlet.join()


def environment_of(plan: Plan) -> Environment:
    """What Locust needs to know."""
    return Environment(user_classes=[client_class(plan)], shape_class=shape_class(plan)(), events=Events())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
