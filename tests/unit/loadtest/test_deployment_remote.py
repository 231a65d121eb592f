"""A server that is only known by its address: what it says of its encoders decides what can be concluded from faults."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import pytest

from services.loadtest.deployment.remote import RemoteDeployment
from tests.unit.loadtest.serving import serving


def server(says: str | None, key: str | None = None) -> AbstractContextManager[str]:
    """Answers all that is asked; with status 404 where it says nothing, and 401 to whom has not the ``key``."""

    def answer(headers: Mapping[str, str]) -> tuple[int, str]:
        stranger = key is not None and headers["authorization"] != f"Bearer {key}"
        return 401 if stranger else 404 if says is None else 200, says or ""

    return serving(answer)


@pytest.mark.parametrize(
    ("says", "known"),
    [
        ('{"data": [{}, {}]}', ("encoder-1", "encoder-2")),
        ('{"data": [{}, {}, {}]}', ()),  # another one can go on computing
        ("[]", ()),
        ("hello", ()),
        (None, ()),
    ],
)
def test_encoders_are_known_where_the_server_says_that_there_are_no_others(says: str | None, known: tuple[str, ...]) -> None:
    with server(says) as url, RemoteDeployment(url, ("http://a", "http://b")) as deployment:
        assert deployment.encoders == known
        assert deployment.parts == ("encoder-1", "encoder-2")


@pytest.mark.parametrize(("key", "known"), [("right", ("encoder-1",)), ("wrong", ()), (None, ())])
def test_a_server_that_asks_for_a_key_is_asked_with_it(key: str | None, known: tuple[str, ...]) -> None:
    with server('{"data": [{}]}', "right") as url, RemoteDeployment(url, ("http://a",), api_key=key) as deployment:
        assert deployment.encoders == known
