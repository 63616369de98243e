"""Applying a change to a graph backend of the reference system's contract, so that applying it again does no harm."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from symfonic_redis.books import Entry, Feed
from symfonic_redis.changes import Change, decode_change
from symfonic_redis.deployment import Deployment
from symfonic_redis.errors import CodecError, ConfigurationError, KeyringMismatch
from symfonic_redis.keys import scope_keys, tenant_keys
from symfonic_redis.models import MemoryLayer
from symfonic_redis.nodes import address_of, order_of
from symfonic_redis.scope import ScopeLike
from symfonic_redis.store import Store

_WORKING = (MemoryLayer.WORKING,)


class Copier:
    """Copies nodes into a backend.

    Args:
        deployment: whose changes.
        target: has `add_node(scope, node)`. With `get_node`, a node that may be there already is looked for first; with
            `update_node`, `delete_node` and `query_nodes`, what happens to a node later is copied too.

        timeout: seconds for one change.

    Raises:
        ConfigurationError: the target has no `add_node`.
    """

    def __init__(self, deployment: Deployment, target: Any, timeout: float) -> None:
        if not callable(getattr(target, "add_node", None)):
            raise ConfigurationError("a relay's target needs an async add_node(scope, node): pass a graph backend")
        self._prefix = deployment.prefix
        self._store = Store(deployment)
        self._timeout = timeout
        self._target = target
        self._get = getattr(target, "get_node", None)
        self._update = getattr(target, "update_node", None)
        self._delete = getattr(target, "delete_node", None)
        self._query = getattr(target, "query_nodes", None)

    async def copy(self, feed: Feed, entry: Entry) -> str:
        """Bring one change into the target; return the name of the error's type, or an empty string.

        A damaged entry is counted, left where it is, and nothing to copy.
        """
        try:
            ring = self._store.deployment.encryption
            change = decode_change(self._prefix, feed.tenant, feed.partition, entry.id, entry.fields, ring=ring)
        except CodecError as error:
            self._store.damaged(tenant_keys(self._prefix, feed.tenant, feed.partition).feed, entry.id, error)
            # A row whose key is missing is not damaged: it is tried again, by a relay that was given the key.
            return type(error).__name__ if isinstance(error, KeyringMismatch) else ""
        try:
            async with asyncio.timeout(self._timeout):
                await self.apply(change, again=entry.again)
        except Exception as error:  # noqa: BLE001 - any backend, so any error: it is retried, then a dead letter
            return type(error).__name__
        return ""

    async def apply(self, change: Change, *, again: bool) -> None:
        """Bring one change into the target; whatever that raises is raised.

        Args:
            change: what happened. What concerns no node is nothing to copy.
            again: it may have been applied before.
        """
        scope = change.address
        if scope is None:
            return
        match change.kind:
            case "push" | "node" if change.node is not None:
                if not (again and self._get is not None and await self._get(scope, change.node_id) is not None):
                    await self._target.add_node(scope, change.node)
            case "update" if change.node_id is not None and self._update is not None:
                await self._change(scope, change.node_id, dict(change.updates or {}))
            case "delete" if change.node_id is not None and self._delete is not None:
                await self._delete(scope, change.node_id)
            case "clear" if change.mirror:
                await self._empty(scope, change, _WORKING)
            case "purge":
                await self._empty(scope, change, tuple(MemoryLayer))
            case _:
                pass

    async def _change(self, scope: ScopeLike, node_id: str, updates: dict[str, Any]) -> None:
        # Backends differ in what they take for an attribute and in where they put the rest, but each replaces
        # `properties` whole when it is given whole. They set `updated_at` themselves.
        updates.pop("updated_at", None)
        if "properties" in updates and self._get is not None:
            node = await self._get(scope, node_id)
            if node is None:
                return  # deleted since, or written before the feed began
            updates["properties"] = {**(node.properties or {}), **updates["properties"]}
        try:
            await self._update(scope, node_id, updates)  # type: ignore[misc]  # asked for by `apply`
        except KeyError:
            return  # the contract's word for a node that is not there

    async def _empty(self, scope: ScopeLike, change: Change, layers: tuple[MemoryLayer, ...]) -> None:
        """Remove the nodes that this scope had at the time of the change, and nothing else from the target."""
        if self._query is None or self._delete is None or change.at is None:
            return
        keys = scope_keys(self._prefix, scope)
        until = round(change.at.timestamp() * 1000)
        for layer in layers:
            if "layer" in inspect.signature(self._query).parameters:
                found = await self._query(scope, layer=layer, limit=None)
            else:
                found = await self._query(scope, {"layer": layer.value}, limit=None)
            # A query shows parents' nodes too, and a target has nodes of its own: the id tells which are this scope's.
            for node in found:
                address = address_of(str(node.id), keys)
                if address is not None and address.layer == layer and order_of(address.at)[0] <= until:
                    await self._delete(scope, node.id)
