"""Who has no keys, or others, gets nothing into the data socket, nor does what was recorded; what is no message is dropped."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
import zmq
from zmq.utils.monitor import recv_monitor_message

from services.language.app import max_frame_bytes
from services.language.embeddings.assembly import Assembler
from services.language.embeddings.receiver import Receiver, Wait
from services.language.settings import LanguageSettings
from shared.identity import MediaItem
from shared.seam import LOOPBACK, Keys, Seam, keys_of
from shared.telemetry import Metrics
from shared.wire import MAX_HEADER_BYTES, VERSION, Buffer, Header, pack
from tests.relay import Relay

KEYED, OTHERS = Seam(keys_of(b"a secret of the deployment")), Seam(keys_of(b"a secret of somebody else"))
assert KEYED.keys is not None
assert OTHERS.keys is not None
IMPOSTORS = {
    "no keys": LOOPBACK,
    "another secret": OTHERS,
    # The public key of the language service is no secret.
    "keys of its own, and the language service's public key": Seam(Keys(KEYED.keys.language, OTHERS.keys.encoder, "")),
    "the encoder's keys, and another language service's": Seam(Keys(OTHERS.keys.language, KEYED.keys.encoder, "")),
}


def message(item: int = 0, **changes: Any) -> list[bytes]:
    """A message that is in order."""
    fields: dict[str, Any] = {
        "request_id": "wanted", "attempt": 0, "item": item, "num_items": 1, "modality": "image", "content_hash": "0" * 32,
        "num_tokens": 4, "grid_thw": (1, 4, 4), "model_fingerprint": "f", "encoder_id": "encoder-1",
    }  # fmt: skip
    frames: list[Buffer] = pack(Header.model_validate(fields | changes), {"embeds": torch.zeros(4, 8)})
    return [bytes(frame) for frame in frames]


class Lenient:
    """An assembler that takes everything: what is kept out, the door keeps out."""

    def assemble(self, header: Header, frames: Sequence[Buffer]) -> MediaItem:
        return MediaItem(header.modality, header.num_tokens, header.grid_thw)


@dataclass
class Door:
    """A receiver at work, and what it counts."""

    receiver: Receiver
    metrics: Metrics

    def count(self, name: str, **labels: str) -> float:
        """The sum of a counter over all labels besides those given."""
        samples = [sample for metric in self.metrics.registry.collect() for sample in metric.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    @property
    def messages(self) -> float:
        """All that came in."""
        return self.count("epd_messages_total") + self.count("epd_late_messages_total")

    @contextmanager
    def wait(self, *items: int) -> Iterator[Wait]:
        with (
            self.receiver.holding() as holding,
            self.receiver.expect("wanted", 0, items or [0], holding) as wait,
        ):
            yield wait


@asynccontextmanager
async def door(seam: Seam) -> AsyncIterator[Door]:
    metrics = Metrics()
    assembler = cast(Assembler, Lenient())
    async with Receiver(assembler, "127.0.0.1", 0, 2**20, 2**20, metrics, seam=seam) as receiver:
        yield Door(receiver, metrics)


@contextmanager
def peer(seam: Seam, port: int) -> Iterator[zmq.Socket[bytes]]:
    """An end of the data channel, as an encoder has it."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as pushing:
        seam.secure_client(pushing)
        pushing.set(zmq.LINGER, 0)
        pushing.connect(f"tcp://127.0.0.1:{port}")
        yield pushing


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("name", IMPOSTORS)
async def test_a_peer_without_the_keys_gets_nothing_in(name: str) -> None:
    async with door(KEYED) as at, asyncio.timeout(20):
        with at.wait() as wait, peer(IMPOSTORS[name], at.receiver.port) as impostor:
            for _ in range(3):
                impostor.send_multipart(message())
            await until(lambda: at.count("epd_rejected_peers_total") >= 1)
            with peer(KEYED, at.receiver.port) as encoder:
                # Once this one is in, whatever the other could send has been in as well, or never will be.
                encoder.send_multipart(message(0, request_id="of the encoder"))
                await until(lambda: at.messages >= 1)
                assert at.count("epd_late_messages_total", reason="late") == at.messages == 1
                assert not wait.done.done()
                encoder.send_multipart(message())
                await wait.done
                assert at.messages == 2


@pytest.mark.parametrize("seam", [KEYED, OTHERS], ids=["these keys", "other keys"])
async def test_a_peer_with_keys_gets_nothing_into_a_plain_socket_either(seam: Seam) -> None:
    async with door(LOOPBACK) as at:
        with at.wait() as wait, peer(seam, at.receiver.port) as other:
            other.send_multipart(message())
            await until(lambda: at.count("epd_rejected_peers_total") >= 1)
            assert at.messages == 0
            assert not wait.done.done()


