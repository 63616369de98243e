"""The lines of an archive: one JSON object each, written from what a scope holds, and checked before they are believed.

::

    {"archive": "symfonic-redis", "version": 1, "tenant": ..., "path": [kind, id, ...], "ttl_ms": {key: ms}}
    {"turn": 1, "row": <base64>, "crc32": n, "speaker": ..., "content": ...}           oldest first, evicted ones too
    {"node": <stream id>, "layer": ..., "fields": {name: <base64>}, "edits": {name: <base64>}, "crc32": n, ...}
    {"end": true, "turns": n, "nodes": n}

Bytes are kept as they are stored, opened if they were sealed. What stands beside them in plain text is for people and
not trusted with anything. A row that cannot be decoded says `"damaged": true` and is kept as it is.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from zlib import crc32

from symfonic_redis.codec import decode, encode
from symfonic_redis.entry_seals import SEALED_NAME
from symfonic_redis.errors import CodecError, InvalidInput
from symfonic_redis.keys import ScopeKeys, decode_id, decode_path, encode_id
from symfonic_redis.limits import MAX_CHANGED
from symfonic_redis.models import MemoryLayer
from symfonic_redis.nodes import CHANGEABLE, decode_node
from symfonic_redis.rows import decode_entry
from symfonic_redis.scope import SCOPE_PATH_DELIMITER
from symfonic_redis.sealing import PLAIN, SEALED

FORMAT = "symfonic-redis"
VERSION = 1
"""The version of the lines. A change that an older reader would misread raises it."""

_STREAM_ID = re.compile(r"(0|[1-9][0-9]{0,19})-(0|[1-9][0-9]{0,19})")
_LARGEST = (1 << 64) - 1
_AHEAD = "says a time that lies ahead of the server's"
_LAYERS = frozenset(layer.value for layer in MemoryLayer)


class Row(NamedTuple):
    """A turn, encoded."""

    row: bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.row)


class Entry(NamedTuple):
    """A node, encoded: its layer, its stream id, its fields, what was changed of it by name."""

    layer: str
    at: str
    fields: dict[bytes, bytes]
    edits: dict[str, bytes]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(len(name) + len(value) for part in (self.fields, self.edits) for name, value in part.items())


def header_line(keys: ScopeKeys, ttls: Mapping[str, int]) -> str:
    """The first line. `ttls` are the milliseconds that keys had left, by their names within the scope."""
    path = decode_path(keys.path).split(SCOPE_PATH_DELIMITER)
    return _line({"archive": FORMAT, "version": VERSION, "tenant": keys.tenant, "path": path, "ttl_ms": dict(ttls)})


def turn_line(keys: ScopeKeys, number: int, row: bytes) -> str:
    """The line of a turn; `number` counts from 1, the oldest."""
    record: dict[str, Any] = {"turn": number, "row": _text(row)}
    record["crc32"] = _sum(number, record["row"])
    try:
        entry = decode_entry(row, keys.tenant, seal=PLAIN)
    except CodecError:
        return _line({**record, "damaged": True})
    speaker = entry.metadata.get("speaker")
    return _line({**record, "speaker": speaker if isinstance(speaker, str) else None, "content": entry.content})


def node_line(keys: ScopeKeys, entry: Entry) -> str:
    """The line of a node."""
    layer, at, fields, edits = entry
    record: dict[str, Any] = {
        "node": at,
        "layer": layer,
        "fields": {name.decode("utf-8", "surrogateescape"): _text(value) for name, value in fields.items()},
        "edits": {name: _text(value) for name, value in edits.items()},
    }
    record["crc32"] = _sum(at, layer, record["fields"], record["edits"])
    try:
        node = decode_node(keys, layer, at, fields, edits, seal=PLAIN)
    except CodecError:
        return _line({**record, "damaged": True})
    content = node.properties.get("content")
    return _line({**record, "label": node.label, "content": content if isinstance(content, str) else None})


def end_line(turns: int, nodes: int) -> str:
    """The last line: without it an archive was cut short."""
    return _line({"end": True, "turns": turns, "nodes": nodes})


def read_lines(lines: Iterable[str], keys: ScopeKeys, *, limit: int, latest: int = _LARGEST) -> Iterator[Row | Entry]:
    """Check an archive line by line; yield what it holds, for the scope of `keys`. Blank lines are skipped.

    Args:
        lines: of the archive.
        keys: of the scope that it is meant for. A node says whose it is: it is made this tenant's.
        limit: the longest row allowed, in bytes.
        latest: the latest time allowed of a node or a change, in ms since the epoch. A stream takes no entry before
            its newest one's time: a node of the future would stop all that come after it.

    Raises:
        InvalidInput: a line is damaged, missing or of a newer version; it says which.
    """
    reader = _Reader(keys, limit, latest)
    number = 0
    for number, line in enumerate(lines, 1):
        try:
            record = reader.take(line)
        except _Refused as refusal:
            raise InvalidInput(f"line {number} of the archive {refusal}: nothing was imported") from None
        if record is not None:
            yield record
    if not reader.ended:
        raise InvalidInput(f"the archive is cut short after line {number}: nothing was imported")


class _Refused(Exception):  # noqa: N818 - a verdict on one line, which the caller turns into an error
    """What is wrong with a line, to stand after its number."""


class _Reader:
    """Where the reading of an archive stands."""

    def __init__(self, keys: ScopeKeys, limit: int, latest: int) -> None:
        self._keys, self._limit, self._latest = keys, limit, latest
        self._begun = False
        self.ended = False
        self._turns = self._nodes = 0
        self._newest: dict[str, tuple[int, int]] = {}

    def take(self, line: str) -> Row | Entry | None:
        """What a line holds; None for one that holds no row."""
        if not isinstance(line, str):
            raise _Refused("is no text")
        if not line.strip():
            return None
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise _Refused("is damaged, it is no JSON") from None
        if not isinstance(record, dict):
            raise _Refused("is no line of an archive")
        if not self._begun:
            self._begin(record)
            return None
        if self.ended:
            raise _Refused("stands after the end")
        if "turn" in record:
            return self._turn(record)
        if "node" in record:
            return self._node(record)
        self._end(record)
        return None

    def _begin(self, record: dict[str, Any]) -> None:
        if record.get("archive") != FORMAT:
            raise _Refused("is not the first line of an archive")
        if record.get("version") != VERSION:
            raise _Refused("says that another version wrote it, upgrade symfonic-redis")
        self._begun = True

    def _turn(self, record: dict[str, Any]) -> Row:
        row = _bytes(record.get("row"))
        if record.get("crc32") != _sum(record["turn"], record["row"]):
            raise _Refused("is damaged, its checksum is another")
        if record["turn"] != self._turns + 1 or self._nodes:
            raise _Refused(f"is out of order, turn {self._turns + 1} is missing or stands elsewhere")
        self._fits(row)
        _readable(record, lambda: decode_entry(row, self._keys.tenant, seal=PLAIN))
        self._turns += 1
        return Row(row)

    def _node(self, record: dict[str, Any]) -> Entry:
        at, layer, fields, edits = (record.get(name) for name in ("node", "layer", "fields", "edits"))
        if record.get("crc32") != _sum(at, layer, fields, edits):
            raise _Refused("is damaged, its checksum is another")
        if not isinstance(at, str) or not isinstance(layer, str) or layer not in _LAYERS:
            raise _Refused("is no node")
        found = _STREAM_ID.fullmatch(at)
        place = (int(found[1]), int(found[2])) if found else (0, 0)
        if max(place) > _LARGEST or place <= self._newest.get(layer, (0, 0)):
            raise _Refused("is out of order, or its id is none")
        if place[0] > self._latest:
            raise _Refused(_AHEAD)
        entry = Entry(
            layer, at, _named(fields), {name.decode("utf-8", "replace"): value for name, value in _named(edits).items()}
        )
        if not 0 < len(entry.fields) <= MAX_CHANGED:
            raise _Refused("is no node")
        self._changes(entry.edits)
        for value in (*entry.fields.values(), *entry.edits.values()):
            self._fits(value)
        self._adopt(entry.fields)
        _readable(record, lambda: decode_node(self._keys, layer, at, entry.fields, entry.edits, seal=PLAIN))
        self._newest[layer] = place
        self._nodes += 1
        return entry

    def _changes(self, edits: Mapping[str, bytes]) -> None:
        """Refuse changes that no node can have, also of one that is damaged."""
        if len(edits) - ("at" in edits) > MAX_CHANGED:
            raise _Refused(f"changes over {MAX_CHANGED} names of a node")
        if not all(
            _can_change(name) or (name.startswith(SEALED_NAME) and value[:1] == SEALED) for name, value in edits.items()
        ):
            raise _Refused("changes what cannot change of a node")
        when = edits.get("at", b"")
        if when.isdigit() and (len(when) > len(str(_LARGEST)) or int(when) > self._latest):
            raise _Refused(_AHEAD)

    def _adopt(self, fields: dict[bytes, bytes]) -> None:
        """Make a whole node this tenant's; a mirrored turn says nothing of a tenant."""
        if b"n" not in fields:
            return
        try:
            node = decode(fields[b"n"])
        except CodecError:
            return
        if isinstance(node, dict) and node.get("tenant_id") != self._keys.tenant:
            fields[b"n"] = encode({**node, "tenant_id": self._keys.tenant})

    def _end(self, record: dict[str, Any]) -> None:
        if record.get("end") is not True:
            raise _Refused("is no line of an archive")
        if (record.get("turns"), record.get("nodes")) != (self._turns, self._nodes):
            raise _Refused(f"counts other lines than there are, {self._turns} turns and {self._nodes} nodes")
        self.ended = True

    def _fits(self, value: bytes) -> None:
        if len(value) > self._limit:
            raise _Refused(f"holds {len(value)} bytes, over the limit of {self._limit}, raise max_row_bytes")


