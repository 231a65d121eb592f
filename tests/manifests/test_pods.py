"""What the pods give the services: settings that there are, with which they start; no rights that they do not need."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

from services.encoder.app import create_app as create_encoder
from services.encoder.settings import EncoderSettings
from services.language.app import create_app as create_language
from services.language.engine.torch.engine import TorchEngine
from services.language.settings import LanguageSettings
from shared.settings import ServiceSettings
from tests.manifests.chart import NAME, SETS, Object, rendered
from tests.manifests.containers import ELSEWHERE, SETTINGS, container_of, secret_value, settings_of
from tests.processes import ROOT

COMPONENTS = ("encoder", "language")
EACH = pytest.mark.parametrize(("name", "component"), [(name, each) for name in SETS for each in COMPONENTS])


def started_with(name: str, component: str, folder: Path) -> tuple[Mapping[str, str], ServiceSettings]:
    """The container's variables, with the mounted secret where a test may write, and what the service reads from them."""
    container = container_of(rendered(name), component)
    template = rendered(name).template(component)["spec"]
    (volume,) = [each["secret"] for each in template["volumes"] if each["name"] == "seam"]
    (item,) = volume["items"]
    (mount,) = [each for each in container.spec["volumeMounts"] if each["name"] == "seam"]
    assert container.environment["EPD_SECRET_FILE"] == f"{mount['mountPath']}/{item['path']}"
    file = folder / "secret"
    file.write_text(secret_value(rendered(name), volume["secretName"], item["key"]))
    file.chmod(volume["defaultMode"])
    environment = {**container.environment, "EPD_SECRET_FILE": str(file)}
    return environment, settings_of(component, environment)


@EACH
def test_every_variable_is_a_setting(name: str, component: str) -> None:
    known = {f"EPD_{field.upper()}" for field in SETTINGS[component].model_fields}
    given = {each for each in container_of(rendered(name), component).environment if each.startswith("EPD_")}
    assert given - known == set()


@EACH
def test_the_services_start_with_them(name: str, component: str, tmp_path: Path) -> None:
    _, settings = started_with(name, component, tmp_path)
    if isinstance(settings, EncoderSettings):
        create_encoder(settings)
    else:
        assert isinstance(settings, LanguageSettings)
        create_language(settings, TorchEngine)  # whichever engine it asks for is a matter of the image


@EACH
def test_ports_are_those_that_the_services_listen_on(name: str, component: str, tmp_path: Path) -> None:
    _, settings = started_with(name, component, tmp_path)
    ports = container_of(rendered(name), component).ports
    if isinstance(settings, LanguageSettings):
        assert ports == {"http": settings.port, "data": settings.data_port}
        (service,) = [each for each in rendered(name).of("Service") if each["spec"].get("clusterIP") == "None"]
        assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports
    else:
        assert isinstance(settings, EncoderSettings)
        assert ports == {"http": settings.port}
    # Nobody but the pod itself would reach them on loopback.
    assert {settings.host, getattr(settings, "data_host", settings.host)} <= {"0.0.0.0", "::"}


@pytest.mark.parametrize("name", SETS)
def test_encoders_register_with_every_language_service(name: str, tmp_path: Path) -> None:
    _, settings = started_with(name, "encoder", tmp_path)
    assert isinstance(settings, EncoderSettings)
    service = rendered(name).one("Service", "-language-pods")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert settings.announce_to == f"dns+http://{service['metadata']['name']}.vision.svc.cluster.local:8000"
    assert rendered(name).one("StatefulSet", "-language")["spec"]["serviceName"] == service["metadata"]["name"]


@pytest.mark.parametrize(
    ("name", "component", "field", "value"),
    [
        ("default", "encoder", "threads", 2),
        ("gpu", "encoder", "threads", 4),
        ("open", "encoder", "threads", 0),
        ("inside", "encoder", "max_items", 64),
        ("inside", "encoder", "trust_remote_code", True),
        ("gpu", "language", "embedding_cache_bytes", 4 * 2**30),
        ("gpu", "language", "dtype", "bfloat16"),
        ("gpu", "language", "engine", "vllm"),
        ("gpu", "language", "served_model_name", "qwen3-vl-8b"),
        ("keda", "language", "revision", "main"),
        ("closed", "language", "log_format", "text"),
        ("default", "language", "log_format", "json"),
        ("open", "language", "data_host", "::"),
        ("default", "encoder", "mm_feature_transport", "cpu"),
    ],
)
def test_values_become_settings(name: str, component: str, field: str, value: object, tmp_path: Path) -> None:
    assert getattr(started_with(name, component, tmp_path)[1], field) == value


