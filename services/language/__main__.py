"""``python -m services.language``: runs the language service, or says of a checkpoint whether it would (``check MODEL``)."""

from __future__ import annotations

import sys

from pydantic_settings import CliApp

from services.language.app import create_app
from services.language.check import check
from services.language.settings import LanguageSettings
from shared.lifecycle import prepare, reading_settings, run


def main() -> None:
    if sys.argv[1:2] == ["check"]:
        sys.exit(check(sys.argv[2:]))
    with reading_settings():
        settings = CliApp.run(LanguageSettings)
        prepare(settings)
        app = create_app(settings)
    run(app, settings, settings.port)


if __name__ == "__main__":
    main()