async def test_the_reason_is_told_where_it_is_known() -> None:
    async with door(KEYED) as at:
        for reason, name in (("keys", "another secret"), ("keys", list(IMPOSTORS)[2])):
            before = at.count("epd_rejected_peers_total", reason=reason)
            with peer(IMPOSTORS[name], at.receiver.port) as impostor:
                impostor.send_multipart(message())
                await until(lambda reason=reason, before=before: at.count("epd_rejected_peers_total", reason=reason) > before)
        with socket.create_connection(("127.0.0.1", at.receiver.port)):
            pass
        await until(lambda: at.count("epd_rejected_peers_total", reason="unfinished") >= 1)


async def test_where_nobody_is_asked_who_may_come_in_nobody_may() -> None:
    with zmq.Context() as context, context.socket(zmq.PULL) as pulling:
        KEYED.secure_server(pulling)
        port = pulling.bind_to_random_port("tcp://127.0.0.1")
        failures = pulling.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        with peer(KEYED, port) as encoder, failures:
            encoder.send_multipart(message())
            event = await asyncio.to_thread(recv_monitor_message, failures)
            pulling.disable_monitor()
            assert event["event"] == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            assert not pulling.poll(100)


# Bytes of what the two ends say first.
_GREETING, _HELLO, _WELCOME = 64, 202, 170


async def replayed(recorded: bytes, port: int, steps: Sequence[tuple[int, int]]) -> socket.socket:
    """A connection on which all of ``recorded`` was said. In each step come so many bytes of it, and then nothing until the
    other end has said so many in all."""

    def replay() -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port), timeout=5)
        said = heard = 0
        for size, wanted in steps:
            connection.sendall(recorded[said : said + size])
            said += size
            while heard < wanted:
                answer = connection.recv(wanted - heard)
                assert answer
                heard += len(answer)
        connection.sendall(recorded[said:])
        return connection

    return await asyncio.to_thread(replay)


async def test_what_was_recorded_gets_nothing_in_again() -> None:
    async with door(KEYED) as at:
        with at.wait(0, 1) as wait, Relay(("127.0.0.1", 0), ("127.0.0.1", at.receiver.port)) as relay:
            with peer(KEYED, relay.port) as encoder:
                encoder.send_multipart(message(0))
                await until(lambda: at.messages == 1)
            [recorded] = relay.said
            assert b"wanted" not in recorded
            assert not wait.done.done()
            # All at once, and step by step, as the encoder did.
            for steps in ([], [(_GREETING, _GREETING), (_HELLO, _GREETING + _WELCOME)]):
                rejected = at.count("epd_rejected_peers_total") + 1
                with await replayed(recorded, at.receiver.port, steps):
                    await until(lambda wanted=rejected: at.count("epd_rejected_peers_total") == wanted)
            assert at.messages == 1
            with peer(KEYED, relay.port) as encoder:
                encoder.send_multipart(message(1))
                await asyncio.wait_for(wait.done, 5)
            assert at.messages == 2


async def test_what_is_sent_again_inside_is_counted_and_dropped() -> None:
    async with door(LOOPBACK) as at:
        with at.wait(0, 1) as wait, Relay(("127.0.0.1", 0), ("127.0.0.1", at.receiver.port)) as relay:
            with peer(LOOPBACK, relay.port) as encoder:
                encoder.send_multipart(message(0))
                await until(lambda: at.count("epd_messages_total", outcome="ok") == 1)
            [recorded] = relay.said
            assert b"wanted" in recorded  # so it can be seen that somebody on the wire would see it
            with await replayed(recorded, at.receiver.port, [(_GREETING, _GREETING + 1)]):
                await until(lambda: at.count("epd_late_messages_total", reason="repeated") == 1)
            assert not wait.done.done()
        with peer(LOOPBACK, at.receiver.port) as encoder:
            encoder.send_multipart(message(1))
            await until(lambda: at.count("epd_late_messages_total", reason="late") == 1)
        assert at.count("epd_messages_total", outcome="ok") == 1


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01"
NOISE = {
    "nothing": b"",
    "HTTP": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    "half a greeting": GREETING[:7],
    "a greeting and no more": GREETING + b"CURVE" + bytes(47),
    "a greeting of another mechanism": GREETING + b"PLAIN" + bytes(47),
    "a greeting and junk": GREETING + b"CURVE" + bytes(47) + os.urandom(500),
    "a hello of junk": GREETING + b"CURVE" + bytes(47) + b"\x04\xc8\x05HELLO" + os.urandom(194),
    "a frame that is said to be huge": GREETING + b"CURVE" + bytes(47) + b"\x06" + (2**62).to_bytes(8, "big"),
    "noise": os.urandom(2000),
}


