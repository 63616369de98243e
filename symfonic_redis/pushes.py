"""Turns on their way to a window: what is sent for them, settled before anything is sent, and what the reply means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from symfonic_redis import telemetry
from symfonic_redis.errors import InvalidInput
from symfonic_redis.evaluate import Call
from symfonic_redis.keys import ScopeKeys, encode_id, scope_keys
from symfonic_redis.limits import HARD_CAP, check_batch
from symfonic_redis.models import Durability, PushReceipt, coerce_durability
from symfonic_redis.nodes import node_id, turn_extra
from symfonic_redis.resp import Packed, Word, packed
from symfonic_redis.retention import Bounds, Idempotency, Mirror
from symfonic_redis.rows import encode_entry
from symfonic_redis.scope import ScopeLike
from symfonic_redis.store import Store

_KNOWN_KEY = 2
"""The state in which push.lua reports that another operation had the idempotency key."""


_NAMELESS = packed(b"", 0)
"""What is sent instead of an idempotency key's digest and its time."""


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


class Target:
    """Where a layer's turns go.

    Args:
        bounds: how many rows stay.
        mirror: also append them to a stream, in the same script.

    Attributes:
        layer: of the mirror, or what it would be.
        packed: what lua/push.lua is told of it.
    """

    __slots__ = ("bounds", "layer", "mirror", "packed")

    def __init__(self, bounds: Bounds, mirror: Mirror | None) -> None:
        self.bounds = bounds
        self.mirror = mirror
        self.layer = mirror.layer if mirror else "working"
        self.packed = packed(
            bounds.window,
            bounds.rows,
            _text(bounds.ttl),
            "" if mirror is None else _text(mirror.cap) or "all",
            _text(mirror.ttl if mirror else None),
        )


def prepare(store: Store, scope: ScopeLike, entries: Iterable[Any], durability: object, *, mirrored: bool) -> Push:
    """The turns as they will be stored.

    Raises:
        InvalidInput: (a `ValueError`) an entry, the scope or the durability is refused.
    """
    turns = list(entries)
    # First of all, so that a misspelt marker is told before anything else.
    durabilities = [_resolve(durability, turn) for turn in turns]
    keys = scope_keys(store.deployment.prefix, scope)
    rows = encode_turns(store, keys, turns)
    check_batch(rows)
    extras: list[bytes] = []
    if mirrored:
        seal = store.seal(keys)
        extras = [turn_extra(t.metadata, marker, seal=seal) for t, marker in zip(turns, durabilities, strict=True)]
    return Push(scope, keys, turns, durabilities, rows, extras if any(extras) else [])


def encode_turns(store: Store, keys: ScopeKeys, turns: Sequence[Any]) -> list[bytes]:
    """Turns of one scope as rows of its window.

    Raises:
        InvalidInput: one holds what cannot be stored, is too long, or is another tenant's.
    """
    limit, seal, tenant = store.deployment.max_row_bytes, store.seal(keys), keys.tenant
    rows = []
    for turn in turns:
        rows.append(encode_entry(turn, limit=limit, seal=seal))
        if turn.tenant_id != tenant:
            raise InvalidInput("an entry's tenant_id is not its scope's: nothing was written")
    return rows


def key_names(keys: ScopeKeys, layer: str) -> list[str]:
    """The keys of a push, as lua/push.lua has them."""
    shared = keys.shared
    return [
        *(keys.ops, keys.ops_old, shared.closed, shared.scopes, shared.tenants, shared.feed, shared.feed_seq),
        *(keys.turns, keys.graph(layer), keys.edits(layer), keys.idem, keys.staged),
    ]


def call_of(store: Store, pushes: Sequence[Push], target: Target) -> Call:
    """What lua/push.lua is called with for pushes of one scope; for several, none of which has a name, as one."""
    first = pushes[0]
    keys, feed, layer = first.keys, store.deployment.feed, target.layer
    names = keys.packed.get(layer)
    if names is None:
        names = keys.packed[layer] = packed(*key_names(keys, layer))
    operation, keep = store.operation("push")
    place = keys.packed.get((keep, feed))
    if place is None:
        caps: tuple[Word, Word] = ("", "") if feed is None else (feed, feed * HARD_CAP)
        place = keys.packed[keep, feed] = packed(keep, keys.path, encode_id(keys.tenant), *caps)
    name = first.idempotency
    rows, extras = first.rows, first.extras
    if len(pushes) > 1:
        rows = [row for push in pushes for row in push.rows]
        if any(push.extras for push in pushes):
            extras = [extra for push in pushes for extra in push.extras or [b""] * len(push.rows)]
    known: Sequence[Word | Packed] = (name.digest, name.ttl) if name else (_NAMELESS,)
    return names, (operation, place, target.packed, *known, len(rows), *rows, *extras)


def receipts_of(store: Store, pushes: Sequence[Push], target: Target, reply: Any) -> Iterator[PushReceipt]:
    """What the reply says of each push that was in the call: as if each had been a call of its own.

    Raises:
        AccessDenied, ScopeClosed: nothing was written.
    """
    state, receipt, *lengths = store.accepted("push", reply)
    window, evicted, first = receipt.split()
    bounds, mirror = target.bounds, target.mirror
    if lengths:  # a receipt of an attempt before does not tell them
        if mirror:
            telemetry.mirror_length.record(lengths[1], store.deployment.attributes)
        if lengths[0] > bounds.rows:
            store.complain(
                "bounds",
                "a conversation holds %d rows where this worker keeps %d: another worker's bounds are wider, "
                "or they were lowered; each write removes up to 16 more",
                lengths[0],
                bounds.rows,
            )
    if state == _KNOWN_KEY:
        telemetry.duplicates.add(1, store.deployment.attributes)
        yield PushReceipt((), int(window), 0, duplicate=True)
        return
    added = len(pushes[0].rows) if len(pushes) == 1 else sum(len(push.rows) for push in pushes)
    attributes = store.deployment.attributes
    telemetry.turns_pushed.add(added, attributes)
    telemetry.turns_evicted.add(int(evicted), attributes)
    telemetry.window_length.record(int(window), attributes)
    # How many turns the window held before; if some went, it was this many short of what it had to hold.
    held = int(window) + int(evicted) - added
    time, _, sequence = first.decode().partition("-")
    number = int(sequence or 0)
    place = node_id("", target.layer, pushes[0].keys)  # what all ids end in
    for push in pushes:
        count = len(push.rows)
        gone = max(0, held + count - bounds.window)
        held += count - gone
        nodes: tuple[str, ...] = ()
        if sequence:
            # Of more than the mirror keeps, the first are trimmed already.
            kept = count if mirror is None or mirror.cap is None else min(count, mirror.cap)
            nodes = tuple([f"{time}-{at}{place}" for at in range(number + count - kept, number + count)])
            number += count
        yield PushReceipt(nodes, held, gone, duplicate=False)


def _resolve(durability: object, entry: Any) -> Durability | None:
    marker = durability
    if marker is None:
        metadata = getattr(entry, "metadata", None)
        if type(metadata) is dict or isinstance(metadata, Mapping):  # the second question costs more
            marker = metadata.get("durability")
    return None if marker is None else coerce_durability(marker)


def _text(value: int | None) -> str:
    return "" if value is None else str(value)
