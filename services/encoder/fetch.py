"""URLs to bytes: ``data:`` URLs are decoded, ``http`` and ``https`` are fetched, and nothing inside our network is reached."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlsplit

import httpx

from services.encoder.settings import EncoderSettings
from shared.dataurl import decode_data_url, is_data_url
from shared.errors import EncoderOverloaded, InvalidMedia

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_FORBIDDEN = tuple(
    ipaddress.ip_network(network)
    for network in (
        "::/96",  # IPv4-compatible, deprecated
        "64:ff9b:1::/48",  # NAT64 of local use
        "fec0::/10",  # site-local, deprecated
        "192.88.99.0/24",  # relays of 6to4, deprecated
    )
)


# Threads that resolve names. One that a slow name server keeps stays busy after its fetch has ended.
_RESOLVERS = 16
_WAIT = "epd_wait"  # the extension of requests, those after redirects included, that holds their fetch's ``_Wait``


@dataclass(slots=True)
class _Wait:
    """What a fetch found out about waiting: ``starved`` where it ended before a thread was free to resolve its name."""

    starved: bool = False


class Fetcher:
    """Fetches media within the limits of the settings."""

    def __init__(self, settings: EncoderSettings) -> None:
        self._max_bytes = settings.max_media_bytes
        self._timeout = settings.fetch_timeout
        self._client = httpx.AsyncClient(
            transport=_CheckedTransport(settings.allow_private_urls),
            follow_redirects=True,
            max_redirects=settings.fetch_redirects,
            timeout=settings.fetch_timeout,
            trust_env=False,
            # No compression: a few bytes of it can stand for gigabytes.
            headers={"accept": "image/*, */*;q=0.5", "accept-encoding": "identity", "user-agent": "epd-encoder"},
        )

    async def __aenter__(self) -> Fetcher:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await self._client.aclose()

    async def fetch(self, url: str, param: str | None = None) -> bytes:
        """The bytes behind ``url``.

        Raises:
            InvalidMedia: a scheme that is not accepted, an address that is forbidden, an upstream answer other than 200, an
                unreachable host, too many bytes, or too slow.
            EncoderOverloaded: its time ran out before it could begin, since slow names of others kept it waiting.
        """
        if is_data_url(url):
            return await asyncio.to_thread(decode_data_url, url, self._max_bytes, param)
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise InvalidMedia(f"The URL is malformed: {error}.", param=param) from error
        if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
            raise InvalidMedia("The URL is not of http, https or data.", param=param)
        if parts.username or parts.password:
            raise InvalidMedia("The URL carries credentials; those are not sent.", param=param)
        wait = _Wait()
        try:
            async with asyncio.timeout(self._timeout):
                return await self._get(url, param, wait)
        except TimeoutError as error:
            if wait.starved:
                raise EncoderOverloaded(
                    f"The encoder was busy with other names for {self._timeout:g} s.", retry_after=self._timeout
                ) from error
            raise InvalidMedia(f"{parts.hostname} took longer than {self._timeout:g} s.", param=param) from error
        except InvalidMedia as error:
            error.param = error.param or param
            raise
        # A ValueError is about names that cannot be written as such (labels too long, bad punycode).
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise InvalidMedia(f"{parts.hostname} cannot be reached: {error or type(error).__name__}.", param=param) from error

    async def _get(self, url: str, param: str | None, wait: _Wait) -> bytes:
        async with self._client.stream("GET", url, extensions={_WAIT: wait}) as response:
            if response.status_code != httpx.codes.OK:
                raise InvalidMedia(f"The URL answered with HTTP status {response.status_code}.", param=param)
            data = bytearray()
            encoding = response.headers.get("content-encoding", "identity")
            if encoding != "identity":
                raise InvalidMedia(f"The URL answers with the content encoding {encoding}, which is not accepted.", param=param)
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > self._max_bytes:
                    raise InvalidMedia(f"The URL sends more than the {self._max_bytes} bytes that are accepted.", param=param)
            return bytes(data)


class _CheckedTransport(httpx.AsyncBaseTransport):
    """Resolves, checks and pins the address of every request, those after redirects included."""

    def __init__(self, allow_private: bool) -> None:
        self._allow_private = allow_private
        # Not the event loop's own threads, which have other things to do.
        self._resolvers = ThreadPoolExecutor(_RESOLVERS, thread_name_prefix="resolver")
        # Connections are not kept: one that was checked for a host must not serve another that shares its address.
        self._inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None, max_keepalive_connections=0))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        address = await self._resolve(host, port, request.extensions[_WAIT])
        # The Host header and the certificate check keep the name; only the connection goes to the checked address. A new
        # request, since redirects are resolved against the old one's URL.
        pinned = httpx.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        response = await self._inner.handle_async_request(pinned)
        # Requests of different clients must not see each other's cookies.
        response.headers.pop("set-cookie", None)
        return response

    async def _resolve(self, host: str, port: int, wait: _Wait) -> str:
        lookup = self._resolvers.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        try:
            found = await asyncio.wrap_future(lookup)
        except asyncio.CancelledError:
            wait.starved = lookup.cancel()  # only what has not begun can be
            raise
        except (OSError, UnicodeError) as error:
            raise InvalidMedia(f"{host} cannot be resolved.") from error
        addresses = [str(entry[4][0]) for entry in found]
        if not self._allow_private:
            for address in addresses:
                if is_forbidden(address):
                    # Without the address: what internal names resolve to is not the caller's to know.
                    raise InvalidMedia(f"{host} leads to an address that is not public.")
        return addresses[0]

    async def aclose(self) -> None:
        self._resolvers.shutdown(wait=False, cancel_futures=True)
        await self._inner.aclose()


def is_forbidden(address: str) -> bool:
    """Whether an address is anything but public unicast; IPv4 inside IPv6 forms is looked through."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ipaddress.IPv4Address(ip.packed[12:]) if ip in _NAT64 else None)
        if inner is not None:
            return is_forbidden(str(inner))
    return not ip.is_global or ip.is_multicast or any(ip in network for network in _FORBIDDEN)
