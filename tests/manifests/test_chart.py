"""The chart passes Helm's own checks, and all that it makes passes Kubernetes' schemas."""

from __future__ import annotations

import json
import re
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.manifests.chart import CHART, NAME, SETS, ChartError, Object, render, rendered, values_of
from tests.manifests.containers import secret_value
from tests.manifests.crds import PodMonitor, ScaledObject

OLDEST, NEWEST = "1.27", "1.37"
OURS = {"ScaledObject": ScaledObject, "PodMonitor": PodMonitor}

ENCODER = [
    "Deployment/-encoder",
    "NetworkPolicy/-encoder",
    "PodDisruptionBudget/-encoder",
]
LANGUAGE = [
    "NetworkPolicy/-language",
    "PodDisruptionBudget/-language",
    "Service/",
    "Service/-language-pods",
    "StatefulSet/-language",
]
MADE = {
    "default": [*ENCODER, *LANGUAGE, "Secret/-seam"],
    "inside": [*ENCODER, *LANGUAGE, "Secret/-seam"],
    "closed": [*ENCODER, *LANGUAGE, "Secret/-seam", "Secret/-api-keys"],
    "open": [*(each for each in [*ENCODER, *LANGUAGE] if "NetworkPolicy" not in each), "Secret/-seam"],
    "gpu": [*ENCODER, *LANGUAGE, "HorizontalPodAutoscaler/-encoder", "PodMonitor/"],
    "keda": [*ENCODER, *LANGUAGE, "Secret/-seam", "ScaledObject/-encoder", "ScaledObject/-language", "PodMonitor/"],
}


@pytest.mark.parametrize("name", SETS)
def test_helm_finds_nothing_wrong(name: str) -> None:
    found = [each for each in rendered(name).findings if each["severity"] > 1]  # 1 is information
    assert found == []


@pytest.mark.parametrize("name", SETS)
def test_what_is_made(name: str) -> None:
    made = [f"{each['kind']}/{each['metadata']['name'].removeprefix(NAME)}" for each in rendered(name).objects]
    assert sorted(made) == sorted(MADE[name])


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", SETS)
def test_all_objects_keep_to_their_schemas(name: str, version: str) -> None:
    for each in rendered(name).objects:
        if each["kind"] in OURS:
            OURS[each["kind"]].model_validate(each)
        else:
            kubernetes_validate.validate(each, version, strict=True)


def test_a_field_that_there_is_not_is_noticed() -> None:
    """The schemas are the strict ones: the API would drop such a field in silence."""
    policy = rendered("default").one("NetworkPolicy", "-encoder")
    policy = json.loads(json.dumps(policy).replace('"ingress"', '"ingres"'))
    with pytest.raises(kubernetes_validate.ValidationError, match="ingres"):
        kubernetes_validate.validate(policy, NEWEST, strict=True)


def test_the_oldest_kubernetes_is_the_charts() -> None:
    asked = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
    assert asked == f">={OLDEST}.0-0"


@pytest.mark.parametrize("name", SETS)
def test_selectors_select_the_pods_that_they_are_for(name: str) -> None:
    manifests = rendered(name)
    labels = {component: manifests.template(component)["metadata"]["labels"] for component in ("encoder", "language")}
    for each in manifests.objects:
        component = each["metadata"]["labels"].get("app.kubernetes.io/component", "language")
        selector = each["spec"].get("selector") if "spec" in each else None
        if each["kind"] == "PodMonitor":
            assert all(selector["matchLabels"].items() <= pod.items() for pod in labels.values())
        elif selector:
            wanted = selector.get("matchLabels", selector)
            chosen = [other for other, pod in labels.items() if wanted.items() <= pod.items()]
            assert chosen == [component], each["kind"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"replicas": 3}, "replicas"),
        ({"encoder": {"replica": 3}}, "replica"),
        ({"autoscaling": {"kind": "vpa"}}, "autoscaling"),
        ({"language": {"engine": "sglang"}}, "engine"),
        ({"encoder": {"tmp": "2 GB"}}, "tmp"),
        ({"settings": {"epd_threads": 2}}, "epd_threads"),
        ({"settings": {"EPD_PORT": 9000}}, "EPD_PORT is the chart's own"),
        ({"encoder": {"settings": {"EPD_SECRET_FILE": "/mine"}}}, "EPD_SECRET_FILE is the chart's own"),
        ({"language": {"settings": {"EPD_API_KEY": "open"}}}, "EPD_API_KEY is the chart's own"),
        ({"language": {"settings": {"EPD_PLAIN_SEAM": True}}}, "EPD_PLAIN_SEAM is the chart's own"),
        ({"autoscaling": {"kind": "hpa"}, "encoder": {"autoscaling": {"min": 9}}}, "min is more than max"),
        ({"encoder": {"maxSurge": 0}}, "no update could begin"),
    ],
)
def test_values_that_mean_nothing_are_refused(wrong: Object, told: str) -> None:
    with pytest.raises(ChartError, match=re.escape(told)):
        render(wrong)


def test_every_value_has_a_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    assert unknown(defaults, schema) == []
    missing = {name for name in schema["properties"] if name not in defaults} - {"global"}
    assert missing == set()


def unknown(values: Object, schema: dict[str, Any], path: str = "") -> list[str]:
    """Values that the schema has no word about."""
    found = []
    for name, value in values.items():
        known = schema.get("properties", {}).get(name)
        if known is None:
            found.append(f"{path}{name}")
        elif isinstance(value, dict) and "properties" in known:
            found += unknown(value, known, f"{path}{name}.")
    return found


def test_a_secret_is_made_that_the_services_take_and_stays_when_the_release_goes() -> None:
    secret = rendered("default").one("Secret", "-seam")
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    value = secret_value(rendered("default"), f"{NAME}-seam", "epd")
    assert re.fullmatch(r"[A-Za-z0-9]{64}", value)
    assert secret_value(render({}), f"{NAME}-seam", "epd") != value


def test_no_secret_is_made_where_there_is_one() -> None:
    manifests = rendered("gpu")
    assert manifests.of("Secret") == []
    for component in ("encoder", "language"):
        (volume,) = [each for each in manifests.template(component)["spec"]["volumes"] if each["name"] == "seam"]
        assert volume["secret"]["secretName"] == values_of("gpu")["seam"]["existingSecret"]


def test_the_notes_say_who_may_call() -> None:
    assert '"epd-pair/client":"true"' in rendered("default").notes
    assert "everybody may call" in rendered("default").notes
    assert "every pod of the cluster reaches the data port" in rendered("open").notes
    assert "everybody may call" not in rendered("closed").notes
