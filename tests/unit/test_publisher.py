"""Messages wait for their receiver as long as they may, within bounds, and heartbeats for nobody."""

from __future__ import annotations

import asyncio
import socket as sockets
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest
import zmq
import zmq.asyncio

from services.encoder.publisher import Publisher
from shared.errors import EncoderFailed, InvalidRequest
from shared.seam import LOOPBACK, Seam, keys_of
from tests.processes import free_port

SECRET = b"a secret of the deployment"


@contextmanager
def publishing(**options: Any) -> Iterator[Publisher]:
    publisher = Publisher(**options)
    try:
        yield publisher
    finally:
        publisher.close()


@contextmanager
def receiving(port: int | None = None, high_water_mark: int = 1000) -> Iterator[tuple[str, zmq.asyncio.Socket]]:
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.PULL)
    socket.set(zmq.RCVHWM, high_water_mark)
    endpoint = f"tcp://127.0.0.1:{port or free_port()}"
    socket.bind(endpoint)
    try:
        yield endpoint, socket
    finally:
        context.destroy(linger=0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


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
    with receiving(high_water_mark=1) as (endpoint, socket), publishing() as publisher:
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
        assert list(publisher._outboxes) == [f"tcp://127.0.0.1:{ports[1]}"]


async def test_what_is_forgotten_while_it_is_sending_is_closed_when_that_ends() -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with publishing() as publisher:
        sending = asyncio.create_task(publisher.publish(endpoint, [b"one"], 0.1))
        await asyncio.sleep(0)
        socket = publisher._outboxes[endpoint].socket
        publisher.forget(endpoint)
        assert endpoint not in publisher._outboxes
        assert not socket.closed
        with pytest.raises(EncoderFailed, match="No receiver"):
            await sending
        assert socket.closed


class Tensor(bytearray):
    """Bytes whose end can be seen."""


@pytest.mark.parametrize("sizes", [(100,), (100, 0), (100, 5000), (100, 4_000_000), (70_000, 100), (100, 70_000, 100)])
async def test_what_is_on_its_way_is_counted_until_it_has_left(sizes: tuple[int, ...]) -> None:
    with publishing() as publisher, receiving(high_water_mark=1) as (endpoint, socket):
        frames = [Tensor(size) for size in sizes]
        gone = [weakref.ref(frame) for frame in frames]
        seen = 0
        # As many as fit into the buffers of both ends and of the system, and some more, which stay.
        for _ in range(40):
            await publisher.publish(endpoint, frames, 5)
            seen = max(seen, publisher.queued_bytes)
        assert seen >= sum(sizes)
        assert seen % sum(sizes) == 0
        del frames
        for _ in range(40):
            assert [len(frame) for frame in await received(socket)] == list(sizes)
        await until(lambda: publisher.queued_bytes == 0)
        await until(lambda: all(frame() is None for frame in gone))


async def test_past_the_limit_a_message_waits_until_the_reader_goes_on() -> None:
    with publishing(max_queued_bytes=20_000_000) as publisher, receiving(high_water_mark=1) as (endpoint, socket):
        sending = [asyncio.create_task(publisher.publish(endpoint, [bytes(2_000_000)], 5)) for _ in range(60)]
        await until(lambda: sum(task.done() for task in sending) > 10)
        for _ in range(60):
            assert publisher.queued_bytes <= 20_000_000
            await received(socket)
        await asyncio.gather(*sending)
        await until(lambda: publisher.queued_bytes == 0)


async def test_a_reader_that_never_reads_is_a_failure_of_its_own_messages_only() -> None:
    large = bytes(2_000_000)
    limits = {"max_queued_bytes": 10_000_000}
    with publishing(**limits) as publisher, receiving(high_water_mark=1) as (stuck, asleep), receiving() as (there, socket):
        waiting = [asyncio.create_task(publisher.publish(stuck, [large], 0.5)) for _ in range(40)]
        began = time.monotonic()
        for _ in range(20):
            await publisher.publish(there, [large], 5)
            assert await received(socket) == [large]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        failures = [result for result in results if result is not None]
        assert len(failures) > 20
        assert all(isinstance(failure, EncoderFailed) for failure in failures)
        assert time.monotonic() - began < 4  # none waits for the failure of another
        # What was on its way stays so, and arrives when the reader wakes up.
        assert publisher.queued_bytes > 0
        for _ in range(40 - len(failures)):
            assert await received(asleep) == [large]
        await publisher.publish(stuck, [large], 5)
        assert await received(asleep) == [large]


async def test_forgetting_lets_go_of_what_nobody_reads() -> None:
    with publishing() as publisher, receiving(high_water_mark=1) as (endpoint, _socket):
        frame = Tensor(4_000_000)
        gone = weakref.ref(frame)
        for _ in range(20):
            await publisher.publish(endpoint, [frame], 5)
        del frame
        assert publisher.queued_bytes > 0
        publisher.forget(endpoint)
        assert publisher.queued_bytes == 0
        await until(lambda: gone() is None)


@contextmanager
def something_else(port: int, says: bytes, connections: int) -> Iterator[None]:
    """Listens on ``port``, and answers whoever connects with what no receiver would say."""
    with sockets.create_server(("127.0.0.1", port)) as listening:
        listening.settimeout(5)
        answered: list[sockets.socket] = []
        for _ in range(connections):
            connection, _ = listening.accept()
            connection.recv(64)
            connection.sendall(says)
            answered.append(connection)
        yield
        for connection in answered:
            connection.close()


NOT_A_RECEIVER = {
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10,
    "another ZeroMQ": b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(47) + b"\x04\x05junk!",
}


@pytest.mark.parametrize("says", NOT_A_RECEIVER)
@pytest.mark.parametrize("beating", [True, False], ids=["with heartbeats", "messages only"])
@pytest.mark.parametrize("seam", [LOOPBACK, Seam(keys_of(SECRET))], ids=["plain", "curve"])
async def test_whatever_answered_there_before_the_receiver_is_found_when_it_is_back(
    says: str, beating: bool, seam: Seam
) -> None:
    port = free_port()
    endpoint = f"tcp://127.0.0.1:{port}"
    with publishing(seam=seam) as publisher:
        if beating:
            publisher.beat(endpoint, b"beat")
        first = asyncio.create_task(publisher.publish(endpoint, [b"first"], 1))
        await asyncio.sleep(0)
        other = something_else(port, NOT_A_RECEIVER[says], 1 + beating)
        await asyncio.to_thread(other.__enter__)
        await asyncio.gather(first, return_exceptions=True)
        other.__exit__(None, None, None)
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.PULL)
        try:
            seam.secure_server(socket)
            socket.set(zmq.ZAP_ENFORCE_DOMAIN, 0)  # there is no gate here
            socket.bind(endpoint)
            wanted = {b"message", b"beat"} if beating else {b"message"}
            came: set[bytes] = set()
            async with asyncio.timeout(10):
                while not wanted <= came:
                    if beating:
                        publisher.beat(endpoint, b"beat")
                    with suppress(EncoderFailed):
                        await publisher.publish(endpoint, [b"message"], 0.2)
                    while await socket.poll(50):
                        came.add(await socket.recv())
        finally:
            context.destroy(linger=0)


