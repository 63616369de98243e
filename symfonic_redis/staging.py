"""Writing in two steps: records wait in Redis until they are published, by whichever worker.

What one worker staged and did not publish, because it was killed in between, waits for the next flush of that scope.
"""

from __future__ import annotations

import logging

from redis import asyncio as redis

from symfonic_redis.connection import deployment_of
from symfonic_redis.deployment import Deployment
from symfonic_redis.errors import CodecError, ConfigurationError, MemoryUnavailable
from symfonic_redis.foreign import ForeignMirror
from symfonic_redis.keys import ScopeKeys, scope_keys
from symfonic_redis.layer import IDEMPOTENCY_TTL, WorkingLayer, check_count
from symfonic_redis.models import Durability, MemoryEntry, MemoryLayer, check_ttl, coerce_durability
from symfonic_redis.pending import decode_record, encode_record
from symfonic_redis.records import FlushReceipt, MemoryRecord, WriteReceipt, WriteRequest, record_of, request_of
from symfonic_redis.retention import Idempotency
from symfonic_redis.scope import ScopeLike
from symfonic_redis.staging_store import AS_THE_TURNS, KEPT, Published, Room, StagingStore

MAX_STAGED = 256
"""Records of a scope that may wait, unless said otherwise. A turn stages a handful and then publishes them."""

MOST_STAGED = 4_000
"""The most that a writer may allow: publishing is one script, which blocks the server while it runs.

Measured on two cores with Valkey 9.1: 84 us for 3 records, 1.1 ms for 255, 33 ms for 4,000.
"""

MAX_STAGED_BYTES = 16 << 20
"""The most bytes of a scope that may wait, 16 MiB."""

_log = logging.getLogger(__name__)


class RedisMemoryWriter:
    """Stages records: they wait in Redis, in no window and no query, until `RedisMemoryLifecycle.flush`.

    Args:
        target: the `WorkingLayer` whose scopes are written, which gives the time to live; or what `connect` returns, or
            a `redis.asyncio` client.
        max_staged: records of a scope that may wait, 1 to 4,000. Beyond it a write is refused whole.
        ttl: seconds after the scope's last write at which what waits vanishes, and its turns with it; None leaves the
            turns' own time to live as it is, and what waits has the same. Only without a layer, which has its own.

    Raises:
        ConfigurationError: an argument is out of range, or `target` is neither of these.
    """

    def __init__(
        self,
        target: WorkingLayer | Deployment | redis.Redis,
        *,
        max_staged: int = MAX_STAGED,
        ttl: float | None = None,
    ) -> None:
        check_count("max_staged", max_staged, least=1, most=MOST_STAGED)
        if isinstance(target, WorkingLayer):
            if ttl is not None:
                raise ConfigurationError("a writer has its layer's ttl: leave it away here, and set it on the layer")
            self.deployment = target.deployment
            self._ttl: int | str = KEPT if target.bounds.ttl is None else target.bounds.ttl
        else:
            self.deployment = deployment_of(target)
            self._ttl = check_ttl(ttl) or AS_THE_TURNS
        self._room = Room(max_staged, MAX_STAGED_BYTES)
        self._store = StagingStore(self.deployment)

    async def write(self, request: WriteRequest) -> WriteReceipt:
        """Stage the records of a request: all of them or none.

        Returns:
            The ids of what waits now. Degraded, with a reason, when the store was not reached within the deadline, or
            when too many records wait; then none is accepted. After an outage they may wait all the same: write again
            under the same `idempotency_key`.

        Raises:
            InvalidInput: it is no request, or a record is of another scope, lacks a content, or cannot be stored;
                nothing was written.
            ScopeClosed: the scope was purged.
            ServerRefused, KeyConflict: the server will not take it; nothing was written.

        Cost: one round trip; none without records. The server reads what waits, to know its size.
        """
        checked = request_of(request).validate()
        keys = scope_keys(self.deployment.prefix, checked.scope)
        records = [record_of(record) for record in checked.records]
        limit = self.deployment.max_row_bytes
        seal = self._store.seal(keys)
        items = [encode_record(record, keys.tenant, limit=limit, seal=seal) for record in records]
        name = checked.idempotency_key
        idempotency = Idempotency.of(name, IDEMPOTENCY_TTL, "stage") if name else None
        if not items:
            return WriteReceipt()
        size = sum(map(len, items))
        if len(items) > self._room.records or size > self._room.bytes:
            return self._refused(len(items), size, Room(0, 0))
        try:
            staged = await self._store.stage(keys, items, self._ttl, self._room, idempotency)
        except MemoryUnavailable as error:
            return WriteReceipt(degraded=True, reason=str(error))
        if staged.full is not None:
            return self._refused(len(items), size, staged.full)
        if staged.duplicate:
            return WriteReceipt(reason="records were staged under this idempotency key before", duplicate=True)
        return WriteReceipt(tuple(record.id for record in records))

    async def staged(self, scope: ScopeLike) -> tuple[MemoryRecord, ...]:
        """What waits in exactly this scope, oldest first; see `RedisMemoryLifecycle.staged`."""
        return await _staged(self._store, scope)

    def _refused(self, count: int, size: int, waiting: Room) -> WriteReceipt:
        advice = "flush the scope, then write again" if waiting.records else "write fewer at once"
        return WriteReceipt(
            degraded=True,
            reason=(
                f"{waiting.records} records of {waiting.bytes} bytes wait in this scope, and {count} more of {size} "
                f"bytes would pass the cap of {self._room.records} records and {self._room.bytes} bytes: {advice}"
            ),
        )


