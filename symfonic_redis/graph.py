"""The mirror: nodes of a scope in Redis streams, one stream a layer, in the shape of the reference system's stores.

A mirrored turn's entry holds the window's own row; the node is made of it on reading. A stream entry's fields are
`r` (a row) and `x` (what the node has beyond it), or `n` (a whole node).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from redis import asyncio as redis

from symfonic_redis.codec import decode, decode_entry, encode
from symfonic_redis.connection import Deployment, deployment_of
from symfonic_redis.errors import CodecError, InvalidInput
from symfonic_redis.keys import ScopeKeys, scope_keys
from symfonic_redis.models import Durability, MemoryLayer, MemoryNode, check_ttl
from symfonic_redis.scope import ScopeLike
from symfonic_redis.store import Store, node_id

LABEL_LENGTH = 80
EMPTY_LABEL = "working-context"

PAGE = 500
"""Stream entries read in one round trip."""

_NODE_ID = re.compile(r"(\d+-\d+)\.([a-z]+)\.([0-9a-f]{16})")
_PLAIN = (str, int, float, bool, type(None), bytes)


def turn_node(entry: Any, durability: Durability | None) -> MemoryNode:
    """The node of a turn: what the reference system mirrors.

    `label` is the first 80 characters of the content. `properties` are the content, every metadata value as `str` (a
    key `content` wins), and the durability when there is one. `importance` is clamped to 1..10.
    """
    properties: dict[str, object] = {"content": entry.content}
    properties.update({key: str(value) for key, value in (entry.metadata or {}).items()})
    if durability is not None:
        properties["durability"] = durability
    return MemoryNode(
        layer=MemoryLayer.WORKING,
        tenant_id=entry.tenant_id,
        label=entry.content[:LABEL_LENGTH] or EMPTY_LABEL,
        properties=properties,
        importance=max(1.0, min(10.0, entry.importance)),
    )


def turn_extra(metadata: Mapping[str, object], durability: Durability | None) -> bytes:
    """What a turn's node has beyond its row, encoded; empty for most turns.

    A node shows a metadata value's `str`. A row gives most values back the same, but an Enum as its value and a
    datetime under a plain offset, so their texts are kept where they differ. So is a durability that was resolved.
    """
    texts = {key: str(value) for key, value in metadata.items() if type(value) not in _PLAIN}
    if texts:
        restored = decode(encode({key: metadata[key] for key in texts}))
        texts = {key: text for key, text in texts.items() if str(restored[key]) != text}
    if durability is None and not texts:
        return b""
    return encode([durability, texts])


class StreamGraphStore:
    """The graph store of a deployment: nodes in Redis streams.

    Given to a `WorkingLayer` of the same deployment, it is written by the push's own script.

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
        if node.tenant_id != keys.tenant:
            raise InvalidInput("a node's tenant_id is not its scope's: nothing was written")
        layer = MemoryLayer(node.layer.value if isinstance(node.layer, Enum) else node.layer)
        fields = {name: getattr(node, name) for name in MemoryNode.model_fields if name not in ("id", "layer")}
        stored = await self._store.add_node(keys, layer.value, encode(fields), ttl=self.ttl)
        return MemoryNode(**{**fields, "id": stored, "layer": layer})

    async def get_node(self, scope: ScopeLike, node_id: str) -> MemoryNode | None:
        """The node of that id, or None: unknown, deleted, trimmed, damaged, or another scope's. One round trip."""
        keys = self._keys(scope)
        address = _address(node_id, keys)
        if address is None:
            return None
        layer, stream_id = address
        key = keys.graph(layer)
        found = await self._store.read("get_node", key, "XRANGE", key, stream_id, stream_id)
        return self._node(keys, layer, *found[0]) if found else None

    async def nodes(self, scope: ScopeLike, layer: MemoryLayer | str) -> AsyncIterator[MemoryNode]:
        """Every node of one layer of this scope, oldest first, in bounded memory. One round trip a page of 500."""
        keys = self._keys(scope)
        name = MemoryLayer(layer.value if isinstance(layer, Enum) else layer).value
        key, start = keys.graph(name), "-"
        while True:
            page = await self._store.read("query_nodes", key, "XRANGE", key, start, "+", "COUNT", PAGE)
            for stream_id, fields in page:
                node = self._node(keys, name, stream_id, fields)
                if node is not None:
                    yield node
            if len(page) < PAGE:
                return
            start = f"({page[-1][0].decode()}"

    async def query_nodes(  # noqa: PLR0917 - the reference contract takes these by position
        self,
        scope: ScopeLike,
        layer: MemoryLayer | str | None = None,
        label: str | None = None,
        label_prefix: str | None = None,
        filters: Mapping[str, object] | None = None,
        limit: int | None = None,
    ) -> list[MemoryNode]:
        """The nodes of exactly this scope that match, oldest first.

        Args:
            scope: exactly this one; parents and children are not searched.
            layer: of this layer; None for all.
            label: of this label.
            label_prefix: whose label starts so.
            filters: attributes or properties that must be equal.
            limit: at most so many; 0 for none, None for all.

        Cost: one round trip a page of 500 of each layer's stream.
        """
        if limit is not None and limit <= 0:
            return []
        found: list[MemoryNode] = []
        for name in MemoryLayer if layer is None else (layer,):
            matched = 0
            async for node in self.nodes(scope, name):
                if _matches(node, label, label_prefix, filters or {}):
                    found.append(node)
                    matched += 1
                    if matched == limit:
                        break
        if layer is None:
            found.sort(key=lambda node: _order(node.id))
        return found[:limit]

    async def delete_node(self, scope: ScopeLike, node_id: str) -> None:
        """Remove a node; an unknown id, or another scope's, is nothing to remove. One round trip."""
        keys = self._keys(scope)
        address = _address(node_id, keys)
        if address is not None:
            key = keys.graph(address[0])
            await self._store.read("delete_node", key, "XDEL", key, address[1])

    async def count(self, scope: ScopeLike, layer: MemoryLayer | str = MemoryLayer.WORKING) -> int:
        """How many nodes of a layer this scope has, without reading them. One round trip."""
        name = MemoryLayer(layer.value if isinstance(layer, Enum) else layer).value
        key = self._keys(scope).graph(name)
        return int(await self._store.read("count", key, "XLEN", key))

    def _keys(self, scope: ScopeLike) -> ScopeKeys:
        return scope_keys(self.deployment.prefix, scope)

    def _node(self, keys: ScopeKeys, layer: str, stream_id: bytes, fields: list[bytes]) -> MemoryNode | None:
        at = stream_id.decode()
        try:
            return _decode_node(keys, layer, at, dict(zip(fields[::2], fields[1::2], strict=True)))
        except CodecError as error:
            self._store.damaged(keys.graph(layer), at, error)
            return None


