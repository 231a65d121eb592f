"""The control calls: ask one encoder for embeddings or for signs of life, and say what its answer means."""

from __future__ import annotations

import io
import re
import socket
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import aiohttp
from pydantic import ValidationError

from services.language.prompt.conversation import MediaSource
from shared.addresses import bracketed, host_towards, is_wildcard
from shared.control import REQUEST_FIELD, EncodeItem, EncodeRequest, EncodeResponse, EncoderStatus, Subscription
from shared.errors import (
    ClientError,
    EmbeddingTimeout,
    EncoderFailed,
    EncoderOverloaded,
    EncoderUnavailable,
    EpdError,
    InvalidMedia,
    from_body,
)
from shared.http import REQUEST_ID_HEADER
from shared.seam import LOOPBACK, Seam

_JSON = {"content-type": "application/json"}
_MAX_ANSWER = 2**20


class ConnectionBroke(EncoderFailed):
    """There is no encoder at the other end, or no longer; unlike one that answers with a failure, which may be one item's."""


class Refused(EncoderFailed):
    """The encoder does not serve this service, and will not until one of both is started with other settings."""


class Dispatcher:
    """Raw media travel as multipart parts, URLs as URLs. ``subscribe_timeout`` is in seconds."""

    def __init__(self, client: aiohttp.ClientSession, subscribe_timeout: float) -> None:
        self._client = client
        self._subscribe_timeout = aiohttp.ClientTimeout(subscribe_timeout)

    async def subscribe(self, base_url: str, subscription: Subscription) -> EncoderStatus:
        """Asks for signs of life; returns what the encoder is.

        Raises:
            ConnectionBroke: nothing is there.
            Refused: it does not know this service, or cannot talk to it.
            EncoderFailed: what is there is slow to answer, or no encoder.
        """
        try:
            async with self._client.post(
                f"{base_url}/v1/subscribe",
                data=subscription.model_dump_json(),
                headers=_JSON,
                timeout=self._subscribe_timeout,
                allow_redirects=False,
            ) as response:
                content = await content_of(response)
                if response.status == HTTPStatus.BAD_REQUEST:
                    raise Refused(f"it refuses this service: {_told(content)}")
                response.raise_for_status()
                return EncoderStatus.model_validate_json(content)
        except Refused:
            raise
        except TimeoutError as error:
            raise EncoderFailed("it does not answer in time") from error
        except aiohttp.ClientResponseError as error:
            raise EncoderFailed(f"it answers with HTTP status {error.status}") from error
        except ValidationError as error:
            raise EncoderFailed("what answers there is not an encoder") from error
        except Exception as error:
            raise ConnectionBroke(f"it cannot be reached ({type(error).__name__})") from error

    async def encode(
        self, base_url: str, call: EncodeRequest, media: Sequence[MediaSource], forwarded: Mapping[str, str]
    ) -> EncodeResponse:
        """Returns when the encoder has published all items. The caller bounds the time; ``forwarded`` are headers.

        Raises:
            InvalidMedia, InvalidRequest: the client's media is at fault.
            EncoderOverloaded: the encoder refused for load.
            EncoderUnavailable: it is draining.
            EncoderFailed: the connection broke, or the encoder failed or answered nonsense.
            EmbeddingTimeout: the time in ``call`` ran out, by the encoder's clock.
        """
        headers = {**forwarded, REQUEST_ID_HEADER: call.request_id.partition("/")[0]}
        try:
            async with self._client.post(
                f"{base_url}/encode", data=body_of(call, media), headers=headers, allow_redirects=False
            ) as response:
                status, told = response.status, response.headers.get("retry-after")
                content = await content_of(response)
        except Exception as error:
            # Not aiohttp.ClientError only: what lies beneath it raises other things when a peer dies while it is connected to.
            raise ConnectionBroke(f"The connection to the encoder at {base_url} broke ({type(error).__name__}).") from error
        if status == HTTPStatus.OK:
            try:
                return EncodeResponse.model_validate_json(content)
            except ValidationError as error:
                raise EncoderFailed(f"The encoder at {base_url} answered with an unknown body.") from error
        raise meaning_of(status, content, told, base_url)


