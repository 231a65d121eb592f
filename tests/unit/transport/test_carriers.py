"""From the encoder's hands into the language service's: by the best means that both have, and back again."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from services.encoder.faults.base import Outgoing
from services.encoder.threads import FairThreads
from services.encoder.transport.carriers import SMALL, Carriers, Parcel
from services.language.embeddings.assembly import Assembler
from services.language.embeddings.memory import OpenMemory
from services.language.embeddings.receiver import Received, Receiver
from shared.control import Transport
from shared.errors import EmbeddingCorrupt, EmbeddingIncompatible, EncoderFailed, EngineOverloaded, EpdError, InternalError
from shared.identity import MediaItem
from shared.residency import Residency
from shared.telemetry import Metrics
from shared.wire import Buffer, DeviceMemory, Header, Place, SharedMemory, pack, read_header, read_tensors
from tests.chaos.test_shared_memory import shared_bytes
from tests.unit.transport.devices import FakeIpc

HERE, THERE = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"
GPU = "GPU-1"


@dataclass(frozen=True)
class Settings:
    max_shared_bytes: int = 2**22


@dataclass
class Pair:
    """Both ends, in one process. ``best`` is what each is set to."""

    carriers: Carriers
    memory: OpenMemory
    ipc: FakeIpc
    held: list[object] = field(default_factory=list)

    def agree(self, endpoint: str = HERE) -> Transport:
        return self.carriers.agree(endpoint, self.memory.offer("encoder-1"))

    async def pack(self, tensors: dict[str, Tensor], endpoint: str = HERE, timeout: float = 5) -> Parcel:
        return await self.carriers.pack(endpoint, Outgoing(header(), tensors), timeout)

    def receive(self, parcel: Parcel) -> dict[str, Tensor]:
        found = header_of(parcel)
        parts: Sequence[Buffer | Tensor] = parcel.frames[1:]
        if found.place is not None:
            assert not parts
            parts = self.memory.open(found, found.place)
        return read_tensors(found, parts).tensors


@asynccontextmanager
async def pairing(
    best: Transport = "shm",
    theirs: Transport = "shm",
    max_bytes: int = 2**22,
    handles: bool = True,
    devices: tuple[str, ...] = (GPU,),
) -> AsyncIterator[Pair]:
    threads, ipc = FairThreads(2), FakeIpc(*devices)
    cpu = torch.device("cpu")
    carriers = Carriers(Settings(max_bytes), Residency(best, handles), "encoder-1", cpu, threads, Metrics(), ipc)
    memory = OpenMemory(Residency(theirs, handles), "language-1", 2**30, ipc)
    try:
        yield Pair(carriers, memory, ipc)
    finally:
        memory.close()
        carriers.close()
        threads.close()


def header() -> Header:
    return Header(
        request_id="r",
        attempt=0,
        item=0,
        num_items=1,
        modality="image",
        content_hash="0" * 32,
        num_tokens=1,
        model_fingerprint="f",
        encoder_id="encoder-1",
    )


def header_of(parcel: Parcel) -> Header:
    found = read_header(parcel.frames[0])
    assert isinstance(found, Header)
    return found


def place_of(parcel: Parcel) -> Place:
    place = header_of(parcel).place
    assert place is not None
    return place


def content(value: float = 1.0, size: int = SMALL) -> dict[str, Tensor]:
    return {
        "embeds": torch.full((size // 4,), float(value)),
        "deepstack.0": torch.full((3, 5), -float(value), dtype=torch.bfloat16),
    }


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


async def test_tensors_cross_through_shared_memory_and_it_comes_back_when_they_are_gone() -> None:
    async with pairing() as pair:
        assert pair.agree() == "shm"
        parcel = await pair.pack(content(7))
        assert isinstance(place_of(parcel), SharedMemory)
        received = pair.receive(parcel)
        assert equal(received, content(7))
        kept = received.pop("deepstack.0")
        received.clear()
        gc.collect()
        again = await pair.pack(content(8))
        assert place_of(again) != place_of(parcel)
        assert torch.equal(kept, content(7)["deepstack.0"])  # one tensor that is left keeps all
        del kept
        gc.collect()
        third = place_of(await pair.pack(content(9)))
        assert isinstance(third, SharedMemory)
        assert third.segment == place_of(parcel).segment  # type: ignore[union-attr]


async def test_received_tensors_keep_their_content_whatever_is_sent_next() -> None:
    async with pairing(max_bytes=10 * SMALL) as pair:
        pair.agree()
        received = [pair.receive(await pair.pack(content(number))) for number in range(40)]
        for number, tensors in enumerate(received):
            assert equal(tensors, content(number))


async def test_no_copy_is_made_where_it_is_received() -> None:
    async with pairing() as pair:
        pair.agree()
        first = await pair.pack(content(7))
        received = pair.receive(first)
        place = place_of(first)
        assert isinstance(place, SharedMemory)
        [segment] = [mapped for mapped, _ in pair.memory._segments._entries.values()]
        begin = torch.frombuffer(segment, dtype=torch.uint8).data_ptr()
        assert [tensor.data_ptr() - begin for tensor in received.values()] == list(place.offsets)


@pytest.mark.parametrize(
    ("best", "theirs", "devices", "agreed", "reason"),
    [
        ("cpu", "cuda_ipc", (GPU,), "cpu", None),
        ("shm", "cpu", (GPU,), "cpu", "frames only"),
        ("shm", "cuda_ipc", (GPU,), "shm", None),
        ("cuda_ipc", "cuda_ipc", (GPU,), "cuda_ipc", None),
        ("cuda_ipc", "shm", (GPU,), "shm", "cannot open the memory"),
        ("cuda_ipc", "cpu", (GPU,), "cpu", "frames only"),
        ("cuda_ipc", "cuda_ipc", (), "shm", "no GPU memory"),
    ],
)
async def test_the_best_that_both_have_is_agreed_on_and_anything_less_is_warned_of_once(
    best: Transport, theirs: Transport, devices: tuple[str, ...], agreed: Transport, reason: str | None
) -> None:
    async with pairing(best, theirs, devices=devices) as pair:
        with capture_logs() as logs:
            assert [pair.agree() for _ in range(3)] == [agreed] * 3
        warnings = [line["reason"] for line in logs if line["log_level"] == "warning"]
        assert len(warnings) == (reason is not None)
        assert all(reason is not None and reason in warning for warning in warnings)
        assert equal(pair.receive(await pair.pack(content(3))), content(3))


async def test_one_that_cannot_prove_where_it_is_gets_frames() -> None:
    async with pairing() as pair, pairing() as other:
        offer, others = pair.memory.offer(None), other.memory.offer(None)
        assert offer is not None
        assert others is not None
        with capture_logs() as logs:
            assert pair.carriers.agree(HERE, offer.model_copy(update={"nonce": others.nonce})) == "cpu"
        assert "do not share host and user" in logs[0]["reason"]
        parcel = await pair.pack(content())
        assert header_of(parcel).place is None
        assert len(parcel.frames) == 3


async def test_peers_have_each_their_own_means() -> None:
    async with pairing() as pair:
        assert (pair.agree(HERE), pair.carriers.agree(THERE, None)) == ("shm", "cpu")
        assert header_of(await pair.pack(content(), HERE)).place is not None
        assert header_of(await pair.pack(content(), THERE)).place is None
        assert header_of(await pair.pack(content(), "tcp://127.0.0.1:3")).place is None


async def test_what_is_small_or_altered_or_too_large_goes_as_frames() -> None:
    async with pairing(max_bytes=4 * SMALL) as pair:
        pair.agree()
        assert header_of(await pair.pack({"embeds": torch.zeros(SMALL // 4 - 16)})).place is None
        altered = Outgoing(header(), content(), [lambda frames: [*frames, b"more"]])
        assert (await pair.carriers.pack(HERE, altered, 5)).frames[-1] == b"more"
        with capture_logs() as logs:
            assert header_of(await pair.pack(content(size=5 * SMALL))).place is None
        assert "more than" in logs[0]["reason"]


async def test_without_room_a_message_waits_for_memory_to_come_back() -> None:
    async with pairing(max_bytes=2 * SMALL) as pair:
        pair.agree()
        first = await pair.pack({"embeds": torch.zeros(SMALL // 4)})
        second = await pair.pack({"embeds": torch.zeros(SMALL // 4)})
        waiting = asyncio.create_task(pair.pack({"embeds": torch.ones(SMALL // 4)}))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        pair.memory.give_back(place_of(second))
        assert place_of(await waiting).lease.generation > place_of(second).lease.generation
        with pytest.raises(EncoderFailed, match="gave no memory back"):
            await pair.pack(content(), timeout=0.05)
        first.withdraw()
        await pair.pack({"embeds": torch.ones(SMALL // 4)})


async def test_memory_that_a_cancelled_sender_may_still_write_to_is_not_lent_again() -> None:
    async with pairing() as pair:
        pair.agree()
        begun, go_on = threading.Event(), threading.Event()

        class Slow(dict[str, Tensor]):
            def items(self):  # type: ignore[no-untyped-def]
                begun.set()
                assert go_on.wait(5)
                return super().items()

        sending = asyncio.create_task(pair.pack(Slow(content(1))))
        await asyncio.to_thread(begun.wait, 5)
        [loan] = pair.carriers._lenders["shm"]._loans.values()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert len(pair.carriers._lenders["shm"]) == 0
        other = await pair.pack(content(2))
        go_on.set()
        assert place_of(other).segment.name != loan.block.name  # type: ignore[union-attr, attr-defined]


async def test_memory_that_cannot_be_opened_fails_the_message_and_that_encoder_is_asked_for_frames() -> None:
    async with pairing() as pair:
        pair.agree()
        parcel = await pair.pack(content())
        pair.carriers.forget(HERE)
        with capture_logs() as logs, pytest.raises(EncoderFailed, match="cannot be opened"):
            pair.receive(parcel)
        assert logs[0]["log_level"] == "warning"
        assert pair.memory.offer("encoder-1") is None
        assert pair.memory.offer("encoder-2") is not None
        assert pair.agree() == "cpu"
        pair.memory.forget("encoder-1")  # it went, and came again
        assert pair.agree() == "shm"


async def test_a_message_that_is_opened_twice_is_refused_the_second_time() -> None:
    async with pairing() as pair:
        pair.agree()
        parcel = await pair.pack(content())
        received = pair.receive(parcel)
        with pytest.raises(EncoderFailed):
            pair.receive(parcel)
        assert equal(received, content())


def moved(parcel: Parcel, offsets: tuple[int, ...]) -> tuple[Header, Place]:
    """A message that says its tensors lie elsewhere in the same memory."""
    place = place_of(parcel).model_copy(update={"offsets": offsets})
    return header_of(parcel).model_copy(update={"place": place}), place


@pytest.mark.parametrize("offsets", [(), (0,), (0, 64, 128), (-64, 0), (0, 2**20), (2**62, 0)])
async def test_tensors_outside_the_memory_are_corrupt_and_it_is_given_back(offsets: tuple[int, ...]) -> None:
    async with pairing() as pair:
        pair.agree()
        parcel = await pair.pack(content())
        with pytest.raises(EmbeddingCorrupt):
            pair.memory.open(*moved(parcel, offsets))
        pair.carriers.agree(HERE, pair.memory.offer(None))
        assert len(pair.carriers._lenders["shm"]) == 0


async def test_a_changed_place_does_not_pass_for_the_one_that_was_sent() -> None:
    async with pairing() as pair:
        pair.agree()
        parcel = await pair.pack(content())
        parcel.frames[0] = bytes(parcel.frames[0]).replace(b'"offsets":[0,65536]', b'"offsets":[64,65536]')
        found = header_of(parcel)
        parts = pair.memory.open(found, place_of(parcel))
        with pytest.raises(EmbeddingCorrupt, match="digest"):
            read_tensors(found, parts)


async def test_segments_that_are_used_again_are_opened_once_and_closed_when_the_encoder_is_gone() -> None:
    async with pairing() as pair:
        pair.agree()
        for number in range(10):
            received = pair.receive(await pair.pack(content(number)))
            assert equal(received, content(number))
            del received
            gc.collect()
        assert (len(pair.memory._segments), len(pair.memory._ledgers)) == (1, 1)
        pair.memory.forget("encoder-2")
        assert len(pair.memory._segments) == 1
        pair.memory.forget("encoder-1")
        assert (len(pair.memory._segments), len(pair.memory._ledgers)) == (0, 0)


async def test_segments_that_an_encoder_has_let_go_of_are_closed_and_what_is_in_use_stays() -> None:
    async with pairing(max_bytes=2**25) as pair:
        pair.agree()
        kept = pair.receive(await pair.pack(content(1)))
        received = pair.receive(await pair.pack(content(2, 2**23)))
        del received
        gc.collect()
        pair.memory.tidy("encoder-1")
        assert len(pair.memory._segments) == 2  # the encoder may use them again
        pair.carriers.forget(HERE)
        pair.carriers.close()
        before = shared_bytes()
        pair.memory.tidy("encoder-1")
        assert len(pair.memory._segments) == 0
        assert equal(kept, content(1))
        assert before - shared_bytes() > 2**22
        del kept


async def test_memory_of_a_device_is_copied_there_and_its_pool_is_opened_once() -> None:
    async with pairing("cuda_ipc", "cuda_ipc") as pair:
        assert pair.agree() == "cuda_ipc"
        for number in range(50):
            parcel = await pair.pack(content(number))
            assert isinstance(place_of(parcel), DeviceMemory)
            received = pair.receive(parcel)
            assert equal(received, content(number))
            pair.held.append(received)
        assert (len(pair.ipc.exported), len(pair.ipc.opened)) == (1, 1)
        assert pair.ipc.finished == 100  # before a message goes, and before memory is given back
        pair.carriers._lenders["cuda_ipc"].tidy()
        assert len(pair.carriers._lenders["cuda_ipc"]) == 0


async def test_without_the_handle_cache_each_message_has_memory_of_its_own() -> None:
    async with pairing("cuda_ipc", "cuda_ipc", handles=False) as pair:
        pair.agree()
        for number in range(3):
            assert equal(pair.receive(await pair.pack(content(number))), content(number))
        assert len(pair.ipc.exported) == len(pair.ipc.opened) == 3


async def test_device_memory_is_not_written_while_it_is_lent() -> None:
    async with pairing("cuda_ipc", "cuda_ipc", max_bytes=4 * SMALL) as pair:
        pair.agree()
        parcels = [await pair.pack({"embeds": torch.full((SMALL // 4,), float(number))}) for number in range(4)]
        with pytest.raises(EncoderFailed, match="gave no memory back"):
            await pair.pack({"embeds": torch.zeros(SMALL // 4)}, timeout=0.05)
        for number in (1, 0, 3):
            assert pair.receive(parcels[number])["embeds"][0] == number
        # The gap of two neighbours is one again.
        large = await pair.pack({"embeds": torch.full((SMALL // 2,), 9.0)})
        assert place_of(large).offsets == (0,)
        assert pair.receive(parcels[2])["embeds"][0] == 2


async def test_device_memory_lent_to_one_who_is_gone_rests_before_it_is_written_again() -> None:
    async with pairing("cuda_ipc", "cuda_ipc", max_bytes=SMALL) as pair:
        pair.agree()
        await pair.pack({"embeds": torch.zeros(SMALL // 4)})
        pair.carriers.forget(HERE)
        pair.agree()
        with pytest.raises(EncoderFailed, match="gave no memory back"):
            await pair.pack({"embeds": torch.zeros(SMALL // 4)}, timeout=0.05)


async def test_packing_in_place_looks_at_no_payload() -> None:
    async with pairing() as pair:
        pair.agree()
        placed = header().model_copy(update={"place": place_of(await pair.pack(content()))})
        assert len(pack(placed, content(5))) == 1
        assert pack(placed, content(5)) == pack(placed, content(6))


@asynccontextmanager
async def receiving(pair: Pair, memory: bool = True, max_held: int = 2**30) -> AsyncIterator[Receiver]:
    assembler = cast(Assembler, None)  # nothing gets so far
    metrics, opened = Metrics(), pair.memory if memory else None
    async with Receiver(assembler, "127.0.0.1", 0, 2**20, max_held, metrics, opened) as receiver:
        yield receiver


@pytest.mark.parametrize("known", [True, False])
async def test_memory_of_a_message_that_nobody_waits_for_is_given_back(known: bool) -> None:
    async with pairing() as pair, receiving(pair) as receiver:
        pair.agree()
        parcel = await pair.pack(content())
        with receiver.holding() as holding, receiver.expect("r" if known else "another", 0, [3], holding):
            assert receiver.give(receiver.read([memoryview(frame) for frame in parcel.frames])) is None
        pair.agree()
        assert len(pair.carriers._lenders["shm"]) == 0


async def test_memory_of_a_message_for_one_who_has_left_is_given_back_unopened() -> None:
    async with pairing() as pair, receiving(pair) as receiver:
        pair.agree()
        parcel = await pair.pack(content())
        with receiver.holding() as holding, receiver.expect("r", 0, [0], holding):
            pass
        assert receiver.give(receiver.read([memoryview(frame) for frame in parcel.frames])) is None
        pair.agree()
        assert (len(pair.carriers._lenders["shm"]), len(pair.memory._segments)) == (0, 0)


@pytest.mark.parametrize(("max_held", "error"), [(2**30, None), (SMALL, EngineOverloaded)])
async def test_what_lies_in_memory_counts_as_held_and_too_much_of_it_is_refused_and_given_back(
    max_held: int, error: type[EpdError] | None
) -> None:
    async with pairing() as pair, receiving(pair, max_held=max_held) as receiver:
        pair.agree()
        parcel = await pair.pack(content())
        with receiver.holding() as holding, receiver.expect("r", 0, [0], holding) as wait:
            received = receiver.read([memoryview(frame) for frame in parcel.frames])
            assert received.size == SMALL + 30 + len(parcel.frames[0])
            outcome = receiver.give(received)
            if error is None:
                assert holding.bytes == received.size
            else:
                assert (outcome, type(wait.done.exception())) == (error.code, error)
                pair.agree()
                assert len(pair.carriers._lenders["shm"]) == 0


async def test_frames_beside_a_place_are_corrupt_and_memory_that_is_not_taken_incompatible() -> None:
    async with pairing() as pair, receiving(pair) as receiver, receiving(pair, memory=False) as other:
        pair.agree()
        found = header_of(await pair.pack(content()))
        with pytest.raises(EmbeddingCorrupt, match="lie elsewhere"):
            receiver._assemble(found, [b"frame"])
        with pytest.raises(EmbeddingIncompatible, match="does not take"):
            other._assemble(found, [])


async def test_a_bug_where_an_item_is_handed_on_fails_the_request_at_once() -> None:
    def arrived(index: int, item: object) -> None:
        raise RuntimeError("a bug")

    async with pairing() as pair, receiving(pair) as receiver:
        item = MediaItem("image", 1)
        with receiver.holding() as holding, receiver.expect("r", 0, [0], holding, arrived) as wait:
            assert receiver.give(Received(header(), 1, item)) == "internal_error"
            with pytest.raises(InternalError):
                await wait.done
