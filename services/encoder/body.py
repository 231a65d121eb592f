"""The body of an ``/encode`` call: counted before it is read, read in bounded time, and parsed."""

from __future__ import annotations

from fastapi import Request
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.types import Message

from services.encoder.admission import Share
from services.encoder.settings import EncoderSettings
from shared.control import REQUEST_FIELD, EncodeRequest
from shared.errors import InvalidRequest, from_validation
from shared.http import check_json, in_time


def declared_bytes(request: Request) -> int:
    """What the body's ``Content-Length`` says; 0 where there is none, as for chunked bodies."""
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isdecimal() else 0


async def receive_call(request: Request, settings: EncoderSettings, share: Share) -> tuple[EncodeRequest, dict[str, bytes]]:
    """The call and its raw media by part name, from a JSON or a multipart body, for which ``share`` holds what was declared.

    Raises:
        InvalidRequest: the body follows neither form, or takes too long to arrive.
        EncoderOverloaded: more comes than was declared, and there is no room for it.
        Unavailable: the encoder is ending, and has no time left for it.
        ClientDisconnect: the client hung up.
    """
    return await in_time(request, _read(_counted(request, share), settings), settings.body_timeout)


def _counted(request: Request, share: Share) -> Request:
    """The request, of whose body ``share`` holds at least as much as has come."""
    came = 0

    async def receive() -> Message:
        nonlocal came
        message = await request.receive()
        came += len(message.get("body", b""))
        if came > share.held:
            share.hold(came - share.held)
        return message

    return Request(request.scope, receive)


async def _read(request: Request, settings: EncoderSettings) -> tuple[EncodeRequest, dict[str, bytes]]:
    parts: dict[str, bytes] = {}
    kind = request.headers.get("content-type", "")
    if kind.startswith("multipart/form-data"):
        if "charset" in kind.lower():
            # The parser would take any that Python knows, and some of those take for ever.
            raise InvalidRequest("A multipart body is of UTF-8, and names no charset.")
        limit = settings.max_items
        async with request.form(max_files=limit, max_fields=2, max_part_size=settings.max_body_bytes) as form:
            raw = form.get(REQUEST_FIELD)
            for name, value in form.multi_items():
                if isinstance(value, UploadFile):
                    parts[name] = await value.read()
        if not isinstance(raw, str):
            raise InvalidRequest(f"The multipart body lacks the text field {REQUEST_FIELD!r}.", param=REQUEST_FIELD)
        text = raw.encode()
    else:
        text = await request.body()
    check_json(text)
    try:
        return EncodeRequest.model_validate_json(text), parts
    except ValidationError as error:
        raise from_validation(error.errors()) from error