async def content_of(response: aiohttp.ClientResponse) -> bytes:
    """The body of an answer. Of one that is longer than any of an encoder's, only so much that it makes no sense."""
    content = bytearray()
    while len(content) <= _MAX_ANSWER and (piece := await response.content.readany()):
        content += piece
    return bytes(content)


def open_client(seam: Seam = LOOPBACK) -> aiohttp.ClientSession:
    """A client for the encoders: as many connections as there are calls, each of which may take as long as its caller waits."""
    # Names are resolved again after a second: an encoder that comes back may have another address.
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=1, force_close=False, socket_factory=_socket)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=None)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=seam.headers())


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """One for an address as ``getaddrinfo`` gives it. A connection that is kept for the next call must not outlive what it
    leads to: after a network was cut, or an address has moved, it would swallow that call and leave it unanswered."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 2)):
        if hasattr(socket, name):  # not on every system
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def body_of(call: EncodeRequest, media: Sequence[MediaSource]) -> aiohttp.FormData:
    """The multipart body of a call: the call itself as JSON, and the bytes of those pictures that came with the request."""
    form = aiohttp.FormData(default_to_multipart=True)
    form.add_field(REQUEST_FIELD, call.model_dump_json())
    for source in media:
        if source.data is not None:
            name = part_name(source)
            form.add_field(name, io.BytesIO(source.data), filename=name, content_type="application/octet-stream")
    return form


def part_name(source: MediaSource) -> str:
    """The name of the multipart part that has a picture's raw bytes."""
    return f"item-{source.index}"


def item_of(source: MediaSource) -> EncodeItem:
    """What the encoder is told about an item."""
    return EncodeItem(
        index=source.index,
        modality=source.modality,
        url=source.url,
        part=None if source.data is None else part_name(source),
        param=source.param,
        content_hash=source.supplied,
        form=source.form,
    )


def meaning_of(status: int, body: bytes, retry_after: str | None, base_url: str) -> EpdError:
    """The failure that an encoder's answer stands for: the client's stays the client's, everything else is the encoder's."""
    told = from_body(body)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        if isinstance(told, EmbeddingTimeout | EncoderUnavailable):
            return told
        if isinstance(told, EncoderOverloaded) or told is None:
            text = told.message if told else f"The encoder at {base_url} refused for load."
            return EncoderOverloaded(text, retry_after=seconds_of(retry_after))
        return EncoderFailed(f"The encoder at {base_url} failed: {told.message}")
    # Only what the client sent is the client's fault; a call that we made wrongly is not.
    if isinstance(told, ClientError) and status in (400, 413, 415) and (told.param or "").startswith("messages"):
        return told
    if status in (413, 415):
        return InvalidMedia(f"The encoder refused the media with HTTP status {status}.")
    detail = f": {told.message}" if told else ""
    return EncoderFailed(f"The encoder at {base_url} answered with HTTP status {status}{detail}")


def _told(body: bytes) -> str:
    """What an error's body says."""
    told = from_body(body)
    return "it does not say why" if told is None else told.message


def seconds_of(retry_after: str | None) -> float | None:
    """The seconds in a ``Retry-After`` header, if it is a sane number of them."""
    return float(retry_after) if retry_after and re.fullmatch(r"[0-9]{1,5}", retry_after) else None


def reply_address(base_url: str, bound_host: str, port: int, advertised: str | None) -> str:
    """Where the encoder at ``base_url`` shall send embeddings: never an address that is only good for listening.

    Without a configured address, a wildcard becomes the local address that routes to the encoder.

    Raises:
        EncoderFailed: the encoder's host has no route.
    """
    host = advertised or bound_host
    if is_wildcard(host):
        try:
            host = host_towards(base_url)
        except OSError as error:
            raise EncoderFailed(f"The encoder at {base_url} cannot be resolved or has no route ({error}).") from error
    return f"tcp://{bracketed(host)}:{port}"
