"""``python -m services.language``: runs the language service."""

from __future__ import annotations

from pydantic_settings import CliApp

from services.language.app import create_app
from services.language.settings import LanguageSettings
from shared.lifecycle import prepare, reading_settings, run


def main() -> None:
    with reading_settings():
        settings = CliApp.run(LanguageSettings)
        prepare(settings)
        app = create_app(settings)
    run(app, settings, settings.port)


if __name__ == "__main__":
    main()
