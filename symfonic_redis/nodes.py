"""What a node is made of: a mirrored turn's row or a whole node, what was changed of it since, and its id.

A stream entry's fields are `r` (a window row) and `x` (what the node has beyond it), or `n` (a whole node). A change is
stored under `a:` and an attribute's name, or `p:` and a property's, percent-encoded; see lua/edits.lua. Sealed, it is
stored under `s:` and a token of that name, which stands within.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple

from pydantic import ValidationError

from symfonic_redis.codec import decode, encode
from symfonic_redis.entry_seals import seal_field, unseal_changes, unseal_fields
from symfonic_redis.errors import CodecError, InvalidInput
from symfonic_redis.keys import ScopeKeys, decode_id, encode_id
from symfonic_redis.models import Durability, MemoryLayer, MemoryNode, coerce_durability
from symfonic_redis.rows import decode_entry
from symfonic_redis.sealing import PLAIN, Seal

LABEL_LENGTH = 80
EMPTY_LABEL = "working-context"

_ID = re.compile(r"((0|[1-9][0-9]{0,19})-(0|[1-9][0-9]{0,19}))\.([a-z]+)\.([0-9a-f]{16})")
_LARGEST = (1 << 64) - 1
_PLAIN = frozenset({str, int, float, bool, type(None), bytes})
_FIXED = frozenset({"id", "layer", "tenant_id", "created_at"})
"""Attributes that say which node it is: they do not change."""

CHANGEABLE = frozenset(MemoryNode.model_fields) - _FIXED - {"properties"}
"""Attributes that can change; properties change one by one."""

_LAYERS = frozenset(layer.value for layer in MemoryLayer)


class Address(NamedTuple):
    """Where a node is within its scope: the layer's stream, and the entry in it."""

    layer: str
    at: str


def node_id(at: str, layer: str, keys: ScopeKeys) -> str:
    """The id of a node: unique across scopes and layers, and its own address within the scope."""
    return f"{at}.{layer}.{keys.digest}"


def address_of(name: str, keys: ScopeKeys) -> Address | None:
    """Where the node of that id is, or None when it cannot be one of this scope's."""
    found = _ID.fullmatch(str(name))
    if found is None or found[5] != keys.digest or found[4] not in _LAYERS:
        return None
    if int(found[2]) > _LARGEST or int(found[3]) > _LARGEST:
        return None
    return Address(found[4], found[1])


def layer_name(layer: object) -> str:
    """The name of a layer, given as one of our members, another package's, or a string.

    Raises:
        InvalidInput: there is no such layer.
    """
    name = layer.value if isinstance(layer, Enum) else layer
    if name not in _LAYERS:
        raise InvalidInput(f"unknown layer: use one of {', '.join(sorted(_LAYERS))}")
    return str(name)


def order_of(name: str) -> tuple[int, int]:
    """Sorts node ids by their time."""
    time, _, sequence = name.partition(".")[0].partition("-")
    return int(time), int(sequence)


def turn_node(entry: Any, durability: Durability | None) -> MemoryNode:
    """The node of a turn: what the reference system mirrors.

    `label` is the first 80 characters of the content. `properties` are the content, every metadata value as `str` (a
    key `content` wins), and the durability when there is one. `importance` is clamped to 1..10.
    """
    properties: dict[str, object] = {"content": entry.content}
    properties.update({key: _shown(value) for key, value in (entry.metadata or {}).items()})
    if durability is not None:
        properties["durability"] = durability
    return MemoryNode(
        layer=MemoryLayer.WORKING,
        tenant_id=entry.tenant_id,
        label=entry.content[:LABEL_LENGTH] or EMPTY_LABEL,
        properties=properties,
        importance=max(1.0, min(10.0, entry.importance)),
    )


def turn_extra(metadata: Mapping[str, object], durability: Durability | None, *, seal: Seal) -> bytes:
    """What a turn's node has beyond its row, encoded; empty for most turns.

    A node shows a metadata value's `str`. A row gives most values back the same, but an Enum as its value and a
    datetime under a plain offset, so their texts are kept where they differ. So is a durability that was resolved.
    """
    if durability is None and _PLAIN.issuperset(map(type, metadata.values())):
        return b""
    texts = {key: _shown(value) for key, value in metadata.items() if type(value) not in _PLAIN}
    if texts:
        restored = decode(encode({key: metadata[key] for key in texts}))
        texts = {key: text for key, text in texts.items() if _shown(restored[key]) != text}
    if durability is None and not texts:
        return b""
    return seal_field(b"x", encode([durability, texts]), MemoryLayer.WORKING.value, seal)


def _shown(value: object) -> str:
    try:
        return str(value)
    except ValueError:
        # Python converts no number of more than some thousand digits. The row keeps it; a text of it serves nobody.
        return f"<{type(value).__name__} with a number too long to show>"


