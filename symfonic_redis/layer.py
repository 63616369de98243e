"""The working layer: a conversation's recency window, the same from every worker."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from redis import asyncio as redis

from symfonic_redis.batches import chunks
from symfonic_redis.coalesce import Coalescer
from symfonic_redis.connection import deployment_of
from symfonic_redis.deployment import Deployment
from symfonic_redis.errors import ConfigurationError
from symfonic_redis.foreign import ForeignMirror
from symfonic_redis.graph import StreamGraphStore
from symfonic_redis.keys import ScopeKeys, scope_keys
from symfonic_redis.messages import turns_of
from symfonic_redis.models import (
    Durability,
    MemoryEntry,
    MemoryLayer,
    MultiScopeIgnoredWarning,
    PushReceipt,
    STMSummaryMode,
    check_ttl,
)
from symfonic_redis.pushes import Push, Target, encode_turns, prepare
from symfonic_redis.render import Scrubber, render_entry
from symfonic_redis.retention import Bounds, Idempotency, Mirror
from symfonic_redis.scope import ScopeLike
from symfonic_redis.store import Store
from symfonic_redis.summarize import summarize_entries
from symfonic_redis.windows import at_once, read_entries

MAX_ENTRIES = 1_000_000
"""The widest window, and the most evicted turns."""

MAX_NODES = 1 << 53
"""The largest retention; Lua counts exactly up to it."""

EVICTED_RETENTION = 50
IDEMPOTENCY_TTL = 86_400.0

_WORKING = MemoryLayer.WORKING.value


class WorkingLayer:
    """A bounded, shared recency window for each scope.

    The window lives in Redis, so a layer holds no conversation: any number of workers may serve one scope in turn,
    and one that restarts sees what the others see. Safe for any number of concurrent tasks.

    Args:
        redis: what `connect` returns, or a `redis.asyncio` client.
        max_entries: turns in the window.
        graph_store: where turns are mirrored; None for no mirror. A `StreamGraphStore` of the same deployment is
            written by the push's own script. Any other object with `add_node`, `query_nodes` and `delete_node` is
            called after the push; its failures are logged, never raised.
        stm_summary_mode: what `summarize` does: `off` returns nothing, `salient` what an agent needs to act,
            `extractive` and `llm` the extractive text.
        working_graph_retention: mirrored nodes kept for each scope; None keeps all, 0 none.
        evicted_retention: turns kept behind the window once they leave it; 0 for none.
        ttl: seconds after the last write at which window and evicted turns vanish; None keeps them.
        strict: raise `CodecError` for a damaged row instead of skipping it.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    def __init__(
        self,
        redis: Deployment | redis.Redis,
        max_entries: int = 10,
        graph_store: object | None = None,
        *,
        stm_summary_mode: STMSummaryMode = "off",
        working_graph_retention: int | None = None,
        evicted_retention: int = EVICTED_RETENTION,
        ttl: float | None = None,
        strict: bool = False,
    ) -> None:
        check_count("max_entries", max_entries, least=1, most=MAX_ENTRIES)
        check_count("evicted_retention", evicted_retention, least=0, most=MAX_ENTRIES)
        if working_graph_retention is not None:
            check_count("working_graph_retention", working_graph_retention, least=0, most=MAX_NODES)
        if stm_summary_mode not in get_args(STMSummaryMode):
            raise ConfigurationError(f"stm_summary_mode must be one of {', '.join(get_args(STMSummaryMode))}")
        self.deployment = deployment_of(redis)
        self.bounds = Bounds(max_entries, evicted_retention, check_ttl(ttl))
        self.store = Store(self.deployment, strict=strict)
        self._summary_mode = stm_summary_mode
        self._graph: StreamGraphStore | None = None
        self.mirror: Mirror | None = None
        self.foreign: ForeignMirror | None = None
        if isinstance(graph_store, StreamGraphStore) and graph_store.deployment is self.deployment:
            self._graph = graph_store
            self.mirror = Mirror(_WORKING, working_graph_retention, graph_store.ttl)
        elif graph_store is not None:
            self.foreign = ForeignMirror(graph_store, working_graph_retention, self.deployment.deadline)
        self._pushes = Coalescer(self.store, Target(self.bounds, self.mirror))
        self._warned: set[tuple[str, str | None]] = set()

    async def push(
        self,
        scope: ScopeLike,
        entry: Any,
        *,
        durability: Durability | None = None,
        idempotency_key: str | None = None,
        idempotency_ttl: float = IDEMPOTENCY_TTL,
    ) -> PushReceipt:
        """Append one turn at the newest end of the window.

        Args:
            scope: whose conversation.
            entry: a `MemoryEntry`, or anything with its attributes; its `tenant_id` must be the scope's.
            durability: of the mirrored node; else the entry's `metadata["durability"]`, else none.
            idempotency_key: the turn is stored only once under this name, from whichever worker.
            idempotency_ttl: seconds for which that name is remembered.

        Returns:
            What was done; `duplicate` when another call had stored a turn under this key.

        Raises:
            InvalidInput: (a `ValueError`) the entry, scope or durability is refused; nothing was written.
            MemoryUnavailable: the server was not reached within the deadline. The turn may have been stored: a retry
                is safe under an `idempotency_key`.
            ServerRefused, KeyConflict: the server will not take it; nothing was written.
            NotReplicated: the turn is stored, on fewer than `min_replicas` replicas; a foreign graph store lacks it.

        Cost: one round trip. The server works about three times as long as for a bare LPUSH and LTRIM script, four
        times with the mirror.
        """
        return await self._send(self._prepared(scope, (entry,), durability, idempotency_key, idempotency_ttl))

    async def push_many(
        self,
        scope: ScopeLike,
        entries: Iterable[Any],
        *,
        durability: Durability | None = None,
        idempotency_key: str | None = None,
        idempotency_ttl: float = IDEMPOTENCY_TTL,
    ) -> PushReceipt:
        """Append turns, oldest first: all of them or none, next to each other. Arguments and errors as for `push`.

        Cost: one round trip for at most 10,000 turns and 64 MiB; one LLEN for no turns at all.
        """
        push = self._prepared(scope, entries, durability, idempotency_key, idempotency_ttl)
        if not push.rows:
            length = await self.store.read("length", push.keys.turns, "LLEN", push.keys.turns)
            return PushReceipt((), min(length, self.bounds.window), 0, duplicate=False)
        return await self._send(push)

    def _prepared(
        self, scope: ScopeLike, entries: Iterable[Any], durability: object, name: str | None, seconds: float
    ) -> Push:
        push = prepare(self.store, scope, entries, durability, mirrored=self.mirror is not None)
        return push if name is None else push._replace(idempotency=Idempotency.of(name, seconds))

    async def _send(self, push: Push) -> PushReceipt:
        receipt = await self._pushes.push(push)
        if self.foreign and not receipt.duplicate:
            added = await self.foreign.add(push.scope, push.turns, push.durabilities)
            receipt = receipt._replace(node_ids=added)
        return receipt

    async def write(self, scope: ScopeLike, entry: Any) -> None:
        """Push one turn; the name under which the reference system's stores are written."""
        await self.push(scope, entry)

    async def get_context(self, scope: ScopeLike) -> list[MemoryEntry]:
        """The window of exactly this scope, oldest first; empty when it has none.

        A damaged row is left where it is, skipped, counted and logged once, unless the layer is strict.

        Cost: one round trip, one LRANGE; none for a window that is tracked (docs/tracking.md).

        Raises:
            MemoryUnavailable: the server was not reached within the deadline.
            CodecError: a row is damaged and the layer is strict.
        """
        return (await self._read("get_context", [scope_keys(self.deployment.prefix, scope)]))[0]

    async def get_contexts(self, scopes: Iterable[ScopeLike]) -> list[list[MemoryEntry]]:
        """The windows of many scopes, in the order asked: for each what `get_context` returns. Errors as there.

        Each is of one moment, two may be of two. One that cannot be read fails the call, by an error that names it.

        Cost: an LRANGE each, all in one round trip; on a cluster in one to each node, at the same time. It carries at
        most 1,000 windows, and 100,000 rows; for more there are more, one after the other. No scopes cost nothing.
        """
        asked = [scope_keys(self.deployment.prefix, scope) for scope in scopes]
        parts = chunks(asked, at_once(self.bounds.window))
        return [window for part in parts for window in await self._read("get_contexts", part)]

    async def _read(self, operation: str, scopes: Sequence[ScopeKeys]) -> list[list[MemoryEntry]]:
        """The windows of scopes, in one exchange."""
        return await read_entries(self.store, operation, scopes, self.bounds.window)

    async def retrieve(self, scope: ScopeLike, query: str, top_k: int = 5) -> list[MemoryEntry]:  # noqa: ARG002 - the contract's signature; recency needs no query
        """The first `top_k` entries of the window, the oldest; the query is not used. Cost as `get_context`.

        Warns `MultiScopeIgnoredWarning`, once for each tenant and sub-tenant, when the scope inherits from others.
        """
        if getattr(scope, "inherits_from", ()):
            key = (scope.tenant_id, getattr(scope, "sub_tenant_id", None))
            if key not in self._warned:
                self._warned.add(key)
                warnings.warn(
                    "the working layer reads exactly one scope and ignores inherits_from",
                    MultiScopeIgnoredWarning,
                    stacklevel=2,
                )
        return (await self.get_context(scope))[:top_k]

    async def summarize(self, scope: ScopeLike, entries: Sequence[Any]) -> str:  # noqa: ARG002 - the contract's signature
        """A summary of `entries` by the layer's rule, at most 1,000 characters; empty in mode `off`.

        It asks no server and no model, and never raises.
        """
        return summarize_entries(entries, mode=self._summary_mode).text

    async def link(self, scope: ScopeLike, source: str, target: str, relationship: str) -> None:
        """Do nothing: turns are linked by their order. Part of the reference system's contract."""

    async def delete(self, scope: ScopeLike, node_id: str) -> None:
        """Remove one node from the mirror; the window stays. Nothing without a graph store. One round trip."""
        if self._graph is not None:
            await self._graph.delete_node(scope, node_id)
        elif self.foreign is not None:
            await self.foreign.delete(scope, node_id)

    async def clear(self, scope: ScopeLike) -> None:
        """Empty window, evicted turns and staged turns of exactly this scope, and its working nodes in the mirror.

        The summary that workers share goes too; one that is being written meanwhile is not kept.

        Cost: one round trip. Errors as for `push`.
        """
        keys = scope_keys(self.deployment.prefix, scope)
        await self.store.clear(keys, layer=_WORKING if self.mirror else None)
        if self.foreign is not None:
            await self.foreign.clear(scope)

    async def rehydrate_from_messages(
        self,
        scope: ScopeLike,
        messages: Sequence[Any] | None,
        *,
        max_turns: int | None = None,
        only_if_empty: bool = True,
    ) -> int:
        """Replay the tail of a saved transcript into the window; the mirror is not written.

        Args:
            scope: whose conversation.
            messages: chat messages, oldest first: objects with `type` and `content`, or dicts with `role` and
                `content`. Those of the user and of the assistant count, if they hold text.
            max_turns: at most so many; never more than the window.
            only_if_empty: replay into an empty window only, decided by the server, so that two workers that resume
                at once replay once. False appends to whatever is there.

        Returns:
            How many turns were replayed; 0 when the window was not empty.

        Cost: one round trip; none when there is nothing to replay. Errors as for `push`.
        """
        most = self.bounds.window if max_turns is None else min(max_turns, self.bounds.window)
        turns = turns_of(messages or ())
        if most <= 0 or not turns:
            return 0
        keys = scope_keys(self.deployment.prefix, scope)
        entries = [
            MemoryEntry(tenant_id=keys.tenant, content=content, metadata=metadata)
            for content, metadata in turns[-most:]
        ]
        rows = encode_turns(self.store, keys, entries)
        return await self.store.rehydrate(keys, rows, self.bounds, only_if_empty=only_if_empty)

    def render_for_prompt(self, entry: Any, scrubber: Scrubber | None = None) -> str:
        """One entry as a line of a prompt, `[working] user: Where is my order?`; see `render.render_entry`."""
        return render_entry(entry, scrubber)


def check_count(name: str, value: int, *, least: int, most: int) -> None:
    """Refuse an argument that is no whole number from `least` to `most`, with `ConfigurationError`."""
    given: object = value  # an untyped caller may pass anything
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
        raise ConfigurationError(f"{name} must be a whole number from {least} to {most}: correct it")
