"""Rows as bytes: one version byte, then msgpack. What goes in comes out equal, or is refused before it is written.

A window row is the array `[id, content, created_at, metadata, importance, layer, score, node_id]`, its trailing
defaults left away. The tenant is not stored: a row's key says whose it is. Redis never looks inside a row.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import msgpack

from symfonic_redis.errors import CodecError, InvalidInput
from symfonic_redis.models import MemoryEntry, MemoryLayer
from symfonic_redis.sealing import Seal

VERSION = b"\x01"
"""The first byte of every row this version writes, and the only one it reads."""

MAX_DEPTH = 100
"""How deep a stored value may nest."""

MAX_VALUES = 1_000_000
"""How many values one may hold, itself and all below it."""

_INT, _TUPLE, _DATETIME, _UUID, _DECIMAL = 1, 2, 3, 4, 5
_MARK = msgpack.ExtType(_TUPLE, b"")
_SIMPLE = frozenset({str, int, float, bool, type(None), bytes, uuid.UUID, Decimal})

_WORKING = MemoryLayer.WORKING
_LAYERS = {layer.value: layer for layer in MemoryLayer}

_NAMES = ("id", "content", "created_at", "metadata", "importance", "layer", "score", "node_id")
_TYPES: tuple[Any, ...] = (str, str, datetime, dict, float | int, str, float | int | None, str | None)
_REQUIRED = 4
_UUID_LENGTH = 36
TURN = ("turn", MemoryLayer.WORKING.value)
"""The place of a window row, with its scope; a node that mirrors it is the same row."""
_DEFAULTS = (5.0, _WORKING.value, None, None)
"""Importance, layer, score and node id of a plain turn; a row that ends in these leaves them away."""


def _check(value: object) -> None:
    """Refuse what would not come back equal, before msgpack sees it.

    It stores some types as others, and follows a list that holds itself, or is held in a million places, to the end.
    """
    # A level at a time, without recursion: the depth is counted, and a short stack cannot run out.
    level: list[Any] = [value]
    depth = seen = 0
    while level:
        depth += 1
        seen += len(level)
        if depth > MAX_DEPTH or seen > MAX_VALUES:
            raise InvalidInput(
                f"a value nests more than {MAX_DEPTH} deep, or holds more than {MAX_VALUES} others: flatten it"
            )
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind in _SIMPLE:
                continue
            if kind is dict:
                below.extend(_keys(item))
                below.extend(item.values())
            elif kind is list or kind is tuple:
                below.extend(item)
            elif isinstance(item, Enum):
                below.append(item.value)
            elif not (isinstance(item, datetime) and _comes_back(item)):
                raise InvalidInput(
                    f"a value of type {kind.__name__} cannot be stored: convert it to a str, number, list or dict"
                )
        level = below


def _keys(mapping: dict[Any, Any]) -> list[Any]:
    """The keys of a dict as they will come back, Enums as their values: hashable, and still different."""
    if all(type(key) is str for key in mapping):
        return []  # nothing to check
    keys = [_plain(key) for key in mapping]
    if any(isinstance(key, list | dict) for key in keys) or len(set(keys)) != len(keys):
        raise InvalidInput("a dict's keys, Enums taken by value, are no keys or not different: change them")
    return keys


def _plain(value: object) -> Any:
    while isinstance(value, Enum):
        value = value.value
    if type(value) is tuple:
        return tuple(map(_plain, value))
    return value


def _comes_back(value: datetime) -> bool:
    """Whether the ISO form says all of it: not for a subclass with more digits, nor for offsets below a second."""
    restored = datetime.fromisoformat(value.isoformat())
    return restored.utcoffset() == value.utcoffset() and restored.replace(tzinfo=None) == value.replace(tzinfo=None)


def _extend(value: object) -> Any:  # noqa: PLR0911 - one for each type
    """Encode what msgpack has no type for. Called by msgpack for every value that is not exactly of a type it knows."""
    while isinstance(value, Enum):
        value = value.value
    match value:
        case tuple():
            # A list with a mark ahead, not bytes within bytes: nesting then costs no stack on reading.
            return [_MARK, *value]
        case int():
            if -(1 << 63) <= value < 1 << 64:
                return value
            return msgpack.ExtType(_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
        case datetime():
            return msgpack.ExtType(_DATETIME, value.isoformat().encode())
        case uuid.UUID():
            return msgpack.ExtType(_UUID, value.bytes)
        case Decimal():
            return msgpack.ExtType(_DECIMAL, str(value).encode())
    return value  # of a type that msgpack knows: what an Enum stood for


class _Reader:
    """Restores our types while msgpack reads, and counts the marks of tuples, each of which must head a list."""

    __slots__ = ("marks",)

    def __init__(self) -> None:
        self.marks = 0

    def extension(self, code: int, data: bytes) -> object:
        if code == _TUPLE:
            self.marks += 1
            return _MARK
        if code == _INT:
            return int.from_bytes(data, "big", signed=True)
        if code == _DATETIME:
            return datetime.fromisoformat(data.decode())
        if code == _UUID:
            return uuid.UUID(bytes=data)
        if code == _DECIMAL:
            return Decimal(data.decode())
        raise CodecError(f"unknown extension type {code}")

    def sequence(self, items: list[object]) -> object:
        if items and items[0] is _MARK:
            self.marks -= 1
            return tuple(items[1:])
        return items


def pack(value: object) -> bytes:
    """Encode one value.

    Raises:
        InvalidInput: it holds a type that cannot be stored, holds itself, or nests too deeply.
    """
    _check(value)
    packed: bytes = msgpack.packb(value, default=_extend, strict_types=True, unicode_errors="surrogatepass")
    return packed


def unpack(data: bytes) -> Any:
    """Decode one value; the inverse of `pack`.

    Raises:
        CodecError: the bytes are not one encoded value.
    """
    reader = _Reader()
    try:
        value = msgpack.unpackb(
            data,
            ext_hook=reader.extension,
            list_hook=reader.sequence,
            strict_map_key=False,
            unicode_errors="surrogatepass",
        )
    except CodecError:
        raise
    except Exception as error:
        # Damaged input makes msgpack raise a dozen classes, and a key that is a list a bare TypeError.
        raise CodecError(f"damaged bytes ({type(error).__name__})") from error
    if reader.marks:
        raise CodecError("damaged bytes (a tuple's mark is out of place)")
    return value


def _wrong(fields: list[Any]) -> str:
    """What is wrong with the eight fields of a row, or an empty string."""
    for name, value, kind in zip(_NAMES, fields, _TYPES, strict=True):
        if not isinstance(value, kind):
            return f"{name} is a {type(value).__name__}"
    if any(type(key) is not str for key in fields[3]):
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
            layer.value if isinstance(layer, Enum) else layer,
            getattr(entry, "score", None),
            getattr(entry, "node_id", None),
        ]
    except AttributeError as error:
        raise InvalidInput(f"an entry has no {error.name}: pass a MemoryEntry") from error
    if wrong := _wrong(fields):
        raise InvalidInput(f"an entry's {wrong}: pass a MemoryEntry")
    fields[0] = _compact_id(fields[0])
    while len(fields) > _REQUIRED and fields[-1] == _DEFAULTS[len(fields) - _REQUIRED - 1]:
        fields.pop()
    row = seal.seal(VERSION + pack(fields), *TURN)
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
    if isinstance(fields[0], uuid.UUID):
        fields[0] = str(fields[0])
    if wrong := _wrong(fields):
        raise CodecError(f"the row's {wrong}")
    fields[5] = _LAYERS[fields[5]]
    return MemoryEntry.model_construct(tenant_id=tenant_id, **dict(zip(_NAMES, fields, strict=True)))


def encode(value: object) -> bytes:
    """Encode any storable value with the version byte ahead. Raises as `pack`."""
    return VERSION + pack(value)


def decode(data: bytes) -> Any:
    """The inverse of `encode`.

    Raises:
        CodecError: the bytes are damaged, or a newer version wrote them.
    """
    if data[:1] != VERSION:
        raise CodecError(f"unknown row version {data[0] if data else 'none'}: upgrade symfonic-redis")
    return unpack(data[1:])


def _compact_id(value: str) -> str | uuid.UUID:
    """A canonical UUID string takes 18 bytes as a UUID, 38 as text. Any other id stays the string it is."""
    if len(value) == _UUID_LENGTH:
        try:
            parsed = uuid.UUID(value)
        except ValueError:
            return value
        if str(parsed) == value:
            return parsed
    return value
