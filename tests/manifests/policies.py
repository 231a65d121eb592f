"""What NetworkPolicies mean: who may connect where. A pure function of the objects, after the API's documentation."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.manifests.chart import Object


@dataclass(frozen=True, slots=True)
class End:
    """One end of a connection: a pod, or, without a namespace, a machine outside the cluster. ``ports`` are a pod's, each by
    its name."""

    name: str
    address: str
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)

    @property
    def namespace_labels(self) -> Mapping[str, str]:
        """What every namespace has since Kubernetes 1.22."""
        return {"kubernetes.io/metadata.name": self.namespace}


def allowed(policies: Iterable[Object], source: End, target: End, port: int, protocol: str = "TCP") -> bool:
    """Whether ``source`` may open a connection to ``port`` of ``target``: both ends' policies must let it."""
    there = list(policies)
    return _one_way(there, source, target, "Egress", port, protocol) and _one_way(
        there, target, source, "Ingress", port, protocol
    )


def selecting(policies: Iterable[Object], pod: End, direction: str) -> list[Object]:
    """The policies that hold for a pod's ``Ingress`` or ``Egress``. Without any, everything passes."""
    return [
        policy
        for policy in policies
        if pod.namespace
        and policy["metadata"].get("namespace", pod.namespace) == pod.namespace
        and direction in types_of(policy)
        and selects(policy["spec"]["podSelector"], pod.labels)
    ]


def types_of(policy: Object) -> Sequence[str]:
    """Which directions a policy closes but for its rules."""
    given: Sequence[str] | None = policy["spec"].get("policyTypes")
    return given or ("Ingress", *(["Egress"] if "egress" in policy["spec"] else []))


def rules_of(policy: Object, direction: str) -> tuple[str, Sequence[Object]]:
    """The rules of one direction, and the field of them that has the other ends."""
    side, peers = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
    return peers, policy["spec"].get(side) or ()


def _one_way(policies: Sequence[Object], pod: End, other: End, direction: str, port: int, protocol: str) -> bool:
    holding = selecting(policies, pod, direction)
    target = pod if direction == "Ingress" else other
    return not holding or any(
        _lets(rule, peers, str(policy["metadata"].get("namespace", pod.namespace)), other, target, port, protocol)
        for policy in holding
        for peers, rules in [rules_of(policy, direction)]
        for rule in rules
    )


def _lets(rule: Object, peers: str, namespace: str, other: End, target: End, port: int, protocol: str) -> bool:
    ends, ports = rule.get(peers), rule.get("ports")
    return (not ends or any(is_peer(each, namespace, other) for each in ends)) and (
        not ports or any(_is_port(each, target, port, protocol) for each in ports)
    )


def is_peer(peer: Object, namespace: str, end: End) -> bool:
    """Whether ``end`` is one of those that a peer of a policy in ``namespace`` stands for."""
    if "ipBlock" in peer:
        address = ipaddress.ip_address(end.address)
        return _within(address, peer["ipBlock"]["cidr"]) and not any(
            _within(address, each) for each in peer["ipBlock"].get("except", ())
        )
    if not end.namespace:
        return False
    if "namespaceSelector" in peer:
        if not selects(peer["namespaceSelector"], end.namespace_labels):
            return False
    elif end.namespace != namespace:
        return False
    return selects(peer.get("podSelector", {}), end.labels)


def _within(address: ipaddress.IPv4Address | ipaddress.IPv6Address, cidr: str) -> bool:
    return address in ipaddress.ip_network(cidr)  # which is false for the other version of IP


def _is_port(given: Object, target: End, port: int, protocol: str) -> bool:
    if given.get("protocol", "TCP") != protocol:
        return False
    if "port" not in given:
        return True
    first = target.ports.get(given["port"], -1) if isinstance(given["port"], str) else given["port"]
    return bool(first <= port <= given.get("endPort", first))


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a label selector fits; an empty one fits all.

    Raises:
        ValueError: an operator that there is not.
    """
    return all(labels.get(name) == value for name, value in (selector.get("matchLabels") or {}).items()) and all(
        _holds(each, labels) for each in selector.get("matchExpressions") or ()
    )


def _holds(expression: Object, labels: Mapping[str, str]) -> bool:
    name, values = expression["key"], expression.get("values", ())
    match expression["operator"]:
        case "In":
            return labels.get(name) in values
        case "NotIn":
            return labels.get(name) not in values
        case "Exists":
            return name in labels
        case "DoesNotExist":
            return name not in labels
        case operator:
            raise ValueError(f"no operator of label selectors: {operator}")
