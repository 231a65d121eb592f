"""What the numbers of pods follow: metrics that the services really have, of the right pods, with bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import promql_parser as promql
import pytest
import yaml

from tests.declared import metrics
from tests.manifests.chart import CHART, NAME, NAMESPACE, Object, render, rendered, values_of
from tests.manifests.containers import container_of

FOLLOWED = {"encoder": "epd_encoder_items_in_work", "language": "epd_engine_waiting"}
SOURCES = {"encoder": ("shared", "services/encoder"), "language": ("shared", "services/language")}
ADAPTER = CHART.parent / "prometheus-adapter-values.yaml"


def selectors(node: Any) -> Iterator[Any]:
    """Every selector of series below ``node``."""
    match node:
        case promql.VectorSelector():
            yield node
        case promql.MatrixSelector():
            yield node.vector_selector
        case promql.Call():
            for argument in node.args:
                yield from selectors(argument)
        case promql.AggregateExpr() | promql.ParenExpr():
            yield from selectors(node.expr)
        case _:
            raise AssertionError(f"no such thing is expected here: {node}")


def asked(query: str) -> tuple[str, Mapping[str, str]]:
    """The one metric of a query, and its labels' patterns."""
    (selector,) = selectors(promql.parse(query))
    return selector.name, {matcher.name: matcher.value for matcher in selector.matchers.matchers}


@pytest.mark.parametrize("component", FOLLOWED)
def test_the_metric_is_one_of_the_service(component: str) -> None:
    (found,) = [each for each in metrics(*SOURCES[component]) if each.name == FOLLOWED[component]]
    assert (found.kind, found.labels) == ("gauge", ())


@pytest.mark.parametrize("component", FOLLOWED)
def test_keda_asks_for_it(component: str) -> None:
    scaled = rendered("keda").one("ScaledObject", f"-{component}")["spec"]
    (trigger,) = scaled["triggers"]
    name, labels = asked(trigger["metadata"]["query"])
    assert name == FOLLOWED[component]
    assert labels["namespace"] == NAMESPACE
    pods = {
        "encoder": [f"{NAME}-encoder-6f9c5d8b7-x2x4q"],
        "language": [f"{NAME}-language-0", f"{NAME}-language-11"],
    }
    for each, names in pods.items():
        assert all(bool(re.fullmatch(labels["pod"], pod)) == (each == component) for pod in names)
    assert not re.fullmatch(labels["pod"], f"other-{pods[component][0]}")
    assert trigger["metadata"]["serverAddress"] == values_of("keda")["autoscaling"]["prometheus"]
    # Where Prometheus has no samples, that is no reason to end encoders.
    assert trigger["metadata"]["ignoreNullValues"] == "false"


def test_the_autoscaler_asks_for_it() -> None:
    both = render({"autoscaling": {"kind": "hpa"}, "language": {"autoscaling": {"enabled": True}}})
    for component, metric in FOLLOWED.items():
        (source,) = both.one("HorizontalPodAutoscaler", f"-{component}")["spec"]["metrics"]
        assert source["type"] == "Pods"
        assert source["pods"]["metric"] == {"name": metric}


@pytest.mark.parametrize(("name", "kind"), [("gpu", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")])
def test_who_scales_owns_the_number_of_pods(name: str, kind: str) -> None:
    scalers = rendered(name).of(kind)
    assert scalers
    for scaler in scalers:
        reference = scaler["spec"]["scaleTargetRef"]
        (target,) = [each for each in rendered(name).of(reference["kind"]) if each["metadata"]["name"] == reference["name"]]
        assert target["apiVersion"] == reference["apiVersion"]
        assert "replicas" not in target["spec"]  # each upgrade would set it back
        assert bounds(scaler["spec"]) == expected_bounds(name, target["kind"])


def bounds(spec: Object) -> tuple[int, int]:
    """Least and most pods."""
    if "maxReplicas" in spec:
        return spec["minReplicas"], spec["maxReplicas"]
    return spec["minReplicaCount"], spec["maxReplicaCount"]


def expected_bounds(name: str, kind: str) -> tuple[int, int]:
    given = values_of(name)["encoder" if kind == "Deployment" else "language"]["autoscaling"]
    return given["min"], given["max"]


def test_without_a_scaler_the_numbers_are_the_values() -> None:
    assert rendered("open").one("Deployment", "-encoder")["spec"]["replicas"] == 3
    assert rendered("open").one("StatefulSet", "-language")["spec"]["replicas"] == 1
    assert rendered("gpu").one("StatefulSet", "-language")["spec"]["replicas"] == 2


@pytest.mark.parametrize(("name", "kind"), [("gpu", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")])
def test_up_is_fast_and_down_is_slow(name: str, kind: str) -> None:
    for scaler in rendered(name).of(kind):
        advanced = scaler["spec"].get("advanced", {}).get("horizontalPodAutoscalerConfig", scaler["spec"])
        up, down = advanced["behavior"]["scaleUp"], advanced["behavior"]["scaleDown"]
        assert up["stabilizationWindowSeconds"] == 0
        assert down["stabilizationWindowSeconds"] >= 300
        assert all(policy["type"] == "Pods" for policy in down["policies"])


def test_the_adapter_offers_what_the_autoscaler_asks_for() -> None:
    rules = yaml.safe_load(ADAPTER.read_text())["rules"]["custom"]
    offered = [asked(rule["seriesQuery"])[0] for rule in rules]
    assert offered == list(FOLLOWED.values())
    for metric, rule in zip(offered, rules, strict=True):
        # A rule without a name offers the series under its own.
        assert "name" not in rule
        assert rule["resources"]["overrides"].keys() == {"namespace", "pod"}
        query = rule["metricsQuery"]
        for placeholder, value in {"Series": metric, "LabelMatchers": 'pod=~"a|b"', "GroupBy": "pod"}.items():
            query = query.replace(f"<<.{placeholder}>>", value)
        assert asked(query) == (metric, {"pod": "a|b"})


@pytest.mark.parametrize("name", ["gpu", "keda"])
def test_prometheus_finds_both_services_by_the_dashboards_names(name: str) -> None:
    monitor = rendered(name).one("PodMonitor", "")["spec"]
    jobs = set()
    for component in FOLLOWED:
        labels = rendered(name).template(component)["metadata"]["labels"]
        jobs.add(labels[monitor["jobLabel"]])
        (endpoint,) = monitor["podMetricsEndpoints"]
        assert endpoint["port"] in container_of(rendered(name), component).ports
        assert endpoint["path"] == "/metrics"
    assert jobs == {"encoder", "language"}
