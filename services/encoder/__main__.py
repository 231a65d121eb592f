"""``python -m services.encoder``: runs the encoder service."""

from __future__ import annotations

from pydantic_settings import CliApp

from services.encoder.app import create_app
from services.encoder.settings import EncoderSettings
from shared.lifecycle import prepare, run


def main() -> None:
    settings = CliApp.run(EncoderSettings)
    prepare(settings)
    run(create_app(settings), settings, settings.port)


if __name__ == "__main__":
    main()
