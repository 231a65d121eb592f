"""Every way a request can fail, and the one mapping of failures to HTTP.

::

    EpdError
    ├── ClientError (also a ValueError)     400   never retried, logged at info
    │   ├── InvalidRequest                        invalid_request
    │   ├── InvalidMedia                          invalid_media
    │   ├── InvalidApiKey                   401   invalid_api_key
    │   └── ModelNotFound                   404   model_not_found
    ├── Unavailable                         503   Retry-After, logged as a warning
    │   ├── EncoderUnavailable                    encoder_unavailable
    │   ├── EncoderFailed                         encoder_failed
    │   ├── EncoderLost                           encoder_lost
    │   ├── EncoderOverloaded                     encoder_overloaded
    │   ├── EmbeddingTimeout                      embedding_timeout
    │   ├── EmbeddingIncomplete                   embedding_incomplete
    │   ├── EmbeddingCorrupt                      embedding_corrupt
    │   ├── EmbeddingIncompatible                 embedding_incompatible
    │   └── EngineOverloaded                      engine_overloaded
    └── InternalError                       500   internal_error, logged with its traceback
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

MAX_TEXT = 2000
"""Characters of a message, and of a param."""


class EpdError(Exception):
    """A failure with a fixed ``code``, HTTP ``status`` and OpenAI error ``type``.

    ``param`` names the part of the request that is at fault, where one is; ``retry_after`` is in seconds; ``encoder``
    and ``encoder_id`` are the base URL and the id of the encoder that the failure came from, for the log. Texts may quote what
    a client sent, and are cut where they are longer than ``MAX_TEXT``.
    """

    code: ClassVar[str]
    status: ClassVar[int]
    type: ClassVar[str]

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        message = _cut(message)
        super().__init__(message)
        self.message = message
        self.encoder: str | None = None
        self.encoder_id: str | None = None
        self.param = None if param is None else _cut(param)
        self.retry_after = retry_after


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


class ClientError(EpdError, ValueError):
    """The request, or the media in it, is at fault; trying again will not help."""

    status = 400
    type = "invalid_request_error"


class InvalidRequest(ClientError):
    """The request itself: schema, parameters, context too long."""

    code = "invalid_request"


class InvalidMedia(ClientError):
    """A picture, video or sound: undecodable, unsupported, too large, or its URL unreachable or forbidden."""

    code = "invalid_media"


class InvalidApiKey(ClientError):
    """The service asks for an API key, and the request has none that it knows."""

    code = "invalid_api_key"
    status = 401


class ModelNotFound(ClientError):
    """The request names another model than the one that is served."""

    code = "model_not_found"
    status = 404


class Unavailable(EpdError):
    """The service cannot answer now; trying again later may help."""

    status = 503
    type = "service_unavailable_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, param=param, retry_after=1.0 if retry_after is None else retry_after)


class EncoderUnavailable(Unavailable):
    """No encoder is configured, or none is healthy."""

    code = "encoder_unavailable"


class EncoderFailed(Unavailable):
    """The connection was refused or reset, or the encoder answered with a server error."""

    code = "encoder_failed"


class EncoderLost(Unavailable):
    """The encoder stopped showing life."""

    code = "encoder_lost"


class EncoderOverloaded(Unavailable):
    """The encoder refused for load."""

    code = "encoder_overloaded"


class EmbeddingTimeout(Unavailable):
    """The deadline passed before the embeddings arrived."""

    code = "embedding_timeout"


class EmbeddingIncomplete(Unavailable):
    """The encoder said that it was done, but an item never came."""

    code = "embedding_incomplete"


class EmbeddingCorrupt(Unavailable):
    """The digest or the framing of a message is wrong."""

    code = "embedding_corrupt"


class EmbeddingIncompatible(Unavailable):
    """Version, fingerprint, shape, token count or kind of dtype is wrong, or values are not finite."""

    code = "embedding_incompatible"


class EngineOverloaded(Unavailable):
    """The engine's queue is full."""

    code = "engine_overloaded"


class InternalError(EpdError):
    """A bug of ours; never used for any of the above."""

    code = "internal_error"
    status = 500
    type = "server_error"


ERRORS: dict[str, type[EpdError]] = {
    cls.code: cls
    for cls in (
        InvalidRequest,
        InvalidMedia,
        InvalidApiKey,
        ModelNotFound,
        EncoderUnavailable,
        EncoderFailed,
        EncoderLost,
        EncoderOverloaded,
        EmbeddingTimeout,
        EmbeddingIncomplete,
        EmbeddingCorrupt,
        EmbeddingIncompatible,
        EngineOverloaded,
        InternalError,
    )
}
"""Error classes by code."""


class ErrorDetail(BaseModel):
    """OpenAI's error object."""

    model_config = ConfigDict(extra="ignore")

    message: str
    type: str
    param: str | None = None
    code: str


class ErrorBody(BaseModel):
    """The body of every failed response of either service."""

    model_config = ConfigDict(extra="ignore")

    error: ErrorDetail


def body_of(error: EpdError) -> ErrorBody:
    """The response body of an error."""
    return ErrorBody(
        error=ErrorDetail(message=error.message, type=error.type, param=error.param, code=error.code),
    )


def headers_of(error: EpdError) -> dict[str, str]:
    """The response headers of an error: ``Retry-After`` in whole seconds, rounded up, on every 503."""
    if error.retry_after is None:
        return {}
    return {"Retry-After": str(max(1, -int(-error.retry_after // 1)))}


def from_body(content: bytes) -> EpdError | None:
    """The error that a response body carries, or None where the body is not ours."""
    try:
        detail = ErrorBody.model_validate_json(content).error
    except ValidationError:
        return None
    cls = ERRORS.get(detail.code)
    return None if cls is None else cls(detail.message, param=detail.param)


def from_exception(error: BaseException) -> EpdError:
    """An ``EpdError`` is itself; anything else is a bug of ours, whose text stays in the log."""
    if isinstance(error, EpdError):
        return error
    return InternalError("An internal error occurred; the log has its traceback under this request id.")


def from_validation(errors: list[Any]) -> InvalidRequest:
    """A schema violation as reported by pydantic: the first one, with its place, in a sentence. What is in parentheses there is
    no part of the request, but the tag of a member of a union."""
    first = errors[0]
    place = ".".join(part for part in map(str, first["loc"]) if part != "body" and not part.startswith("("))
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return InvalidRequest(f"{place or 'body'}: {first['msg']}{more}", param=place or None)


def release(error: BaseException) -> None:
    """Drops what an error that was answered and logged still holds: the frames it passed through, and the errors before it.

    Those frames hold tasks, which hold the error: a ring that only the garbage collector finds, with all of the request in it.
    Under a load of failing requests that was measured to be a hundred megabytes between two collections.
    """
    seen: BaseException | None = error
    while seen is not None:
        following = seen.__cause__ or seen.__context__
        seen.__traceback__ = seen.__context__ = seen.__cause__ = None
        seen = following


@contextmanager
def media_errors(param: str | None = None) -> Iterator[None]:
    """Inside it, a ``ValueError`` is the client's media at fault; everything else stays what it is.

    Raises:
        InvalidMedia: for a ``ValueError`` that is not already a ``ClientError``.
    """
    try:
        yield
    except ClientError as error:
        error.param = error.param or param
        raise
    except ValueError as error:
        raise InvalidMedia(str(error), param=param) from error
