"""One change of a scope, as the feed tells it, and how a feed's entry becomes one.

An entry's fields are `s` (sequence number), `k` (kind), `p` (encoded path), and what the kind needs; see
lua/feed.lua and the scripts that call its `publish`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from symfonic_redis.codec import decode
from symfonic_redis.cursors import Trail
from symfonic_redis.entry_seals import unseal_changes
from symfonic_redis.errors import CodecError, InvalidInput
from symfonic_redis.keys import decode_id, decode_path, scope_keys
from symfonic_redis.models import MemoryEntry, MemoryNode
from symfonic_redis.nodes import decode_node, node_id
from symfonic_redis.rows import decode_entry
from symfonic_redis.scope import SCOPE_PATH_DELIMITER, ScopeLevel, ScopeLike, TenantScope
from symfonic_redis.sealing import Keyring, Seal

MISSED = "missed"
"""The kind of a change that stands for changes which are gone."""

_UNMIRRORED = "-"
_FIXED = ("s", "k", "p", "l", "i")


@dataclass(frozen=True, slots=True)
class PathScope:
    """A scope by its bare address, for a path that a `TenantScope` cannot have: another package's writers choose it."""

    tenant_id: str
    scope_path: str

    def ancestor_prefix_paths(self) -> list[str]:
        """The paths of every prefix of this path, root first, this one last."""
        parts = self.scope_path.split(SCOPE_PATH_DELIMITER)
        return [SCOPE_PATH_DELIMITER.join(parts[:end]) for end in range(2, len(parts), 2)] + [self.scope_path]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that happened to a scope.

    Attributes:
        kind: `push`, `node`, `update`, `delete`, `rehydrate`, `flush`, `import`, `clear`, `purge`, or what is newer;
            or `missed`: changes are gone before they were read.
        tenant: whose.
        partition: of the feed, 0 to 1,023. Sequence numbers count within it, for this tenant.
        sequence: the change's number; of `missed`, the last of the missing ones.
        address: the scope, as an address; None for `missed`.
        at: when, by the server's clock; None for `missed`.
        layer: of the node it is about; None when it is about none.
        node_id: that node's id; None when it is about none, as a push without a mirror.
        node: the node as it was written, of `push` and `node`; later updates are changes of their own.
        entry: the turn, of `push`.
        updates: of `update`: attributes by name, and under `properties` each property that changed.
        count: of `rehydrate` and `import`: how many turns. Of `missed`: how many changes of this
            partition and tenant, whichever their scope; None when the feed was erased and numbered anew, so that
            nobody can know.
        mirror: of `clear`: whether the mirror was emptied too.
    """

    kind: str
    tenant: str
    partition: int
    sequence: int
    address: ScopeLike | None = None
    at: datetime | None = None
    layer: str | None = None
    node_id: str | None = None
    node: MemoryNode | None = None
    entry: MemoryEntry | None = None
    updates: dict[str, Any] | None = None
    count: int | None = None
    mirror: bool = False
    trail: Trail | None = field(default=None, repr=False, compare=False)
    step: int = field(default=0, repr=False, compare=False)

    @property
    def scope(self) -> TenantScope | None:
        """The scope; None for `missed`, and for a path that no `TenantScope` can have (then see `address`)."""
        return self.address if isinstance(self.address, TenantScope) else None

    @property
    def cursor(self) -> str:
        """Where to resume after this change: `watch(..., after=cursor)`. Opaque, printable ASCII.

        At most 20 kB for a tenant with changes in all 1,024 partitions; about 40 bytes for a scope. Made when asked.
        """
        return "" if self.trail is None else self.trail.cursor(self.step)


def sequence_of(fields: Mapping[bytes, bytes]) -> int | None:
    """The sequence number of a feed's entry; None when it has none, so that it is none of ours."""
    text = fields.get(b"s", b"")
    return int(text) if text.isdigit() else None


@lru_cache(maxsize=16_384)
def address_from(tenant: str, encoded_path: str) -> ScopeLike:
    """The scope at an encoded path of `tenant`.

    Raises:
        CodecError: the path cannot be a scope's.
    """
    path = decode_path(encoded_path)
    parts = path.split(SCOPE_PATH_DELIMITER)
    try:
        scope = TenantScope.from_path(
            [ScopeLevel(kind=kind, id=id_) for kind, id_ in zip(parts[::2], parts[1::2], strict=True)]
        )
    except (ValidationError, ValueError):
        return PathScope(tenant, path)
    return scope if scope.tenant_id == tenant else PathScope(tenant, path)


def decode_change(  # noqa: PLR0917 - where an entry was found, and what it holds
    prefix: str,
    tenant: str,
    partition: int,
    at: str,
    fields: Mapping[bytes, bytes],
    trail: Trail | None = None,
    *,
    ring: Keyring | None,
) -> Change:
    """The change of a feed's entry.

    Args:
        prefix: of the deployment.
        tenant: whose feed, decoded.
        partition: which feed.
        at: the entry's stream id.
        fields: the entry's fields.
        trail: what has been read so far, this entry included.
        ring: the keys of the deployment.

    Raises:
        CodecError: the entry is damaged.
    """
    try:
        known = {name: fields[name.encode()].decode() for name in _FIXED if name.encode() in fields}
        address = address_from(tenant, known["p"])
        keys = scope_keys(prefix, address)
        seal = Seal(ring, keys.identity)
        base: dict[str, Any] = {
            "kind": known["k"],
            "tenant": tenant,
            "partition": partition,
            "sequence": int(known["s"]),
            "address": address,
            "at": datetime.fromtimestamp(int(at.partition("-")[0]) / 1000, UTC),
            "trail": trail,
            "step": len(trail.steps) if trail else 0,
        }
        where = known.get("i", _UNMIRRORED)
        layer = known.get("l")
        if layer is not None and where != _UNMIRRORED:
            base["layer"], base["node_id"] = layer, node_id(where, layer, keys)
        match known["k"]:
            case "push":
                base["entry"] = decode_entry(fields[b"r"], tenant, seal=seal)
                if "node_id" in base:
                    base["node"] = decode_node(keys, base["layer"], where, fields, {}, seal=seal)
            case "node":
                base["node"] = decode_node(keys, base["layer"], where, fields, {}, seal=seal)
            case "update":
                base["updates"] = _updates(fields, known["l"], where, seal)
            case "clear":
                base["mirror"] = fields[b"m"] == b"1"
            case _:
                base["count"] = int(fields[b"n"]) if fields.get(b"n", b"").isdigit() else None
    except CodecError:
        raise
    except (KeyError, ValueError, OverflowError, OSError, InvalidInput) as error:
        raise CodecError(f"the entry is no change ({type(error).__name__})") from error
    return Change(**base)


def _updates(fields: Mapping[bytes, bytes], layer: str, at: str, seal: Seal) -> dict[str, Any]:
    """What an update changed; names as `nodes.encode_changes` writes them."""
    found: dict[str, Any] = {}
    # The other fields' names have no colon.
    changes = {name.decode(): value for name, value in fields.items() if b":" in name}
    for full, value in unseal_changes(changes, layer, at, seal).items():
        kind, _, name = full.partition(":")
        if kind == "a":
            found[name] = decode(value)
        elif kind == "p":
            found.setdefault("properties", {})[decode_id(name)] = decode(value)
    return found
