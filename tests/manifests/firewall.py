"""NetworkPolicies as rules of iptables for one pod's network namespace: what a cluster's network plug-in makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.manifests.chart import Object
from tests.manifests.policies import End, is_peer, rules_of, selecting

Command = Sequence[str]

# For each direction: the chain, the option that names the other end, and the one that names this end's side of the link.
_CHAINS = {"Ingress": ("INPUT", "--source", "--in-interface"), "Egress": ("OUTPUT", "--destination", "--out-interface")}
_EVERYWHERE = {"cidr": "0.0.0.0/0"}


def commands(policies: Sequence[Object], pod: End, others: Sequence[End]) -> Iterator[Command]:
    """The commands that make the policies hold for ``pod``, run in its namespace; ``others`` are the pods that selectors find.
    IPv4 only. Packets that nothing lets pass vanish."""
    for direction, (chain, other_end, link) in _CHAINS.items():
        holding = selecting(policies, pod, direction)
        if not holding:
            continue
        yield _append(chain, link, "lo", "--jump", "ACCEPT")
        yield _append(chain, "--match", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "--jump", "ACCEPT")
        for policy in holding:
            peers, rules = rules_of(policy, direction)
            namespace = str(policy["metadata"].get("namespace", pod.namespace))
            for index, rule in enumerate(rules):
                ends = rule.get(peers) or [{"ipBlock": _EVERYWHERE}]
                yield from _rule(
                    f"{chain}-{policy['metadata']['name'][-12:]}-{index}", chain, other_end, rule, ends, namespace, others
                )
        yield _append(chain, "--jump", "DROP")


def _rule(
    name: str, chain: str, other_end: str, rule: Object, ends: Sequence[Object], namespace: str, others: Sequence[End]
) -> Iterator[Command]:
    """A chain for each rule: its ports lead into it, and its peers are let pass there."""
    yield ("iptables", "-w", "-N", name)
    for peer in ends:
        if "ipBlock" not in peer:
            for end in others:
                if is_peer(peer, namespace, end):
                    yield _append(name, other_end, end.address, "--jump", "ACCEPT")
        elif ":" not in peer["ipBlock"]["cidr"]:
            yield from _block(name, other_end, peer["ipBlock"])
    for port in rule.get("ports") or [{}]:
        yield _append(chain, *_port(port), "--jump", name)


def _block(name: str, other_end: str, block: Object) -> Iterator[Command]:
    """A chain of its own again, which what is excepted leaves without being let pass."""
    inner = f"{name}-block"
    yield ("iptables", "-w", "-N", inner)
    for excepted in block.get("except", ()):
        yield _append(inner, other_end, excepted, "--jump", "RETURN")
    yield _append(inner, "--jump", "ACCEPT")
    yield _append(name, other_end, block["cidr"], "--jump", inner)


def _port(port: Object) -> Command:
    protocol = ("--protocol", port.get("protocol", "TCP").lower())
    if "port" not in port:
        return protocol
    assert isinstance(port["port"], int), "named ports are not needed by the chart"
    return (*protocol, "--dport", f"{port['port']}:{port.get('endPort', port['port'])}")


def _append(chain: str, *rule: str) -> Command:
    return ("iptables", "-w", "-A", chain, *rule)
