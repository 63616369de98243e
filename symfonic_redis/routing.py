"""Where in a cluster a command belongs, and what CLUSTER SLOTS says about it. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from symfonic_redis.resp import Command, Packed, Word

Address = tuple[str, int]
"""Host and port of a node."""

KEYLESS = frozenset(
    {"ACL", "ASKING", "CLIENT", "CLUSTER", "CONFIG", "INFO", "PING", "READONLY", "SCRIPT", "TIME", "WAIT"}
)
"""Commands without a key, of those that the package sends."""

_SCRIPTED = frozenset({"EVAL", "EVALSHA"})
_STREAMED = frozenset({"XREAD", "XREADGROUP"})
_FIRST_OF_SCRIPT = 3


class SlotMap(NamedTuple):
    """Who serves what.

    Attributes:
        owners: the master of each slot; None where nobody serves it.
        replicas: of each master.
    """

    owners: list[Address | None]
    replicas: dict[Address, list[Address]]

    def nodes(self) -> list[Address]:
        """Every node, masters first."""
        return [*self.replicas, *(address for some in self.replicas.values() for address in some)]


def key_of(command: Command) -> bytes | None:
    """The key by which a command finds its node; None when any master can answer."""
    words = [word.words[0] if isinstance(word, Packed) else word for word in command]
    name = _text(words[0]).upper()
    key: Word | None = None
    if name in _SCRIPTED:
        key = words[_FIRST_OF_SCRIPT] if int(words[_FIRST_OF_SCRIPT - 1]) else None
    elif name in _STREAMED:
        key = words[[_text(word).upper() if isinstance(word, str) else "" for word in words].index("STREAMS") + 1]
    elif name not in KEYLESS:
        key = words[1]
    return key if key is None or isinstance(key, bytes) else str(key).encode()


def slot_of(command: Command) -> int | None:
    """The slot of a command's key; None when it has none."""
    key = key_of(command)
    return None if key is None else key_slot(key)


def read_slots(reply: Sequence[Any], asked: str) -> SlotMap:
    """What a node answers to CLUSTER SLOTS, its addresses made whole by the host that was asked."""
    owners: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    replicas: dict[Address, list[Address]] = {}
    for first, last, master, *others in reply:
        owner = _address(master, asked)
        owners[first : last + 1] = [owner] * (last + 1 - first)
        # Each range of a master names the same ones.
        replicas.setdefault(owner, [_address(other, asked) for other in others])
    return SlotMap(owners, replicas)


def resolved(host: str, port: int, asked: str) -> Address:
    """A node's address as it is announced; without a host it is that of the node that was asked."""
    return asked if host in ("", "?") else host, port


def _address(node: Sequence[Any], asked: str) -> Address:
    host = "" if node[0] is None else _text(node[0])
    if host == "?" and len(node) > _FIRST_OF_SCRIPT:
        # A host name is preferred and this node announces none: its metadata has the address.
        facts = node[_FIRST_OF_SCRIPT]
        pairs = facts.items() if isinstance(facts, dict) else zip(facts[::2], facts[1::2], strict=False)
        host = {_text(name): _text(value) for name, value in pairs}.get("ip", host)
    return resolved(host, int(node[1]), asked)


def _text(value: str | bytes | int) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
