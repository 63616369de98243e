"""Encryption at rest: rows are sealed before they leave the worker and opened after they came back.

A sealed row is `fe`, the length of the key's id in one byte, the id, a random nonce of 12 bytes, and what AES-256-GCM
made of the row, with its tag of 16. Each place, which is a scope and a kind of row in it, has a key of its own, derived
from the ring's: a row that was copied to another scope, to another layer, or to where another kind of row belongs, does
not open. It also keeps the rows under one key so few that their random nonces will not meet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from symfonic_redis.errors import CodecError, ConfigurationError, KeyringMismatch

SEALED = b"\xfe"
"""The first byte of every sealed row. A plain row begins with the version of its codec."""

KEY_LENGTH, LONGEST_ID = 32, 64

_NONCE, _TAG = 12, 16
_TOKEN = 16


class Keyring:
    """The keys that open a deployment's rows, and the one that seals new ones.

    Args:
        keys: 32 random bytes each, by an id of 1 to 64 printable ASCII characters. The id is stored with every row, in
            plain: a date serves well.
        current: the id of the key that seals what is written. None seals nothing: the first step of turning encryption
            on for workers that run, and the last of turning it off.
        accept_plain: also read rows that were never sealed, as while a deployment moves to encryption. Leave it False
            otherwise: whoever can write to the server could plant such rows.

    Raises:
        ConfigurationError: a key or an id is none, `current` is not among them, or is None without `accept_plain`; or
            the extra `encryption` is not installed.
    """

    __slots__ = ("_cipher", "_keys", "_tokens", "accept_plain", "current")

    def __init__(self, keys: Mapping[str, bytes], *, current: str | None, accept_plain: bool = False) -> None:
        given: object = keys  # an untyped caller may pass anything
        if not isinstance(given, Mapping) or not given:
            raise ConfigurationError("a keyring needs its keys by their ids: Keyring({'2026-11': key}, current=...)")
        for name, key in given.items():
            if not isinstance(name, str) or not 0 < len(name) <= LONGEST_ID or not _printable(name):
                raise ConfigurationError("a key's id must be 1 to 64 printable ASCII characters: choose another")
            if not isinstance(key, bytes) or len(key) != KEY_LENGTH:
                raise ConfigurationError(f"the key {name!r} is not {KEY_LENGTH} bytes: make one with os.urandom(32)")
        if current is None and not accept_plain:
            raise ConfigurationError("a keyring that seals nothing must read plain rows: pass accept_plain=True")
        chosen: object = current
        if current is not None and (not isinstance(chosen, str) or current not in keys):
            raise ConfigurationError("current names none of the keyring's keys: pass the id of one")
        self.current = current
        self.accept_plain = accept_plain
        self._keys = dict(keys)
        self._cipher = _ciphers(self._keys)
        self._tokens = b"" if current is None else _derived(keys[current], b"swm tokens")

    def __repr__(self) -> str:
        return f"<Keyring {', '.join(sorted(self._keys))}; current {self.current}>"

    @property
    def overhead(self) -> int:
        """How many bytes a sealed row is longer than the row."""
        return 0 if self.current is None else 2 + len(self.current) + _NONCE + _TAG

    def seal(self, data: bytes, place: bytes) -> bytes:
        """Encrypt under the current key, for one place; the row itself without one."""
        if self.current is None:
            return data
        head, nonce = SEALED + bytes([len(self.current)]) + self.current.encode(), os.urandom(_NONCE)
        sealed: bytes = self._cipher(self.current, place).encrypt(nonce, data, head + place)
        return head + nonce + sealed

    def unseal(self, data: bytes, place: bytes) -> bytes:
        """Decrypt what was sealed for this place.

        Raises:
            KeyringMismatch: the key is not in the ring, or the row is plain and plain rows are not accepted.
            CodecError: the row is damaged, was sealed for another place, or its key was another under the same id.
        """
        name = key_id(data)
        if name is None:
            if self.accept_plain:
                return data
            raise KeyringMismatch(
                "the row is not sealed and this deployment reads sealed rows only: pass accept_plain=True to its "
                "Keyring if plain rows are to be expected"
            )
        if name not in self._keys:
            raise KeyringMismatch(f"the row is sealed with the key {name!r}: add that key to the Keyring of connect()")
        body = len(name) + 2
        cipher = self._cipher(name, place)
        try:
            opened: bytes = cipher.decrypt(data[body : body + _NONCE], data[body + _NONCE :], data[:body] + place)
        except Exception as error:
            # The library says InvalidTag; whatever it says, the row cannot be read.
            raise CodecError(
                f"the sealed row does not open: it is damaged or from another place, or its key {name!r} was another"
            ) from error
        return opened

    def token(self, text: str, place: bytes) -> str:
        """32 hex digits that stand for a text in one place, the same under the same current key; else the text."""
        if not self._tokens:
            return text
        data = text.encode("utf-8", "surrogatepass") + b"\0" + place
        return blake2b(data, key=self._tokens, digest_size=_TOKEN).hexdigest()


def key_id(data: bytes) -> str | None:
    """The id of the key that sealed a row; None for a plain row.

    Raises:
        CodecError: the row begins as a sealed one does, and is none.
    """
    if data[:1] != SEALED:
        return None
    length = data[1] if len(data) > 1 else 0
    name = data[2 : 2 + length].decode("ascii", "replace")
    if not 0 < length <= LONGEST_ID or len(data) < 2 + length + _NONCE + _TAG or not _printable(name):
        raise CodecError("the sealed row is cut short or damaged")
    return name


@dataclass(frozen=True, slots=True)
class Seal:
    """Seals and opens the rows of one scope; without a ring, rows are plain.

    A row's place is the scope, and what is passed with it: its kind, and what else must not change about it.
    """

    ring: Keyring | None
    scope: str

    @property
    def active(self) -> bool:
        """Whether what is written is sealed."""
        return self.ring is not None and self.ring.current is not None

    @property
    def overhead(self) -> int:
        """How many bytes a row grows by being sealed."""
        return self.ring.overhead if self.ring else 0

    def seal(self, data: bytes, *place: str) -> bytes:
        """The row as it is stored."""
        return self.ring.seal(data, self._place(place)) if self.ring else data

    def unseal(self, data: bytes, *place: str) -> bytes:
        """The inverse of `seal`.

        Raises:
            KeyringMismatch: the ring, or that there is none, does not fit the row.
            CodecError: the row is damaged, or was sealed for another place.
        """
        if self.ring:
            return self.ring.unseal(data, self._place(place))
        name = key_id(data)
        if name is None:
            return data
        raise KeyringMismatch(
            f"the row is sealed with the key {name!r} and this deployment has no keys: pass encryption=Keyring(...) "
            "with that key to connect()"
        )

    def token(self, text: str, *place: str) -> str:
        """What stands for a text where a script must compare it; see `Keyring.token`."""
        return self.ring.token(text, self._place(place)) if self.ring else text

    def _place(self, place: tuple[str, ...]) -> bytes:
        # No part holds a NUL: scopes are percent-encoded, the others are names of ours.
        return "\0".join((self.scope, *place)).encode()


PLAIN = Seal(None, "")
"""Seals nothing, and opens nothing that is sealed."""


def _printable(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _derived(key: bytes, person: bytes, place: bytes = b"") -> bytes:
    """A key for one use, which tells nothing of the key that it comes from, nor of any other use."""
    return blake2b(place, key=key, person=person, digest_size=KEY_LENGTH).digest()


def _ciphers(keys: Mapping[str, bytes]) -> Callable[[str, bytes], Any]:
    """The cipher of a key's id and a place, from a bounded cache: a window's rows share one."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError(
            "encryption needs the cryptography package: install symfonic-redis[encryption]"
        ) from error
    return lru_cache(maxsize=1_024)(lambda name, place: AESGCM(_derived(keys[name], b"swm rows", place)))
