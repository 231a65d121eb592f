"""Messages wait for their receiver as long as they may, and heartbeats for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq
import zmq.asyncio

from services.encoder.publisher import Publisher
from shared.errors import EncoderFailed, InvalidRequest
from tests.processes import free_port


@contextmanager
def publishing(max_destinations: int = 256) -> Iterator[Publisher]:
    publisher = Publisher(max_destinations)
    try:
        yield publisher
    finally:
        publisher.close()


@contextmanager
def receiving(port: int | None = None) -> Iterator[tuple[str, zmq.asyncio.Socket]]:
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.PULL)
    endpoint = f"tcp://127.0.0.1:{port or free_port()}"
    socket.bind(endpoint)
    try:
        yield endpoint, socket
    finally:
        context.destroy(linger=0)


async def received(socket: zmq.asyncio.Socket) -> list[bytes]:
    async with asyncio.timeout(5):
        return await socket.recv_multipart()


async def test_a_message_and_a_heartbeat_arrive() -> None:
    with receiving() as (endpoint, socket), publishing() as publisher:
        await publisher.publish(endpoint, [b"header", b"tensor"], 5)
        assert await received(socket) == [b"header", b"tensor"]
        publisher.beat(endpoint, b"beat")
        assert await received(socket) == [b"beat"]


async def test_nobody_there_is_a_failure_after_the_timeout_and_the_message_never_comes() -> None:
    port = free_port()
    with publishing() as publisher:
        with pytest.raises(EncoderFailed, match="No receiver"):
            await publisher.publish(f"tcp://127.0.0.1:{port}", [b"late"], 0.1)
        with receiving(port) as (endpoint, socket):
            await publisher.publish(endpoint, [b"next"], 5)
            assert await received(socket) == [b"next"]


async def test_a_message_whose_call_is_cancelled_is_never_sent() -> None:
    port = free_port()
    with publishing() as publisher:
        leaving = asyncio.create_task(publisher.publish(f"tcp://127.0.0.1:{port}", [b"cancelled"], 5))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        with receiving(port) as (endpoint, socket):
            await publisher.publish(endpoint, [b"next"], 5)
            assert await received(socket) == [b"next"]


async def test_of_heartbeats_that_could_not_leave_only_the_newest_is_sent() -> None:
    port = free_port()
    endpoint = f"tcp://127.0.0.1:{port}"
    with publishing() as publisher:
        for number in range(1000):
            publisher.beat(endpoint, str(number).encode())
        with receiving(port) as (_, socket):
            assert await received(socket) == [b"999"]
            publisher.beat(endpoint, b"next")
            assert await received(socket) == [b"next"]


async def test_a_heartbeat_overtakes_messages_that_nobody_reads() -> None:
    with receiving() as (endpoint, socket), publishing() as publisher:
        socket.set(zmq.RCVHWM, 1)
        large = bytes(4_000_000)
        stuck = [asyncio.create_task(publisher.publish(endpoint, [large], 5)) for _ in range(100)]
        await asyncio.sleep(0)
        publisher.beat(endpoint, b"beat")
        # A fair receiver reads from one connection as often as from the other.
        assert b"beat" in [(await received(socket))[0] for _ in range(8)]
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


async def test_forgetting_closes_the_sockets_and_a_later_message_opens_one_again() -> None:
    with receiving() as (endpoint, socket), publishing() as publisher:
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        await publisher.publish(endpoint, [b"one"], 5)
        publisher.beat(endpoint, b"beat")
        assert {tuple(await received(socket)) for _ in range(2)} == {(b"one",), (b"beat",)}
        publisher.forget(endpoint)
        async with asyncio.timeout(5):
            for _ in range(2):
                await monitor.recv_multipart()
        socket.disable_monitor()
        await publisher.publish(endpoint, [b"two"], 5)
        assert await received(socket) == [b"two"]


async def test_forgetting_does_not_break_a_message_that_is_being_handed_over() -> None:
    port = free_port()
    with publishing() as publisher:
        sending = asyncio.create_task(publisher.publish(f"tcp://127.0.0.1:{port}", [b"one"], 5))
        await asyncio.sleep(0)
        publisher.forget(f"tcp://127.0.0.1:{port}")
        with receiving(port) as (_, socket):
            assert await received(socket) == [b"one"]
        await asyncio.wait_for(sending, 5)


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:1", "nowhere"])
async def test_an_address_that_cannot_be_sent_to_is_refused(endpoint: str) -> None:
    with publishing() as publisher:
        with pytest.raises(InvalidRequest, match="reply_to"):
            await publisher.publish(endpoint, [b""], 1)
        with pytest.raises(InvalidRequest, match="reply_to"):
            publisher.beat(endpoint, b"")


async def test_a_socket_that_is_sending_is_not_closed_for_another_and_is_closed_when_idle() -> None:
    ports = [free_port() for _ in range(2)]
    with publishing(max_destinations=1) as publisher, receiving() as (there, other):
        waiting = [asyncio.create_task(publisher.publish(f"tcp://127.0.0.1:{port}", [b"one"], 5)) for port in ports]
        await asyncio.sleep(0)
        await publisher.publish(there, [b"two"], 5)
        assert await received(other) == [b"two"]
        for port, task in zip(ports, waiting, strict=True):
            with receiving(port) as (_, socket):
                assert await received(socket) == [b"one"]
            await asyncio.wait_for(task, 5)
        assert list(publisher._sockets) == [f"tcp://127.0.0.1:{ports[1]}"]


async def test_what_is_forgotten_while_it_is_sending_is_closed_when_that_ends() -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with publishing() as publisher:
        sending = asyncio.create_task(publisher.publish(endpoint, [b"one"], 0.1))
        await asyncio.sleep(0)
        socket = publisher._sockets[endpoint]
        publisher.forget(endpoint)
        assert endpoint in publisher._sockets
        with pytest.raises(EncoderFailed, match="No receiver"):
            await sending
        assert endpoint not in publisher._sockets
        assert socket.closed
