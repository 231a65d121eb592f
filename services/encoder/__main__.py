"""``python -m services.encoder``: runs the encoder service, or says of a checkpoint whether it would (``check MODEL``)."""

from __future__ import annotations

import sys

from pydantic_settings import CliApp
from structlog.contextvars import bind_contextvars

from services.encoder.app import create_app
from services.encoder.check import check
from services.encoder.settings import EncoderSettings
from shared.lifecycle import prepare, reading_settings, run


def main() -> None:
    if sys.argv[1:2] == ["check"]:
        sys.exit(check(sys.argv[2:]))
    with reading_settings():
        settings = CliApp.run(EncoderSettings)
        prepare(settings)
        app = create_app(settings)
    # Bound before the event loop exists, so that its tasks inherit it: every line says which encoder it is from.
    bind_contextvars(encoder_id=app.state.encoder_id)
    run(app, settings, settings.port)


if __name__ == "__main__":
    main()
