"""How a stream entry is sealed, and what is changed of it later: fields by kind and layer, changes by their node."""

from __future__ import annotations

from collections.abc import Mapping

from symfonic_redis.codec import decode, encode
from symfonic_redis.errors import CodecError
from symfonic_redis.rows import TURN
from symfonic_redis.sealing import Seal

_PLACES = {b"n": "node", b"r": TURN[0], b"x": "extra"}
"""The kinds of what a stream entry holds. With the layer, they are its place; see `sealing.Seal`."""

_EDIT = "edit"

SEALED_NAME = "s:"
"""What the name of a sealed change begins with; a token follows."""


def seal_field(name: bytes, value: bytes, layer: str, seal: Seal) -> bytes:
    """One field of a stream entry as it is stored."""
    return seal.seal(value, _PLACES[name], layer) if name in _PLACES else value


def seal_fields(fields: Mapping[bytes, bytes], layer: str, seal: Seal) -> dict[bytes, bytes]:
    """The fields of a stream entry as they are stored."""
    return {name: seal_field(name, value, layer, seal) for name, value in fields.items()}


def unseal_fields(fields: Mapping[bytes, bytes], layer: str, seal: Seal) -> dict[bytes, bytes]:
    """The inverse of `seal_fields`. An extra may be empty, as the feed has it. Raises as `Seal.unseal`."""
    return {
        name: seal.unseal(value, _PLACES[name], layer) if name in _PLACES and value else value
        for name, value in fields.items()
    }


def seal_changes(changes: Mapping[str, bytes], layer: str, at: str, seal: Seal) -> dict[str, bytes]:
    """What `encode_changes` returned as it is stored: a name too may tell something.

    A token stands for it, the same for every change of that name, so that the last one replaces those before. After
    a rotation it is another; of two, what was written last stands last.
    """
    if not seal.active:
        return dict(changes)
    sealed = {}
    for name, value in changes.items():
        if name == "at":
            sealed[name] = value
        else:
            token = SEALED_NAME + seal.token(name, _EDIT, layer, at)
            sealed[token] = seal.seal(encode([name, value]), _EDIT, layer, at, token)
    return sealed


def unseal_changes(edits: Mapping[str, bytes], layer: str, at: str, seal: Seal) -> dict[str, bytes]:
    """The inverse of `seal_changes`.

    Raises:
        CodecError: a change does not open.
    """
    found: dict[str, bytes] = {}
    for name, value in edits.items():
        if name == "at":
            found[name] = value
            continue
        opened = seal.unseal(value, _EDIT, layer, at, name)
        if name.startswith(SEALED_NAME):
            match decode(opened):
                case [str() as within, bytes() as changed]:
                    found[within] = changed
                case _:
                    raise CodecError("what was changed of the node is damaged")
        else:
            found[name] = opened
    return found
