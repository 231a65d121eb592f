"""What needs a library that is not installed with the encoder is refused by the name of the extra that has it."""

from __future__ import annotations

from importlib.util import find_spec

from shared.errors import InvalidMedia


def need(module: str, extra: str, what: str, param: str | None) -> None:
    """``what`` is decoded by ``module``, which comes with an ``extra``.

    Raises:
        InvalidMedia: it is not installed.
    """
    if find_spec(module) is None:
        raise InvalidMedia(
            f"{what} are not taken here; the encoder would need the extra {extra}: epd-pair[{extra}].", param=param
        )
