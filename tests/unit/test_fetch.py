"""URLs: what answers, what does not, and what must never be asked."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from services.encoder.destination import is_forbidden
from services.encoder.fetch import Fetcher
from services.encoder.settings import EncoderSettings
from shared.errors import EncoderOverloaded, InvalidMedia
from tests.processes import free_port


class _Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name, _, argument = self.path.strip("/").partition("/")
        if name == "status":
            self.answer(int(argument), b"no")
        elif name == "redirect":
            left = int(argument)
            self.send_response(302)
            self.send_header("location", f"/redirect/{left - 1}" if left > 1 else "/bytes/10")
            self.end_headers()
        elif name == "bytes":
            self.answer(200, b"x" * int(argument))
        elif name == "endless":
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"x" * 1000)
            except OSError:
                pass
        elif name == "slow":
            time.sleep(4)
        elif name == "bomb":
            self.send_response(200)
            self.send_header("content-encoding", "gzip, gzip")
            self.end_headers()
            self.wfile.write(gzip.compress(gzip.compress(b"x" * 10_000_000)))
        elif name == "cookie":
            self.send_response(302)
            self.send_header("set-cookie", "user=alice")
            self.send_header("location", "/cookies")
            self.end_headers()
        elif name == "cookies":
            self.answer(200, (self.headers.get("cookie") or "none").encode())
        elif name == "host":
            self.answer(200, self.headers["host"].encode())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Site)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def settings(**changes: object) -> EncoderSettings:
    return EncoderSettings.model_validate({"allow_private_urls": True, "fetch_timeout": 2, "max_media_bytes": 5000} | changes)


async def test_bytes_arrive_and_the_host_header_keeps_the_name(site: str) -> None:
    async with Fetcher(settings()) as fetcher:
        assert await fetcher.fetch(f"{site}/bytes/4000") == b"x" * 4000
        assert await fetcher.fetch(f"{site}/host") == site.removeprefix("http://").encode()
        assert await fetcher.fetch("data:;base64,eHg=") == b"xx"


async def test_redirects_are_followed_up_to_the_limit(site: str) -> None:
    async with Fetcher(settings(fetch_redirects=3)) as fetcher:
        assert await fetcher.fetch(f"{site}/redirect/3") == b"x" * 10
        with pytest.raises(InvalidMedia, match="redirect"):
            await fetcher.fetch(f"{site}/redirect/4")


async def test_compressed_answers_are_refused_unread(site: str) -> None:
    async with Fetcher(settings(max_media_bytes=10**9)) as fetcher:
        with pytest.raises(InvalidMedia, match="content encoding gzip"):
            await fetcher.fetch(f"{site}/bomb")


async def test_cookies_are_never_kept(site: str) -> None:
    async with Fetcher(settings()) as fetcher:
        assert await fetcher.fetch(f"{site}/cookie") == b"none"
        assert await fetcher.fetch(f"{site}/cookies") == b"none"


@pytest.mark.parametrize("status", [204, 401, 404, 500])
async def test_an_upstream_status_is_named(site: str, status: int) -> None:
    async with Fetcher(settings()) as fetcher:
        with pytest.raises(InvalidMedia, match=str(status)) as caught:
            await fetcher.fetch(f"{site}/status/{status}", "messages.0")
    assert caught.value.param == "messages.0"


@pytest.mark.parametrize(("path", "reason"), [("bytes/5001", "accepted"), ("endless", "accepted"), ("slow", "longer than")])
async def test_size_and_time_are_bounded(site: str, path: str, reason: str) -> None:
    async with Fetcher(settings()) as fetcher:
        with pytest.raises(InvalidMedia, match=reason):
            await fetcher.fetch(f"{site}/{path}")


@asynccontextmanager
async def raw_site(answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """A site that answers every request as ``answer`` writes, until that ends or the client is gone."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://localhost:{server.sockets[0].getsockname()[1]}/"


def endless(head: bytes, piece: bytes) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    """Writes ``head``, and then ``piece`` for ever, as fast as it is taken."""

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece * (8192 // len(piece) + 1))
            await writer.drain()

    return write


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"x-header: value\r\n"),
        (b"HTTP/1.1 200 OK\r\n", b"a:\r\n"),
        (b"HTTP/1.1 200 OK\r\nx-header: ", b"x"),
        (b"HTTP/1.1 ", b"x"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"),
        (b"HTTP/1.1 302 Found\r\nlocation: /", b"x"),
        (CHUNKED, b"1\r\nx\r\n"),
        (CHUNKED, b"1;extension=" + b"x" * 100 + b"\r\nx\r\n"),
        (CHUNKED + b"1;", b"x"),
        (CHUNKED + b"0\r\n", b"trailer: value\r\n"),
    ],
)
async def test_little_may_come_beside_the_picture(head: bytes, piece: bytes) -> None:
    async with raw_site(endless(head, piece)) as url, Fetcher(settings(max_media_bytes=10**9, fetch_timeout=30)) as fetcher:
        with pytest.raises(InvalidMedia, match=r"bytes around|cannot be reached"):
            await fetcher.fetch(url)


async def test_sane_chunks_are_welcome() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3 + CHUNKED + (b"400\r\n" + bytes(1024) + b"\r\n") * 1000 + b"0\r\n\r\n"
        )

    async with raw_site(answer) as url, Fetcher(settings(max_media_bytes=10**7)) as fetcher:
        assert await fetcher.fetch(url) == bytes(1024 * 1000)


