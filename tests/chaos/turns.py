"""What the workers write. A turn's content names its conversation and its number, so a copy that went astray tells."""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal, NamedTuple

from symfonic_redis import MemoryEntry, TenantScope

TENANTS = 7
"""Conversations are spread over so many tenants."""

Kind = Literal["push", "many", "stage", "bad"]

_MANY, _STAGE = 6, 4
"""Percent of the steps. A push is one turn, so most turns are pushed one by one."""


class Step(NamedTuple):
    """A write: `count` turns from number `first`. A `bad` one must be refused; its number is negative."""

    kind: Kind
    first: int
    count: int

    @property
    def last(self) -> int:
        return self.first + self.count - 1


def scope_of(name: str) -> TenantScope:
    """The scope of a conversation, named `c` and its number."""
    return TenantScope.root("org", f"t{int(name[1:]) % TENANTS}").child("conversation", name)


def content_of(name: str, number: int) -> str:
    return f"{name} {number}"


def parse(content: str) -> tuple[str, int] | None:
    """The conversation and the number that a content names; None for anything that no worker writes."""
    name, _, number = content.partition(" ")
    return (name, int(number)) if number.lstrip("-").isdigit() else None


def entry_of(name: str, number: int, scope: TenantScope) -> MemoryEntry:
    return MemoryEntry.turn(
        scope,
        speaker="user" if number % 2 else "assistant",
        turn_id=f"{name}-{number}",
        content=content_of(name, number),
    )


def step_of(name: str, first: int, last: int) -> Step:
    """How the turns from number `first` are written, at most up to `last`.

    Drawn from the name and the number alone: whoever takes a conversation over sends again what the one before sent.
    """
    draw, size = divmod(int.from_bytes(blake2b(f"{name} {first}".encode(), digest_size=4).digest()), 8)
    draw %= 100
    kind: Kind = "many" if draw < _MANY else "stage" if draw < _MANY + _STAGE else "push"
    count = {"many": 2 + size, "stage": 1 + size % 3}.get(kind, 1)
    return Step(kind, first, min(count, last - first + 1))
