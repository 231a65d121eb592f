"""Encoders and a language service that use each other, as real processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.processes import UNCACHED, Service, wait_for


@dataclass(frozen=True)
class Fleet:
    """The services, and what they say of themselves."""

    encoders: list[Service]
    language: Service

    def states(self) -> dict[str, dict[str, Any]]:
        """``GET /v1/encoders`` by URL."""
        answer = httpx.get(f"{self.language.url}/v1/encoders", timeout=10, trust_env=False)
        return {view["url"]: view for view in answer.json()["data"]}

    def until_ready(self, encoders: int | None = None, timeout: float = 60.0) -> None:
        """Returns when so many encoders (all, without a number) are ready."""
        wanted = len(self.encoders) if encoders is None else encoders
        wait_for(lambda: sum(view["state"] == "ready" for view in self.states().values()) >= wanted, timeout, "readiness")

    def set_faults(self, *faults: dict[str, Any], encoders: list[Service] | None = None) -> None:
        """Makes encoders (all, without a list) fail so, and in no other way."""
        for encoder in self.encoders if encoders is None else encoders:
            with httpx.Client(base_url=encoder.url, timeout=10, trust_env=False) as client:
                client.delete("/v1/faults").raise_for_status()
                if faults:
                    client.post("/v1/faults", json=list(faults)).raise_for_status()


@contextmanager
def fleet(
    folder: Path,
    encoders: int = 1,
    encoder: dict[str, Any] | None = None,
    language: dict[str, Any] | None = None,
    cached: bool = False,
) -> Iterator[Fleet]:
    """``encoders`` encoders and a language service with these settings, ready.

    Without caches, unless ``cached``: what happens to a picture is not to depend on whether it came before.
    """
    with ExitStack() as stack:
        ours, theirs = ({"threads": 1, **({} if cached else UNCACHED), **(given or {})} for given in (encoder, language))
        started = [Service("encoder", folder, **ours).start(wait=False) for _ in range(encoders)]
        for service in started:
            stack.enter_context(service)
        urls = ",".join(service.url for service in started)
        speaker = Service("language", folder, encoders=urls, **theirs).start(wait=False)
        stack.enter_context(speaker)
        speaker.wait_until_ready(encoders=encoders)
        yield Fleet(started, speaker)


def metrics(service: Service) -> dict[str, float]:
    """All samples of a service, by name with labels."""
    lines = httpx.get(f"{service.url}/metrics", timeout=10, trust_env=False).text.splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}
