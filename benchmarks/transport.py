"""A lean HTTP/1.1 transport for httpx, so that the load driver does not compete for the cores with the servers it measures.

httpx's own transport takes most of the CPU time of reading a stream of small events; this one does only what that needs: plain
HTTP, bodies in memory, connections kept alive.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator

import httptools
import httpx

READ_SIZE = 65_536  # bytes


class Connection(httpx.AsyncByteStream):
    """One connection and the response that is on it; iterating gives the body's bytes as they come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle: list[Connection]) -> None:
        self._reader = reader
        self._writer = writer
        self._idle = idle
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._chunks: deque[bytes] = deque()
        self._headers: list[tuple[bytes, bytes]] = []
        self._headers_done = self._complete = self._keep = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._headers_done = True

    def on_body(self, data: bytes) -> None:
        self._chunks.append(data)

    def on_message_complete(self) -> None:
        self._complete = True
        self._keep = self._parser.should_keep_alive()

    @property
    def closed(self) -> bool:
        """The server has hung up."""
        return self._reader.at_eof()

    async def ask(self, request: httpx.Request) -> httpx.Response:
        """Sends the request; returns when the headers of the response are there."""
        self._begin()
        head = [b"%b %b HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
        head += [b"%b: %b" % header for header in request.headers.raw]
        self._writer.write(b"\r\n".join([*head, b"", await request.aread()]))
        while not self._headers_done:
            await self._read()
        return httpx.Response(self._parser.get_status_code(), headers=self._headers, stream=self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            while self._chunks:
                yield self._chunks.popleft()
            if self._complete:
                return
            await self._read()

    async def aclose(self) -> None:
        """Keeps the connection for the next request if nothing is left on it."""
        if self._keep:
            self._idle.append(self)
        else:
            self.close()

    def close(self) -> None:
        """Hangs up."""
        self._writer.close()

    async def _read(self) -> None:
        data = await self._reader.read(READ_SIZE)
        if data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError as error:
                raise httpx.RemoteProtocolError(str(error)) from error
        elif self._headers_done and not {name.lower() for name, _ in self._headers} & {b"content-length", b"transfer-encoding"}:
            self._complete = True  # such a body ends with the connection
        else:
            raise httpx.RemoteProtocolError("The server hung up in the middle of a response.")


class LeanTransport(httpx.AsyncBaseTransport):
    """Opens as many connections as there are requests at once."""

    def __init__(self) -> None:
        self._idle: defaultdict[tuple[str, int], list[Connection]] = defaultdict(list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        place = request.url.host, request.url.port or 80
        idle = self._idle[place]
        while idle:
            connection = idle.pop()
            if not connection.closed:
                break
            connection.close()
        else:
            try:
                connection = Connection(*await asyncio.open_connection(*place), idle)
            except OSError as error:
                raise httpx.ConnectError(str(error)) from error
        try:
            return await connection.ask(request)
        except OSError as error:
            raise httpx.ReadError(str(error)) from error

    async def aclose(self) -> None:
        """Closes what is idle."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
            connections.clear()
