"""Owns the key that directives are signed with (Ed25519)."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

import nacl.encoding
import nacl.signing

_SEED: Final = re.compile(r"[0-9a-f]{64}")


class BadKeyError(Exception):
    """The key file cannot be used; the text says why, and what to do unless the key is `lost`."""

    def __init__(self, sentence: str, *, lost: bool) -> None:
        super().__init__(sentence)
        self.lost: Final = lost
        """True where no key is in the file, which only a backup or another key can mend."""


class Signer:
    """Signs with one key. Nodes pin its public half when they enrol."""

    def __init__(self, seed: bytes) -> None:
        self._key: Final = nacl.signing.SigningKey(seed)
        self.public_key: Final = self._key.verify_key.encode(nacl.encoding.HexEncoder).decode()

    def sign(self, message: bytes) -> str:
        """The signature in hexadecimal."""
        return self._key.sign(message).signature.hex()


def load(path: Path, *, create: bool) -> Signer:
    """The key in a file; with `create`, made if there is none.

    Raises:
        BadKeyError: missing, unreadable, open to others, or not a key.
    """
    try:
        if create:
            _create(path)
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(1024).decode("ascii", "replace").strip()
    except FileNotFoundError as error:
        raise BadKeyError(f"The signing key {path}: {error.strerror}.", lost=True) from error
    except OSError as error:
        sentence = f"The signing key {path}: {error.strerror}. Let this user read it there."
        raise BadKeyError(sentence, lost=False) from error
    if stat.S_IMODE(mode) & 0o077:
        sentence = f"The signing key {path} can be read by others; chmod 600 it."
        raise BadKeyError(sentence, lost=False)
    if _SEED.fullmatch(text) is None:
        raise BadKeyError(f"The signing key {path} is not 64 hexadecimal digits.", lost=True)
    return Signer(bytes.fromhex(text))


def _create(path: Path) -> None:
    """Write a new key, whole or not at all; keep one that is there."""
    if path.exists():
        return
    partial = path.with_name(f"{path.name}.{os.getpid()}.new")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(nacl.signing.SigningKey.generate().encode().hex().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(partial, path)  # Fails if another process was first; then theirs is the key.
        except FileExistsError:
            return
    finally:
        partial.unlink()
