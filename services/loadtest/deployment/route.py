"""The encoder's fault route, by which it fails on order."""

from __future__ import annotations

import ssl
import uuid
from pathlib import Path
from typing import Any

import httpx

from shared.security import control_token, load_secret


class CannotDo(ValueError):
    """Something cannot be done to a deployment; the message is one sentence that says why, and what to change."""


def client(timeout: float) -> httpx.Client:
    """A client that opens a connection a call: what it talks to dies and comes back, and its old connections with it.

    It goes through no proxy, and trusts whom the load's own connections trust: the system's authorities, or ``SSL_CERT_FILE``.
    """
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.Client(trust_env=False, timeout=timeout, limits=limits, verify=ssl.create_default_context())


def read_secret(path: Path) -> bytes:
    """The deployment secret of a file, as the services read it. Raises CannotDo where there is none."""
    try:
        return load_secret(path)
    except (OSError, ValueError) as error:
        raise CannotDo(f"the secret file cannot be read: {error}") from error


class FaultRoute:
    """``/v1/faults`` of encoders. ``secret`` is the deployment's, where calls need a token."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._http = client(timeout=5.0)
        self._headers = {} if secret is None else {"authorization": f"Bearer {control_token(secret)}"}

    def close(self) -> None:
        """Ends its connections."""
        self._http.close()

    def set(self, url: str, fault: dict[str, Any]) -> str:
        """Sets a fault; returns what ``remove`` takes.

        Raises:
            CannotDo: there is no such route, or it does not take this.
        """
        process = self._process(url)
        answer = self._call("POST", f"{url}/v1/faults", json=fault)
        return f"{process}/{answer.json()['faults'][0]['id']}"

    def try_out(self, url: str, fault: dict[str, Any]) -> None:
        """Sets a fault, so that it hits nobody, and removes it. Raises CannotDo as ``set`` does."""
        match = fault.get("match", {})
        if isinstance(match, dict):
            headers = match.get("headers") or {}
            if isinstance(headers, dict):
                nobody = {**headers, "x-epd-tried-out-by": uuid.uuid4().hex}
                fault = {**fault, "match": {**match, "headers": nobody}}
        self.remove(url, self.set(url, fault))

    def remove(self, url: str, handle: str) -> None:
        """Removes a fault. That it is gone, or its process, is as good: ids of another process are others' faults.

        Raises:
            CannotDo: the encoder does not answer.
        """
        process, _, fault = handle.partition("/")
        try:
            if self._process(url) == process:
                self._call("DELETE", f"{url}/v1/faults/{fault}", gone=404)
        except _NobodyThere:
            return

    def clear(self, url: str) -> None:
        """Removes all faults. Raises CannotDo where there is no such route or no answer."""
        try:
            self._call("DELETE", f"{url}/v1/faults")
        except _NobodyThere:  # and so it has none
            return

    def _process(self, url: str) -> str:
        """What is another for each process of an encoder; empty where it does not say."""
        answer = self._call("GET", f"{url}/v1/info", gone=404)
        return str(answer.json().get("service_id", "")) if answer.is_success else ""

    def _call(self, method: str, url: str, gone: int = 0, **more: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, url, headers=self._headers, **more)
        except httpx.ConnectError as error:
            raise _NobodyThere(f"nothing listens at {url}: {error}") from error
        except httpx.HTTPError as error:
            raise CannotDo(f"{url} did not answer: {error or type(error).__name__}") from error
        if answer.status_code == gone or answer.is_success:
            return answer
        if answer.status_code in (404, 405):
            raise CannotDo(f"there is no {url}: start the encoder with EPD_FAULTS_ENABLED=true")
        error_object = _error(answer)
        if error_object.get("param") == "authorization":
            raise CannotDo(f"{url} wants the token of the deployment's secret: name its file with --secret-file")
        raise CannotDo(f"{url} answered {answer.status_code}: {error_object.get('message') or answer.text[:200]}")


class _NobodyThere(CannotDo):
    """Nothing listens at the address."""


def _error(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}
