"""Where a URL leads. Its host is resolved once and all its addresses are checked; only the first of them is connected to."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from shared.errors import InvalidMedia

_RESOLVERS = 16
"""Threads that resolve names. One that a slow name server keeps stays busy after its fetch has ended."""
_HOST = re.compile(r"[0-9A-Za-z._-]{1,253}|[0-9A-Fa-f:.]{2,45}")
"""Names and addresses, in the ASCII form that goes over the wire: without escapes, and without zones of IPv6."""
_PORTS = frozenset((80, 443, *range(1024, 65536)))
"""Below 1024 listen services of other protocols, to whom a URL could say something: mail, for example."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL = ipaddress.ip_network("2000::/3")
_FORBIDDEN = tuple(
    ipaddress.ip_network(network)
    for network in (
        # What some versions of Python take for public, though it is not, or leads elsewhere.
        "168.63.129.16/32",  # Azure's metadata and agents
        "192.0.0.0/24",  # protocol assignments, Oracle's metadata among them
        "192.88.99.0/24",  # relays of 6to4, deprecated
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, deprecated
        "3fff::/20",  # documentation
    )
)


@dataclass(slots=True)
class Wait:
    """What a fetch found out about waiting: ``starved`` where it ended before a thread was free to resolve its name."""

    starved: bool = False


@dataclass(frozen=True, slots=True)
class Destination:
    """A URL, the name or address in it, and the checked address and port to connect to."""

    url: httpx.URL
    host: str
    address: str
    port: int


class Resolver:
    """Finds destinations, of which ``allow_private`` lets private and loopback addresses pass too."""

    def __init__(self, allow_private: bool) -> None:
        self._allow_private = allow_private
        # Not the event loop's own threads, which have other things to do.
        self._threads = ThreadPoolExecutor(_RESOLVERS, thread_name_prefix="resolver")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def resolve(self, url: httpx.URL, wait: Wait) -> Destination:
        """Where a request to ``url`` goes.

        Raises:
            InvalidMedia: a scheme, host or port that is not accepted, credentials, or an address that is unknown or forbidden.
        """
        if url.scheme not in ("http", "https") or not url.raw_host:
            raise InvalidMedia("The URL is not of http, https or data.")
        if url.userinfo:
            raise InvalidMedia("The URL carries credentials; those are not sent.")
        host = url.raw_host.decode("ascii")
        if not _HOST.fullmatch(host):
            raise InvalidMedia("The host of the URL is neither a name nor an address.")
        port = url.port if url.port is not None else 443 if url.scheme == "https" else 80
        if port not in _PORTS:
            raise InvalidMedia(f"The URL is of port {port}; 80, 443 and those from 1024 on are accepted.")
        return Destination(url, host, await self._address(host, port, wait), port)

    async def _address(self, host: str, port: int, wait: Wait) -> str:
        lookup = self._threads.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        try:
            found = await asyncio.wrap_future(lookup)
        except asyncio.CancelledError:
            wait.starved = lookup.cancel()  # only what has not begun can be
            raise
        except (OSError, UnicodeError):
            found = []
        addresses = [str(entry[4][0]) for entry in found]
        private = not self._allow_private and any(is_forbidden(address) or is_own(address) for address in addresses)
        if private or not addresses:
            # One answer for both: which internal names there are, and where they lead, is not the caller's to know.
            kind = "an address" if self._allow_private else "a public address"
            raise InvalidMedia(f"{host} cannot be resolved to {kind}.")
        return addresses[0]


def is_forbidden(address: str) -> bool:
    """Whether an address is anything but public unicast; IPv4 inside IPv6 forms is looked through."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or (ipaddress.IPv4Address(ip.packed[12:]) if ip in _NAT64 else None)
        if inner is not None:
            return is_forbidden(str(inner))
        if ip not in _GLOBAL:
            return True
    return not ip.is_global or ip.is_multicast or any(ip in network for network in _FORBIDDEN)


def is_own(address: str) -> bool:
    """Whether an address, however public, is one of this machine: what listens there may be guarded from outside only."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # a datagram socket: nothing is sent, the kernel only picks the route
        except OSError:
            return False
        return str(probe.getsockname()[0]) == address
