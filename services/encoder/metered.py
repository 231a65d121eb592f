"""A connection on which little may come that is not the picture, however many pieces it comes in."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any

import httpcore

from shared.errors import InvalidMedia

_AT_ONCE = 8192
"""Bytes of one read: so few that parsing them holds the event loop for a moment only."""
_OVERHEAD = 2**16
"""Bytes that may come beside the picture, and a quarter of the picture's: heads, those of interim answers, frames of chunks."""


class Meter(httpcore.AsyncNetworkBackend):
    """Opens and meters one connection. ``used`` are the bytes of the picture that came by it."""

    def __init__(self) -> None:
        self._backend = httpcore.AnyIOBackend()
        self._came = 0
        self.used = 0

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _Metered(await self._backend.connect_tcp(host, port, timeout, local_address, socket_options), self)

    async def read(self, stream: httpcore.AsyncNetworkStream, max_bytes: int, timeout: float | None) -> bytes:
        """The next bytes of ``stream``.

        Raises:
            InvalidMedia: too many of those before were no picture.
        """
        if self._came - self.used > _OVERHEAD + self.used // 4:
            raise InvalidMedia(f"The URL sends {self._came - self.used} bytes around {self.used} of a picture.")
        data = await stream.read(min(max_bytes, _AT_ONCE), timeout)
        self._came += len(data)
        return data


class _Metered(httpcore.AsyncNetworkStream):
    """A stream that is read through its ``Meter``."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, meter: Meter) -> None:
        self._stream = stream
        self._meter = meter

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._meter.read(self._stream, max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _Metered(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._meter)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