class Wire:
    """Passes on what callers and a receiver say, by connections in the order in which they came. One can swallow everything,
    as after a network was cut or an address has moved, or break."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.swallows: set[int] = set()
        self.callers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.callers)
        self.callers.append(writer)
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._tasks += [
            asyncio.create_task(self._pass_on(number, source, sink)) for source, sink in ((reader, back), (there, writer))
        ]

    async def _pass_on(self, number: int, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                if number not in self.swallows:
                    sink.write(data)
        sink.close()


@asynccontextmanager
async def wired(target: int) -> AsyncIterator[tuple[str, Wire]]:
    wire = Wire(target)
    server = await asyncio.start_server(wire.connect, "127.0.0.1", 0)
    try:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}", wire
    finally:
        server.close()
        for caller in wire.callers:
            caller.close()


async def test_where_the_connection_for_heartbeats_broke_messages_take_a_new_one_too() -> None:
    with receiving() as (receiver, socket), publishing() as publisher:
        async with wired(int(receiver.rpartition(":")[2])) as (endpoint, wire):
            await publisher.publish(endpoint, [b"before"], 5)
            assert await received(socket) == [b"before"]
            publisher.beat(endpoint, b"beat")
            assert await received(socket) == [b"beat"]
            wire.swallows = {0, 1}
            wire.callers[1].transport.abort()

            def beats_anew() -> bool:
                publisher.beat(endpoint, b"beat")
                return len(wire.callers) > 2

            await until(beats_anew)
            await publisher.publish(endpoint, [b"after"], 5)
            async with asyncio.timeout(5):
                while await received(socket) != [b"after"]:
                    pass
