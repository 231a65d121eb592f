"""``python -m tests.manifests.hanging FILE``: the encoder service, whose tower hangs while ``FILE`` is there. Nothing that the
service itself offers makes the tower's thread stand still; a driver that hangs does."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from services.encoder.__main__ import main
from services.encoder.models.generic import EncoderHalf
from shared.identity import MediaItem


def hang_while(file: Path) -> None:
    """Serves until the end of the process."""
    encode = EncoderHalf.encode

    def hanging(half: EncoderHalf, items: Sequence[MediaItem]) -> None:
        while file.exists():
            time.sleep(0.01)
        encode(half, items)

    with mock.patch.object(EncoderHalf, "encode", hanging):
        main()


if __name__ == "__main__":
    hang_while(Path(sys.argv.pop(1)))
