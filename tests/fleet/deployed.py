"""A fleet with the demo model on a cluster of this machine, deployed as its users do: a config file, and ``serve run``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from services.loadtest.deployment.replicas import Replica, Replicas
from services.loadtest.deployment.route import FaultRoute, read_secret
from services.loadtest.ports import free_port
from shared.security import keygen
from tests.fleet.cluster import Cluster
from tests.processes import DEMO_MODEL, ROOT, wait_for

PATIENCE = 240.0
"""Seconds in which replicas must be there: each imports torch and loads a model, and all share the machine."""

Options = dict[str, Any]
UNCACHED: Options = {"embedding_cache_bytes": 0}
"""Settings of either service by which a picture that comes again takes the same way as the first time."""


@dataclass
class Deployed:
    """The fleet, its clients' side and Serve's."""

    cluster: Cluster
    folder: Path
    replicas: Replicas
    secret: Path
    port: int = field(default_factory=free_port)
    _outdated: set[str] = field(default_factory=set)

    @property
    def url(self) -> str:
        """Where Serve's proxy answers."""
        return f"http://127.0.0.1:{self.port}"

    def deploy(self, encoders: Options | None = None, languages: Options | None = None) -> None:
        """Deploys it, or what has changed of it, and nothing where nothing has; does not wait for it to happen."""
        parts = {
            "encoders": {"needs": {"num_cpus": 0.5, "resources": {"encoders": 1}}, **(encoders or {})},
            "languages": {"needs": {"num_cpus": 0.5, "resources": {"languages": 1}}, **(languages or {})},
        }
        application = {
            "name": "epd",
            "route_prefix": "/",
            "import_path": "services.fleet:app",
            "args": {"model": str(DEMO_MODEL), "secret_file": str(self.secret), **parts},
        }
        config = {
            "proxy_location": "HeadOnly",
            "http_options": {"host": "127.0.0.1", "port": self.port},
            "applications": [application],
        }
        path, text = self.folder / "fleet.yaml", json.dumps(config)  # which is YAML, too
        if path.is_file() and path.read_text() == text:
            return
        path.write_text(text)
        self._outdated = {replica.name for replica in self.replicas.look()}
        serve = str(Path(sys.executable).parent / "serve")
        done = subprocess.run(
            [serve, "run", "--non-blocking", str(path)],
            cwd=ROOT,
            env=self.cluster.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stdout

    def until_updated(self, encoders: int, languages: int, timeout: float = 2 * PATIENCE) -> None:
        """Returns when there are so many replicas, all of them as they were deployed last, and know each other."""

        def updated() -> bool:
            there = self.replicas.look()
            kinds = Counter(replica.deployment for replica in there)
            return (
                kinds == {"encoders": encoders, "languages": languages}
                and all(replica.running for replica in there)
                and self._outdated.isdisjoint({replica.name for replica in there})
            )

        wait_for(updated, timeout, f"a fleet of {encoders} encoders and {languages} language services")
        self.until_ready(encoders)

    def until_ready(self, encoders: int, timeout: float = PATIENCE) -> None:
        """Returns when the language services are ready with so many encoders."""

        def ready() -> bool:
            try:
                answer = httpx.get(f"{self.url}/ready", timeout=5, trust_env=False)
                return answer.status_code == 200 and answer.json()["encoders_ready"] == encoders
            except (httpx.HTTPError, ValueError):
                return False

        wait_for(ready, timeout, f"readiness with {encoders} encoders")

    def encoders(self) -> dict[str, Replica]:
        """The replicas that the language service uses, by their URLs."""
        urls = [url for url, view in self.states().items() if view["state"] == "ready"]
        return {url: replica for replica in self.replicas.look() if replica.running for url in urls if replica.has(url)}

    def languages(self) -> list[Replica]:
        """Those in service."""
        return [each for each in self.replicas.look() if each.running and each.deployment == "languages"]

    def states(self) -> dict[str, Mapping[str, Any]]:
        """``GET /v1/encoders`` of one of the language services, by URL."""
        answer = httpx.get(f"{self.url}/v1/encoders", timeout=10, trust_env=False)
        return {view["url"]: view for view in answer.raise_for_status().json()["data"]}

    def gauges(self) -> dict[str, float]:
        """All samples of one of the language services, by name with labels."""
        lines = httpx.get(f"{self.url}/metrics", timeout=10, trust_env=False).text.splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    def set_fault(self, url: str, **fault: object) -> None:
        """Makes one encoder fail so, or, without anything, in no way."""
        route = FaultRoute(read_secret(self.secret))
        try:
            route.clear(url)
            if fault:
                route.set(url, fault)
        finally:
            route.close()


@contextmanager
def deployed(folder: Path) -> Iterator[Deployed]:
    """A cluster of two nodes, one for language services and one for encoders, with nothing deployed yet."""
    secret = folder / "secret"
    keygen(secret)
    with Cluster(folder) as cluster:
        cluster.add("head", 4, languages=4)
        cluster.add("worker", 4, encoders=4)
        replicas = Replicas(cluster.address, cluster.environment)
        try:
            yield Deployed(cluster, folder, replicas, secret)
        finally:
            replicas.close()
