"""What machines say to each other, signed with a key that they share: the port where they meet is open to others."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path
from typing import TYPE_CHECKING

from chunk_grpo import environment
from chunk_grpo.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

_LEAST_BYTES = 32
_MAC_DIGITS = 64  # of SHA-256


class UnsignedError(Exception):
    """A value was not written with the key."""


class SignedStore:
    """Texts by name in a store, each with an HMAC of name and text."""

    def __init__(self, store: TCPStore, key: bytes) -> None:
        self.store, self._key = store, key

    def set(self, name: str, text: str) -> None:
        """Write a text."""
        self.store.set(name, self._mac(name, text.encode()).decode() + text)

    def get(self, name: str) -> str:
        """The text of this name, when it is there; UnsignedError if written without the key, or under another name."""
        value: bytes = self.store.get(name)
        mac, text = value[:_MAC_DIGITS], value[_MAC_DIGITS:]
        if not hmac.compare_digest(mac, self._mac(name, text)):
            raise UnsignedError
        return text.decode()

    def has(self, name: str) -> bool:
        """Whether there is a value, signed or not."""
        return bool(self.store.check([name]))

    def _mac(self, name: str, text: bytes) -> bytes:
        return hmac.new(self._key, name.encode() + b"\0" + text, hashlib.sha256).hexdigest().encode()


def machines_key() -> bytes:
    """The key of the file that the environment names; one that others may read, or that is too short, is refused."""
    path, name = os.environ.get(environment.MACHINES_KEY), environment.MACHINES_KEY
    make = "make one with `(umask 077; head -c 32 /dev/urandom | base64 > FILE)` and give it to all machines"
    if not path:
        raise ConfigError(
            f"{name}: must be the path of a file with the key of several machines, got nothing; {make}"
        )
    try:
        key, mode = Path(path).read_bytes().strip(), Path(path).stat().st_mode
    except OSError as error:
        raise ConfigError(f"{name}: {path}: cannot be read ({error.strerror}); {make}") from error
    if mode & 0o077:
        raise ConfigError(
            f"{name}: {path}: must be closed to other users, got mode {mode & 0o777:o}; chmod 600 {path}"
        )
    if len(key) < _LEAST_BYTES:
        raise ConfigError(f"{name}: {path}: must have at least {_LEAST_BYTES} bytes, got {len(key)}; {make}")
    return key
