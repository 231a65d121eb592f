"""Addresses that one service tells the other: no spelling of "everywhere" passes for a place."""

from __future__ import annotations

import pytest

from shared.addresses import check_base_url, check_endpoint, is_wildcard

EVERYWHERE = (
    "0", "0.0", "0.0.0", "00.0.0.0", "000.0.0.0", "0.0.0.0", "0x0", "[::]", "[::0]", "[0:0:0:0:0:0:0:0]", "[::0.0.0.0]",
    "[::ffff:0.0.0.0]", "[::ffff:0:0]",
)  # fmt: skip
PLACES = (
    "localhost", "encoder", "encoder-0.example", "0.example", "127.0.0.1", "127.1", "10.0.0.0", "0.0.0.1", "[::1]",
    "[fd00::7]", "[::ffff:10.0.0.7]",
)  # fmt: skip


@pytest.mark.parametrize("host", EVERYWHERE)
def test_no_spelling_of_a_wildcard_can_be_sent_to(host: str) -> None:
    with pytest.raises(ValueError, match="not one to send to"):
        check_base_url(f"http://{host}:8001")
    with pytest.raises(ValueError, match="not one to send to"):
        check_endpoint(f"tcp://{host}:1")
    assert is_wildcard(host)
    assert is_wildcard(host.strip("[]"))


@pytest.mark.parametrize("host", PLACES)
def test_names_and_addresses_of_machines_can(host: str) -> None:
    assert check_base_url(f"http://{host}:8001/") == f"http://{host}:8001"
    check_endpoint(f"tcp://{host}:1")
    assert not is_wildcard(host)


@pytest.mark.parametrize("host", [None, "", "*", "[::%eth0]"])
def test_what_only_listens(host: str | None) -> None:
    assert is_wildcard(host)


@pytest.mark.parametrize("host", ["é.example", "a b", "a\0b"])
def test_nonsense_is_no_wildcard_and_no_error(host: str) -> None:
    assert not is_wildcard(host)
