"""A record as it waits to be published: a line that scripts read, then bytes that they move; see lua/stage.lua.

What it will be is settled when it is staged: a window row for the working layer, a node for any other. So publishing
needs neither the worker that wrote it nor its version.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import datetime
from typing import Any

from symfonic_redis.codec import decode
from symfonic_redis.entry_seals import unseal_fields
from symfonic_redis.errors import CodecError, InvalidInput
from symfonic_redis.keys import ScopeKeys, decode_id, encode_id
from symfonic_redis.models import MemoryEntry, MemoryLayer, MemoryNode
from symfonic_redis.nodes import LABEL_LENGTH, encode_node, turn_extra
from symfonic_redis.records import MemoryRecord
from symfonic_redis.rows import decode_entry, encode_entry
from symfonic_redis.scope import ScopeLike
from symfonic_redis.sealing import Seal

FORMAT = b"1"
"""The first word of every record this version stages, and the only one it publishes."""

CONTENT, RECORD_ID, RECORD_LAYER = "content", "record_id", "record_layer"
"""The properties under which a node keeps a record's text, its id, and its layer's name when that is not the node's."""

_RESERVED = frozenset({CONTENT, RECORD_ID, RECORD_LAYER})
_WORKING = MemoryLayer.WORKING
_ID = "record id"


def encode_record(record: MemoryRecord, tenant: str, *, limit: int, seal: Seal) -> bytes:
    """The record as it waits.

    Args:
        record: what to stage.
        tenant: of its scope.
        limit: the longest row or node allowed, in bytes, as it is stored.
        seal: of its scope.

    Raises:
        InvalidInput: it holds what cannot be stored, or is longer than `limit`.
    """
    extra = b""
    if record.home is _WORKING:
        entry = MemoryEntry(
            id=record.id,
            tenant_id=tenant,
            content=record.content,
            metadata=dict(record.metadata),
            importance=record.importance,
            created_at=record.created_at,
        )
        body = encode_entry(entry, limit=limit, seal=seal)
        extra = turn_extra(entry.metadata, record.durability, seal=seal)
    else:
        _, body = encode_node(_node(record, tenant), limit=limit, seal=seal)
    line = FORMAT, record.home.encode(), seal_id(record.id, seal).encode(), len(body)
    return b"%b %b %b %d\n%b%b" % (*line, body, extra)


def seal_id(name: str, seal: Seal) -> str:
    """The id of a record as its line has it: percent-encoded, or `=` and base64 of what it was sealed to."""
    encoded = encode_id(name)
    return f"={urlsafe_b64encode(seal.seal(encoded.encode(), _ID)).decode()}" if seal.active else encoded


def unseal_id(text: str, seal: Seal) -> str:
    """The inverse of `seal_id`.

    Raises:
        CodecError: it does not open.
    """
    try:
        stored = urlsafe_b64decode(text[1:]) if text.startswith("=") else text.encode()
        return decode_id(seal.unseal(stored, _ID).decode())
    except ValueError as error:
        raise CodecError("the staged record's id cannot be read") from error


def _node(record: MemoryRecord, tenant: str) -> MemoryNode:
    if taken := sorted(_RESERVED & record.metadata.keys()):
        raise InvalidInput(f"a record's metadata has a key {taken[0]}, which its node needs for itself: rename it")
    properties = {**record.metadata, CONTENT: record.content, RECORD_ID: record.id}
    if record.layer != record.home:
        properties[RECORD_LAYER] = record.layer
    return MemoryNode(
        layer=record.home,
        tenant_id=tenant,
        label=record.content[:LABEL_LENGTH],
        properties=properties,
        importance=record.importance,
        created_at=record.created_at,
        updated_at=record.created_at,
    )


def decode_record(item: bytes, keys: ScopeKeys, scope: ScopeLike, *, seal: Seal) -> MemoryRecord:
    """The record that waits; the inverse of `encode_record`.

    Raises:
        CodecError: it is damaged, or a newer version staged it.
    """
    line, _, rest = item.partition(b"\n")
    match line.split(b" "):
        case [form, layer, name, size] if form == FORMAT and size.isdigit():
            body = rest[: int(size)]
        case _:
            raise CodecError("the staged record is of another version, or damaged: upgrade symfonic-redis")
    try:
        if layer == _WORKING.encode():
            found: dict[str, Any] = _of_turn(decode_entry(body, keys.tenant, seal=seal))
        else:
            found = _of_node(layer.decode(), decode(unseal_fields({b"n": body}, layer.decode(), seal)[b"n"]))
        return MemoryRecord(scope=scope, id=unseal_id(name.decode(), seal), **found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CodecError(f"the staged record cannot be read ({type(error).__name__})") from error


def _of_turn(entry: MemoryEntry) -> dict[str, Any]:
    return {
        "content": entry.content,
        "metadata": entry.metadata,
        "importance": entry.importance,
        "created_at": entry.created_at,
    }


def _of_node(layer: str, node: dict[str, Any]) -> dict[str, Any]:
    properties = dict(node["properties"])
    created_at: datetime = node["created_at"]
    return {
        "layer": properties.pop(RECORD_LAYER, layer),
        "content": properties.pop(CONTENT),
        "metadata": {name: value for name, value in properties.items() if name != RECORD_ID},
        "importance": node["importance"],
        "created_at": created_at,
    }
