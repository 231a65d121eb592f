"""Who may connect where, by the meaning of the rendered policies."""

from __future__ import annotations

import ipaddress

import pytest

from tests.manifests import ends
from tests.manifests.chart import SETS, Object, rendered
from tests.manifests.ends import CLIENT, DATA, DNS, ENCODER, LANGUAGE, NAMES, NEIGHBOUR, PRIVATE, PROMETHEUS, PUBLIC, STRANGER
from tests.manifests.policies import End, allowed, selects

INGRESS = End("ingress", "10.244.5.2", "ingress")
COLLECTOR = End("collector", "10.244.6.2", "tracing")
OBSERVER = End("observer", "10.244.7.2", "observability", {"app.kubernetes.io/name": "prometheus"})
GRAFANA = End("grafana", "10.244.7.3", "observability", {"app.kubernetes.io/name": "grafana"})
OTHERS = (CLIENT, STRANGER, NEIGHBOUR, PROMETHEUS, NAMES, PUBLIC, PRIVATE, INGRESS, COLLECTOR, OBSERVER, GRAFANA)
PORTS = (22, DNS, 80, 443, DATA, LANGUAGE, ENCODER, 4318, 9090)

# What every set of values has, as (from, to, port).
PAIR = {
    ("encoder", "language", LANGUAGE),
    ("encoder", "language", DATA),
    ("language", "encoder", ENCODER),
    ("encoder", "names", DNS),
    ("language", "names", DNS),
}
# Ports of URLs, of those that are looked at.
MEDIA = {("encoder", "public", port) for port in (80, 443, 4318, DATA, LANGUAGE, ENCODER, 9090)}
CLIENTS = {("client", "language", LANGUAGE)}
SCRAPES = {("prometheus", "language", LANGUAGE), ("prometheus", "encoder", ENCODER)}

MAY = {
    "default": PAIR | MEDIA | CLIENTS | SCRAPES,
    "gpu": PAIR | MEDIA | CLIENTS | SCRAPES,
    "inside": PAIR | MEDIA | CLIENTS | SCRAPES,
    "keda": PAIR
    | MEDIA
    | CLIENTS
    | {("observer", "language", LANGUAGE), ("observer", "encoder", ENCODER), ("language", "public", 443)},
    "closed": PAIR | {("ingress", "language", LANGUAGE), ("encoder", "collector", 4318)},
}


def connections(name: str) -> set[tuple[str, str, int]]:
    """All that the policies of a set let pass from or to the pair's pods, but for a pod's talk to itself."""
    pods = ends.pods_of(rendered(name))
    policies = rendered(name).of("NetworkPolicy")
    everybody = (*pods, *OTHERS)
    return {
        (source.name, target.name, port)
        for source in everybody
        for target in everybody
        for port in PORTS
        if source is not target and (source in pods or target in pods) and allowed(policies, source, target, port)
    }


@pytest.mark.parametrize("name", MAY)
def test_who_may_connect_where(name: str) -> None:
    assert connections(name) == MAY[name]


def test_without_policies_everybody_may() -> None:
    assert rendered("open").of("NetworkPolicy") == []
    assert ("stranger", "language", DATA) in connections("open")
    assert set(MAY) == set(SETS) - {"open"}


def test_the_data_port_is_open_to_encoders_only() -> None:
    """Also not to those of a release in another namespace."""
    for name in MAY:
        encoder, language = ends.pods_of(rendered(name))
        policies = rendered(name).of("NetworkPolicy")
        assert allowed(policies, encoder, language, DATA)
        for other in (*OTHERS, ends.twin_of(encoder), ends.twin_of(language), language):
            assert not allowed(policies, other, language, DATA)


def test_names_are_resolved_by_either_protocol() -> None:
    policies = rendered("default").of("NetworkPolicy")
    for pod in ends.pods_of(rendered("default")):
        assert allowed(policies, pod, NAMES, DNS, "UDP")
        assert not allowed(policies, pod, PUBLIC, DNS, "UDP")  # or a name server of one's own would carry data out


