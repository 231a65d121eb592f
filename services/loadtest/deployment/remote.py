"""A deployment that is only known by its address."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import httpx

from services.loadtest.deployment.base import Deployment
from services.loadtest.deployment.route import CannotDo, read_secret
from services.loadtest.scenario import Action


class RemoteDeployment(Deployment):
    """A server somewhere, and those of its encoders whose fault route may be used.

    Faults can be aimed at these, ``parts``; ``encoders`` are none unless the server says that these are all that it has.
    """

    def __init__(
        self, target: str, encoders: tuple[str, ...] = (), secret_file: Path | None = None, api_key: str | None = None
    ) -> None:
        super().__init__()
        self.url = target
        self._addresses = {f"encoder-{number}": url for number, url in enumerate(encoders, 1)}
        self._secret_file = secret_file
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self.encoders = self.parts = tuple(self._addresses)

    def __enter__(self) -> Self:
        if self._secret_file is not None:
            self._use_secret(read_secret(self._secret_file))
        if self._listed() != len(self.parts):  # those that are not known can go on computing
            self.encoders = ()
        return self

    def _listed(self) -> int | None:
        """How many encoders the server says it has; None where it does not say."""
        try:
            answer = self._http.get(f"{self.url}/v1/encoders", headers=self._headers)
            return len(answer.raise_for_status().json()["data"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            return None

    def address(self, part: str) -> str:
        return self._addresses[part]

    def unable(self, action: Action) -> str:
        if action.verb == "clear":
            return ""
        return (
            f"a server that is only known by its address cannot be made to {action.verb}: use --docker where its parts are "
            "containers of this machine, or leave --target out for a pair of this tool's own"
        )

    def check_lines(self, actions: object) -> None:
        """Raises CannotDo where faults need an encoder's address and none was given."""
        assert isinstance(actions, list | tuple)
        if actions and not self.parts:
            raise CannotDo(
                f"{actions[0].line!r} cannot be done: only the server's address is known; give --encoder URL for each encoder "
                "whose fault route may be used, use --docker, or leave --target out for a pair of this tool's own"
            )
        super().check_lines(actions)

    def revive(self, part: str) -> None:
        """Whoever watches over it starts it."""
