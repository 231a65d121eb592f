"""Spans: what a request does, and for how long, across both services. By themselves these do nothing and cost next to nothing;
``shared/otel.py`` makes traces of them where that is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self, TypeAlias

Value: TypeAlias = str | bool | int | float | None
"""An attribute of a span; None is left out."""

Kind: TypeAlias = Literal["internal", "server", "client"]


class Span:
    """A stretch of work, which lasts until it is left. What leaves it as an exception is noted as its failure."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        pass

    def set(self, **attributes: Value) -> None:
        """Says more of it."""

    def event(self, name: str) -> None:
        """Notes that something happened now."""

    def fail(self, code: str) -> None:
        """It failed, with a code of ``shared.errors``."""

    def headers(self) -> dict[str, str]:
        """Headers by which a service that is called makes its spans a part of this one (W3C Trace Context)."""
        return {}

    def log_fields(self) -> dict[str, str]:
        """What log lines say to be found by the trace, and it by them."""
        return {}


class Tracer:
    """Begins spans. One that begins inside another is its child, also in a task that was started there."""

    def span(
        self,
        name: str,
        *,
        kind: Kind = "internal",
        leaf: bool = False,
        caller: Mapping[str, str] | None = None,
        **attributes: Value,
    ) -> Span:
        """Begins one, which is to be entered at once. Attributes whose names have no dot get the prefix ``epd.``.

        ``caller`` are the headers of the call that it serves, by lower-case names: a span that they carry is its parent. A
        ``leaf`` has no children, so that it may be left by another task than entered it, as generators are.
        """
        del name, kind, leaf, caller, attributes
        return _NOTHING

    async def close(self) -> None:
        """Sends what is left to send, if that does not take long."""


_NOTHING = Span()

NO_TRACES = Tracer()
"""Makes no traces."""


def tracer_of(wanted: bool, service: str) -> Tracer:
    """The tracer of a service, which is ``service`` where the standard variable ``OTEL_SERVICE_NAME`` does not say otherwise.

    Raises:
        RuntimeError: traces are wanted, but what makes them is not installed.
    """
    if not wanted:
        return NO_TRACES
    try:
        # Only here, since it is an extra, and takes long to load.
        from shared.otel import OtelTracer, exporting_provider
    except ImportError as error:
        raise RuntimeError("EPD_TRACING needs OpenTelemetry, which is not installed: pip install 'epd-pair[otel]'") from error
    return OtelTracer(exporting_provider(service))