def encode_node(node: Any, *, limit: int, seal: Seal) -> tuple[str, bytes]:
    """The layer of a node, and the node without what its place says: id and layer.

    Raises:
        InvalidInput: an attribute is missing or wrong, holds what cannot be stored, or is longer than `limit` bytes.
    """
    layer = layer_name(getattr(node, "layer", None))
    names = [name for name in MemoryNode.model_fields if name not in ("id", "layer") and hasattr(node, name)]
    try:
        checked = MemoryNode(**{**{name: getattr(node, name) for name in names}, "layer": layer})
    except (ValidationError, TypeError) as error:
        raise InvalidInput(f"the node is refused, {_first(error)}: pass a MemoryNode") from None
    payload = seal_field(b"n", encode({name: getattr(checked, name) for name in names}), layer, seal)
    if len(payload) > limit:
        raise InvalidInput(
            f"a node takes {len(payload)} bytes, over the limit of {limit}: "
            "store a reference instead, or raise max_row_bytes in connect()"
        )
    return layer, payload


def _first(error: Exception) -> str:
    """Which attribute a model refused, without its value."""
    if isinstance(error, ValidationError):
        return f"its {error.errors()[0]['loc'][0]} is missing or wrong"
    return "it cannot be read"


def decode_node(
    keys: ScopeKeys, layer: str, at: str, fields: Mapping[bytes, bytes], edits: Mapping[str, bytes], *, seal: Seal
) -> MemoryNode:
    """The node of a stream entry, with what was changed of it.

    Raises:
        CodecError: the entry or a change cannot be read.
    """
    name = node_id(at, layer, keys)
    try:
        fields, edits = unseal_fields(fields, layer, seal), unseal_changes(edits, layer, at, seal)
        if b"n" in fields:
            node = MemoryNode(**{**decode(fields[b"n"]), "id": name, "layer": layer})
        elif b"r" in fields:
            node = _mirrored(keys, at, fields).model_copy(update={"id": name})
        else:
            raise CodecError("the entry holds neither a row nor a node")
        return _edited(node, edits) if edits else node
    except (TypeError, ValueError) as error:
        raise CodecError("the entry is no node") from error


def _mirrored(keys: ScopeKeys, at: str, fields: Mapping[bytes, bytes]) -> MemoryNode:
    entry = decode_entry(fields[b"r"], keys.tenant, seal=PLAIN)  # opened before
    durability: str | None = None
    texts: dict[str, str] = {}
    if fields.get(b"x"):
        match decode(fields[b"x"]):
            case [None | str() as marker, dict() as kept] if all(isinstance(name, str) for name in kept):
                durability, texts = marker, kept
            case _:
                raise CodecError("the entry's extra is damaged")
    node = turn_node(entry, None)
    node.properties.update(texts)
    if durability is not None:
        node.properties["durability"] = durability
    written = _time(int(at.partition("-")[0]))
    return node.model_copy(update={"created_at": written, "updated_at": written})


def _time(milliseconds: int) -> datetime:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, OSError) as error:
        raise CodecError("the entry's time is out of range") from error


def encode_changes(changes: Mapping[str, object]) -> dict[str, bytes]:
    """Encode what is to be changed of a node: attributes by name, anything else as a property.

    `properties` changes each property that it names. `durability` is checked and is a property.

    Raises:
        InvalidInput: an attribute that cannot change, or a value that its attribute cannot take.
    """
    properties: dict[str, object] = {}
    attributes: dict[str, object] = {}
    for name, value in changes.items():
        if name in _FIXED:
            raise InvalidInput(f"a node's {name} cannot be changed: add another node")
        if name == "properties":
            if not isinstance(value, Mapping):
                raise InvalidInput("a node's properties must be a dict: correct the change")
            properties.update(value)
        elif name in MemoryNode.model_fields:
            attributes[name] = value
        else:
            properties[name] = value
    if "durability" in properties:
        properties["durability"] = coerce_durability(properties["durability"])
    try:
        checked = _checked(attributes)
    except ValidationError as error:
        raise InvalidInput(f"the change is refused, {_first(error)}: correct it") from None
    encoded = {f"a:{name}": encode(value) for name, value in checked.items()}
    encoded.update({f"p:{encode_id(str(name))}": encode(value) for name, value in properties.items()})
    return encoded


def _checked(attributes: Mapping[str, object]) -> dict[str, object]:
    """Attributes of a node, each as what it takes; a ValidationError when one takes no such value."""
    if not attributes:
        return {}
    checked = MemoryNode.model_validate({"layer": "working", "tenant_id": "t", "label": "l", **attributes})
    return {name: getattr(checked, name) for name in attributes}


def _edited(node: MemoryNode, edits: Mapping[str, bytes]) -> MemoryNode:
    when = edits.get("at") or b""
    if not when.isdigit():
        raise CodecError("what was changed of the node says no time")
    attributes: dict[str, object] = {"updated_at": _time(int(when))}
    changed: dict[str, object] = {}
    properties = dict(node.properties)
    for name, value in edits.items():
        kind, _, rest = name.partition(":")
        if kind == "p":
            properties[decode_id(rest)] = decode(value)
        elif kind == "a" and rest in CHANGEABLE:
            changed[rest] = decode(value)
        elif name != "at":
            raise CodecError("what cannot change of a node was changed")
    if "p:durability" in edits:
        coerce_durability(properties["durability"])
    return node.model_copy(update={**attributes, **_checked(changed), "properties": properties})
