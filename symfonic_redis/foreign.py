"""A mirror that is not ours: any object with the reference system's graph-store methods.

It is written after the window, over its own connection, so it can fail alone. Its failures are logged and never
raised: the turn is stored, and the conversation goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from symfonic_redis.guard import within
from symfonic_redis.models import Durability, MemoryLayer
from symfonic_redis.nodes import turn_node
from symfonic_redis.scope import ScopeLike, scope_address

_log = logging.getLogger(__name__)

_SCOPE_PROPERTY = "scope_path"
"""Where the reference system's backends note the scope of a node."""

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class ForeignMirror:
    """Mirrors turns into a graph store and prunes them there.

    Args:
        store: has `add_node(scope, node)`, `query_nodes(scope, layer=...)`, `delete_node(scope, node_id)`.
        retention: nodes kept for each scope; None keeps all.
        timeout: seconds for one call to the store.
    """

    def __init__(self, store: Any, retention: int | None, timeout: float) -> None:
        self._store = store
        self._retention = retention
        self._timeout = timeout

    async def add(
        self, scope: ScopeLike, entries: Sequence[Any], durabilities: Sequence[Durability | None]
    ) -> tuple[str, ...]:
        """Add a node for each entry and prune the oldest beyond the retention; return the ids that were added."""
        added: list[str] = []
        for entry, durability in zip(entries, durabilities, strict=True):
            stored = await self._tried("add", self._add, scope, entry, durability)
            if stored is not _FAILED:
                added.append(stored)
        if self._retention is not None:
            await self._tried("prune", self._prune, scope, self._retention)
        return tuple(added)

    async def delete(self, scope: ScopeLike, node_id: str) -> None:
        """Remove one node."""
        await self._tried("delete", lambda: self._store.delete_node(scope, node_id))

    async def clear(self, scope: ScopeLike) -> None:
        """Remove every working node of exactly this scope."""
        await self._tried("clear", self._clear, scope)

    async def _prune(self, scope: ScopeLike, retention: int) -> None:
        nodes = sorted(await self._nodes(scope), key=_written)
        for node in nodes[: max(0, len(nodes) - retention)]:
            await self._store.delete_node(scope, node.id)

    async def _clear(self, scope: ScopeLike) -> None:
        for node in await self._nodes(scope):
            await self.delete(scope, node.id)

    async def _nodes(self, scope: ScopeLike) -> list[Any]:
        """The working nodes of exactly this scope: a query shows the parents' nodes too, and they are not ours."""
        found = await self._store.query_nodes(scope, layer=MemoryLayer.WORKING)
        path = scope_address(scope)[1]
        return [node for node in found if (node.properties or {}).get(_SCOPE_PROPERTY, path) == path]

    async def _add(self, scope: ScopeLike, entry: Any, durability: Durability | None) -> str:
        node = turn_node(entry, durability)
        stored = await self._store.add_node(scope, node)
        return str(getattr(stored, "id", node.id))  # a store may give the node an id of its own

    async def _tried(self, what: str, call: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        try:
            return await within(call(*arguments), self._timeout)
        except Exception as error:  # noqa: BLE001 - any backend, so any error; the window must not suffer from it
            # The class alone: a backend's message may quote the node.
            _log.warning("the graph store failed to %s (%s); the window is not affected", what, type(error).__name__)
            return _FAILED


def _written(node: Any) -> datetime:
    """When a node was made; a time without a zone is taken for UTC, none for long ago."""
    made = getattr(node, "created_at", None) or _LONG_AGO
    return made if made.tzinfo else made.replace(tzinfo=UTC)


_FAILED = object()
