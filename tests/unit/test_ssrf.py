"""A URL never leads into our network, however it is written, wherever it redirects to, whatever its name says next time."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpcore
import pytest

from services.encoder import destination
from services.encoder.fetch import Fetcher
from services.encoder.settings import EncoderSettings
from shared.errors import InvalidMedia

PUBLIC, OTHER = "93.184.216.34", "2606:4700:4700::1111"
PICTURE = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\npicture"
NAMES: dict[str, list[list[str]]] = {
    "public.test": [[PUBLIC]],
    "public.test.": [[PUBLIC]],
    "other.test": [[OTHER]],
    "inside.test": [["10.1.2.3"]],
    "metadata.google.internal": [["169.254.169.254"]],
    "instance-data.ec2.internal": [["fd00:ec2::254"]],
    "half.test": [[PUBLIC, "192.168.0.7"]],
    "other-half.test": [[OTHER, "::1"]],
    "mapped.test": [["::ffff:10.0.0.1"]],
    "rebinding.test": [[PUBLIC], ["127.0.0.1"]],
    "returning.test": [["127.0.0.1"], [PUBLIC]],
    "nowhere.test": [[]],
}
"""What names resolve to, the first time, the second, and so on."""


class Internet:
    """All that a fetch can reach: public addresses are served by ``answer``, and everything that is asked is noted.

    ``inside`` is the port of a listener on loopback, of which nothing may know.
    """

    def __init__(self, inside: int, public: int) -> None:
        self.inside, self.public = inside, public
        self.connected: list[tuple[str, int]] = []
        self.resolved: list[str] = []
        self.requests: list[bytes] = []
        self.answers: list[bytes] = []

    def redirects(self, *locations: str) -> None:
        """What is answered from now on: these, one after the other, then a picture."""
        heads = [f"HTTP/1.1 302 Found\r\nlocation: {location}\r\n\r\n".encode() for location in locations]
        self.answers = [*heads, PICTURE]


@contextlib.contextmanager
def listener(family: socket.AddressFamily, address: str, port: int = 0) -> Iterator[socket.socket]:
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen()
        sock.setblocking(False)
        yield sock


@pytest.fixture
async def internet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Internet]:
    resolve, connect = socket.getaddrinfo, httpcore.AnyIOBackend.connect_tcp

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        net.requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(net.answers.pop(0) if len(net.answers) > 1 else (net.answers or [PICTURE])[0])
        writer.close()

    def getaddrinfo(host: str, port: int, *args: Any, **more: Any) -> Any:
        net.resolved.append(host)
        if host not in NAMES:
            return resolve(host, port, *args, **more)
        answers = NAMES[host]
        found = answers[min(net.resolved.count(host), len(answers)) - 1]
        if not found:
            raise socket.gaierror
        return [(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in found]

    async def connect_tcp(self: Any, host: str, port: int, *args: Any) -> Any:
        net.connected.append((host, port))
        if host in (PUBLIC, OTHER):
            host, port = "127.0.0.1", net.public
        return await connect(self, host, port, *args)

    with contextlib.ExitStack() as sockets:
        inside = sockets.enter_context(listener(socket.AF_INET, "127.0.0.1"))
        port = inside.getsockname()[1]
        insides = [inside]
        with contextlib.suppress(OSError):  # where there is no IPv6, there is nothing to reach by it
            insides.append(sockets.enter_context(listener(socket.AF_INET6, "::1", port)))
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        net = Internet(port, server.sockets[0].getsockname()[1])
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect_tcp)
        yield net
        for sock in insides:
            with pytest.raises(BlockingIOError):
                sock.accept()
        server.close()
        await server.wait_closed()


async def fetch(url: str, **changes: object) -> bytes:
    settings = EncoderSettings.model_validate({"fetch_timeout": 5} | changes)
    async with Fetcher(settings) as fetcher:
        return await fetcher.fetch(url, "messages.0")


async def test_what_is_public_is_reached(internet: Internet) -> None:
    for url in ("http://public.test/a?b=c#d", "http://other.test:8080/", f"http://{PUBLIC}/", f"http://[{OTHER}]:8080/"):
        assert await fetch(url) == b"picture"
    assert internet.connected == [(PUBLIC, 80), (OTHER, 8080), (PUBLIC, 80), (OTHER, 8080)]
    hosts = [request.partition(b"host: ")[2].partition(b"\r\n")[0] for request in internet.requests]
    assert hosts == [b"public.test", b"other.test:8080", PUBLIC.encode(), f"[{OTHER}]:8080".encode()]
    assert internet.requests[0].startswith(b"GET /a?b=c HTTP/1.1\r\n")


PORT = "{port}"  # of the listener inside
REFUSED = [
    # Loopback, in all the forms that name resolution takes.
    f"http://127.0.0.1:{PORT}/",
    f"http://127.0.0.1.:{PORT}/",
    f"http://127.1:{PORT}/",
    f"http://127.0.1:{PORT}/",
    f"http://2130706433:{PORT}/",
    f"http://0x7f000001:{PORT}/",
    f"http://0x7f.1:{PORT}/",
    f"http://0x7f.0x0.0x0.0x1:{PORT}/",
    f"http://0177.0.0.1:{PORT}/",
    f"http://0177.1:{PORT}/",
    f"http://017700000001:{PORT}/",
    f"http://127.000.000.001:{PORT}/",
    f"http://127.255.255.254:{PORT}/",
    f"http://localhost:{PORT}/",
    f"http://LOCALHOST:{PORT}/",
    f"HTTP://LocalHost.:{PORT}/",
    f"http://[::1]:{PORT}/",
    f"http://[0:0:0:0:0:0:0:1]:{PORT}/",
    f"http://[::ffff:127.0.0.1]:{PORT}/",
    f"http://[::ffff:7f00:1]:{PORT}/",
    f"http://[::FFFF:127.0.0.1]:{PORT}/",
    f"http://[0:0:0:0:0:ffff:7f00:0001]:{PORT}/",
    f"http://[::ffff:0:127.0.0.1]:{PORT}/",
    f"http://[::127.0.0.1]:{PORT}/",
    f"http://[::1%25lo]:{PORT}/",
    f"http://[::1%lo]:{PORT}/",
    f"http://0.0.0.0:{PORT}/",
    f"http://0:{PORT}/",
    f"http://[::]:{PORT}/",
    # What is written otherwise than it is read.
    f"http://127。0。0。1:{PORT}/",
    f"http://127．0．0．1:{PORT}/",
    f"http://127｡0｡0｡1:{PORT}/",
    f"http://１２７.0.0.1:{PORT}/",
    f"http://①②⑦.⓪.⓪.①:{PORT}/",
    f"http://ⓛocalhost:{PORT}/",
    f"http://ｌｏｃａｌｈｏｓｔ:{PORT}/",
    f"http://loc\u00adalhost:{PORT}/",
    f"http://\u200blocalhost:{PORT}/",
    f"http://xn--localhost:{PORT}/",
    f"http://127.0.0.1%2f:{PORT}/",
    f"http://127%2e0%2e0%2e1:{PORT}/",
    f"http://%31%32%37.0.0.1:{PORT}/",
    f"http://%6cocalhost:{PORT}/",
    f"http://public.test@127.0.0.1:{PORT}/",
    f"http://public.test%40127.0.0.1:{PORT}/",
    f"http://public.test:80@127.0.0.1:{PORT}/",
    f"http://public.test\\@127.0.0.1:{PORT}/",
    f"http://127.0.0.1:{PORT}\\@public.test/",
    f"http://127.0.0.1:{PORT}#@public.test/",
    f"http://127.0.0.1:{PORT}?@public.test/",
    f"http://public.test &@127.0.0.1:{PORT}# @public.test/",
    f"http:\\\\127.0.0.1:{PORT}/",
    f"http:/\\127.0.0.1:{PORT}/",
    f"http:127.0.0.1:{PORT}/",
    f"http:///127.0.0.1:{PORT}/",
    f"//127.0.0.1:{PORT}/",
    f"\\\\127.0.0.1:{PORT}/",
    f" http://127.0.0.1:{PORT}/",
    f"http://127.0.0.1\t:{PORT}/",
    f"http://127.0.0.1\n:{PORT}/",
    f"ht\ntp://127.0.0.1:{PORT}/",
    f"http://127.0.0.1\r\nhost: public.test:{PORT}/",
    f"http://127.0.0.1\x00.public.test:{PORT}/",
    f"http://127.0.0.1:{PORT}:80/",
    f"http://[::1]{PORT}/",
    f"http://[::1:{PORT}/",
    # Private, of the link, shared, reserved, and of many.
    "http://10.0.0.1/",
    "http://167772161/",
    "http://172.16.0.1/",
    "http://172.31.255.255/",
    "http://192.168.1.1/",
    "http://100.64.0.1/",
    "http://169.254.0.1/",
    "http://0.1.2.3/",
    "http://192.0.0.8/",
    "http://192.0.2.1/",
    "http://192.88.99.1/",
    "http://198.18.0.1/",
    "http://198.51.100.1/",
    "http://203.0.113.1/",
    "http://224.0.0.1/",
    "http://239.255.255.250/",
    "http://240.0.0.1/",
    "http://255.255.255.255/",
    "http://[fe80::1]/",
    "http://[fe80::1%25eth0]/",
    "http://[fec0::1]/",
    "http://[fc00::1]/",
    "http://[fd12:3456::1]/",
    "http://[ff02::1]/",
    "http://[100::1]/",
    "http://[2001:db8::1]/",
    "http://[3fff::1]/",
    "http://[5f00::1]/",
    "http://[4000::1]/",
    # IPv4 in IPv6.
    "http://[::ffff:10.0.0.1]/",
    "http://[::ffff:a9fe:a9fe]/",
    "http://[::10.0.0.1]/",
    "http://[64:ff9b::10.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[64:ff9b:1::8.8.8.8]/",
    "http://[64:ff9b:1:ffff:10:0:100:0]/",
    "http://[2002:7f00:1::]/",
    "http://[2002:a00:1::1]/",
    "http://[2002:5db8:d822::1]/",
    "http://[2001:0:5db8:d822:0:0:f5ff:fffe]/",
    # Metadata of clouds.
    "http://169.254.169.254/latest/meta-data/",
    "http://2852039166/latest/meta-data/",
    "http://0xa9fea9fe/",
    "http://0251.0376.0251.0376/",
    "http://[::ffff:169.254.169.254]/",
    "http://[fd00:ec2::254]/",
    "http://[fd20:ce::254]/",
    "http://100.100.100.200/",
    "http://168.63.129.16/",
    "http://192.0.0.192/",
    "http://169.254.170.2/",
    "http://metadata.google.internal/computeMetadata/v1/",
    "http://METADATA.google.internal/",
    "http://instance-data.ec2.internal/",
    # Names.
    "http://inside.test/",
    "https://inside.test/",
    "http://half.test/",
    "http://other-half.test/",
    "http://mapped.test/",
    "http://returning.test/",
    "http://nowhere.test/",
    "http://no such name/",
    f"http://{'a' * 64}.test/",
    f"http://{'a.' * 200}test/",
    # Other schemes, ports and credentials.
    "file:///etc/passwd",
    "file://127.0.0.1/etc/passwd",
    "ftp://public.test/",
    "gopher://public.test:6379/_FLUSHALL",
    "dict://public.test/",
    "jar:http://public.test!/",
    "ws://public.test/",
    "javascript:alert(1)",
    "unix:///run/docker.sock",
    "http+unix://%2Frun%2Fdocker.sock/",
    "picture.png",
    "",
    "http://public.test:0/",
    "http://public.test:22/",
    "http://public.test:25/",
    "http://public.test:99999/",
    "http://public.test:-80/",
    "http://user:password@public.test/",
    "http://user@public.test/",
    "http://:@public.test/",
    f"http://public.test/{'a' * 9000}",
]


@pytest.mark.parametrize("url", REFUSED)
async def test_what_leads_inside_is_refused_and_never_connected_to(internet: Internet, url: str) -> None:
    with pytest.raises(InvalidMedia) as caught:
        await fetch(url.replace(PORT, str(internet.inside)))
    assert caught.value.param == "messages.0"
    assert internet.connected == []


@pytest.mark.parametrize("url", [url for url in REFUSED if url.isprintable() and url.strip() and url != "picture.png"])
async def test_nor_does_a_redirect_lead_there(internet: Internet, url: str) -> None:
    internet.redirects("http://other.test/", url.replace(PORT, str(internet.inside)))
    with contextlib.suppress(InvalidMedia):  # some are paths of the site that sent them
        await fetch("http://public.test/")
    assert {address for address, _ in internet.connected} <= {PUBLIC, OTHER}
    assert all(port == 80 for _, port in internet.connected)
    assert all(b"authorization" not in request.lower() for request in internet.requests)


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1:{port}/",
        "//localhost:{port}/",
        "https://[::1]:{port}/",
        "http://inside.test/",
        "http://half.test/",
        "http://user:password@public.test/",
        "//user@public.test/",
        "http://public.test:22/",
        "ftp://public.test/",
        "file:///etc/passwd",
        "data:image/png;base64,AAAA",
        "gopher://public.test:6379/_FLUSHALL",
        "http://[",
        "http://xn--\u00fc.test/",
    ],
)
async def test_a_redirect_is_checked_like_the_first_url(internet: Internet, location: str) -> None:
    internet.redirects(location.replace(PORT, str(internet.inside)))
    with pytest.raises(InvalidMedia):
        await fetch("http://public.test/")
    assert internet.connected == [(PUBLIC, 80)]


async def test_a_name_is_resolved_once_for_each_connection(internet: Internet) -> None:
    assert await fetch("http://rebinding.test/") == b"picture"
    assert internet.resolved == ["rebinding.test"]
    # The same name again, by a redirect: it is resolved again, so it is checked again.
    internet.resolved.clear()
    internet.redirects("http://rebinding.test/")
    with pytest.raises(InvalidMedia, match="public address"):
        await fetch("http://rebinding.test/")
    assert internet.resolved == ["rebinding.test"] * 2
    assert internet.connected == [(PUBLIC, 80)] * 2


async def test_what_internal_names_there_are_is_not_told(internet: Internet) -> None:
    answers = []
    for name in ("inside.test", "nowhere.test"):
        with pytest.raises(InvalidMedia) as caught:
            await fetch(f"http://{name}/")
        answers.append(caught.value.message.replace(name, "…"))
    assert answers[0] == answers[1]


async def test_our_own_address_is_refused_however_public_it_is(internet: Internet, monkeypatch: pytest.MonkeyPatch) -> None:
    assert destination.is_own("127.0.0.1")
    assert not destination.is_own(PUBLIC)
    monkeypatch.setattr(destination, "is_forbidden", lambda _: False)
    with pytest.raises(InvalidMedia, match="public address"):
        await fetch(f"http://127.0.0.1:{internet.inside}/")


async def test_proxies_and_passwords_of_the_environment_are_not_used(
    internet: Internet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{internet.inside}")
        monkeypatch.setenv(name.lower(), f"http://127.0.0.1:{internet.inside}")
    (tmp_path / ".netrc").write_text("machine public.test login user password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    internet.answers = [b"HTTP/1.1 302 Found\r\nset-cookie: a=b\r\nlocation: /again\r\n\r\n", PICTURE]
    assert await fetch("http://public.test/") == b"picture"
    assert internet.connected == [(PUBLIC, 80)] * 2
    for request in internet.requests:
        names = {line.partition(b":")[0] for line in request.split(b"\r\n")[1:] if line}
        assert names == {b"host", b"accept", b"accept-encoding", b"user-agent", b"connection"}


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for public.test that is its own authority, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made by openssl")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=public.test -addext subjectAltName=DNS:public.test"
    subprocess.run([*make.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


async def test_the_certificate_is_checked_for_the_name_though_the_address_is_pinned(
    internet: Internet, monkeypatch: pytest.MonkeyPatch, certificate: tuple[Path, Path]
) -> None:
    asked: list[str | None] = []
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    context.sni_callback = lambda _, name, __: asked.append(name)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(PICTURE)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        internet.public = server.sockets[0].getsockname()[1]
        with pytest.raises(InvalidMedia, match="CERTIFICATE_VERIFY_FAILED"):
            await fetch("https://public.test/")  # signed by nobody we know
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        assert await fetch("https://public.test/") == b"picture"
        assert await fetch("https://public.test./") == b"picture"
        with pytest.raises(InvalidMedia, match="CERTIFICATE_VERIFY_FAILED"):
            await fetch("https://other.test/")
        with pytest.raises(InvalidMedia, match="CERTIFICATE_VERIFY_FAILED"):
            await fetch(f"https://{PUBLIC}/")
    assert asked == ["public.test", "public.test", "public.test", "other.test", None]
    assert {address for address, _ in internet.connected} == {PUBLIC, OTHER}
