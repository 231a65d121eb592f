"""Locust's page, to look at: this tool's timeline and verdicts would be worth nothing if somebody began another test there."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from flask import Response, request
from gevent.pywsgi import WSGIServer
from locust.env import Environment

_REFUSED = "This page only shows: the scenario says what happens when. Ctrl-C ends the load test.\n"


class Page:
    """Serves the page on ``port`` of this machine's loopback; a context manager. Whoever sees it can only look."""

    def __init__(self, environment: Environment, port: int) -> None:
        # Locust reads the process's command line for what the page shows, and ends the process over what it does not know.
        sys.argv = sys.argv[:1]
        ui = environment.create_web_ui("127.0.0.1", port, delayed_start=True)
        assert ui.app is not None
        ui.app.before_request(_refuse_orders)
        self.url = f"http://127.0.0.1:{port}"
        self._server = WSGIServer(("127.0.0.1", port), ui.app, log=None)

    def __enter__(self) -> Self:
        """Raises RuntimeError where the port is taken."""
        try:
            self._server.start()
        except OSError as error:
            raise RuntimeError(
                f"Locust's page cannot be at {self.url} ({error.strerror}): --web-port takes another port"
            ) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.stop()


def _refuse_orders() -> Response | None:
    return Response(_REFUSED, 403, mimetype="text/plain") if request.method == "POST" else None
