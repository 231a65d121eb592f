"""URLs to bytes: ``data:`` URLs are decoded, ``http`` and ``https`` are fetched, and nothing inside our network is reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

import httpcore
import httpx

from services.encoder.destination import Destination, Resolver, Wait
from services.encoder.metered import Meter
from services.encoder.settings import EncoderSettings
from shared.dataurl import decode_data_url, is_data_url
from shared.errors import EncoderOverloaded, InvalidMedia

_MAX_URL = 8192
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
# No compression: a few bytes of it can stand for gigabytes. Cookies and credentials there are none.
_HEADERS = (
    (b"accept", b"image/*, */*;q=0.5"),
    (b"accept-encoding", b"identity"),
    (b"user-agent", b"epd-encoder"),
    (b"connection", b"close"),
)
_FAILURES = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    httpx.InvalidURL,
    ValueError,  # a redirect to something that is no URL
)


class Fetcher:
    """Fetches media within the limits of the settings."""

    def __init__(self, settings: EncoderSettings) -> None:
        self._max_bytes = settings.max_media_bytes
        self._timeout = settings.fetch_timeout
        self._redirects = settings.fetch_redirects
        self._resolver = Resolver(settings.allow_private_urls)
        self._tls = httpx.create_ssl_context()

    async def __aenter__(self) -> Fetcher:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._resolver.close()

    async def fetch(self, url: str, param: str | None = None) -> bytes:
        """The bytes behind ``url``.

        Raises:
            InvalidMedia: a scheme that is not accepted, an address that is forbidden, an upstream answer other than 200, an
                unreachable host, too many bytes, or too slow.
            EncoderOverloaded: its time ran out before it could begin, since slow names of others kept it waiting.
        """
        if is_data_url(url):
            return await asyncio.to_thread(decode_data_url, url, self._max_bytes, param)
        if len(url) > _MAX_URL:
            raise InvalidMedia(f"The URL has {len(url)} characters; at most {_MAX_URL} are accepted.", param=param)
        try:
            target = httpx.URL(url)
        except (httpx.InvalidURL, ValueError) as error:
            raise InvalidMedia(f"The URL is malformed: {error}.", param=param) from error
        host, wait = target.raw_host.decode("ascii"), Wait()
        try:
            async with asyncio.timeout(self._timeout):
                return await self._get(target, wait)
        except TimeoutError as error:
            if wait.starved:
                raise EncoderOverloaded(
                    f"The encoder was busy with other names for {self._timeout:g} s.", retry_after=self._timeout
                ) from error
            raise InvalidMedia(f"{host} took longer than {self._timeout:g} s.", param=param) from error
        except InvalidMedia as error:
            error.param = error.param or param
            raise
        except _FAILURES as error:
            raise InvalidMedia(f"{host} cannot be reached: {error or type(error).__name__}.", param=param) from error

    async def _get(self, target: httpx.URL, wait: Wait) -> bytes:
        for _ in range(self._redirects + 1):
            destination = await self._resolver.resolve(target, wait)
            async with self._answer(destination) as (response, meter):
                headers = httpx.Headers(response.headers)
                if response.status not in _REDIRECTS or "location" not in headers:
                    return await self._read(response, headers, meter)
                target = target.join(headers["location"])
        raise InvalidMedia(f"The URL redirects more than {self._redirects} times.")

    @asynccontextmanager
    async def _answer(self, destination: Destination) -> AsyncIterator[tuple[httpcore.Response, Meter]]:
        """The answer to a request on a connection of its own, which serves no other.

        The Host header and the check of certificates keep the name; the connection goes to the checked address.
        """
        url, address, meter = destination.url, destination.address.encode(), Meter()
        scheme = url.raw_scheme
        async with (
            httpcore.AsyncHTTPConnection(
                httpcore.Origin(scheme, address, destination.port), self._tls, network_backend=meter
            ) as connection,
            connection.stream(
                "GET",
                httpcore.URL(scheme=scheme, host=address, port=destination.port, target=url.raw_path),
                headers=[(b"host", url.netloc), *_HEADERS],
                extensions={"sni_hostname": destination.host.rstrip(".")},
            ) as response,
        ):
            yield response, meter

    async def _read(self, response: httpcore.Response, headers: httpx.Headers, meter: Meter) -> bytes:
        if response.status != httpx.codes.OK:
            raise InvalidMedia(f"The URL answered with HTTP status {response.status}.")
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity":
            raise InvalidMedia(f"The URL answers with the content encoding {encoding}, which is not accepted.")
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            raise InvalidMedia(f"The URL has {declared} bytes; at most {self._max_bytes} are accepted.")
        data = bytearray()
        async for piece in response.aiter_stream():
            data += piece
            meter.used = len(data)
            if len(data) > self._max_bytes:
                raise InvalidMedia(f"The URL sends more than the {self._max_bytes} bytes that are accepted.")
        return bytes(data)
