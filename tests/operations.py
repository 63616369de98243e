"""Every call of the public interface on one scope: what a user's rules must allow, and what must stay in its scope."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from symfonic_redis import (
    Deployment,
    InvalidInput,
    MemoryEntry,
    MemoryLayer,
    MemoryNode,
    MemoryRecord,
    RedisEvictedSource,
    RedisMemoryLifecycle,
    RedisMemoryWriter,
    ScopeClosed,
    ScopeLike,
    SharedSummaryCache,
    StreamGraphStore,
    WorkingLayer,
    WorkingMemorySummaryService,
    WorkingWindow,
    WriteRequest,
    export,
    health,
    hydrate,
    import_,
    latest_cursor,
    purge,
    purge_tenant,
    purge_tree,
    reopen,
    reopen_tenant,
    reopen_tree,
    scopes,
    totals,
    watch,
)
from symfonic_redis.conversation import LegacyConversationSource
from symfonic_redis.keys import scope_keys

SECRET = "what-only-this-scope-may-show"
"""Stands in everything that a worker writes, so that it is found wherever it leaks to."""


class Worker:
    """All that one process has of one scope, small enough that a few calls evict and trim."""

    def __init__(self, redis: Deployment, scope: ScopeLike, secret: str = SECRET) -> None:
        self.redis, self.scope, self.secret = redis, scope, secret
        self.graph = StreamGraphStore(redis)
        self.layer = WorkingLayer(
            redis, max_entries=3, evicted_retention=2, graph_store=self.graph, working_graph_retention=4
        )
        self.bare = WorkingLayer(redis, max_entries=3, evicted_retention=2)
        self.number = 0

    def turn(self) -> MemoryEntry:
        self.number += 1
        return MemoryEntry.turn(
            self.scope, speaker="user", turn_id=f"t{self.number}", content=f"{self.secret} {self.number}"
        )

    def node(self) -> MemoryNode:
        return MemoryNode(layer=MemoryLayer.SEMANTIC, tenant_id=self.scope.tenant_id, label=self.secret)

    async def newest(self) -> str:
        found = [
            node for layer in ("working", "semantic") for node in await self.graph.query_nodes(self.scope, layer=layer)
        ]
        return found[-1].id if found else "0-1.working.0123456789abcdef"


async def _rehydrate(worker: Worker, *, only_if_empty: bool) -> None:
    messages = [{"role": "user", "content": worker.secret, "id": "m1"}]
    await worker.layer.rehydrate_from_messages(worker.scope, messages, only_if_empty=only_if_empty)


async def _stage(worker: Worker) -> None:
    records = [MemoryRecord(scope=worker.scope, content=worker.secret, layer=layer) for layer in ("working", "profile")]
    await RedisMemoryWriter(worker.layer).write(WriteRequest(worker.scope, records))


async def _update(worker: Worker) -> None:
    name = await worker.newest()
    if await worker.graph.get_node(worker.scope, name):
        await worker.graph.update_node(worker.scope, name, {"label": "changed", "mood": worker.secret})


async def _summary(worker: Worker) -> None:
    cache = SharedSummaryCache(worker.redis)
    claim = await cache.claim(worker.scope, f"r{worker.number}", ["mark"], max_chars=100)
    if claim.token:
        await cache.keep(worker.scope, f"r{worker.number}", ["mark"], worker.secret, token=claim.token, max_chars=100)


async def archive(worker: Worker) -> list[str]:
    return [line async for line in export(worker.redis, worker.scope)]


async def _import(worker: Worker) -> None:
    """Out, empty, and in again."""
    lines = await archive(worker)
    await purge(worker.redis, worker.scope, closed_for=60)
    await reopen(worker.redis, worker.scope)
    await import_(worker.redis, worker.scope, lines)


# name -> a call that writes to exactly this scope
WRITES: dict[str, Callable[[Worker], Awaitable[object]]] = {
    "push": lambda worker: worker.layer.push(worker.scope, worker.turn()),
    "write": lambda worker: worker.layer.write(worker.scope, worker.turn()),
    "push without a mirror": lambda worker: worker.bare.push(worker.scope, worker.turn()),
    "push_many": lambda worker: worker.layer.push_many(worker.scope, [worker.turn(), worker.turn()]),
    "idempotent push": lambda worker: worker.layer.push(worker.scope, worker.turn(), idempotency_key="job"),
    "rehydrate": lambda worker: _rehydrate(worker, only_if_empty=True),
    "append messages": lambda worker: _rehydrate(worker, only_if_empty=False),
    "stage": _stage,
    "flush": lambda worker: RedisMemoryLifecycle(worker.layer).flush(worker.scope),
    "add_node": lambda worker: worker.graph.add_node(worker.scope, worker.node()),
    "update_node": _update,
    "delete_node": lambda worker: _with_newest(worker, worker.graph.delete_node),
    "delete": lambda worker: _with_newest(worker, worker.layer.delete),
    "summary": _summary,
    "import": _import,
    "clear": lambda worker: worker.layer.clear(worker.scope),
    "clear without a mirror": lambda worker: worker.bare.clear(worker.scope),
    "purge": lambda worker: purge(worker.redis, worker.scope, closed_for=60),
    "reopen": lambda worker: reopen(worker.redis, worker.scope),
}

# name -> a call that writes to this scope and those below it
TREES: dict[str, Callable[[Worker], Awaitable[object]]] = {
    "purge_tree": lambda worker: purge_tree(worker.redis, worker.scope, closed_for=60),
    "reopen_tree": lambda worker: reopen_tree(worker.redis, worker.scope),
}

# name -> a call that writes to all of the tenant
TENANTS: dict[str, Callable[[Worker], Awaitable[object]]] = {
    "purge_tenant": lambda worker: purge_tenant(worker.redis, worker.scope.tenant_id, closed_for=60),
    "reopen_tenant": lambda worker: reopen_tenant(worker.redis, worker.scope.tenant_id),
}


async def _with_newest(worker: Worker, call: Callable[[ScopeLike, str], Awaitable[object]]) -> None:
    await call(worker.scope, await worker.newest())


async def _hydrate(worker: Worker) -> object:
    source = RedisEvictedSource(worker.layer)
    window = WorkingWindow(LegacyConversationSource(worker.layer))
    return await hydrate(source, worker.scope, window=window, summary=WorkingMemorySummaryService(source))


async def _nodes(worker: Worker) -> list[object]:
    found: list[object] = []
    for layer in MemoryLayer:
        async for node in worker.graph.nodes(worker.scope, layer=layer):
            found += [node]
        found.append(await worker.graph.count(worker.scope, layer))
        found += await worker.graph.query_nodes(worker.scope, layer=layer)
    return found


async def _watched(worker: Worker) -> list[object]:
    """The scope's changes, oldest first, as many as the feed holds; what was missed counts for a whole partition."""
    keys = scope_keys(worker.redis.prefix, worker.scope)
    entries = await worker.redis.call("test", "XRANGE", keys.shared.feed, "-", "+")
    left = sum(fields[fields.index(b"p") + 1] == keys.path.encode() for _, fields in entries)
    found: list[object] = []
    changes = watch(worker.redis, worker.scope, after="0")
    async with asyncio.timeout(60):
        while len(found) < left:
            change = await anext(changes)
            found += [change] if change.kind != "missed" else []
    await changes.aclose()
    return found


