"""The graph store: nodes of a scope in Redis streams, one stream a layer, in the reference system's contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from redis import asyncio as redis

from symfonic_redis.connection import deployment_of
from symfonic_redis.deployment import Deployment
from symfonic_redis.entry_seals import seal_changes
from symfonic_redis.errors import CodecError, ConfigurationError, InvalidInput, NodeNotFound
from symfonic_redis.keys import ScopeKeys, scope_keys
from symfonic_redis.models import MemoryLayer, MemoryNode, check_ttl
from symfonic_redis.nodes import address_of, decode_node, encode_changes, encode_node, layer_name, order_of
from symfonic_redis.scope import ScopeLike
from symfonic_redis.store import Store

PAGE = 500
"""Stream entries read in one round trip at most; it also ends after about 1 MiB."""


class StreamGraphStore:
    """The graph store of a deployment: nodes in Redis streams.

    Given to a `WorkingLayer` of the same deployment, it is written by the push's own script. It also serves as the
    backend of the reference system's own graph store: a stream keeps nodes, and no edges.

    Args:
        redis: what `connect` returns, or a `redis.asyncio` client.
        ttl: seconds after the last write at which a scope's nodes vanish; None keeps them.
        strict: raise `CodecError` for a damaged entry instead of skipping it.

    Raises:
        ConfigurationError: `ttl` is not positive.
    """

    def __init__(self, redis: Deployment | redis.Redis, *, ttl: float | None = None, strict: bool = False) -> None:
        self.deployment = deployment_of(redis)
        self.ttl = check_ttl(ttl)
        self._store = Store(self.deployment, strict=strict)

    async def add_node(self, scope: ScopeLike, node: Any) -> MemoryNode:
        """Append a node to the stream of its layer and return it under the id that the server gave it.

        Cost: one round trip.

        Raises:
            InvalidInput: the node is of another tenant, or holds what cannot be stored.
        """
        keys = self._keys(scope)
        seal = self._store.seal(keys)
        layer, payload = encode_node(node, limit=self.deployment.max_row_bytes, seal=seal)
        if node.tenant_id != keys.tenant:
            raise InvalidInput("a node's tenant_id is not its scope's: nothing was written")
        at = await self._store.add_node(keys, layer, payload, ttl=self.ttl)
        return decode_node(keys, layer, at, {b"n": payload}, {}, seal=seal)

    async def get_node(self, scope: ScopeLike, node_id: str) -> MemoryNode | None:
        """The node of that id, or None: unknown, deleted, trimmed, damaged, or another scope's. One round trip."""
        keys = self._keys(scope)
        address = address_of(node_id, keys)
        if address is None:
            return None
        page, _ = await self._store.nodes(
            keys, address.layer, first=address.at, last=address.at, count=1, operation="get_node"
        )
        return self._node(keys, address.layer, *page[0]) if page else None

    async def nodes(
        self, scope: ScopeLike, layer: MemoryLayer | str, *, newest_first: bool = False
    ) -> AsyncIterator[MemoryNode]:
        """Every node of one layer of this scope, oldest first unless told otherwise, in bounded memory.

        Cost: one round trip a page of 500 nodes or 1 MiB. Newest first, only what is taken is read, from the end.
        """
        keys = self._keys(scope)
        name = layer_name(layer)
        first, last = "-", "+"
        while True:
            page, more = await self._store.nodes(
                keys, name, first=first, last=last, count=PAGE, newest_first=newest_first, replica=True
            )
            for at, fields, edits in page:
                node = self._node(keys, name, at, fields, edits)
                if node is not None:
                    yield node
            if not more:
                return
            if newest_first:
                last = f"({page[-1][0]}"
            else:
                first = f"({page[-1][0]}"

    async def query_nodes(  # noqa: PLR0917 - the reference contract takes these by position
        self,
        scope: ScopeLike,
        layer: MemoryLayer | str | Mapping[str, Any] | None = None,
        label: str | None = None,
        label_prefix: str | None = None,
        filters: Mapping[str, object] | None = None,
        limit: int | None = None,
        *,
        newest_first: bool = False,
    ) -> list[MemoryNode]:
        """The nodes of exactly this scope that match, oldest first.

        Args:
            scope: exactly this one; parents and children are not searched.
            layer: of this layer; None for all. A dict here is `filters`, as the reference system's backends take it.
            label: of this label.
            label_prefix: whose label starts so.
            filters: attributes or properties that must be equal; `layer`, `label`, `label_prefix` mean the above.
            limit: at most so many; 0 for none, None for all.
            newest_first: from the newest; with a limit, only the stream's end is read.

        Cost: one round trip a page of 500 of each layer's stream.

        Raises:
            InvalidInput: there is no such layer.
        """
        wanted = dict(layer if isinstance(layer, Mapping) else filters or {})
        chosen = wanted.pop("layer", None if isinstance(layer, Mapping) else layer)
        label = wanted.pop("label", label)
        label_prefix = wanted.pop("label_prefix", label_prefix)
        if limit is not None and limit <= 0:
            return []
        found: list[MemoryNode] = []
        for name in MemoryLayer if chosen is None else (chosen,):
            matched = 0
            async for node in self.nodes(scope, name, newest_first=newest_first):
                if _matches(node, label, label_prefix, wanted):
                    found.append(node)
                    matched += 1
                    if matched == limit:
                        break
        if chosen is None:
            found.sort(key=lambda node: order_of(node.id), reverse=newest_first)
        return found[:limit]

    async def update_node(self, scope: ScopeLike, node_id: str, updates: Mapping[str, object]) -> MemoryNode:
        """Change attributes or properties of a node and return it as it is then.

        What is not named stays, also what another worker changes at the same time. `properties` changes each property
        that it names; a name that is no attribute is a property. `updated_at` is the server's time unless given.

        Cost: two round trips, one to change and one to read.

        Raises:
            NodeNotFound: (a `KeyError`) there is no such node in this scope.
            InvalidInput: an attribute that cannot change, or a value that it cannot take.
        """
        keys = self._keys(scope)
        changes = encode_changes(updates)
        address = address_of(node_id, keys)
        if address is not None:
            sealed = seal_changes(changes, *address, self._store.seal(keys))
            if await self._store.update_node(keys, address.layer, address.at, sealed):
                node = await self.get_node(scope, node_id)
                if node is not None:
                    return node
        raise NodeNotFound("there is no such node in this scope: it was deleted, trimmed, or is another scope's")

    async def delete_node(self, scope: ScopeLike, node_id: str, cascade: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - the contract's signature; there are no edges to delete
        """Remove a node; an unknown id, or another scope's, is nothing to remove. One round trip, or none."""
        keys = self._keys(scope)
        address = address_of(node_id, keys)
        if address is not None:
            await self._store.delete_node(keys, address.layer, address.at)

    async def count(self, scope: ScopeLike, layer: MemoryLayer | str = MemoryLayer.WORKING) -> int:
        """How many nodes of a layer this scope has, without reading them. One round trip."""
        key = self._keys(scope).graph(layer_name(layer))
        return int(await self._store.read("count", key, "XLEN", key, replica=True))

    async def get_neighbors(self, scope: ScopeLike, node_id: str, relationship: str | None = None) -> list[MemoryNode]:  # noqa: ARG002 - the contract's signature
        """None: a stream keeps no edges. Part of the reference system's backend contract."""
        return []

    async def traverse(self, scope: ScopeLike, start: str, max_depth: int) -> list[MemoryNode]:  # noqa: ARG002 - the contract's signature
        """The start node alone: a stream keeps no edges. Part of the reference system's backend contract."""
        node = await self.get_node(scope, start)
        return [] if node is None else [node]

    async def query_edges(
        self,
        scope: ScopeLike,  # noqa: ARG002 - the contract's signature
        filters: Mapping[str, object] | None = None,  # noqa: ARG002 - the same
        limit: int = 50,  # noqa: ARG002 - the same
        offset: int = 0,  # noqa: ARG002 - the same
    ) -> list[Any]:
        """None: a stream keeps no edges. Part of the reference system's backend contract."""
        return []

    async def add_edge(self, scope: ScopeLike, edge: Any) -> Any:  # noqa: ARG002 - the contract's signature
        """Refuse: a stream keeps no edges.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError("a stream keeps nodes and no edges: use a graph backend for this layer")

    upsert_edge = add_edge

    async def delete_edge(self, scope: ScopeLike, edge_id: str) -> None:
        """Nothing to remove: a stream keeps no edges. Part of the reference system's backend contract."""

    def _keys(self, scope: ScopeLike) -> ScopeKeys:
        return scope_keys(self.deployment.prefix, scope)

    def _node(
        self, keys: ScopeKeys, layer: str, at: str, fields: Mapping[bytes, bytes], edits: Mapping[str, bytes]
    ) -> MemoryNode | None:
        try:
            return decode_node(keys, layer, at, fields, edits, seal=self._store.seal(keys))
        except CodecError as error:
            self._store.damaged(keys.graph(layer), at, error)
            return None


def _matches(node: MemoryNode, label: str | None, label_prefix: str | None, filters: Mapping[str, object]) -> bool:
    if label is not None and node.label != label:
        return False
    if label_prefix is not None and not node.label.startswith(label_prefix):
        return False
    for name, value in filters.items():
        if name in MemoryNode.model_fields or name == "durability":
            if getattr(node, name) != value:
                return False
        elif name not in node.properties or node.properties[name] != value:
            return False
    return True
