"""What a load test can do to any deployment, whatever it runs on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Self

import httpx

from services.loadtest.deployment.route import CannotDo, FaultRoute, client
from services.loadtest.deployment.verbs import ENDINGS, UNDONE_BY, check_options, fault_of, is_kind
from services.loadtest.scenario import Action

LANGUAGE = "language"


class Deployment(ABC):
    """A language service and its encoders, as far as they can be reached; a context manager.

    Subclasses override what they can do of ``kill``, ``stop``, ``start``, ``pause``, ``resume``, ``disconnect``, ``connect``,
    ``slow`` and ``restore``, and say of the rest in ``unable`` why not. Each of these returns when it is in effect. They are
    called for several parts at once, but for one part one after the other.
    """

    url: str = ""
    """Base URL of the language service, without ``/v1``."""
    encoders: tuple[str, ...] = ()
    """Names of the encoders, ``encoder-1`` and so on; empty where they are not known."""
    parts: tuple[str, ...] = ()
    """Names of all that faults can be aimed at."""
    has_nodes: bool = False
    """Whether parts are on machines that can be killed."""
    recovery: float = 60.0
    """Seconds in which a part must say that it is up, after what was done to it was undone."""

    def __init__(self) -> None:
        self._http = client(timeout=1.0)
        self.route = FaultRoute()

    @abstractmethod
    def __enter__(self) -> Self:
        """Makes it ready to be used.

        Raises:
            CannotDo: it does not come up, or is not there.
        """

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._http.close()
        self.route.close()

    @abstractmethod
    def address(self, part: str) -> str:
        """The part's own base URL. Raises CannotDo while it has none."""

    @abstractmethod
    def unable(self, action: Action) -> str:
        """Why one of the tool's own verbs cannot be done here, in one sentence; empty where it can."""

    def _use_secret(self, secret: bytes | None) -> None:
        """The encoders' fault route wants this secret's token; for None, no token."""
        self.route.close()
        self.route = FaultRoute(secret)

    def encoder_urls(self) -> dict[str, str]:
        """Base URLs of the encoders that have one now, by their names."""
        found = {}
        for name in self.encoders:
            try:
                found[name] = self.address(name)
            except CannotDo:
                continue
        return found

    def targets(self, action: Action) -> tuple[str, ...]:
        """The parts that an action is aimed at, in order."""
        return tuple(part for part in self.parts if any(fnmatchcase(part, pattern) for pattern in action.targets))

    def check(self, actions: Sequence[Action]) -> None:
        """Finds out before any load whether all of a timeline can be done. Faults are tried out so that they hit nothing.

        Raises:
            CannotDo: something cannot; the message says what to change.
        """
        self.check_lines(actions)
        tried = set[str]()
        for action in actions:
            if not is_kind(action.verb):
                continue
            fault = fault_of(action.verb, action.options)
            for part in self.targets(action):
                if f"{part} {fault}" not in tried:
                    tried.add(f"{part} {fault}")
                    with _about(action):
                        self.route.try_out(self.address(part), fault)

    def check_lines(self, actions: Sequence[Action]) -> None:
        """The part of ``check`` that needs nothing to run. Raises CannotDo as it does."""
        for action in actions:
            with _about(action):
                self._check_line(action)

    def _check_line(self, action: Action) -> None:
        for pattern in action.targets:
            if not any(fnmatchcase(part, pattern) for part in self.parts):
                raise CannotDo(f"nothing here is called {pattern}; the parts are {', '.join(self.parts) or 'not known'}")
        if action.lasts is not None and (action.verb in ENDINGS or action.verb == "restart"):
            raise CannotDo(f"{action.verb} does not last: leave 'for' out")
        if action.lasts == 0:
            raise CannotDo("it must last longer than 0s")
        if is_kind(action.verb) or action.verb == "clear":
            others = [part for part in self.targets(action) if part not in self.encoders]
            if others:
                raise CannotDo(f"{action.verb} is done by an encoder's fault route, and {others[0]} is no encoder")
        if not is_kind(action.verb):
            check_options(action.verb, action.options)
            if action.options.get("by") == "node" and not self.has_nodes:
                raise CannotDo("only a fleet on a Ray cluster (--ray) has nodes that can be killed: leave by=node out")
            if reason := self.unable(action):
                raise CannotDo(reason)

    def carry_out(self, verb: str, part: str, options: Mapping[str, str]) -> str:
        """Does it to one part. What it returns is for ``end``.

        Raises:
            CannotDo: it failed.
        """
        match verb:
            case "disconnect":
                self.disconnect(part, options)
            case "slow":
                self.slow(part, options)
            case "clear":
                self.route.clear(self.address(part))
            case "kill" | "stop" | "start" | "pause" | "resume" | "connect" | "restore":
                getattr(self, verb)(part)
            case _:
                return self.route.set(self.address(part), fault_of(verb, options))
        return ""

    def end(self, verb: str, part: str, handle: str) -> None:
        """Undoes what ``carry_out`` did and returned ``handle`` for. Raises CannotDo where it failed."""
        if verb in UNDONE_BY:
            self.carry_out(UNDONE_BY[verb], part, {})
            return
        if verb == "crash":
            self.revive(part)
        if handle:
            self.route.remove(self.address(part), handle)

    def healthy(self, part: str) -> bool:
        """Whether the part says itself that it is up."""
        try:
            return self._http.get(f"{self.address(part)}/health").status_code == 200
        except (httpx.HTTPError, CannotDo):
            return False

    def ready(self) -> bool:
        """Whether the language service says that it is, and with all encoders."""
        try:
            answer = self._http.get(f"{self.url}/ready")
            return answer.status_code == 200 and answer.json()["encoders_ready"] >= len(self.encoders)
        except httpx.HTTPError:
            return False

    def explain(self, part: str) -> str:  # noqa: ARG002
        """What is known of why a part does not come up; may be empty."""
        return ""

    def revive(self, part: str) -> None:
        """Starts a part that may have ended by itself, where somebody must."""
        self.start(part)

    def kill(self, part: str) -> None:
        """Ends it by SIGKILL."""
        raise CannotDo(f"{part} cannot be killed from here")

    def stop(self, part: str) -> None:
        """Ends it by SIGTERM, and waits until it has finished what is open."""
        raise CannotDo(f"{part} cannot be stopped from here")

    def start(self, part: str) -> None:
        """Starts it again; nothing where it runs."""
        raise CannotDo(f"{part} cannot be started from here")

    def pause(self, part: str) -> None:
        """Stops all its threads where they are."""
        raise CannotDo(f"{part} cannot be paused from here")

    def resume(self, part: str) -> None:
        """Lets them go on."""
        raise CannotDo(f"{part} cannot be resumed from here")

    def disconnect(self, part: str, options: Mapping[str, str]) -> None:  # noqa: ARG002
        """It can exchange no packet with the rest."""
        raise CannotDo(f"{part} cannot be disconnected from here")

    def connect(self, part: str) -> None:
        """It can again."""
        raise CannotDo(f"{part} cannot be connected from here")

    def slow(self, part: str, options: Mapping[str, str]) -> None:  # noqa: ARG002
        """Its network is as ``network.Conditions`` of these options say, in place of what was said before."""
        raise CannotDo(f"the network of {part} cannot be slowed from here")

    def restore(self, part: str) -> None:
        """Its network is as it was."""
        raise CannotDo(f"the network of {part} cannot be restored from here")


@contextmanager
def _about(action: Action) -> Iterator[None]:
    """Has an error begin with the line that it is about."""
    try:
        yield
    except ValueError as error:
        raise CannotDo(f"{action.line!r} cannot be done: {error}") from error
