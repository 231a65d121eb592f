"""Embeddings that lie in memory which an encoder shares: opened, and given back when nobody needs them any more."""

from __future__ import annotations

import mmap
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from shared.control import Memory, Offer
from shared.cuda_ipc import CudaIpc, DeviceIpc
from shared.errors import EmbeddingCorrupt, EncoderFailed
from shared.leases import LedgerView
from shared.lru import ByteLRU
from shared.memory import MemoryUnreachable, Probe, attach, is_there
from shared.residency import Residency
from shared.telemetry import get_logger
from shared.wire import Buffer, DeviceMemory, Header, Lease, Place, SharedMemory, bytes_of

_log = get_logger("memory")

T = TypeVar("T")


class OpenMemory:
    """What this service has open of the memory of encoders; methods may be called from any thread.

    Segments and pools that encoders use again are opened once: ``max_bytes`` of them, the least recently used closed first.
    """

    def __init__(self, residency: Residency, owner: str, max_bytes: int, ipc: DeviceIpc | None = None) -> None:
        self._ipc = ipc or CudaIpc()
        self._devices = self._ipc.devices() if residency.use_cuda_ipc else ()
        self._keep_pools = residency.use_ipc_pool_handle_cache
        self._lock = threading.Lock()
        self._segments: ByteLRU[Memory, mmap.mmap] = ByteLRU(max_bytes)
        self._pools: ByteLRU[tuple[Memory, str], Tensor] = ByteLRU(max_bytes)
        self._ledgers: ByteLRU[Memory, LedgerView] = ByteLRU(max_bytes)
        self._unreachable: set[str] = set()
        self._probe: Probe | None = None
        if residency.mm_feature_transport != "cpu":
            try:
                self._probe = Probe(owner)
            except OSError as error:
                _log.warning("no shared memory here; embeddings come as frames", reason=str(error))

    def close(self) -> None:
        """Offers nothing any more."""
        if self._probe is not None:
            self._probe.close()

    def offer(self, encoder_id: str | None) -> Offer | None:
        """What an encoder can send by, besides frames; None for nothing, as for one whose memory could not be opened."""
        if self._probe is None or encoder_id in self._unreachable:
            return None
        return self._probe.offer(self._devices)

    def open(self, header: Header, place: Place) -> list[Buffer | Tensor]:
        """The bytes of each tensor of a message, in order. Memory of the host counts as in use until the last of them is gone;
        that of a GPU is copied there.

        Raises:
            EncoderFailed: the memory cannot be opened. From now on that encoder is offered frames only.
            EmbeddingCorrupt: a tensor is not within the memory.
            EmbeddingIncompatible: a dtype that may not cross the wire.
        """
        try:
            ledger = self._ledger(place.lease.ledger)
            # Opened before it counts as taken: from then on the encoder may leave it to this service, and close it.
            try:
                segment = self._segment(place.segment) if isinstance(place, SharedMemory) else None
            except MemoryUnreachable:
                ledger.decline(place.lease)
                raise
            ledger.take(place.lease)
            try:
                spans = _spans(header, place)
                if isinstance(place, DeviceMemory):
                    return self._copied(place, spans, ledger)
                assert segment is not None
                return _lent(segment, spans, ledger, place.lease)
            except BaseException:
                ledger.give_back(place.lease)
                raise
        except MemoryUnreachable as error:
            self._unreachable.add(header.encoder_id)
            text = f"The memory that the encoder shares cannot be opened: {error}."
            _log.warning("encoder is asked for frames from now on", encoder_id=header.encoder_id, reason=text)
            raise EncoderFailed(text) from error

    def give_back(self, place: Place) -> None:
        """The memory of a message that nobody wants. It stays with whom it is lent to where this one came twice."""
        try:
            self._ledger(place.lease.ledger).decline(place.lease)
        except MemoryUnreachable:
            return  # then nobody waits for it either

    def tidy(self, encoder_id: str) -> None:
        """Closes segments that an encoder has let go of, so that they take no memory when no item is in them any more. To be
        called now and then; looks at each one, so not for the event loop."""
        with self._lock:
            known = [memory for memory in self._segments if _is_of(memory, encoder_id)]
        gone = {memory for memory in known if not is_there(memory)}
        with self._lock:
            self._segments.discard_all(lambda memory: memory in gone)

    def forget(self, encoder_id: str) -> None:
        """An encoder is gone, and so is the memory that it shared, once nobody has it open."""
        with self._lock:
            for opened in (self._segments, self._ledgers):
                opened.discard_all(lambda memory: _is_of(memory, encoder_id))
            self._pools.discard_all(lambda pool: _is_of(pool[0], encoder_id))
            self._unreachable.discard(encoder_id)

    def _ledger(self, memory: Memory) -> LedgerView:
        return self._opened(self._ledgers, memory, LedgerView)

    def _segment(self, memory: Memory) -> mmap.mmap:
        return self._opened(self._segments, memory, attach)

    def _opened(self, known: ByteLRU[Memory, T], memory: Memory, open_it: Callable[[Memory], T]) -> T:
        """What is open already, or is opened now."""
        with self._lock:
            found = known.get(memory)
            if found is None:
                found = open_it(memory)
                known.put(memory, found, memory.size)
            return found

    def _pool(self, place: DeviceMemory) -> Tensor:
        with self._lock:
            key = place.lease.ledger, place.handle
            pool = self._pools.get(key)
            if pool is None:
                pool = self._ipc.open(place.handle, place.device, place.size)
                if self._keep_pools:
                    self._pools.put(key, pool, place.size)
            return pool

    def _copied(self, place: DeviceMemory, spans: list[tuple[int, int]], ledger: LedgerView) -> list[Buffer | Tensor]:
        pool = self._pool(place)
        parts: list[Buffer | Tensor] = [pool[begin:end].clone() for begin, end in spans]
        self._ipc.finish(pool.device)
        ledger.give_back(place.lease)
        return parts


def _is_of(memory: Memory, encoder_id: str) -> bool:
    """Whether an encoder has named it."""
    return memory.name.startswith(f"epd-{encoder_id}-")


def _spans(header: Header, place: Place) -> list[tuple[int, int]]:
    """Where each tensor begins and ends.

    Raises:
        EmbeddingCorrupt: not within the memory, or not one place for each tensor.
        EmbeddingIncompatible: a dtype that may not cross the wire.
    """
    size = place.segment.size if isinstance(place, SharedMemory) else place.size
    if len(place.offsets) != len(header.tensors):
        raise EmbeddingCorrupt(f"The header lists {len(header.tensors)} tensors, and places for {len(place.offsets)}.")
    spans = [(offset, offset + bytes_of(spec)) for offset, spec in zip(place.offsets, header.tensors, strict=True)]
    if any(begin < 0 or end > size for begin, end in spans):
        raise EmbeddingCorrupt(f"A tensor is not within the {size} bytes that it is said to be in.")
    return spans


def _lent(segment: mmap.mmap, spans: list[tuple[int, int]], ledger: LedgerView, lease: Lease) -> list[Buffer | Tensor]:
    """Views of a segment. The last of them to go, with all tensors made of them, gives the memory back."""
    whole = memoryview(segment)
    parts: list[Buffer | Tensor] = [whole[begin:end] for begin, end in spans]
    # Counts down; as a single step, since parts may go in any thread, and within whatever it is doing.
    left = iter(reversed(range(len(parts))))

    def gone() -> None:
        if next(left) == 0:
            ledger.give_back(lease)

    for part in parts:
        weakref.finalize(part, gone).atexit = False
    if not parts:
        ledger.give_back(lease)
    return parts