def test_keys_of_the_api_are_the_language_services_only(tmp_path: Path) -> None:
    settings = started_with("closed", "language", tmp_path)[1]
    assert isinstance(settings, LanguageSettings)
    assert settings.api_keys() == {"first-key", "second-key"}
    assert container_of(rendered("gpu"), "language").environment["EPD_API_KEY"] == ELSEWHERE
    assert "EPD_API_KEY" not in container_of(rendered("default"), "language").environment
    for name in SETS:
        assert "EPD_API_KEY" not in container_of(rendered(name), "encoder").environment
    for component in COMPONENTS:
        assert container_of(rendered("keda"), component).environment["HF_TOKEN"] == ELSEWHERE


@EACH
def test_time_to_end_is_more_than_the_service_takes(name: str, component: str, tmp_path: Path) -> None:
    _, settings = started_with(name, component, tmp_path)
    spec = rendered(name).template(component)["spec"]
    command = container_of(rendered(name), component).spec.get("lifecycle", {}).get("preStop", {}).get("exec", {})
    before = float(command["command"][1]) if command else 0.0
    assert spec["terminationGracePeriodSeconds"] >= before + settings.drain_timeout + 5
    assert bool(before) == (component == "language" and name != "open")


@EACH
def test_pods_are_restricted(name: str, component: str) -> None:
    """What the Pod Security Standards call restricted, and more."""
    spec = rendered(name).template(component)["spec"]
    container = container_of(rendered(name), component).spec
    assert spec["automountServiceAccountToken"] is False
    # Variables that Kubernetes makes of Services could be taken for settings.
    assert spec["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    rights = spec["securityContext"]
    assert rights["runAsNonRoot"] is True
    assert rights["runAsUser"] == rights["runAsGroup"] == rights["fsGroup"] == user_of_the_image(component)
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all("hostPort" not in port for port in container["ports"])
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"emptyDir", "secret", "persistentVolumeClaim"}


@EACH
def test_the_service_may_write_where_it_has_to(name: str, component: str) -> None:
    spec = rendered(name).template(component)["spec"]
    mounts = {mount["mountPath"]: mount for mount in container_of(rendered(name), component).spec["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for path in ("/tmp", "/cache"):
        assert volumes[mounts[path]["name"]]["emptyDir"]["sizeLimit"]
        assert not mounts[path].get("readOnly")
    assert {volume["name"] for volume in spec["volumes"]} == {mount["name"] for mount in mounts.values()}
    # The secret: for the service's own user, by its group, and for nobody else.
    assert mounts["/secrets"]["readOnly"] is True
    assert volumes["seam"]["secret"]["defaultMode"] == 0o440


def test_a_volume_of_models_is_mounted_for_both() -> None:
    for component in COMPONENTS:
        mounts = container_of(rendered("gpu"), component).spec["volumeMounts"]
        assert {"name": "models", "mountPath": "/models", "readOnly": True} in mounts


def user_of_the_image(component: str) -> int:
    """The user's number as the Dockerfile makes it."""
    words = (ROOT / "services" / component / "Dockerfile").read_text().split()
    return int(ast.literal_eval(words[words.index("--uid") + 1]))


@EACH
def test_services_keep_apart_where_there_is_room(name: str, component: str) -> None:
    spec = rendered(name).template(component)["spec"]
    labels = {each: rendered(name).template(each)["metadata"]["labels"] for each in COMPONENTS}
    other = labels["language" if component == "encoder" else "encoder"]
    (apart,) = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert apart["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= other.items()
    for spread in spec["topologySpreadConstraints"]:
        assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
        assert spread["labelSelector"]["matchLabels"].items() <= labels[component].items()


def test_gpus_of_different_pools() -> None:
    found: dict[str, Object] = {each: rendered("gpu").template(each)["spec"] for each in COMPONENTS}
    assert [found[each]["nodeSelector"] for each in COMPONENTS] == [{"pool": "encoders"}, {"pool": "language"}]
    limits = [found[each]["containers"][0]["resources"]["limits"] for each in COMPONENTS]
    assert limits[0]["nvidia.com/mig-1g.18gb"] == 1
    assert limits[1]["nvidia.com/gpu"] == 2


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("component", COMPONENTS)
def test_one_at_a_time_may_be_missing(name: str, component: str) -> None:
    budget = rendered(name).one("PodDisruptionBudget", f"-{component}")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_the_name_of_a_long_release_fits() -> None:
    longest = max(f"{NAME}{suffix}" for suffix in ("-encoder", "-language-pods", "-api-keys"))
    assert len(longest) - len(NAME) + 40 <= 63