@pytest.mark.parametrize(
    ("address", "may"),
    [
        ("93.184.216.34", True),
        ("8.8.8.8", True),
        ("25.1.2.3", True),
        ("2606:2800:220:1::1", True),
        ("10.0.0.1", False),
        ("127.0.0.1", False),
        ("100.64.0.1", False),
        ("100.100.100.200", False),  # metadata of a cloud
        ("168.63.129.16", False),
        ("169.254.169.254", False),
        ("172.16.0.1", False),
        ("172.31.255.255", False),
        ("192.0.0.192", False),
        ("192.168.1.1", False),
        ("198.18.0.1", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("fe80::1", False),
        ("fc00::1", False),
        ("fd00:ec2::254", False),
        ("2001::1", False),
        ("2001:db8::1", False),
        ("2002:a00:1::1", False),
        ("64:ff9b::a00:1", False),
        ("::ffff:10.0.0.1", False),
    ],
)
def test_media_are_fetched_from_public_addresses_only(address: str, may: bool) -> None:
    """As the encoder itself has it (services/encoder/destination.py)."""
    policies = rendered("default").of("NetworkPolicy")
    encoder, language = ends.pods_of(rendered("default"))
    assert allowed(policies, encoder, End("site", address), 443) is may
    assert not allowed(policies, language, End("site", address), 443)
    assert not may or ipaddress.ip_address(address).is_global


@pytest.mark.parametrize(("port", "may"), [(80, True), (443, True), (1024, True), (65535, True), (22, False), (1023, False)])
def test_media_are_fetched_from_ports_that_the_encoder_takes(port: int, may: bool) -> None:
    policies = rendered("default").of("NetworkPolicy")
    assert allowed(policies, ends.pods_of(rendered("default"))[0], PUBLIC, port) is may


def test_what_is_called_inside_is_not_outside() -> None:
    policies = rendered("inside").of("NetworkPolicy")
    encoder = ends.pods_of(rendered("inside"))[0]
    for address, may in (("25.1.2.3", False), ("26.1.2.3", True), ("2600:1234::1", False), ("2600:1235::1", True)):
        assert allowed(policies, encoder, End("site", address), 443) is may


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        ({}, True),
        ({"matchLabels": {"app": "shop"}}, True),
        ({"matchLabels": {"app": "shop", "tier": "web"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["shop", "bank"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["shop"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["web"]}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, True),
    ],
)
def test_selectors_of_labels(selector: Object, fits: bool) -> None:
    assert selects(selector, STRANGER.labels) is fits


def policy(**spec: object) -> Object:
    return {"metadata": {"name": "p", "namespace": "vision"}, "spec": {"podSelector": {}, **spec}}


@pytest.mark.parametrize(
    ("policies", "may"),
    [
        ([], True),
        ([policy()], False),  # closes what comes in
        ([policy(policyTypes=["Egress"])], False),
        ([policy(policyTypes=["Ingress"], ingress=[{}])], True),
        ([policy(ingress=[{"ports": [{"port": "http"}]}])], True),
        ([policy(ingress=[{"ports": [{"port": "data"}]}])], False),
        ([policy(ingress=[{"ports": [{"port": 7000, "endPort": 9000}]}])], True),
        ([policy(ingress=[{"ports": [{"port": 8001, "protocol": "UDP"}]}])], False),
        ([policy(), policy(ingress=[{}])], True),  # what one lets in, the others do not keep out
        ([policy(ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "shop"}}}]}])], True),
        ([policy(ingress=[{"from": [{"namespaceSelector": {"matchLabels": {"a": "b"}}, "podSelector": {}}]}])], False),
        ([policy(ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.244.1.4/32"]}}]}])], False),
    ],
)
def test_meaning_of_policies(policies: list[Object], may: bool) -> None:
    target = End("target", "10.244.1.9", "vision", {}, {"http": 8001})
    assert allowed(policies, STRANGER, target, 8001) is may
