"""Network conditions as commands."""

from __future__ import annotations

import os
from ipaddress import IPv4Network

import pytest

from services.loadtest.deployment import CannotDo, namespaces
from services.loadtest.deployment.network import (
    Conditions,
    heal,
    lose,
    lose_no_more,
    partition,
    script,
    shape,
    unshape,
)


def lines(commands: list[tuple[str, ...]]) -> list[str]:
    return [" ".join(command) for command in commands]


def test_a_partition_drops_both_ways_and_spares_loopback() -> None:
    assert lines(partition()) == [
        "iptables -w -I INPUT ! -i lo -j DROP",
        "iptables -w -I OUTPUT ! -o lo -j DROP",
    ]


def test_healing_deletes_what_the_partition_inserted() -> None:
    assert lines(heal()) == [line.replace("-I", "-D") for line in lines(partition())]


def test_with_netem_it_does_everything() -> None:
    conditions = Conditions.parse({"latency": "50ms", "jitter": "10ms", "loss": "1%", "bandwidth": "20mbit"})
    assert lines(shape("eth0", conditions, netem=True)) == [
        "tc qdisc replace dev eth0 root netem limit 10000 delay 50ms 10ms loss 1% rate 20000000bit"
    ]
    assert lines(unshape("eth0", conditions, netem=True)) == ["tc qdisc del dev eth0 root"]
    assert lose(conditions, netem=True) == []


def test_without_netem_bandwidth_is_a_token_bucket_and_loss_a_rule() -> None:
    conditions = Conditions.parse({"loss": "0.01", "bandwidth": "8mbit"})
    assert lines(shape("eth0", conditions, netem=False)) == [
        "tc qdisc replace dev eth0 root tbf rate 8000000bit burst 65536b latency 400ms"
    ]
    assert lines(lose(conditions, netem=False)) == [
        "iptables -w -A INPUT ! -i lo -m statistic --mode random --probability 0.01 -j DROP",
        "iptables -w -A OUTPUT ! -o lo -m statistic --mode random --probability 0.01 -j DROP",
    ]
    assert lines(lose_no_more(conditions, netem=False)) == [
        line.replace("-A", "-D") for line in lines(lose(conditions, netem=False))
    ]


def test_nothing_is_shaped_where_only_packets_are_lost() -> None:
    conditions = Conditions.parse({"loss": "1%"})
    assert shape("eth0", conditions, netem=False) == []
    assert unshape("eth0", conditions, netem=False) == []


def test_a_bucket_holds_a_timer_tick_of_the_bandwidth() -> None:
    (command,) = shape("eth0", Conditions(bandwidth=10e9), netem=False)
    assert command[command.index("burst") + 1] == "12500000b"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "say how slow"),
        ({"latency": "50"}, "no duration"),
        ({"loss": "some"}, "1% or 0.01"),
        ({"loss": "101%"}, "between"),
        ({"bandwidth": "20"}, "20mbit"),
        ({"bandwidth": "0mbit"}, "20mbit"),
        ({"bandwidth": "20 MB/s"}, "20mbit"),
        ({"jitter": "5ms"}, "jitter varies a latency"),
    ],
)
def test_conditions_that_are_none_are_refused_with_how_to_write_them(options: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Conditions.parse(options)


def test_a_script_ends_at_the_first_command_that_fails() -> None:
    assert script([("echo", "a b"), ("false",)]) == "echo 'a b' && false"
    assert script([]) == "true"


def test_namespaces_get_a_network_that_nobody_has() -> None:
    mine = namespaces.free_subnet([])
    assert mine.prefixlen == 24
    assert mine.subnet_of(IPv4Network("198.18.0.0/15"))
    other = namespaces.free_subnet([mine, IPv4Network("10.0.0.0/8")])
    assert not other.overlaps(mine)
    with pytest.raises(CannotDo, match="no network"):
        namespaces.free_subnet([IPv4Network("198.0.0.0/8")])


def test_latency_is_refused_where_the_kernel_cannot_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "has_netem", lambda: False)
    assert "netem" in namespaces.trial(Conditions(latency=0.05))


def test_namespaces_are_refused_to_who_is_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in namespaces.obstacle()