def ended(connection: socket.socket) -> None:
    """Returns when the other end has hung up."""
    connection.settimeout(10)
    with suppress(ConnectionError):
        while connection.recv(1000):
            pass


@pytest.mark.parametrize("seam", [KEYED, LOOPBACK], ids=["curve", "plain"])
async def test_noise_at_the_door_disturbs_nobody(seam: Seam) -> None:
    async with door(seam) as at:
        # Many at once, some of which hang up, and some of which stay.
        noisy = [socket.create_connection(("127.0.0.1", at.receiver.port)) for _ in range(30 * len(NOISE))]
        try:
            for number, connection in enumerate(noisy):
                connection.sendall(list(NOISE.values())[number % len(NOISE)])
                if number % 2:
                    connection.close()
            for _ in range(20):
                with at.wait() as wait, peer(seam, at.receiver.port) as encoder:
                    encoder.send_multipart(message())
                    await asyncio.wait_for(wait.done, 2)
            assert at.count("epd_messages_total", outcome="ok") == 20
            assert at.count("epd_rejected_peers_total") > 0
            if seam.curve:
                # Those that stay are not waited for for ever. Without keys, some noise passes for a peer of an older version.
                await asyncio.gather(*(asyncio.to_thread(ended, connection) for connection in noisy[::2]))
        finally:
            for connection in noisy:
                connection.close()


def test_a_frame_may_be_as_large_as_the_largest_item_needs_and_somewhat_larger() -> None:
    settings = LanguageSettings.model_validate({"max_message_bytes": 100_000_000})
    assert max_frame_bytes(settings, {"embeds": (1000, 4096), "deepstack.0": (1000, 4096)}) == 2 * 1000 * 4096 * 4
    assert max_frame_bytes(settings, {"embeds": (1, 8)}) == 2 * MAX_HEADER_BYTES
    assert max_frame_bytes(settings, {"embeds": (100_000, 4096)}) == 100_000_000


DEEP = b'{"version":' + b"[" * 30_000 + b"]" * 30_000 + b"}"
MALFORMED: dict[str, list[bytes]] = {
    "an empty frame": [b""],
    "empty frames": [b"", b"", b""],
    "a pickle": [b"\x80\x04K\x01."],
    "text": [b"hello"],
    "no UTF-8": [b'{"version": 3, "request_id": "\xff\xfe"}'],
    "another JSON": [b"[]"],
    "JSON that is cut off": [message()[0][:-10], message()[1]],
    "null": [b"null"],
    "a number of many digits": [b'{"version": ' + b"9" * 50_000 + b"}"],
    "JSON that is deep": [DEEP],
    "a header that is too large": [b'{"version":%d,"pad":"' % VERSION + b"x" * MAX_HEADER_BYTES + b'"}'],
    "a version that is none": [b'{"version": "3"}'],
    "another kind": [b'{"version": %d, "kind": "surprise"}' % VERSION],
    "a header without an item": [b'{"version": %d, "request_id": "wanted"}' % VERSION],
    "a heartbeat of nobody": [b'{"version": %d, "kind": "heartbeat"}' % VERSION],
    "a heartbeat of another state": [
        b'{"version":%d,"kind":"heartbeat","encoder_id":"e","state":"dancing","items_in_work":0,"max_items":1}' % VERSION
    ],
    "a field too many": [message()[0][:-1] + b',"more":1}', message()[1]],
    "a negative item": [message()[0].replace(b'"item":0', b'"item":-1'), message()[1]],
    "a header that comes second": [message()[1], message()[0]],
    "ten thousand frames": [b"x"] * 10_000,
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_what_is_no_message_is_counted_and_dropped(name: str) -> None:
    async with door(LOOPBACK) as at:
        with at.wait() as wait, peer(LOOPBACK, at.receiver.port) as encoder:
            encoder.send_multipart(MALFORMED[name])
            await until(lambda: at.messages == 1)
            assert at.count("epd_messages_total", outcome="malformed") == 1
            assert not wait.done.done()
            encoder.send_multipart(message())
            await asyncio.wait_for(wait.done, 5)
