"""The messages of the data channel: schema, framing and verification. No sockets here.

One multipart message an item: frame 0 is the header as JSON, then one frame a tensor with its raw little-endian bytes. Where
the tensors lie in memory that both ends share, the header says where instead, and there are no such frames. A message that
reports a failure has a header only, and so has a heartbeat. Nothing is ever unpickled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import torch
import xxhash
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
from torch import Tensor

from shared.control import EncoderState, Memory
from shared.errors import EmbeddingCorrupt, EmbeddingIncompatible
from shared.identity import Grid, Modality
from shared.layout import Layout

VERSION = 4
MAX_HEADER_BYTES = 256 * 1024
MAX_TENSORS = 64
_DIGEST = re.compile(rb'("digest":\s*")[0-9a-f]{32}(")')

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
"""Dtypes that may cross the wire, by name. Receivers convert among them; others are refused."""

DTYPE_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}
"""The same the other way round."""

Buffer: TypeAlias = Any
"""Anything with the buffer protocol: bytes, memoryview, a received frame's buffer."""


Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]
"""A number of things, or one's place among them."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class _AnyVersion(BaseModel):
    """What a header of any protocol version has, so that a foreign one can be refused by name."""

    model_config = ConfigDict(strict=True, extra="ignore")

    version: int
    kind: str = "item"
    request_id: str = ""
    attempt: int = 0
    item: int = 0


class TensorSpec(_Strict):
    """Name, dtype and shape of one tensor frame."""

    name: str = Field(max_length=64)
    dtype: str
    shape: tuple[Annotated[int, Field(lt=2**63)], ...] = Field(max_length=8)


class ItemFailure(_Strict):
    """Why an item has no embeddings: a code of ``shared.errors`` and its message."""

    code: str
    message: str


class Lease(_Strict):
    """How the receiver says that it needs shared memory no more: by the word ``slot`` of the sender's ``ledger``, for the
    ``generation`` it was sent as (``shared/leases.py``)."""

    ledger: Memory
    slot: int = Field(ge=0)
    generation: int = Field(ge=1, lt=2**61)


class SharedMemory(_Strict):
    """Tensors that lie in memory of the host, each at its offset in bytes."""

    transport: Literal["shm"] = "shm"
    segment: Memory
    offsets: tuple[int, ...] = Field(max_length=MAX_TENSORS)
    lease: Lease


class DeviceMemory(_Strict):
    """Tensors that lie in memory of a GPU, each at its offset in bytes from where ``handle`` leads.

    ``handle`` is what CUDA's interprocess communication needs: see ``shared/cuda_ipc.py``.
    """

    transport: Literal["cuda_ipc"] = "cuda_ipc"
    device: str = Field(max_length=64)
    handle: str = Field(max_length=4096)
    size: int = Field(gt=0)
    offsets: tuple[int, ...] = Field(max_length=MAX_TENSORS)
    lease: Lease


Place: TypeAlias = Annotated[SharedMemory | DeviceMemory, Field(discriminator="transport")]
"""Where tensors lie that are not frames of the message."""


class Header(_Strict):
    """Frame 0. ``tensors`` lists what there is, ``embeds`` first: frames that follow, or parts of the memory at ``place``.
    ``layout`` and ``seconds_per_grid`` are what ``MediaItem`` says. ``timings`` are in seconds by stage."""

    version: int = VERSION
    kind: Literal["item"] = "item"
    request_id: str = Field(max_length=128)
    attempt: Count
    item: Count
    num_items: int = Field(ge=1, lt=2**31)
    modality: Modality
    content_hash: str = Field(max_length=128)
    num_tokens: Count
    grid_thw: Grid | None = None
    seconds_per_grid: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    layout: Layout | None = None
    tensors: tuple[TensorSpec, ...] = Field(default=(), max_length=MAX_TENSORS)
    place: Place | None = None
    digest: str = ""
    model_fingerprint: str
    encoder_id: str
    timings: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict, max_length=64)
    failure: ItemFailure | None = None

    _raw: bytes = PrivateAttr(default=b"")  # as it came, which is what the digest covers


class Heartbeat(_Strict):
    """A sign of life: the encoder's event loop turns, and what it sends arrives. ``items_in_work`` and ``max_items`` tell its
    load."""

    version: int = VERSION
    kind: Literal["heartbeat"] = "heartbeat"
    encoder_id: str = Field(max_length=128)
    # Strict models take no string for an enumeration, but JSON has nothing else.
    state: EncoderState = Field(strict=False)
    items_in_work: Count
    max_items: int = Field(gt=0, lt=2**31)


@dataclass(frozen=True, slots=True)
class Message:
    """A verified message: its header and its tensors by name (views of what was received, not copies)."""

    header: Header
    tensors: dict[str, Tensor]


def pack(header: Header, tensors: Mapping[str, Tensor]) -> list[Buffer]:
    """The frames of a message. Fills in ``tensors`` and ``digest``; contiguous CPU tensors are not copied. Where the header
    has a ``place``, the tensors are there already, and their bytes are not looked at.

    Raises:
        ValueError: a dtype that may not cross the wire.
    """
    specs = []
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPE_NAMES:
            raise ValueError(f"tensor {name} is {tensor.dtype}; only {', '.join(DTYPES)} cross the wire")
        specs.append(TensorSpec(name=name, dtype=DTYPE_NAMES[tensor.dtype], shape=tuple(tensor.shape)))
    frames = [] if header.place else [frame_of(tensor) for tensor in tensors.values()]
    raw = header.model_copy(update={"tensors": tuple(specs), "digest": ""}).model_dump_json().encode()
    return [raw.replace(b'"digest":""', b'"digest":"%b"' % digest_of(raw, frames).encode(), 1), *frames]


def frame_of(tensor: Tensor) -> Buffer:
    """The raw bytes of a tensor; a view, not a copy, of one that is contiguous on the CPU."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def digest_of(raw: bytes, frames: Sequence[Buffer]) -> str:
    """XXH3-128 over the bytes of a header whose digest is empty and those of all tensor frames: it catches corruption in
    flight, also of what says whose the tensors are; it authenticates nobody."""
    digest = xxhash.xxh3_128(raw)
    for frame in frames:
        digest.update(frame)
    return digest.hexdigest()


