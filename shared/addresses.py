"""Addresses that one service tells the other: never one that is only good for listening."""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import urlsplit

_ENDPOINT = re.compile(r"tcp://(?P<host>\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})")


def is_wildcard(host: str | None) -> bool:
    """Whether ``host`` stands for all addresses of a machine, and so for none that a peer could send to.

    However it is spelled: name resolution also takes ``0``, ``0.0``, ``00.0.0.0``, ``0x0``, ``::0`` and ``::ffff:0.0.0.0``.
    """
    ip = _ip_of(host or "")
    return (host or "").strip("[]") in ("", "*") if ip is None else ip.is_unspecified


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``: a loopback address, however it is spelled, or ``localhost``."""
    ip = _ip_of(host)
    return host.lower() == "localhost" if ip is None else ip.is_loopback


def _ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that ``host`` spells; None for a name."""
    bare = host.strip("[]").partition("%")[0]
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address
    try:
        ip = ipaddress.ip_address(bare)
    except ValueError:
        try:
            ip = ipaddress.IPv4Address(socket.inet_aton(bare))
        except (OSError, ValueError):
            return None
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    return ip


def host_towards(url: str) -> str:
    """The local address from which packets to the host of ``url`` leave, and so one that it can answer to.

    Raises:
        OSError: the host cannot be resolved or has no route.
    """
    parts = urlsplit(url)
    family, kind, _, _, address = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # a datagram socket: nothing is sent, the kernel only picks the route
        return str(probe.getsockname()[0])


def bracketed(host: str) -> str:
    """``host`` as URLs write it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def check_base_url(url: str) -> str:
    """``url`` without a slash at its end, if it is one that a peer can be reached at.

    Raises:
        ValueError: not of http or https, no host or a wildcard for one, or no sane port.
    """
    trimmed = url.strip().rstrip("/")
    try:
        parts = urlsplit(trimmed)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise ValueError(f"{trimmed!r} is not a base URL such as http://host:8001")
    if is_wildcard(parts.hostname):
        raise ValueError(f"{trimmed!r} is an address to listen on, not one to send to")
    return trimmed


def base_urls(value: str) -> tuple[str, ...]:
    """The base URLs in a list separated by commas, in order, without repeats.

    Raises:
        ValueError: one of them is none.
    """
    return tuple(dict.fromkeys(check_base_url(url) for url in value.split(",") if url.strip()))


def check_endpoint(endpoint: str) -> str:
    """The host of a destination of embeddings, which is ``tcp://host:port`` with a host that names one machine.

    Raises:
        ValueError: it is anything else.
    """
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise ValueError(f"reply_to must look like tcp://host:port, not {endpoint!r}.")
    if is_wildcard(match["host"]):
        raise ValueError(f"reply_to is {endpoint}, an address to listen on, not one to send to.")
    return match["host"]
