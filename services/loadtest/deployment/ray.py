"""A fleet on a Ray cluster: its parts are replicas, which Serve replaces by itself when they die."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

import httpx

from services.loadtest.deployment.base import LANGUAGE, Deployment
from services.loadtest.deployment.replicas import Replica, Replicas
from services.loadtest.deployment.route import CannotDo, read_secret
from services.loadtest.scenario import Action

_READY = 60.0  # seconds for a fleet that was just started
_SOON = 2.0  # seconds in which no replica can have come for one that died: it has a model to load
_OFTEN = 0.5  # seconds between looks at the replicas


class RayFleet(Deployment):
    """The encoders of a fleet behind one ``target``. ``encoder-1`` and so on are places: when a replica ends, its place belongs
    to the next one that has none. Language services are not told apart, and nothing is done to them here.

    ``address`` is the cluster's, as ``ray.init`` takes it; ``auto`` is the one of this machine.
    """

    has_nodes = True
    recovery = 300.0  # what comes is a new process, on a node that may have to come first, with a model to load

    def __init__(self, target: str, address: str, secret_file: Path | None = None, api_key: str | None = None) -> None:
        super().__init__()
        self.url = target
        self._cluster = address
        self._secret_file = secret_file
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._stack = ExitStack()
        self._lock = Lock()
        self._places: dict[str, tuple[Replica, str]] = {}
        self._fell: set[str] = set()  # places of nodes that were killed
        self._ended: set[str] = set()  # names of replicas, and ids of nodes: Serve may tell of them for a while
        self._looked = float("-inf")

    def __enter__(self) -> Self:
        """Finds the encoders that the fleet has now, all of them ready. Raises CannotDo where there are none."""
        with self._stack as stack:
            stack.callback(super().__exit__, None, None, None)
            if self._secret_file is not None:
                self._use_secret(read_secret(self._secret_file))
            self._replicas = Replicas(self._cluster)
            stack.callback(self._replicas.close)
            self._await_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def address(self, part: str) -> str:
        if part == LANGUAGE:
            return self.url
        place = self._places.get(part)
        if place is None:
            raise CannotDo(f"no replica has the place of {part} now")
        return place[1]

    def unable(self, action: Action) -> str:
        if action.verb != "kill":
            return f"a replica of Serve cannot be made to {action.verb}: it can be killed, and faults of encoders can be set"
        if LANGUAGE in self.targets(action):
            return "replicas of the language service are not told apart: aim it at encoders"
        if action.lasts is None or action.lasts > _SOON:
            return f"Serve replaces a replica that was killed, and nobody else does: end the line with 'for {_SOON:g}s' or less"
        if action.options.get("by") == "node":
            places = {part: self._places.get(part) for part in self.targets(action)}
            if on_head := [part for part, place in places.items() if place is not None and place[0].head]:
                return f"{on_head[0]} runs on the head node, with which the cluster would end: leave by=node out"
        return ""

    def healthy(self, part: str) -> bool:
        with suppress(CannotDo):  # a look may come at a moment when the cluster has other worries
            self._renew_places()
        return super().healthy(part)

    def carry_out(self, verb: str, part: str, options: Mapping[str, str]) -> str:
        if verb == "kill" and options.get("by") == "node":
            self._kill_node(part)
            return ""
        return super().carry_out(verb, part, options)

    def end(self, verb: str, part: str, handle: str) -> None:
        """As everywhere; where the place is empty, the fault has ended with the replica that it was set on."""
        if part in self._places:
            super().end(verb, part, handle)

    def kill(self, part: str) -> None:
        with self._lock:
            replica = self._replica_at(part)
            self._replicas.kill(replica)
            del self._places[part]
            self._ended.add(replica.name)

    def start(self, part: str) -> None:
        """Serve does."""

    def _kill_node(self, part: str) -> None:
        """All places of the same node are empty then; who comes to do the same to them finds that it is done."""
        with self._lock:
            if part in self._fell:
                return
            node = self._replica_at(part).node
            self._replicas.kill_node(node)
            self._ended.add(node)
            self._fell |= {name for name, (replica, _) in self._places.items() if replica.node == node}
            for name in self._fell:
                self._places.pop(name, None)

    def _replica_at(self, part: str) -> Replica:
        place = self._places.get(part)
        if place is None:
            raise CannotDo(f"no replica has come to {part} since the last one died: leave more time before this line")
        return place[0]

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _READY
        while True:
            urls = self._registered()
            found = self._used(self._in_service(), urls)
            if found and len(found) == len(urls):
                break
            if time.monotonic() > deadline:
                raise CannotDo(
                    f"the fleet at {self.url} has {len(urls)} encoders that are ready, and {len(found)} of them are replicas "
                    f"of the cluster {self._cluster}: is it another one's?"
                )
            time.sleep(_OFTEN)
        self.encoders = tuple(f"encoder-{number}" for number in range(1, len(found) + 1))
        self.parts = (*self.encoders, LANGUAGE)
        self._places = dict(zip(self.encoders, found, strict=True))

    def _renew_places(self) -> None:
        """Empties the places of replicas that Serve has no more in service, however they ended, and gives empty places to
        replicas that have none. One that the language service does not use for a while keeps its place."""
        with self._lock:
            if time.monotonic() < self._looked + _OFTEN:
                return
            there = self._in_service()
            self._looked = time.monotonic()
            names = {replica.name for replica in there}
            self._places = {part: place for part, place in self._places.items() if place[0].name in names}
            taken = {replica.name for replica, _ in self._places.values()}
            new = [each for each in self._used(there, self._registered()) if each[0].name not in taken]
            empty = [name for name in self.encoders if name not in self._places]
            self._places |= dict(zip(empty, new, strict=False))
            self._fell -= self._places.keys()

    def _in_service(self) -> list[Replica]:
        """Replicas that Serve has in service, without those that are known here to have ended."""
        return [each for each in self._replicas.look() if each.running and self._ended.isdisjoint({each.name, each.node})]

    @staticmethod
    def _used(there: list[Replica], urls: list[str]) -> list[tuple[Replica, str]]:
        """Those that the language service uses, as encoders at ``urls``, and their URLs."""
        return sorted(((each, url) for each in there for url in urls if each.has(url)), key=lambda found: found[1])

    def _registered(self) -> list[str]:
        try:
            answer = self._http.get(f"{self.url}/v1/encoders", headers=self._headers).raise_for_status().json()
            return [str(view["url"]) for view in answer["data"] if view["state"] == "ready"]
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            return []
