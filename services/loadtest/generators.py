"""Locust, as this tool uses it: in this process, in several of this machine, or with workers on others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import gevent
from locust import stats
from locust.exception import RPCError
from locust.html import get_html_report
from locust.rpc import Message
from locust.runners import MasterRunner, Runner

from services.loadtest.deployment.process import bound_to_parent
from services.loadtest.options import Options
from services.loadtest.page import Page
from services.loadtest.ports import free_port
from services.loadtest.traffic.loop import environment_of, make_load
from services.loadtest.traffic.plan import Plan

_WORKERS_WITHIN = 60.0  # seconds
_SILENT = 10  # seconds past those in which Locust takes a worker for missing


class Generators:
    """Makes the load of a plan. The records are in the plan's ledger.

    Raises:
        RuntimeError: the port for workers is taken.
    """

    def __init__(self, options: Options, plan: Plan, url: str, model: str) -> None:
        self._options = options
        self._url, self._model = url, model
        self._environment = environment_of(plan)
        self._workers: list[subprocess.Popen[bytes]] = []
        # Workers of this machine need a port that nobody else has; those of others must know it.
        self._port = free_port() if options.processes else options.master_port
        self._runner = self._make_runner()
        plan.install(self._environment)

    def run(self, begin: Callable[[], None], tick: Callable[[], None]) -> None:
        """Makes the whole load, and returns when each request has its record.

        ``begin`` is called as it begins, ``tick`` about twice a second from then on.

        Raises:
            RuntimeError: workers did not come, or went away; or the page's port is taken.
        """

        def look() -> None:
            self._look_after_workers()
            tick()

        with self._local_workers(), self._page(), self._statistics():
            try:
                self._await_workers()
                begin()
                make_load(self._runner, look)
            except BaseException:
                self._break_off()
                raise

    def _make_runner(self) -> Runner:
        options = self._options
        if not (options.master or options.processes):
            return self._environment.create_local_runner()
        try:
            return self._environment.create_master_runner("*" if options.master else "127.0.0.1", self._port)
        except RPCError as error:
            raise RuntimeError(
                f"workers cannot be waited for on port {self._port}: {error}; --master-port takes another"
            ) from error

    def _await_workers(self) -> None:
        if not isinstance(self._runner, MasterRunner):
            return
        wanted = self._options.expect_workers
        missing = RuntimeError(f"{wanted} workers did not come within {_WORKERS_WITHIN:g} s")
        with gevent.Timeout(None if self._options.master else _WORKERS_WITHIN, missing):
            while len(self._runner.clients.ready) < wanted:
                self._look_after_workers()
                gevent.sleep(0.05)

    def _look_after_workers(self) -> None:
        """Raises RuntimeError where one went away: what it had not yet told is lost, and with it the truth about the run."""
        for worker in self._workers:
            if worker.poll() is not None:
                raise RuntimeError(f"a worker of this machine ended with status {worker.returncode}, and its records are lost")
        if isinstance(self._runner, MasterRunner):
            silent = self._runner.clients.missing
            # A worker of a machine that is busy may come back; without any, Locust ends the test.
            if any(each.heartbeat < -_SILENT for each in silent) or len(silent) == len(self._runner.clients) > 0:
                raise RuntimeError(f"worker {silent[0].id} went away, and its records are lost")

    def _break_off(self) -> None:
        """No more load, at once: what is under way is not waited for."""
        runner = self._runner
        gevent.killall([each for each in (runner.shape_greenlet, runner.spawning_greenlet) if each is not None])
        runner.user_greenlets.kill(block=False)
        if isinstance(runner, MasterRunner):
            for worker in runner.clients.all:
                runner.server.send_to_client(Message("quit", None, worker.id))
            gevent.sleep(0.5)  # as Locust itself does, so that it is sent

    @contextmanager
    def _local_workers(self) -> Iterator[None]:
        """Those that run on this machine."""
        options = self._options
        given = ["--worker", "--target", self._url, "--model", self._model, "--master-port", str(self._port)]
        given += ["--api-key", options.api_key] if options.api_key else []
        given += [] if options.semantics else ["--no-semantics"]
        command = [sys.executable, "-m", "services.loadtest", options.named, "--seed", str(options.seed), *given]
        try:
            for _ in range(options.processes):
                # Ctrl-C is for the load tester, which ends its workers.
                self._workers.append(subprocess.Popen(bound_to_parent(command), start_new_session=True))
            yield
        finally:
            for worker in self._workers:
                worker.kill()  # it has told everything, or nobody wants to know it any more
                worker.wait()

    @contextmanager
    def _page(self) -> Iterator[None]:
        """Locust's page, where it is wanted."""
        if not self._options.web:
            yield
            return
        with Page(self._environment, self._options.web_port) as page:
            print(f"Locust's page: {page.url}", flush=True)
            yield

    @contextmanager
    def _statistics(self) -> Iterator[None]:
        """Locust's own files, where they are wanted."""
        keeping = [gevent.spawn(stats.stats_history, self._runner)] if self._options.web or self._options.csv else []
        writer = None
        if self._options.csv:
            files = str(self._options.report / "locust")
            writer = stats.StatsCSVFileWriter(self._environment, stats.PERCENTILES_TO_REPORT, files, full_history=True)
            keeping.append(gevent.spawn(writer.stats_writer))
        try:
            yield
            if writer is not None:
                gevent.sleep(stats.CSV_STATS_INTERVAL_SEC)  # it writes once more, and then has all
                page = get_html_report(self._environment, show_download_link=False)
                (self._options.report / "locust.html").write_text(page)
        finally:
            gevent.killall(keeping)
            if writer is not None:
                writer.close_files()


def be_worker_of(options: Options, plan: Plan) -> None:
    """Makes load for a master elsewhere until that says that it is enough.

    Raises:
        ConnectionError: there is no master.
    """
    environment = environment_of(plan)
    runner = environment.create_worker_runner(options.master_host, options.master_port)
    plan.install(environment)
    runner.greenlet.join()