def read_header(frame: Buffer) -> Header | Heartbeat:
    """The header of a message, or all of a heartbeat.

    Raises:
        EmbeddingCorrupt: not a header at all; it cannot be told whose it is.
        ForeignVersion: a header of another protocol version.
    """
    if memoryview(frame).nbytes > MAX_HEADER_BYTES:
        raise EmbeddingCorrupt("The header frame is too large.")
    raw = bytes(frame)
    try:
        known = _AnyVersion.model_validate_json(raw)
        if known.version != VERSION:
            raise ForeignVersion(known.request_id, known.attempt, known.item, known.version)
        if known.kind == "heartbeat":
            return Heartbeat.model_validate_json(raw)
        header = Header.model_validate_json(raw)
    except ValidationError as error:
        raise EmbeddingCorrupt(f"The header does not follow the schema: {error.errors()[0]['msg']}.") from error
    header._raw = raw
    return header


class ForeignVersion(EmbeddingIncompatible):
    """A header of another protocol version, with what is needed to find the request it belongs to."""

    def __init__(self, request_id: str, attempt: int, item: int, version: int) -> None:
        super().__init__(f"The encoder speaks version {version} of the wire protocol; this service speaks {VERSION}.")
        self.request_id, self.attempt, self.item = request_id, attempt, item


def read_tensors(header: Header, parts: Sequence[Buffer | Tensor]) -> Message:
    """Checks framing and digest and views the parts as tensors. The header must have come by ``read_header``.

    ``parts`` are the frames of the message, or what lies at the header's ``place``, ``(bytes,)`` uint8 where that is on a
    device. The digest then covers the header only: what was never in flight cannot be corrupted there.

    Raises:
        EmbeddingCorrupt: a frame is missing, has another size than its shape, or the digest is wrong.
        EmbeddingIncompatible: a dtype that may not cross the wire.
    """
    if len(parts) != len(header.tensors):
        raise EmbeddingCorrupt(f"{len(parts)} tensor frames came where the header lists {len(header.tensors)}.")
    if len({spec.name for spec in header.tensors}) < len(header.tensors):
        raise EmbeddingCorrupt("Two tensors have the same name.")
    for spec, part in zip(header.tensors, parts, strict=True):
        if bytes_of(spec) != (part.nbytes if isinstance(part, Tensor) else memoryview(part).nbytes):
            raise EmbeddingCorrupt(f"The frame of {spec.name} does not have the size of its shape {spec.shape}.")
    if digest_of(_DIGEST.sub(rb"\1\2", header._raw, count=1), () if header.place else parts) != header.digest:
        raise EmbeddingCorrupt("The digest of the message is wrong.")
    return Message(header, {spec.name: _viewed(spec, part) for spec, part in zip(header.tensors, parts, strict=True)})


def bytes_of(spec: TensorSpec) -> int:
    """What a tensor takes.

    Raises:
        EmbeddingCorrupt: a size below 1; no item has such tensors.
        EmbeddingIncompatible: a dtype that may not cross the wire.
    """
    dtype = DTYPES.get(spec.dtype)
    if dtype is None:
        raise EmbeddingIncompatible(f"Tensor {spec.name} is {spec.dtype}; only {', '.join(DTYPES)} are accepted.")
    if any(size < 1 for size in spec.shape):
        raise EmbeddingCorrupt(f"Tensor {spec.name} has a size below 1.")
    return math.prod(spec.shape) * dtype.itemsize


def _viewed(spec: TensorSpec, part: Buffer | Tensor) -> Tensor:
    dtype = DTYPES[spec.dtype]
    if isinstance(part, Tensor):
        return part.view(dtype).view(spec.shape)
    return torch.frombuffer(part, dtype=dtype).view(spec.shape)