def _readable(record: dict[str, Any], read: Any) -> None:
    """A row must be readable, unless the archive says that it was not: then it must not be."""
    try:
        read()
    except CodecError:
        if record.get("damaged") is not True:
            raise _Refused("is damaged, its row cannot be read") from None
    else:
        if "damaged" in record:
            raise _Refused("is damaged, it says so of a row that is not")


def _can_change(name: str) -> bool:
    """Whether a name is one that `nodes.encode_changes` writes, or the time of the change."""
    kind, _, rest = name.partition(":")
    try:
        return name == "at" or (kind == "a" and rest in CHANGEABLE) or name == f"p:{encode_id(decode_id(rest))}"
    except ValueError:
        return False


def _line(record: Mapping[str, Any]) -> str:
    # ASCII, so that a lone surrogate survives any file.
    return json.dumps(record, separators=(",", ":"))


def _sum(*values: object) -> int:
    return crc32(json.dumps(values, separators=(",", ":")).encode())


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _bytes(value: object) -> bytes:
    try:
        return base64.b64decode(value, validate=True)  # type: ignore[arg-type]  # anything else is a TypeError
    except (TypeError, ValueError):
        raise _Refused("is damaged, it holds no base64") from None


def _named(values: object) -> dict[bytes, bytes]:
    if not isinstance(values, dict):
        raise _Refused("is no node")
    try:
        return {name.encode("utf-8", "surrogateescape"): _bytes(value) for name, value in values.items()}
    except UnicodeEncodeError:
        raise _Refused("is no node") from None
