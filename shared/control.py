"""The control calls between the services, as schemas: ``/encode``, ``/v1/subscribe``, ``/v1/encoders`` and ``/v1/info``."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.identity import Grid, Modality

REQUEST_FIELD = "request"
"""The form field that holds the ``EncodeRequest`` as JSON in a multipart body."""


LOW_DETAIL = "low"
"""The word in an item's ``form`` for a picture that is to be looked at in low detail."""


class _Schema(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EncodeItem(_Schema):
    """One item: a ``url`` (data, http or https), or the name of the multipart ``part`` that has its raw bytes.

    ``param`` is the item's place in the client's request, for error messages. ``content_hash`` is there where the client
    supplied the item's identity, as the language service names it; the encoder then computes none. ``form`` is how the item is
    to be prepared, where there is a choice: words of its family's, or ``LOW_DETAIL``, parted by spaces.
    """

    index: int = Field(ge=0, lt=2**31, description="The item's number in the client's request.")
    modality: Modality = Field("image", description="What it is.")
    url: str | None = Field(None, description="Where it is: a data, http or https URL.")
    part: str | None = Field(None, description="The part of this multipart body that has its raw bytes, instead of a URL.")
    param: str | None = Field(None, description="Its place in the client's request, for error messages.")
    content_hash: str | None = Field(
        default=None, pattern=r"^tenant:[0-9a-f]{32}$", description="Its identity, where the client supplied one."
    )
    form: str = Field(default="", max_length=64, description="How it is to be prepared, in words of its family's.")


class EncodeRequest(_Schema):
    """What to encode, where to send it, and how long it may take.

    ``request_id`` is the client's, a slash, and what makes it unique; it comes back in every message.

    ``num_items`` counts the items of the whole client request, of which ``items`` may be a share. ``timeout`` is what is
    left of the deadline, in seconds. ``token_budget``, where given, is the most tokens that ``items`` together may take.
    """

    request_id: str = Field(min_length=1, max_length=128, description="Comes back in every message.", examples=["req-1/a"])
    attempt: int = Field(default=0, ge=0, lt=2**31, description="The number of this attempt at the client's request.")
    num_items: int = Field(ge=1, lt=2**31, description="Items of the client's request, of which these may be a share.")
    items: tuple[EncodeItem, ...] = Field(min_length=1, description="What to encode.")
    reply_to: str = Field(max_length=512, description="Where embeddings go.", examples=["tcp://127.0.0.1:5557"])
    timeout: float = Field(gt=0, le=3600, description="Seconds that are left of the deadline.", examples=[30.0])
    token_budget: int | None = Field(None, description="The most tokens that the items together may take.")


class ItemMetadata(_Schema):
    """What became of one item. ``timings`` are in seconds by stage."""

    index: int = Field(description="The item's number in the client's request.")
    content_hash: str = Field(description="Its identity.")
    num_tokens: int = Field(description="Rows of its embeddings.")
    grid_thw: Grid | None = Field(description="Its patches in time, height and width, for families with M-RoPE.")
    timings: dict[str, float] = Field(description="Seconds by stage.")


class EncodeResponse(_Schema):
    """All items were published to ``reply_to``."""

    encoder_id: str
    items: tuple[ItemMetadata, ...]


class EncoderState(StrEnum):
    """What an encoder says of itself. ``leaving`` is its last word."""

    READY = "ready"
    DRAINING = "draining"
    LEAVING = "leaving"


Transport = Literal["cpu", "shm", "cuda_ipc"]
"""How tensors cross: as frames of the message, through shared memory, or through memory of the GPU; best last."""


class Memory(_Schema):
    """Anonymous shared memory of a process: whoever runs as the same user on the same host can open ``/proc/<pid>/fd/<fd>``.

    ``name`` is unique among all that the process ever had, and is found there again; ``size`` is in bytes. It lives as long as
    somebody has it open, so that nothing is left of it when its owners have died.
    """

    name: str = Field(pattern=r"^epd-[0-9A-Za-z_-]{1,100}$")
    pid: int = Field(gt=0, lt=2**31)
    fd: int = Field(ge=0, lt=2**31)
    size: int = Field(gt=0)


class Offer(_Schema):
    """What a language service can receive by, besides frames. ``probe`` holds the 32 random bytes ``nonce`` (hex): an encoder
    that can read them there shares host and user. ``devices`` are the UUIDs of GPUs whose memory it can open."""

    probe: Memory
    nonce: str = Field(pattern=r"^[0-9a-f]{64}$")
    devices: tuple[str, ...] = Field(default=(), max_length=64)


class Subscription(_Schema):
    """``POST /v1/subscribe``: asks an encoder for signs of life on the data channel, at ``reply_to``, one every ``interval``
    seconds, the first at once, for ``lease`` seconds from now on. ``curve`` says whether the data channel is encrypted;
    without an ``offer`` tensors come as frames."""

    reply_to: str = Field(max_length=512, description="Where signs of life go.", examples=["tcp://127.0.0.1:5557"])
    interval: float = Field(ge=0.01, le=60, description="Seconds between two of them.", examples=[0.5])
    lease: float = Field(gt=0, le=600, description="Seconds for which they are wanted.", examples=[5.0])
    curve: bool = Field(False, description="Whether the data channel is encrypted.")
    offer: Offer | None = Field(None, description="What the caller can receive by, besides frames.")


class ServiceInfo(BaseModel):
    """``GET /v1/info`` of either service. ``parameters`` counts them by top-level module."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    service: str
    service_id: str
    version: str
    wire_version: int
    model: str
    model_type: str
    model_fingerprint: str
    device: str
    dtype: str
    parameters: dict[str, int]
    parameters_total: int


class EncoderStatus(BaseModel):
    """The answer to a ``Subscription``: what the encoder is, and how busy. ``max_items`` bounds ``items_in_work``;
    ``transport`` is how it will send tensors to that subscriber."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    transport: Transport = "cpu"

    info: ServiceInfo
    state: EncoderState
    items_in_work: int = Field(ge=0)
    max_items: int = Field(gt=0)


class Registration(BaseModel):
    """``POST /v1/encoders``: an encoder announces itself, with its capacity and the base URL that it is reached at.

    It says so again and again; one that falls silent and does not answer is forgotten.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    url: str = Field(max_length=512, description="Base URL that it is reached at.", examples=["http://encoder:8001"])
    info: ServiceInfo = Field(description="What it is.")
    max_items: int = Field(gt=0, description="Items that it takes at once.")


class Registered(BaseModel):
    """The answer to a ``Registration``: a language service with many encoders asks them to say so again less often."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    status: Literal["registered"] = "registered"
    again: float = Field(
        default=0.0, ge=0, le=60, description="Seconds after which, at the earliest, the encoder shall say so again."
    )