class RedisMemoryLifecycle:
    """Publishes what waits: working records into a layer's window and mirror, others as nodes of their own layer.

    Args:
        layer: the `WorkingLayer` whose window the working records enter. It gives the bounds, the retention and the
            times to live. Nodes of other layers go into streams of the same deployment, also without a graph store, and
            live as long as the mirror, or for ever.

    Raises:
        ConfigurationError: it is no `WorkingLayer` of this package.
    """

    def __init__(self, layer: WorkingLayer) -> None:
        given: object = layer  # an untyped caller may pass anything
        if not isinstance(given, WorkingLayer):
            raise ConfigurationError(
                f"a {type(given).__name__} has no window to publish into: pass the WorkingLayer, which gives its bounds"
            )
        self._layer = layer
        self._store = StagingStore(layer.deployment)

    async def flush(self, scope: ScopeLike) -> FlushReceipt:
        """Publish what waits in exactly this scope, whoever staged it: all at once, each record once.

        Of two flushes at once, one publishes a record and tells so. What this version cannot read goes on waiting.

        Returns:
            The ids of what was published, in the order in which it was staged; none when nothing waited. Of more turns
            than the window holds, it shows the newest. Degraded, with a reason, when the store was not reached within
            the deadline.

        Raises:
            InvalidInput: the scope is malformed.
            ScopeClosed: the scope was purged.
            ServerRefused, KeyConflict: the server will not take it; nothing was published.

        Cost: one round trip. With a graph store that is not ours, one more to read the turns, and its own calls.
        """
        layer = self._layer
        keys = scope_keys(layer.deployment.prefix, scope)
        try:
            published = await self._store.flush(keys, layer.bounds, layer.mirror)
        except MemoryUnavailable as error:
            return FlushReceipt(degraded=True, reason=str(error))
        nodes = {}
        if layer.foreign is not None:
            nodes = await self._mirrored(layer.foreign, scope, keys, published)
        return FlushReceipt(
            tuple(one.id for one in published), node_ids=tuple(nodes.get(one.id, one.node) for one in published)
        )

    async def _mirrored(
        self, mirror: ForeignMirror, scope: ScopeLike, keys: ScopeKeys, published: list[Published]
    ) -> dict[str, str]:
        """Add the turns that were published to another's graph store; its node of each, by the turn's id."""
        turns = {one.id for one in published if one.layer == MemoryLayer.WORKING}
        if not turns:
            return {}
        try:
            entries = [entry for entry in await self._store.turns(keys) if entry.id in turns]
        except MemoryUnavailable as error:
            # What was published is published: the receipt says so.
            _log.warning("turns were published and not mirrored into the graph store (%s)", type(error).__name__)
            return {}
        nodes: dict[str, str] = {}
        for entry in entries:
            for node in await mirror.add(scope, [entry], [_durability(entry)]):
                nodes[entry.id] = node
        return nodes

    async def staged(self, scope: ScopeLike) -> tuple[MemoryRecord, ...]:
        """What waits in exactly this scope, oldest first, published by the next `flush`.

        One that cannot be read is left where it is, skipped, counted and logged once.

        Cost: one round trip, one LRANGE.

        Raises:
            MemoryUnavailable: the server was not reached within the deadline.
        """
        return await _staged(self._store, scope)


async def _staged(store: StagingStore, scope: ScopeLike) -> tuple[MemoryRecord, ...]:
    keys = scope_keys(store.deployment.prefix, scope)
    records, seal = [], store.seal(keys)
    for index, item in enumerate(await store.waiting(keys)):
        try:
            records.append(decode_record(item, keys, scope, seal=seal))
        except CodecError as error:
            store.damaged(keys.staged, index, error)
    return tuple(records)


def _durability(entry: MemoryEntry) -> Durability | None:
    marker = entry.metadata.get("durability")
    return None if marker is None else coerce_durability(marker)
