"""Passes on to encoders what sets and clears their faults, where they have any."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Protocol

import aiohttp
from pydantic_core import from_json

from services.language.embeddings.dispatch import ConnectionBroke, content_of
from services.language.embeddings.encoder import EncoderView
from shared.errors import EncoderFailed, InvalidRequest, from_body

_PATH = "/v1/faults"
# What a route that does not exist answers, unlike a fault that is not set.
_NO_ROUTE = "Not Found"


class Encoders(Protocol):
    """Who knows the encoders."""

    def describe(self) -> Iterable[EncoderView]: ...


class NotThere(InvalidRequest):
    """There is no such encoder, it has no faults, or not that one."""

    status = 404


class EncoderFaults:
    """Calls the fault routes of ``encoders``, by a ``client`` that has the seam's token, for ``timeout`` seconds at most."""

    def __init__(self, client: aiohttp.ClientSession, encoders: Encoders, timeout: float) -> None:
        self._client = client
        self._encoders = encoders
        self._timeout = aiohttp.ClientTimeout(timeout)

    async def call(self, encoder_id: str, method: str, below: str = "", body: bytes | None = None) -> object:
        """What an encoder answers, as JSON. ``below`` is what follows ``/v1/faults`` in the path, quoted.

        Raises:
            NotThere: no such encoder is known, faults are not enabled there, or that one is not set.
            InvalidRequest: the encoder refuses the body.
            EncoderFailed: it cannot be reached, or fails.
        """
        url = self._url_of(encoder_id)
        headers = None if body is None else {"content-type": "application/json"}
        try:
            async with self._client.request(
                method, f"{url}{_PATH}{below}", data=body, headers=headers, timeout=self._timeout, allow_redirects=False
            ) as response:
                status, content = response.status, await content_of(response)
        except Exception as error:
            raise ConnectionBroke(f"The encoder at {url} cannot be reached ({type(error).__name__}).") from error
        if status in (HTTPStatus.OK, HTTPStatus.CREATED):
            try:
                return from_json(content)
            except ValueError as error:
                raise EncoderFailed(f"The encoder at {url} answered with an unknown body.") from error
        told = from_body(content)
        if status == HTTPStatus.NOT_FOUND and (told is None or told.message == _NO_ROUTE):
            raise NotThere(f"The encoder at {url} has no faults: start it with EPD_FAULTS_ENABLED=true.")
        if status == HTTPStatus.NOT_FOUND and told is not None:
            raise NotThere(told.message)
        # Its own token is the only thing in a call that the caller did not bring.
        if status == HTTPStatus.BAD_REQUEST and told is not None and told.param != "authorization":
            raise InvalidRequest(told.message, param=told.param)
        detail = f": {told.message}" if told else ""
        raise EncoderFailed(f"The encoder at {url} answered with HTTP status {status}{detail}")

    def _url_of(self, encoder_id: str) -> str:
        for encoder in self._encoders.describe():
            if encoder.encoder_id == encoder_id:
                return encoder.url
        raise NotThere(f"No encoder {encoder_id!r} is known.", param="encoder_id")
