"""Many requests at once do not stop the event loop, and a service ends with manners."""

from __future__ import annotations

import asyncio
import gc
import resource
from typing import Any, cast

import pytest

from shared import lifecycle
from shared.errors import EncoderUnavailable
from shared.lifecycle import Drain, allow_connections, tidy
from shared.pacing import PacedProtocol, Pump


class Transport:
    closed = False

    def is_closing(self) -> bool:
        return self.closed


class Flow:
    paused = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def connection(pump: Pump, log: list[bytes], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A protocol that writes down what it is fed, in place of parsing it."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    monkeypatch.setattr(HttpToolsProtocol, "__init__", lambda self: None)
    monkeypatch.setattr(HttpToolsProtocol, "data_received", lambda self, data: log.append(data))
    made = PacedProtocol(pump)
    made.transport = cast(Any, Transport())
    made.flow = cast(Any, Flow())
    return made


async def test_a_burst_is_read_in_small_bites_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    pump, log = Pump(), list[bytes]()
    connections = [connection(pump, log, monkeypatch) for _ in range(50)]
    for number, one in enumerate(connections):
        one.data_received(b"POST %d" % number)
        one.data_received(b"body %d" % number)
    assert all(one.flow.paused for one in connections)
    turns, seen = 0, 0
    while len(log) < 100:
        await asyncio.sleep(0)
        assert len(log) - seen <= 8
        turns, seen = turns + 1, len(log)
    assert not any(one.flow.paused for one in connections)
    assert pump.empty
    assert log == [part % number for number in range(50) for part in (b"POST %d", b"body %d")]


async def test_probes_overtake_a_burst_but_never_what_their_own_connection_sent_before(monkeypatch: pytest.MonkeyPatch) -> None:
    pump, log = Pump(), list[bytes]()
    busy, probe = connection(pump, log, monkeypatch), connection(pump, log, monkeypatch)
    for _ in range(20):
        busy.data_received(b"POST")
    probe.data_received(b"GET /health")
    busy.data_received(b"GET in a body")
    assert log == [b"GET /health"]
    while len(log) < 22:
        await asyncio.sleep(0)
    assert log[-1] == b"GET in a body"


async def test_what_a_closed_connection_had_sent_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    pump, log = Pump(), list[bytes]()
    one, other = connection(pump, log, monkeypatch), connection(pump, log, monkeypatch)
    one.data_received(b"POST one")
    one.transport.closed = True
    other.data_received(b"POST other")
    while not log:
        await asyncio.sleep(0)
    assert log == [b"POST other"]


async def test_garbage_waits_for_a_moment_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "_LOOK", 0.001)
    full: list[bool] = []
    drain = Drain(10, lambda: EncoderUnavailable("over"))

    def watch(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            full.append(drain.idle)

    before = gc.get_threshold()
    gc.callbacks.append(watch)
    try:
        async with tidy(drain):
            with drain.request():
                keep = [[] for _ in range(300_000)]
                del keep
                await asyncio.sleep(0.05)
            async with asyncio.timeout(5):
                while not full:
                    await asyncio.sleep(0.001)
    finally:
        gc.callbacks.remove(watch)
    assert all(full)
    assert gc.get_threshold() == before


async def test_draining_refuses_what_is_new_and_waits_for_what_is_open() -> None:
    begun: list[str] = []
    drain = Drain(10, lambda: EncoderUnavailable("over"))
    drain.on_begin(lambda: begun.append("told"))
    drain.check()
    with drain.request():
        drain.begin()
        drain.begin()
        assert begun == ["told"]
        with pytest.raises(EncoderUnavailable):
            drain.check()
        assert not drain.finished()
    assert drain.finished()


async def test_when_draining_takes_too_long_what_is_open_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    now = [0.0]
    monkeypatch.setattr(lifecycle.time, "monotonic", lambda: now[0])
    drain = Drain(10, lambda: EncoderUnavailable("over"))
    drain.on_expiry(lambda: ended.append("told"))
    with drain.request():
        drain.begin()
        now[0] = 5.9
        assert not drain.finished()
        assert not drain.expired.is_set()
        now[0] = 6.1
        assert not drain.finished()
        assert (drain.expired.is_set(), ended) == (True, ["told"])
        now[0] = 7.1  # whatever does not end even then is left behind
        assert drain.finished()


@pytest.mark.parametrize(
    ("limits", "after"),
    [
        ((1024, 4096), [(4096, 4096)]),
        ((1024, 2**20), [(65_536, 2**20)]),
        ((1024, resource.RLIM_INFINITY), [(65_536, resource.RLIM_INFINITY)]),
        ((2**20, 2**20), []),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), []),
    ],
)
def test_as_many_connections_are_allowed_as_the_system_lets_it_ask_for(
    limits: tuple[int, int], after: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: told.append(both))
    allow_connections()
    assert told == after
