"""What a rendered pod gives its container: variables, ports, probes. References are followed as the kubelet does."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

from services.encoder.settings import EncoderSettings
from services.language.settings import LanguageSettings
from tests.manifests.chart import Object, Rendered

SETTINGS: Mapping[str, type[EncoderSettings] | type[LanguageSettings]] = {
    "encoder": EncoderSettings,
    "language": LanguageSettings,
}
ELSEWHERE = "only in the cluster"
"""The value of a secret that an installation refers to and does not make."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe by HTTP; ``port`` is the container's. Times are in seconds."""

    path: str
    port: int
    period: float
    timeout: float
    failures: int


@dataclass(frozen=True, slots=True)
class Container:
    """The one container of a service's pod."""

    environment: Mapping[str, str]
    ports: Mapping[str, int]
    probes: Mapping[str, Probe]
    spec: Object

    def probe(self, kind: str) -> Probe:
        """``startup``, ``liveness`` or ``readiness``."""
        return self.probes[f"{kind}Probe"]


def container_of(manifests: Rendered, component: str) -> Container:
    """The container of ``encoder`` or ``language``."""
    (spec,) = manifests.template(component)["spec"]["containers"]
    names = [variable["name"] for variable in spec["env"]]
    assert len(names) == len(set(names)), f"a variable is there twice: {names}"
    environment = {variable["name"]: _value(manifests, spec, variable) for variable in spec["env"]}
    ports = {port["name"]: int(port["containerPort"]) for port in spec["ports"]}
    probes = {kind: _probe(spec[kind], ports) for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    return Container(environment, ports, probes, spec)


def _value(manifests: Rendered, spec: Object, variable: Mapping[str, Any]) -> str:
    match variable:
        case {"value": str(text)}:
            return text
        case {"valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": divisor}}}:
            kind, _, name = resource.partition(".")
            return str(math.ceil(cores(spec["resources"][kind][name]) / cores(divisor)))
        case {"valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}:
            return secret_value(manifests, secret, key)
    raise AssertionError(f"cannot tell the value of {variable}")


def cores(quantity: str | int) -> float:
    """CPUs, of which Kubernetes also counts thousandths."""
    text = str(quantity)
    return float(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)


def secret_value(manifests: Rendered, name: str, key: str) -> str:
    """A value of a Secret of the release; of one from elsewhere, that it is so."""
    for secret in manifests.of("Secret"):
        if secret["metadata"]["name"] == name:
            plain = secret.get("stringData", {})
            return str(plain[key]) if key in plain else base64.b64decode(secret["data"][key]).decode()
    return ELSEWHERE


def _probe(probe: Mapping[str, Any], ports: Mapping[str, int]) -> Probe:
    asked = probe["httpGet"]
    # Where they are left out, the API's defaults hold.
    times = probe.get("periodSeconds", 10), probe.get("timeoutSeconds", 1), probe.get("failureThreshold", 3)
    port = asked["port"]
    return Probe(asked["path"], ports[port] if isinstance(port, str) else port, *times)


def settings_of(component: str, environment: Mapping[str, str]) -> EncoderSettings | LanguageSettings:
    """What the service reads from these variables, and no others.

    Raises:
        pydantic.ValidationError: one has a value that it may not have.
    """
    with mock.patch.dict("os.environ", environment, clear=True):
        return SETTINGS[component]()
