"""Values as bytes: one version byte, then msgpack. What goes in comes out equal, or is refused before it is written."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import msgpack

from symfonic_redis.errors import CodecError, InvalidInput

VERSION = b"\x01"
"""The first byte of every row this version writes, and the only one it reads."""

MAX_DEPTH = 100
"""How deep a stored value may nest."""

MAX_VALUES = 1_000_000
"""How many values one may hold, itself and all below it."""

_INT, _TUPLE, _DATETIME, _UUID, _DECIMAL = 1, 2, 3, 4, 5
_MARK = msgpack.ExtType(_TUPLE, b"")
_SIMPLE = frozenset({str, int, float, bool, type(None), bytes, uuid.UUID, Decimal})


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
            if kind in _SIMPLE or (kind is datetime and item.tzinfo is UTC):
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
    if type(value) is datetime and (value.tzinfo is UTC or value.tzinfo is None):
        return True
    restored = datetime.fromisoformat(value.isoformat())
    return restored.utcoffset() == value.utcoffset() and restored.replace(tzinfo=None) == value.replace(tzinfo=None)


def _extend(value: object) -> Any:  # noqa: PLR0911 - one for each type
    """Encode what msgpack has no type for. Called by msgpack for every value that is not exactly of a type it knows."""
    if type(value) is datetime:
        return msgpack.ExtType(_DATETIME, value.isoformat().encode())  # each turn has one: the short way
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


class _Packers(threading.local):
    """A thread's own packers: each has a buffer, and making one costs as much as packing a turn.

    `known` writes a datetime in UTC as msgpack's own timestamp; any other would lose its offset.
    """

    def __init__(self) -> None:
        options = {"default": _extend, "strict_types": True, "unicode_errors": "surrogatepass"}
        self.any = msgpack.Packer(**options)
        self.known = msgpack.Packer(**options, datetime=True)


_packers = _Packers()

_READING = {"strict_map_key": False, "unicode_errors": "surrogatepass", "timestamp": 3}  # 3 is a datetime in UTC


class _HasTuples(Exception):  # noqa: N818 - it is no error: a reader that can is asked instead
    """A value holds a tuple's mark, which few do."""


def _extension(code: int, data: bytes) -> object:
    if code == _DATETIME:
        return datetime.fromisoformat(data.decode())
    if code == _TUPLE:
        raise _HasTuples
    if code == _INT:
        return int.from_bytes(data, "big", signed=True)
    if code == _UUID:
        return uuid.UUID(bytes=data)
    if code == _DECIMAL:
        return Decimal(data.decode())
    raise CodecError(f"unknown extension type {code}")


class _Reader:
    """Restores tuples too, and counts their marks, each of which must head a list."""

    __slots__ = ("marks",)

    def __init__(self) -> None:
        self.marks = 0

    def extension(self, code: int, data: bytes) -> object:
        if code == _TUPLE:
            self.marks += 1
            return _MARK
        return _extension(code, data)

    def sequence(self, items: list[object]) -> object:
        if items and items[0] is _MARK:
            self.marks -= 1
            return tuple(items[1:])
        return items


def simple(values: Iterable[object]) -> bool:
    """Whether each is of a type that is stored as it is, and holds nothing."""
    return _SIMPLE.issuperset(map(type, values))


def pack(value: object, *, known: bool = False) -> bytes:
    """Encode one value.

    Args:
        value: what is stored.
        known: it holds only what is `simple`, and datetimes in UTC: it needs no look.

    Raises:
        InvalidInput: it holds a type that cannot be stored, holds itself, or nests too deeply.
    """
    if not known:
        _check(value)
    packed: bytes = (_packers.known if known else _packers.any).pack(value)
    return packed


def unpack(data: bytes) -> Any:
    """Decode one value; the inverse of `pack`.

    Raises:
        CodecError: the bytes are not one encoded value.
    """
    try:
        try:
            return msgpack.unpackb(data, ext_hook=_extension, **_READING)
        except _HasTuples:
            reader = _Reader()
            value = msgpack.unpackb(
                data,
                ext_hook=reader.extension,
                list_hook=reader.sequence,
                **_READING,
            )
    except CodecError:
        raise
    except Exception as error:
        # Damaged input makes msgpack raise a dozen classes, and a key that is a list a bare TypeError.
        raise CodecError(f"damaged bytes ({type(error).__name__})") from error
    if reader.marks:
        raise CodecError("damaged bytes (a tuple's mark is out of place)")
    return value


def encode(value: object, *, known: bool = False) -> bytes:
    """Encode any storable value with the version byte ahead. Arguments and errors as of `pack`."""
    return VERSION + pack(value, known=known)


def decode(data: bytes) -> Any:
    """The inverse of `encode`.

    Raises:
        CodecError: the bytes are damaged, or a newer version wrote them.
    """
    if data[:1] != VERSION:
        raise CodecError(f"unknown row version {data[0] if data else 'none'}: upgrade symfonic-redis")
    return unpack(data[1:])