# name -> a call that reads
READS: dict[str, Callable[[Worker], Awaitable[object]]] = {
    "get_context": lambda worker: worker.layer.get_context(worker.scope),
    "get_contexts": lambda worker: worker.layer.get_contexts([worker.scope, worker.scope]),
    "retrieve": lambda worker: worker.layer.retrieve(worker.scope, "", top_k=9),
    "evicted": lambda worker: RedisEvictedSource(worker.layer).evicted(worker.scope),
    "read": lambda worker: RedisEvictedSource(worker.layer).read(worker.scope),
    "recent": lambda worker: LegacyConversationSource(worker.layer).recent(worker.scope, 9),
    "hydrate": _hydrate,
    "nodes": _nodes,
    "get_node": lambda worker: _with_newest(worker, worker.graph.get_node),
    "staged": lambda worker: RedisMemoryLifecycle(worker.layer).staged(worker.scope),
    "export": archive,
    "watch": _watched,
}

# name -> a call that reads what spans scopes, or the server
WIDE_READS: dict[str, Callable[[Worker], Awaitable[object]]] = {
    "scopes": lambda worker: scopes(worker.redis, worker.scope.tenant_id),
    "totals": lambda worker: totals(worker.redis, worker.scope.tenant_id),
    "latest_cursor": lambda worker: latest_cursor(worker.redis, worker.scope.tenant_id),
    "health": lambda worker: health(worker.redis),
}


async def do(worker: Worker, name: str) -> None:
    """Make a call that writes; that the scope is closed, or not empty, is an answer like any other."""
    with contextlib.suppress(ScopeClosed, InvalidInput):
        await {**WRITES, **TREES, **TENANTS}[name](worker)
