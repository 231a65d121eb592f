"""The chart as Helm renders it: objects of Kubernetes, for each set of values that the chart's folder ``ci`` has."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.processes import ROOT

CHART = ROOT / "deploy" / "helm" / "epd-pair"
RELEASE, NAMESPACE = "demo", "vision"
NAME = f"{RELEASE}-epd-pair"
SETS = ("default", *sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml")))
"""Names of the sets of values; ``default`` is the chart's own."""

Object = dict[str, Any]
"""One object of Kubernetes, as its API has it."""


class ChartError(Exception):
    """What Helm says of values that the chart does not take."""


@dataclass(frozen=True)
class Rendered:
    """What an installation would create, what it would print, and what ``helm lint`` finds."""

    objects: Sequence[Object]
    notes: str
    findings: Sequence[Mapping[str, Any]] = field(default=())

    def of(self, kind: str) -> list[Object]:
        """All objects of a kind, in the order of their names."""
        return sorted((each for each in self.objects if each["kind"] == kind), key=lambda each: str(each["metadata"]["name"]))

    def one(self, kind: str, name: str) -> Object:
        """The object of a kind whose name is ``name`` behind the chart's."""
        (found,) = [each for each in self.of(kind) if each["metadata"]["name"] == f"{NAME}{name}"]
        return found

    def template(self, component: str) -> Object:
        """The pods' template of a service: ``encoder`` or ``language``."""
        kind = {"encoder": "Deployment", "language": "StatefulSet"}[component]
        template: Object = self.one(kind, f"-{component}")["spec"]["template"]
        return template


def values_of(name: str) -> Object:
    """The values of a set."""
    return {} if name == "default" else dict(yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text()))


@cache
def rendered(name: str) -> Rendered:
    """The chart with a set of values. Secrets that it makes are the same for one process of tests."""
    return render(values_of(name))


def render(values: Mapping[str, Any]) -> Rendered:
    """The chart with any values, as ``helm install`` would send it.

    Raises:
        ChartError: Helm refuses them.
    """
    asked = {"chart": str(CHART), "values": values, "name": RELEASE, "namespace": NAMESPACE}
    command = [sys.executable, "-m", "tests.manifests.render"]
    done = subprocess.run(command, input=json.dumps(asked), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise ChartError(answer["error"])
    objects: list[Object] = []
    notes = ""
    for path, text in answer["manifests"].items():
        if Path(path).suffix == ".txt":
            notes = text
        else:
            objects += [each for each in yaml.safe_load_all(text) if each]
    return Rendered(objects, notes, answer["findings"]["messages"])
