"""How the services talk to each other: with keys that derive from their secret, or plainly, where nobody else can reach them.

The one place that knows the rule. With ``EPD_SECRET_FILE`` the data socket is encrypted and both ends prove who they are
(CURVE), and control calls carry a token. Without it the seam is plain, and stays on loopback unless ``EPD_PLAIN_SEAM`` says
that nobody else is on the network.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

import zmq

from shared.addresses import check_endpoint, is_loopback
from shared.errors import InvalidRequest
from shared.security import KeyPair, control_token, curve_pair
from shared.settings import ServiceSettings
from shared.telemetry import get_logger

_log = get_logger("seam")

# Milliseconds that a connection to the data socket may take until both ends have proven who they are.
_HANDSHAKE = 3000
# Any name does; where one is set, ZeroMQ lets nobody in when nothing answers its question who may.
_DOMAIN = b"epd"


@dataclass(frozen=True, slots=True)
class Keys:
    """What follows from the secret. The language service is the server of the data socket, encoders are its clients."""

    language: KeyPair
    encoder: KeyPair
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Seam:
    """One service's side. Without ``keys`` it is plain: on loopback only, or ``anywhere``."""

    keys: Keys | None = None
    anywhere: bool = False

    @property
    def curve(self) -> bool:
        """Whether the data channel is encrypted."""
        return self.keys is not None

    @property
    def closed(self) -> bool:
        """Whether nobody may register: there is no token to know them by, and nobody said that none is needed."""
        return self.keys is None and not self.anywhere

    def headers(self) -> dict[str, str]:
        """The headers of control calls."""
        return {} if self.keys is None else {"authorization": f"Bearer {self.keys.token}"}

    def check_token(self, authorization: str | None) -> None:
        """Lets a control call pass whose ``Authorization`` header has the token; where the seam is plain, every one.

        Raises:
            InvalidRequest: it is missing or wrong.
        """
        if self.keys is None:
            return
        scheme, _, brought = (authorization or "").partition(" ")
        # The token is always compared, and in constant time, so that nothing is learned from how long a refusal takes.
        fits = secrets.compare_digest(brought.strip().encode(), self.keys.token.encode())
        if not fits or scheme.lower() != "bearer":
            raise InvalidRequest(
                "The token of the call is missing or wrong: the services have different secrets (EPD_SECRET_FILE).",
                param="authorization",
            )

    def check_mode(self, curve: bool) -> None:
        """Both ends must do the same: else embeddings would never arrive, and nothing would say why.

        Raises:
            InvalidRequest: the language service's data channel is encrypted (``curve``) and this end's not, or the reverse.
        """
        if curve != self.curve:
            theirs, ours = ("encrypts", "does not") if curve else ("does not encrypt", "does")
            raise InvalidRequest(
                f"The language service {theirs} the data channel, this encoder {ours}: give both the same EPD_SECRET_FILE.",
                param="curve",
            )

    def check_reply_to(self, endpoint: str) -> None:
        """Embeddings go to ``tcp://host:port`` with a host that names one machine; plainly, to this one only.

        Raises:
            InvalidRequest: they may not go there.
        """
        try:
            host = check_endpoint(endpoint)
        except ValueError as error:
            raise InvalidRequest(str(error), param="reply_to") from error
        if self.closed and not is_loopback(host):
            raise InvalidRequest(
                f"reply_to is {endpoint}, but without keys (EPD_SECRET_FILE) embeddings go to loopback addresses only.",
                param="reply_to",
            )

    def secure_server(self, socket: zmq.Socket[Any]) -> None:
        """Makes ``socket``, not bound yet, the language service's end. Who may come in is asked of the context's handler (ZAP);
        without one, nobody may."""
        socket.set(zmq.HANDSHAKE_IVL, _HANDSHAKE)
        if self.keys is not None:
            socket.set(zmq.CURVE_SERVER, 1)
            socket.set(zmq.CURVE_SECRETKEY, self.keys.language.secret)
            socket.set(zmq.ZAP_DOMAIN, _DOMAIN)
            socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def secure_client(self, socket: zmq.Socket[Any]) -> None:
        """Makes ``socket``, not connected yet, an encoder's end: it sends to nobody but the language service."""
        socket.set(zmq.HANDSHAKE_IVL, _HANDSHAKE)
        if self.keys is not None:
            socket.set(zmq.CURVE_SERVERKEY, self.keys.language.public)
            socket.set(zmq.CURVE_PUBLICKEY, self.keys.encoder.public)
            socket.set(zmq.CURVE_SECRETKEY, self.keys.encoder.secret)


LOOPBACK = Seam()
"""The seam without keys."""


def keys_of(secret: bytes) -> Keys:
    """The keys of a deployment."""
    return Keys(curve_pair(secret, "language"), curve_pair(secret, "encoder"), control_token(secret))


def seam_of(settings: ServiceSettings, secret: bytes, variable: str, host: str) -> Seam:
    """The seam as the settings want it. ``secret`` is that of their ``secret_file``; ``host`` is the address that the service's
    side of the seam listens on, and ``variable`` the setting that says so.

    Raises:
        ValueError: the service would be open to strangers, or the settings contradict each other.
    """
    if settings.secret_file is not None and settings.plain_seam:
        raise ValueError(
            "EPD_SECRET_FILE gives the services keys, and EPD_PLAIN_SEAM tells them to talk without: unset one of the two."
        )
    if settings.secret_file is not None:
        return Seam(keys_of(secret))
    if not settings.plain_seam and not is_loopback(host):
        raise ValueError(
            f"{variable} is {host}, where others can reach this service, and it has no keys to know its peers by: set "
            "EPD_SECRET_FILE (python -m shared.security keygen makes one), or EPD_PLAIN_SEAM=true if nobody else is on that "
            "network."
        )
    if settings.plain_seam:
        _log.warning(
            "THE SEAM IS PLAIN: whoever is on this network can read pictures' embeddings and send others in their place; "
            "set EPD_SECRET_FILE instead of EPD_PLAIN_SEAM"
        )
    return Seam(anywhere=settings.plain_seam)
