"""The live view asks for metrics that exist: its queries are parsed and compared with what the sources declare."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import promql_parser as promql
import pytest
import yaml

from services.encoder.settings import EncoderSettings
from services.language.settings import LanguageSettings
from tests.declared import Metric, metrics
from tests.processes import ROOT

MONITORING = ROOT / "monitoring"
PROVISIONING = MONITORING / "grafana" / "provisioning"
JOBS = {"language": ("shared", "services/language"), "encoder": ("shared", "services/encoder")}
SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
PER_SECOND = {"rate", "irate", "increase"}
TARGET_LABELS = {"job", "instance"}

LEFT_OUT: dict[str, str] = {}
"""Metrics of which the dashboard shows nothing, and why."""


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MONITORING / "grafana" / "dashboards" / "epd.json").read_text())
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str, str]]:
    """Panel, query and legend of each, as Grafana would send it."""
    return [
        (panel["title"], target["expr"].replace("$__rate_interval", "1m").replace("$route", ".*"), target["legendFormat"])
        for panel in panels()
        for target in panel["targets"]
    ]


ALL_QUERIES = [pytest.param(expr, legend, id=f"{title}: {legend}") for title, expr, legend in queries()]


@dataclass(frozen=True, slots=True)
class Use:
    """A selector in a query, and the function that its samples go through first."""

    name: str
    labels: dict[str, str]
    function: str


def uses(node: Any, function: str = "") -> Iterator[Use]:
    """Every selector below ``node``."""
    match node:
        case promql.VectorSelector():
            yield Use(node.name, {matcher.name: matcher.value for matcher in node.matchers.matchers}, function)
        case promql.MatrixSelector():
            yield from uses(node.vector_selector, function)
        case promql.Call():
            for argument in node.args:
                yield from uses(argument, node.func.name)
        case promql.BinaryExpr():
            yield from uses(node.lhs)
            yield from uses(node.rhs)
        case promql.AggregateExpr() | promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            yield from uses(node.expr)


def groupings(node: Any) -> Iterator[tuple[list[str], Any]]:
    """Every ``by (…)`` below ``node``, and what it groups."""
    match node:
        case promql.AggregateExpr():
            yield (list(node.modifier.labels) if node.modifier else []), node.expr
            yield from groupings(node.expr)
        case promql.Call():
            for argument in node.args:
                yield from groupings(argument)
        case promql.BinaryExpr():
            yield from groupings(node.lhs)
            yield from groupings(node.rhs)
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            yield from groupings(node.expr)


@cache
def series_of(job: str) -> dict[str, tuple[Metric, str]]:
    """Every series that a service has: of which metric it is, and by which suffix."""
    return {metric.name + suffix: (metric, suffix) for metric in metrics(*JOBS[job]) for suffix in SUFFIXES[metric.kind]}


def declared_as(use: Use) -> tuple[Metric, str]:
    """The metric that a selector is about, in every service that it may be of, and the suffix of its series."""
    jobs = [use.labels["job"]] if "job" in use.labels else list(JOBS)
    for job in jobs:
        assert use.name in series_of(job), f"no metric of {job} has series {use.name}"
    return series_of(jobs[0])[use.name]


def labels_of(use: Use) -> set[str]:
    metric, suffix = declared_as(use)
    return {*metric.labels, *TARGET_LABELS, *(["le"] if suffix == "_bucket" else [])}


def check(expr: str) -> None:
    """Raises AssertionError where a query asks for what there is not, or for what makes no sense of its kind of metric."""
    tree = promql.parse(expr)
    found = list(uses(tree))
    assert found, "it asks for nothing"
    for use in found:
        metric, _ = declared_as(use)
        assert use.labels.keys() <= labels_of(use), f"{use.name} has labels {labels_of(use)}, not {set(use.labels)}"
        only_grows = metric.kind != "gauge" or "since the engine's start" in metric.text
        if use.function in PER_SECOND:
            assert only_grows, f"{use.name} goes up and down: {use.function} of it means nothing"
        else:
            assert metric.kind == "gauge", f"{use.name} only grows: show its rate"
    for labels, below in groupings(tree):
        for use in uses(below):
            assert set(labels) <= labels_of(use), f"{use.name} has labels {labels_of(use)}, not {set(labels)}"
            assert declared_as(use)[1] != "_bucket" or "le" in labels, f"the buckets of {use.name} are summed up: group by le"


@pytest.mark.parametrize(("expr", "legend"), ALL_QUERIES)
def test_a_query_asks_for_what_exists(expr: str, legend: str) -> None:
    check(expr)


@pytest.mark.parametrize(("expr", "legend"), ALL_QUERIES)
def test_a_legend_names_labels_that_the_query_has(expr: str, legend: str) -> None:
    grouped = [set(labels) - {"le"} for labels, _ in groupings(promql.parse(expr))]
    there = set.union(*grouped) if grouped else set.union(*(labels_of(use) for use in uses(promql.parse(expr))))
    named = set(re.findall(r"\{\{(\w+)\}\}", legend))
    assert named <= there
    # Else several lines would have one name.
    assert named >= set().union(*grouped)


@pytest.mark.parametrize(
    ("expr", "says"),
    [
        ("sum(rate(epd_request_total[1m]))", "no metric"),
        ('rate(epd_waits{job="encoder"}[1m])', "no metric of encoder"),
        ("rate(epd_request_seconds[1m])", "no metric"),
        ("rate(epd_requests_total_bucket[1m])", "no metric"),
        ("rate(epd_requests_total{status='503'}[1m])", "not {'status'}"),
        ("sum by (encoder) (rate(epd_requests_total[1m]))", "not {'encoder'}"),
        ('rate(epd_waits{job="language"}[1m])', "means nothing"),
        ("sum(epd_requests_total)", "show its rate"),
        ("histogram_quantile(0.5, sum by (route) (rate(epd_request_seconds_bucket[1m])))", "group by le"),
        ("vector(1)", "asks for nothing"),
    ],
)
def test_the_test_of_it_sees_it(expr: str, says: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(says)):
        check(expr)


def test_every_metric_is_shown_or_left_out_for_a_reason() -> None:
    declared = {metric.name for job in JOBS for metric, _ in series_of(job).values()}
    shown = {declared_as(use)[0].name for _, expr, _ in queries() for use in uses(promql.parse(expr))}
    assert shown | LEFT_OUT.keys() == declared
    assert not shown & LEFT_OUT.keys()


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows_and_in_which_unit(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith((".", "%"))
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    assert panel["datasource"] == {"type": "prometheus", "uid": datasource()["uid"]}


def test_panels_have_names_of_their_own_and_do_not_overlap() -> None:
    cells = set[tuple[int, int]]()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        own = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not own & cells
        assert max(x for x, _ in own) < 24
        cells |= own
    for key in ("id", "title"):
        values = [panel[key] for panel in dashboard()["panels"]]
        assert len(values) == len(set(values))


# ------------------------------------------------------------------------------------------------------- what runs it


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found


def datasource() -> dict[str, Any]:
    [found] = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())["datasources"]
    return dict(found)


def mounts(service: str) -> dict[str, str]:
    """What is mounted from the repository, by the path in the container."""
    found = [volume.split(":") for volume in compose()["services"][service]["volumes"]]
    return {there: here for here, there, *_ in found if here.startswith("./")}


def test_prometheus_looks_at_the_services_where_they_listen() -> None:
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert jobs.keys() == JOBS.keys() <= compose()["services"].keys()
    assert jobs["language"]["static_configs"] == [{"targets": [f"language:{LanguageSettings.model_fields['port'].default}"]}]
    [lookup] = jobs["encoder"]["dns_sd_configs"]
    assert (lookup["names"], lookup["type"]) == (["encoder"], "A")
    assert lookup["port"] == EncoderSettings.model_fields["port"].default
    assert config["global"]["scrape_interval"] == datasource()["jsonData"]["timeInterval"]


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    services = compose()["services"]
    assert datasource()["url"] == "http://prometheus:9090"
    assert {"prometheus", "grafana"} <= services.keys()
    [provider] = yaml.safe_load((PROVISIONING / "dashboards" / "epd.yml").read_text())["providers"]
    mounted = mounts("grafana")
    assert mounted["/etc/grafana/provisioning"] == "./monitoring/grafana/provisioning"
    assert mounted[provider["options"]["path"]] == "./monitoring/grafana/dashboards"
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/epd.json"
    assert mounts("prometheus") == {"/etc/prometheus/prometheus.yml": "./monitoring/prometheus.yml"}
    for service in ("prometheus", "grafana"):
        assert all((ROOT / here).exists() for here in mounts(service).values())
    assert f"/d/{dashboard()['uid']}" in (ROOT / "docs" / "observability.md").read_text()


@pytest.mark.parametrize("service", ["prometheus", "grafana"])
def test_what_watches_is_pinned_only_on_demand_and_closed_to_other_machines(service: str) -> None:
    settings = compose()["services"][service]
    assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", settings["image"])
    assert settings["profiles"] == ["monitoring"]
    assert all(str(port).startswith("127.0.0.1:") for port in settings.get("ports", []))
    if service == "grafana":
        assert settings["environment"]["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


def test_the_variable_of_the_dashboard_asks_for_a_label_that_exists() -> None:
    [variable] = dashboard()["templating"]["list"]
    asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
    assert asked is not None
    [use] = uses(promql.parse(asked[1]))
    assert asked[2] == variable["name"]
    assert asked[2] in labels_of(use)
