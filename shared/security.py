"""The deployment secret and the keys derived from it."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

KEY_BYTES = 32


def load_secret(path: Path | None) -> bytes:
    """The deployment secret: the bytes of ``path``, or, without one, 32 random bytes that live as long as the process.

    A random secret is safe: content hashes of different processes then differ, so nothing is shared that should not be, but
    neither are caches.

    Raises:
        ValueError: the file holds fewer than 16 bytes.
        OSError: the file cannot be read.
    """
    if path is None:
        return secrets.token_bytes(KEY_BYTES)
    secret = path.read_bytes().strip()
    if len(secret) < 16:
        raise ValueError(f"the secret in {path} has {len(secret)} bytes; it needs at least 16")
    return secret


def derive_key(secret: bytes, purpose: str, length: int = KEY_BYTES) -> bytes:
    """``length`` bytes for one purpose, by SHAKE-256 over the length-prefixed secret and the purpose's name."""
    return hashlib.shake_256(len(secret).to_bytes(8, "little") + secret + purpose.encode()).digest(length)


def control_token(secret: bytes) -> str:
    """What services that share a secret show each other on control calls."""
    return derive_key(secret, "control-token").hex()
