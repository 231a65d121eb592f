"""``python -m services.loadtest``: loads a server, makes its encoders fail, and judges what its clients got."""

from __future__ import annotations

import sys

from gevent import monkey


def main() -> int:
    """Runs the command line; returns the exit status."""
    if sys.argv[1:2] == ["plan"]:  # which has no users
        from services.loadtest.capacity.command import command as plan

        return plan(sys.argv[2:])
    # Before anything else is imported: Locust's users are greenlets, and what blocks one of them must not block all.
    monkey.patch_all()
    from services.loadtest.command import command

    return command()


if __name__ == "__main__":
    sys.exit(main())