def _decode_node(keys: ScopeKeys, layer: str, at: str, fields: dict[bytes, bytes]) -> MemoryNode:
    name = node_id(at, layer, keys)
    if b"n" in fields:
        try:
            return MemoryNode(**{**decode(fields[b"n"]), "id": name, "layer": layer})
        except (TypeError, ValueError) as error:
            raise CodecError("the entry is no node") from error
    if b"r" not in fields:
        raise CodecError("the entry holds no row")
    entry = decode_entry(fields[b"r"], keys.tenant)
    durability, texts = _extra_of(fields)
    # `None` here: an empty or unknown durability in the metadata was resolved, or refused, when it was written.
    node = turn_node(entry, durability)
    node.properties.update(texts)
    if durability is not None:
        node.properties["durability"] = durability
    written = datetime.fromtimestamp(int(at.partition("-")[0]) / 1000, UTC)
    return node.model_copy(update={"id": name, "created_at": written, "updated_at": written})


def _extra_of(fields: dict[bytes, bytes]) -> tuple[Durability | None, dict[str, str]]:
    if b"x" not in fields:
        return None, {}
    match decode(fields[b"x"]):
        case [durability, dict() as texts]:
            return durability, texts
    raise CodecError("the entry's extra is damaged")


def _address(name: str, keys: ScopeKeys) -> tuple[str, str] | None:
    """Layer and stream id of a node's id, if it is one of this scope's."""
    found = _NODE_ID.fullmatch(name)
    if found is None or found[3] != keys.digest or found[2] not in set(MemoryLayer):
        return None
    return found[2], found[1]


def _order(name: str) -> tuple[int, int]:
    time, _, sequence = name.partition(".")[0].partition("-")
    return int(time), int(sequence)


def _matches(node: MemoryNode, label: str | None, label_prefix: str | None, filters: Mapping[str, object]) -> bool:
    if label is not None and node.label != label:
        return False
    if label_prefix is not None and not node.label.startswith(label_prefix):
        return False
    return all(
        (getattr(node, name) if name in MemoryNode.model_fields else node.properties.get(name)) == value
        for name, value in filters.items()
    )
