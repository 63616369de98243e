"""A turn as a row of the window: the array `[id, content, created_at, metadata, importance, layer, score, node_id]`.

Its trailing defaults are left away. The tenant is not stored: a row's key says whose it is.
Redis never looks inside it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from symfonic_redis.codec import decode, encode, simple
from symfonic_redis.errors import CodecError, InvalidInput
from symfonic_redis.models import MemoryEntry, MemoryLayer, entry_of
from symfonic_redis.sealing import Seal

_WORKING = MemoryLayer.WORKING
_NAME = _WORKING.value
_LAYERS = {layer.value: layer for layer in MemoryLayer}

_NAMES = ("id", "content", "created_at", "metadata", "importance", "layer", "score", "node_id")
_TYPES: tuple[Any, ...] = (str, str, datetime, dict, float | int, str, float | int | None, str | None)
_REQUIRED = 4
_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_UUID_BYTES = 16
_NUMBERS = frozenset({float, int})
_STRINGS = frozenset({str})

TURN = ("turn", _NAME)
"""The place of a window row, with its scope; a node that mirrors it is the same row."""

_DEFAULTS = (5.0, _NAME, None, None)
"""Importance, layer, score and node id of a plain turn; a row that ends in these leaves them away."""


def _usual(fields: list[Any]) -> bool:
    """Whether the eight fields are those of a plain turn, of the very types: asked first, since most are."""
    name, content, created_at, metadata, importance, layer, score, node_id = fields
    return (
        type(name) is str
        and type(content) is str
        and type(created_at) is datetime
        and type(metadata) is dict
        and _STRINGS.issuperset(map(type, metadata))
        and type(importance) in _NUMBERS
        and layer == _NAME
        and score is None
        and node_id is None
    )


def _wrong(fields: list[Any]) -> str:
    """What is wrong with the eight fields of a row, or an empty string."""
    for label, value, kind in zip(_NAMES, fields, _TYPES, strict=True):
        if not isinstance(value, kind):
            return f"{label} is a {type(value).__name__}"
    for key in fields[3]:
        if type(key) is not str:
            return "metadata has a key that is no str"
    return "" if fields[5] in _LAYERS else "layer is unknown"


def encode_entry(entry: Any, *, limit: int, seal: Seal) -> bytes:
    """Encode a `MemoryEntry`, or any object with its attributes, as a window row.

    Args:
        entry: the entry; its `tenant_id` is not stored.
        limit: the longest row allowed, in bytes, as it is stored.
        seal: of the entry's scope.

    Raises:
        InvalidInput: an attribute is missing or of the wrong type, a value cannot be stored, or the row is longer
            than `limit`.
    """
    try:
        layer = getattr(entry, "layer", _WORKING)
        fields = [
            entry.id,
            entry.content,
            entry.created_at,
            entry.metadata,
            entry.importance,
            _NAME if layer is _WORKING else layer.value if isinstance(layer, Enum) else layer,
            getattr(entry, "score", None),
            getattr(entry, "node_id", None),
        ]
    except AttributeError as error:
        raise InvalidInput(f"an entry has no {error.name}: pass a MemoryEntry") from error
    known = False
    if _usual(fields):
        known = fields[2].tzinfo is UTC and simple(fields[3].values())
        del fields[_REQUIRED + (fields[_REQUIRED] != _DEFAULTS[0]) :]
    elif wrong := _wrong(fields):
        raise InvalidInput(f"an entry's {wrong}: pass a MemoryEntry")
    else:
        while len(fields) > _REQUIRED and fields[-1] == _DEFAULTS[len(fields) - _REQUIRED - 1]:
            fields.pop()
    fields[0] = _compact_id(fields[0])
    row = seal.seal(encode(fields, known=known), *TURN)
    if len(row) > limit:
        raise InvalidInput(
            f"an entry takes {len(row)} bytes, over the limit of {limit}: "
            "store a reference instead, or raise max_row_bytes in connect()"
        )
    return row


def decode_entry(row: bytes, tenant_id: str, *, seal: Seal) -> MemoryEntry:
    """Decode a window row of `tenant_id`. The entry is built without validation: `encode_entry` wrote it.

    Raises:
        CodecError: the row is damaged, a newer version wrote it, or it does not open.
    """
    fields = decode(seal.unseal(row, *TURN))
    if not isinstance(fields, list) or not _REQUIRED <= len(fields) <= len(_NAMES):
        raise CodecError("the row is no entry")
    fields.extend(_DEFAULTS[len(fields) - _REQUIRED :])
    name = fields[0]
    if type(name) is bytes and len(name) == _UUID_BYTES:
        digits = name.hex()
        fields[0] = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    if not _usual(fields) and (wrong := _wrong(fields)):
        raise CodecError(f"the row's {wrong}")
    return entry_of(
        {
            "id": fields[0],
            "layer": _LAYERS[fields[5]],
            "tenant_id": tenant_id,
            "content": fields[1],
            "node_id": fields[7],
            "score": fields[6],
            "metadata": fields[3],
            "importance": fields[4],
            "created_at": fields[2],
        }
    )


def _compact_id(value: str) -> str | bytes:
    """A canonical UUID string takes 18 bytes as bytes, 38 as text. Any other id stays the string it is."""
    return bytes.fromhex(value.replace("-", "")) if _CANONICAL.fullmatch(value) else value
