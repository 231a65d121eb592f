"""By which means a message's tensors cross to each language service, and the message that goes with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

import torch

from services.encoder.faults.base import Outgoing
from services.encoder.threads import FairThreads
from services.encoder.transport.cuda_ipc import DeviceBlocks
from services.encoder.transport.lender import Lender, Loan, offsets_of
from services.encoder.transport.shm import SharedBlocks
from shared.control import Offer, Transport
from shared.cuda_ipc import CudaIpc, DeviceIpc
from shared.errors import EncoderFailed
from shared.leases import Ledger
from shared.memory import MemoryUnreachable, Names, check_offer
from shared.residency import Residency
from shared.telemetry import Metrics, get_logger
from shared.wire import Buffer, pack

_log = get_logger("transport")

# Below this, frames of the message are as quick: ZeroMQ copies them, too. In bytes.
SMALL = 64 * 1024
# Up to so many bytes, packing takes less time (some 50 us) than handing it to a thread.
_AT_ONCE = 2**20
_PAUSE = 0.001  # seconds between looks whether a receiver has taken memory over, or given it back


class CarrierSettings(Protocol):
    """The settings that are the transport's."""

    @property
    def max_shared_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message, ready to be sent. ``withdraw`` must be called where it is not."""

    frames: list[Buffer]
    withdraw: Callable[[], None]


class Carriers:
    """Agrees with each language service on the best means that both have, once and not for each message, and packs accordingly.

    What cannot go by the means agreed on goes as frames: what is too small to be worth it, what a fault alters, and, with a
    warning, what is larger than all shared memory.
    """

    def __init__(
        self,
        settings: CarrierSettings,
        residency: Residency,
        encoder_id: str,
        device: torch.device,
        threads: FairThreads,
        metrics: Metrics,
        ipc: DeviceIpc | None = None,
    ) -> None:
        self._best = residency.mm_feature_transport
        self._threads = threads
        self._offers: dict[str, Offer | None] = {}
        self._agreed: dict[str, Transport] = {}
        self._lenders: dict[Transport, Lender] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._own_devices: tuple[str, ...] = ()
        names = Names(encoder_id)
        if self._best != "cpu":
            self._begin("shm", names, lambda: SharedBlocks(names, settings.max_shared_bytes))
        if residency.use_cuda_ipc and "shm" in self._lenders:
            ipc = ipc or CudaIpc()
            if ipc.devices():
                pool = residency.use_ipc_pool_handle_cache
                self._begin("cuda_ipc", names, lambda: DeviceBlocks(ipc, device, settings.max_shared_bytes, pool))
                self._own_devices = (ipc.uuid(device),)
            else:
                _log.warning("there is no GPU whose memory could be shared", transport="cuda_ipc")
        self._sent = metrics.counter(
            "epd_encoder_messages_total", "Embedding messages by the means that their tensors cross by.", "transport"
        )
        metrics.gauge(
            "epd_encoder_shared_bytes", "Bytes of memory to send from that are lent to receivers or free."
        ).set_function(lambda: sum(lender.bytes for lender in self._lenders.values()))
        metrics.gauge("epd_encoder_loans", "Messages whose memory receivers have not given back.").set_function(
            lambda: sum(len(lender) for lender in self._lenders.values())
        )

    def agree(self, endpoint: str, offer: Offer | None) -> Transport:
        """How tensors will cross to ``endpoint``, which says again and again what it offers."""
        for lender in self._lenders.values():
            lender.tidy()
        if endpoint in self._agreed and self._offers[endpoint] == offer:
            return self._agreed[endpoint]
        self.forget(endpoint)  # another process, or one that has changed its mind
        transport, why_not = self._best_for(offer)
        if why_not:
            _log.warning(
                "the best transport cannot be used", endpoint=endpoint, wanted=self._best, used=transport, reason=why_not
            )
        self._offers[endpoint], self._agreed[endpoint] = offer, transport
        return transport

    def forget(self, endpoint: str) -> None:
        """Nobody listens at ``endpoint`` any more."""
        self._offers.pop(endpoint, None)
        self._agreed.pop(endpoint, None)
        for lender in self._lenders.values():
            lender.forget(endpoint)

    def close(self) -> None:
        """Lets go of all memory; receivers keep what they have opened of the host's."""
        for lender in self._lenders.values():
            lender.close()

    async def pack(self, endpoint: str, outgoing: Outgoing, timeout: float) -> Parcel:
        """The message, its tensors where they are to be.

        Raises:
            EncoderFailed: receivers gave no memory back for ``timeout`` seconds.
        """
        transport = self._agreed.get(endpoint, "cpu")
        lender = self._lenders.get(transport)
        _, size = offsets_of(outgoing.tensors)
        if lender is not None and size >= SMALL and not outgoing.manglers:
            try:
                parcel = await self._place(lender, endpoint, outgoing, size, timeout)
                self._sent.labels(transport).inc()
                return parcel
            except (OSError, ValueError) as error:
                _log.warning("message goes as frames", endpoint=endpoint, reason=str(error))
        self._sent.labels("cpu").inc()
        if size <= _AT_ONCE and not outgoing.manglers and all(tensor.is_cpu for tensor in outgoing.tensors.values()):
            return Parcel(_as_frames(outgoing), _nothing)
        return Parcel(await self._threads.at_once(_as_frames, outgoing), _nothing)

    def _begin(self, transport: Transport, names: Names, blocks: Callable[[], SharedBlocks | DeviceBlocks]) -> None:
        try:
            self._lenders[transport] = Lender(Ledger(names.next()), blocks())
        except (OSError, RuntimeError) as error:
            _log.warning("there is no such memory here", transport=transport, reason=str(error))

    def _best_for(self, offer: Offer | None) -> tuple[Transport, str]:
        """The best means for one peer, and why none that is better."""
        if self._best == "cpu":
            return "cpu", ""
        if "shm" not in self._lenders:
            return "cpu", "this encoder has no shared memory"
        if offer is None:
            return "cpu", "the language service takes frames only"
        try:
            check_offer(offer)
        except MemoryUnreachable as error:
            return "cpu", f"the two do not share host and user ({error})"
        if self._best == "shm":
            return "shm", ""
        if "cuda_ipc" not in self._lenders:
            return "shm", "this encoder has no GPU memory to share"
        if not set(self._own_devices) & set(offer.devices):
            return "shm", "the language service cannot open the memory of this encoder's GPU"
        return "cuda_ipc", ""

    async def _place(self, lender: Lender, endpoint: str, outgoing: Outgoing, size: int, timeout: float) -> Parcel:
        try:
            # In turn, so that of those who wait for one receiver only one has to look again and again.
            async with asyncio.timeout(timeout), self._turns.setdefault(endpoint, asyncio.Lock()):
                while (loan := lender.lend(endpoint, size)) is None:  # noqa: ASYNC110  # no event: words in memory
                    await asyncio.sleep(_PAUSE)
        except TimeoutError as error:
            raise EncoderFailed(f"Receivers gave no memory back within {timeout:g} s.") from error
        try:
            frames = await self._threads.at_once(_placed, outgoing, loan)
        except BaseException as error:
            # A thread goes on writing after its caller was cancelled.
            lender.withdraw(loan, written=isinstance(error, Exception))
            raise
        return Parcel(frames, lambda: lender.withdraw(loan))


def _placed(outgoing: Outgoing, loan: Loan) -> list[Buffer]:
    header = outgoing.header.model_copy(update={"place": loan.place(outgoing.tensors)})
    return pack(header, outgoing.tensors)


def _as_frames(outgoing: Outgoing) -> list[Buffer]:
    """The frames of a message, as faults leave them."""
    frames = pack(outgoing.header, outgoing.tensors)
    for mangle in outgoing.manglers:
        frames = mangle(frames)
    return frames


def _nothing() -> None:
    pass
