"""How much of a scope is kept, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Self

from symfonic_redis.errors import ConfigurationError, InvalidInput
from symfonic_redis.models import check_ttl


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of a conversation is kept.

    Attributes:
        window: turns in the window.
        evicted: turns kept behind it.
        ttl: milliseconds after the last write at which both vanish; None keeps them.
    """

    window: int
    evicted: int
    ttl: int | None

    @property
    def rows(self) -> int:
        """Rows of the list: one more than window and evicted turns, whose presence tells of older ones."""
        return self.window + self.evicted + 1 if self.evicted else self.window


@dataclass(frozen=True, slots=True)
class Mirror:
    """How the working layer is mirrored.

    Attributes:
        layer: the stream's layer.
        cap: nodes kept; None keeps all, 0 none.
        ttl: milliseconds after the last write at which the stream vanishes; None keeps it.
    """

    layer: str
    cap: int | None
    ttl: int | None


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A caller's own name for a write, and for how many milliseconds it is remembered.

    Attributes:
        key: the name.
        ttl: milliseconds.
        operation: what was written. One job may push and stage under one name: neither hides the other.
    """

    key: str
    ttl: int
    operation: str = "push"

    @classmethod
    def of(cls, key: object, seconds: float, operation: str = "push") -> Self:
        """The name and its time, checked.

        Raises:
            InvalidInput: the key is no text or empty, or the time is out of range.
        """
        if not isinstance(key, str) or not key:
            raise InvalidInput("an idempotency_key must be a text that is not empty: name the job, or leave it away")
        try:
            return cls(key, check_ttl(seconds) or 0, operation)
        except ConfigurationError as error:
            raise InvalidInput(f"idempotency_ttl: {error}") from None

    @property
    def digest(self) -> bytes:
        """16 bytes that stand for the key of this operation."""
        name = self.key.encode("utf-8", "surrogatepass")
        return blake2b(name, digest_size=16, person=self.operation.encode()).digest()
