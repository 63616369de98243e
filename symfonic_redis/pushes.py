"""Turns on their way to a window, encoded and sealed: what will be stored is settled before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from symfonic_redis.errors import InvalidInput
from symfonic_redis.keys import ScopeKeys, scope_keys
from symfonic_redis.models import Durability, coerce_durability
from symfonic_redis.nodes import turn_extra
from symfonic_redis.retention import Idempotency
from symfonic_redis.rows import encode_entry
from symfonic_redis.scope import ScopeLike
from symfonic_redis.store import Store


class Push(NamedTuple):
    """Turns of one scope, oldest first.

    Attributes:
        scope: whose.
        keys: of the scope.
        turns: as the caller gave them; a mirror that is not ours gets these.
        durabilities: of each.
        rows: each, encoded.
        extras: as many as rows, or none: what its node in the mirror has beyond the row.
        idempotency: the caller's name for it, or None.
    """

    scope: ScopeLike
    keys: ScopeKeys
    turns: list[Any]
    durabilities: list[Durability | None]
    rows: list[bytes]
    extras: list[bytes]
    idempotency: Idempotency | None = None


def prepare(store: Store, scope: ScopeLike, entries: Iterable[Any], durability: object, *, mirrored: bool) -> Push:
    """The turns as they will be stored.

    Raises:
        InvalidInput: (a `ValueError`) an entry, the scope or the durability is refused.
    """
    turns = list(entries)
    # First of all, so that a misspelt marker is told before anything else.
    durabilities = [_resolve(durability, turn) for turn in turns]
    keys = scope_keys(store.deployment.prefix, scope)
    rows = [encode_turn(store, keys, turn) for turn in turns]
    extras: list[bytes] = []
    if mirrored:
        seal = store.seal(keys)
        extras = [turn_extra(t.metadata, marker, seal=seal) for t, marker in zip(turns, durabilities, strict=True)]
    return Push(scope, keys, turns, durabilities, rows, extras if any(extras) else [])


def encode_turn(store: Store, keys: ScopeKeys, entry: Any) -> bytes:
    """One turn as a row of the window.

    Raises:
        InvalidInput: it holds what cannot be stored, is too long, or is another tenant's.
    """
    row = encode_entry(entry, limit=store.deployment.max_row_bytes, seal=store.seal(keys))
    if entry.tenant_id != keys.tenant:
        raise InvalidInput("an entry's tenant_id is not its scope's: nothing was written")
    return row


def _resolve(durability: object, entry: Any) -> Durability | None:
    marker = durability
    metadata = getattr(entry, "metadata", None)
    if marker is None and isinstance(metadata, Mapping):
        marker = metadata.get("durability")
    return None if marker is None else coerce_durability(marker)
