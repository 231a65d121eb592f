"""What all users of one process share: whom they ask what, and where it is written down."""

from __future__ import annotations

import os
import random

import gevent
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from services.loadtest.clock import Clock
from services.loadtest.ledger import Ledger
from services.loadtest.run import End, Record
from services.loadtest.scenario import Scenario
from services.loadtest.traffic.exchange import Exchange
from services.loadtest.traffic.gathering import gather
from services.loadtest.traffic.questions import Questions

PATIENCE = 2.0
"""Seconds past deadline and grace after which a client gives up, so that an answer that is just too late is still seen."""


class Failed(Exception):
    """What Locust counts as a failure, in words that are the same for all of a kind."""


class Plan:
    """A scenario's traffic against one server.

    Args:
        url: base URL of the server, without ``/v1``.
        model: its name there.
        semantics: whether the right answers are known.
        seed: of kinds, scenes and times, so that two runs are alike; pictures are new in each.
        api_key: sent as ``Authorization: Bearer``.

    Raises:
        ValueError: the URL is none.
    """

    def __init__(
        self, scenario: Scenario, url: str, model: str, *, semantics: bool = True, seed: int = 0, api_key: str | None = None
    ) -> None:
        self.scenario = scenario
        self.traffic = scenario.traffic
        self.clock = Clock()
        self.ledger = Ledger(self.clock)
        self.rng = random.Random(seed)
        self.waits = self.traffic.deadline + scenario.verdicts.grace + PATIENCE
        """Seconds after which every request has its record."""
        self._seed = seed
        self._model = model
        self._semantics = semantics
        self._exchange = Exchange(url, self.clock, self.waits - self.traffic.deadline, api_key=api_key)
        self._questions = Questions(self.traffic, model, semantics, seed)
        self._ids = ""
        self._asked = 0

    def install(self, environment: Environment) -> None:
        """Makes this process ready; to be called when the environment has its runner, and before other listeners of
        ``test_stop`` are added.

        Also sets Locust's stop timeout, so that requests that are under way at the end get their answers.
        """
        environment.stop_timeout = self.waits + 1.0
        if not isinstance(environment.runner, MasterRunner):
            worker = environment.runner.worker_index if isinstance(environment.runner, WorkerRunner) else 0
            seed = self._seed * 1_000_003 + worker
            self.rng = random.Random(seed)
            self._questions = Questions(self.traffic, self._model, self._semantics, seed)
            self._questions.prepare()
            self._ids = f"lt-{os.urandom(4).hex()}"
        gather(environment, self.ledger, self.waits)

    def arrive(self, environment: Environment, due: float) -> None:
        """Asks without waiting for the answer, unless too many requests are open."""
        if self.ledger.open >= self.traffic.most_open:
            self.ledger.skip()
        else:
            self.ledger.open += 1
            gevent.spawn(self._ask_alone, environment, due)

    def ask(self, environment: Environment, due: float) -> None:
        """Asks, and waits for the answer.

        Locust kills users that think, at the end; one may have begun its next request at that very moment. So requests are not
        their users' own: whatever was sent gets its record.
        """
        self.ledger.open += 1
        gevent.spawn(self._ask_alone, environment, due).join()

    def _ask_alone(self, environment: Environment, due: float) -> None:
        try:
            self._ask(environment, due)
        except Exception as error:  # a bug of this tool: no user's task is here that Locust would see it fail in
            environment.events.user_error.fire(user_instance=None, exception=error, tb=error.__traceback__)
            raise

    def _ask(self, environment: Environment, due: float) -> None:
        try:
            self._asked += 1
            question = self._questions.next()
            record, length = self._exchange.ask(question, f"{self._ids}-{self._asked}", self.traffic.deadline, due)
            self.ledger.add(record)
        finally:
            self.ledger.open -= 1
        left = record.end is End.HUNG_UP
        environment.events.request.fire(
            request_type="POST",
            name=f"{record.kind}, hung up" if left else str(record.kind),
            response_time=1000 * record.seconds,
            response_length=length,
            exception=None if left or (record.ok and record.right is not False) else Failed(_why(record)),
            context={},
        )


def _why(record: Record) -> str:
    if record.end is not End.ANSWERED:
        return str(record.end)
    if record.ok:
        return "a wrong answer"
    return f"{record.status} {record.code}"
