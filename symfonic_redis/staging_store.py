"""The calls on what waits to be published in a scope: one script or command each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from symfonic_redis import telemetry
from symfonic_redis.errors import CodecError
from symfonic_redis.keys import ScopeKeys
from symfonic_redis.models import MemoryEntry, MemoryLayer
from symfonic_redis.nodes import node_id
from symfonic_redis.pending import unseal_id
from symfonic_redis.retention import Bounds, Idempotency, Mirror
from symfonic_redis.store import Store

_KNOWN_KEY = 2
"""The state in which stage.lua reports that another operation had the idempotency key."""

_FULL = 7
"""The state in which stage.lua reports that too many records would wait."""

KEPT = ""
"""The ttl of what does not vanish by itself."""

AS_THE_TURNS = "="
"""The ttl of what lives as long as the scope's turns do, whose own ttl it leaves alone."""

_LAYERS = [layer.value for layer in MemoryLayer]
_UNMIRRORED = "-"


class Room(NamedTuple):
    """How many records of a scope may wait, and how many bytes of them."""

    records: int
    bytes: int


class Staged(NamedTuple):
    """What came of staging.

    Attributes:
        duplicate: others were staged under this idempotency key; nothing was written.
        full: how many records and bytes wait already, when there was no room; nothing was written. Else None.
    """

    duplicate: bool = False
    full: Room | None = None


class Published(NamedTuple):
    """One record that was published: its id, and its node's, empty when it has none."""

    id: str
    node: str
    layer: str


class StagingStore(Store):
    """Reads and writes what waits in a deployment's scopes."""

    async def stage(
        self, keys: ScopeKeys, items: Sequence[bytes], ttl: int | str, room: Room, idempotency: Idempotency | None
    ) -> Staged:
        """Put encoded records, oldest first, among those that wait, all or none. See lua/stage.lua.

        Args:
            keys: of the scope.
            items: encoded records.
            ttl: milliseconds for which they and the turns live, `KEPT` or `AS_THE_TURNS`.
            room: how many may wait.
            idempotency: stage them only if this name is not remembered.
        """
        args: list[str | bytes | int] = [
            ttl,
            room.records,
            room.bytes,
            idempotency.digest if idempotency else "",
            idempotency.ttl if idempotency else 0,
            *items,
        ]
        state, *rest = await self._write("stage", keys, (keys.turns, keys.staged, keys.idem), args)
        if state == _FULL:
            return Staged(full=Room(*rest))
        if state == _KNOWN_KEY:
            telemetry.duplicates.add(1, self.deployment.attributes)
        return Staged(duplicate=state == _KNOWN_KEY)

    async def flush(self, keys: ScopeKeys, bounds: Bounds, mirror: Mirror | None) -> list[Published]:
        """Publish what waits; return it in the order in which it was staged. See lua/flush.lua."""
        names = [keys.turns, keys.staged, *map(keys.graph, _LAYERS), *map(keys.edits, _LAYERS)]
        args: list[str | bytes | int] = [
            bounds.window,
            bounds.rows,
            "" if bounds.ttl is None else bounds.ttl,
            "" if mirror is None else "all" if mirror.cap is None else mirror.cap,
            "" if mirror is None or mirror.ttl is None else mirror.ttl,
            *_LAYERS,
        ]
        _, receipt, *_ = await self._write("flush", keys, names, args)
        window, evicted, left, *flat = receipt.decode().split()
        published = [
            Published(self._id_of(name, keys), "" if at == _UNMIRRORED else node_id(at, layer, keys), layer)
            for name, layer, at in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        ]
        turns = sum(one.layer == MemoryLayer.WORKING for one in published)
        if turns:
            attributes = self.deployment.attributes
            telemetry.turns_pushed.add(turns, attributes)
            telemetry.turns_evicted.add(int(evicted), attributes)
            telemetry.window_length.record(int(window), attributes)
        if int(left):
            self.complain(
                f"left:{keys.staged}",
                "%s staged records of a scope are damaged or of a newer version and go on waiting: upgrade this worker",
                left,
            )
        return published

    def _id_of(self, name: str, keys: ScopeKeys) -> str:
        """The id of a record that is published by now; one that cannot be read stays as it is stored."""
        try:
            return unseal_id(name, self.seal(keys))
        except CodecError as error:
            self.complain(f"id:{keys.staged}", "an id of %s was published and cannot be read: %s", keys.staged, error)
            return name

    async def waiting(self, keys: ScopeKeys) -> list[bytes]:
        """What waits, encoded, oldest first. One LRANGE."""
        items: list[bytes] = await self.read("staged", keys.staged, "LRANGE", keys.staged, 0, -1)
        return items

    async def turns(self, keys: ScopeKeys) -> list[MemoryEntry]:
        """Every turn of the list, oldest first. One LRANGE."""
        return self.entries(keys, await self.read("flush", keys.turns, "LRANGE", keys.turns, 0, -1))
