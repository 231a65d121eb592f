"""The deployment secret, the keys derived from it, and ``python -m shared.security keygen``, which makes one."""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from shared.telemetry import get_logger

_log = get_logger("security")

KEY_BYTES = 32
LEAST_SECRET_BYTES = 16


def load_secret(path: Path | None) -> bytes:
    """The deployment secret: the bytes of ``path``, or, without one, 32 random bytes that live as long as the process.

    A random secret is safe: content hashes of different processes then differ, so nothing is shared that should not be, but
    neither are caches. That others than this process can read the file is a warning only: containers may have it no other way.
    A group of this process may, where the file is not its own: so Kubernetes mounts secrets.

    Raises:
        ValueError: the file holds fewer than 16 bytes.
        OSError: the file cannot be read.
    """
    if path is None:
        return secrets.token_bytes(KEY_BYTES)
    secret = path.read_bytes().strip()
    if len(secret) < LEAST_SECRET_BYTES:
        raise ValueError(f"the secret in {path} has {len(secret)} bytes; it needs at least {LEAST_SECRET_BYTES}")
    status = path.stat()
    mode = status.st_mode & 0o777
    by_group = status.st_uid != os.geteuid() and status.st_gid in (os.getegid(), *os.getgroups())
    if mode & (0o007 if by_group else 0o077):
        _log.warning("the secret can be read by others than this process", path=str(path), mode=f"{mode:o}", wanted="600")
    return secret


def derive_key(secret: bytes, purpose: str, length: int = KEY_BYTES) -> bytes:
    """``length`` bytes for one purpose, by SHAKE-256 over the length-prefixed secret and the purpose's name."""
    return hashlib.shake_256(len(secret).to_bytes(8, "little") + secret + purpose.encode()).digest(length)


def control_token(secret: bytes) -> str:
    """What services that share a secret show each other on control calls."""
    return derive_key(secret, "control-token").hex()


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair, each half as 40 characters of Z85, the form in which ZeroMQ takes them."""

    public: bytes
    secret: bytes = field(repr=False)


def curve_pair(secret: bytes, end: str) -> KeyPair:
    """The CURVE key pair of one end of the data socket. Any 32 bytes are a secret key on this curve."""
    key = z85.encode(derive_key(secret, f"curve/{end}"))
    return KeyPair(zmq.curve_public(key), key)


def keygen(path: Path, replace: bool = False) -> bool:
    """Writes a new secret to ``path``, which only its owner may read; False if there is one, which then stays.

    Whoever looks sees all of a secret or none, and of several who do this at once one wins.

    Raises:
        ValueError: what is there is no secret.
        OSError: it cannot be written.
    """
    if path.exists() and not replace:  # first, since its folder may be one that cannot be written to
        load_secret(path)
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # with mode 0600
    try:
        with open(descriptor, "w") as file:
            file.write(f"{secrets.token_hex(KEY_BYTES)}\n")
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(name, path)
            return True
        try:
            os.link(name, path)
        except FileExistsError:
            load_secret(path)
            return False
        return True
    finally:
        Path(name).unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m shared.security", description="The secret of a deployment.")
    making = parser.add_subparsers(required=True).add_parser("keygen", help="make a secret for EPD_SECRET_FILE")
    making.add_argument("path", nargs="?", type=Path, help="file to write, unless it is there; without one, standard output")
    making.add_argument("--replace", action="store_true", help="write a new secret over one that is there")
    asked = parser.parse_args(arguments)
    if asked.path is None:
        print(secrets.token_hex(KEY_BYTES))
        return
    try:
        made = keygen(asked.path, asked.replace)
    except (OSError, ValueError) as error:
        sys.exit(f"no secret was made: {error}")
    print(f"{asked.path}: {'a new secret' if made else 'has a secret, which stays'}")


if __name__ == "__main__":
    main()