async def test_a_declared_size_over_the_limit_is_refused_unread() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5001\r\n\r\n")
        await asyncio.Event().wait()  # not a byte of it ever comes

    async with raw_site(answer) as url, Fetcher(settings(fetch_timeout=30)) as fetcher:
        with pytest.raises(InvalidMedia, match=r"has 5001 bytes; at most 5000"):
            await asyncio.wait_for(fetcher.fetch(url), 5)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 200 OK\r\ncontent-length: 4000\r\n\r\n", b""])
async def test_dripping_does_not_make_more_time(head: bytes) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while not writer.is_closing():
            writer.write(b"H")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with raw_site(answer) as url, Fetcher(settings(fetch_timeout=0.5)) as fetcher:
        began = time.perf_counter()
        with pytest.raises(InvalidMedia, match="longer than"):
            await fetcher.fetch(url)
        assert time.perf_counter() - began < 2


async def test_redirects_have_no_more_time_together() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        writer.write(b"HTTP/1.1 302 Found\r\nlocation: /\r\n\r\n")

    async with raw_site(answer) as url, Fetcher(settings(fetch_timeout=0.5, fetch_redirects=100)) as fetcher:
        with pytest.raises(InvalidMedia, match="longer than"):
            await fetcher.fetch(url)


async def test_ipv6_addresses_are_pinned_too() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        host = request.partition(b"host: ")[2].partition(b"\r\n")[0]
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + host)
        writer.close()

    try:
        server = await asyncio.start_server(serve, "::1", 0)
    except OSError:
        pytest.skip("there is no IPv6 here")
    async with server, Fetcher(settings()) as fetcher:
        port = server.sockets[0].getsockname()[1]
        assert await fetcher.fetch(f"http://[::1]:{port}/") == f"[::1]:{port}".encode()


@pytest.mark.parametrize("path", ["slow", "endless"])
async def test_a_callers_deadline_that_passes_first_is_not_the_urls_fault(site: str, path: str) -> None:
    async with Fetcher(settings(max_media_bytes=10**12)) as fetcher:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await fetcher.fetch(f"{site}/{path}")


async def test_unreachable_and_unresolvable_hosts_are_named() -> None:
    async with Fetcher(settings()) as fetcher:
        with pytest.raises(InvalidMedia, match="cannot be reached"):
            await fetcher.fetch(f"http://127.0.0.1:{free_port()}/a.png")
        with pytest.raises(InvalidMedia, match=r"no-such-host.invalid (cannot be resolved|took longer)"):
            await fetcher.fetch("http://no-such-host.invalid/a.png")


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.com/a",
        "gopher://x",
        "http://",
        "a.png",
        "",
        "http://user:pw@example.com/a",
        f"http://{'a' * 64}.com/",
        "http://a..b/",
        "http://xn--/",
        "http://[bad",
    ],
)
async def test_other_schemes_and_credentials_are_refused(url: str) -> None:
    async with Fetcher(settings()) as fetcher:
        with pytest.raises(InvalidMedia):
            await fetcher.fetch(url)


async def test_private_addresses_are_refused_by_default(site: str) -> None:
    async with Fetcher(settings(allow_private_urls=False)) as fetcher:
        for url in (site, "http://127.1/", "http://2130706433/", "http://0x7f.0.0.1/", "http://[::1]/", "http://0.0.0.0/"):
            with pytest.raises(InvalidMedia, match="public address"):
                await fetcher.fetch(url)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
        "fd00::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "ff02::1",
        "fec0::1",
        "64:ff9b:1::7f00:1",
        "::127.0.0.1",
        "192.88.99.1",
    ],
)
def test_forbidden_addresses(address: str) -> None:
    assert is_forbidden(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses(address: str) -> None:
    assert not is_forbidden(address)


async def test_slow_names_of_others_are_the_encoders_fault_and_leave_the_loops_threads_alone(
    site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, resolve = threading.Event(), socket.getaddrinfo

    def slow(host: str, *args: Any, **more: Any) -> Any:
        if host.endswith(".slow"):
            release.wait(10)
            raise socket.gaierror
        return resolve(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    async with Fetcher(settings(fetch_timeout=0.5)) as fetcher:
        try:
            names = [asyncio.create_task(fetcher.fetch(f"http://{number}.slow/")) for number in range(16)]
            await asyncio.sleep(0.1)
            with pytest.raises(EncoderOverloaded) as caught:
                await fetcher.fetch(f"{site}/bytes/10")
            assert caught.value.retry_after
            # Whose name is slow hears so, and gets no thread back for it.
            for error in await asyncio.gather(*names, return_exceptions=True):
                assert isinstance(error, InvalidMedia)
                assert "took longer" in str(error)
            with pytest.raises(EncoderOverloaded):
                await fetcher.fetch(f"{site}/redirect/1")
            assert await asyncio.wait_for(fetcher.fetch("data:;base64,eHg="), 5) == b"xx"
        finally:
            release.set()
        assert await fetcher.fetch(f"{site}/redirect/1") == b"x" * 10


async def test_a_caller_that_leaves_while_its_name_waits_is_not_overload(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: release.wait(10))
    async with Fetcher(settings()) as fetcher:
        names = [asyncio.create_task(fetcher.fetch(f"http://{number}.slow/")) for number in range(16)]
        await asyncio.sleep(0.1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await fetcher.fetch("http://a.example/")
        release.set()
        await asyncio.gather(*names, return_exceptions=True)
