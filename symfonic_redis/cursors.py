"""Where a reader of feeds is, and that as a string which it may keep."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from symfonic_redis.codec import decode, encode
from symfonic_redis.errors import CodecError, InvalidInput
from symfonic_redis.keys import PARTITIONS

UNKNOWN = -1
"""The sequence number of a reader that takes whatever comes first: nothing before it counts as missed."""

_NUMBERS = 4
_LARGEST_ID, _LARGEST_SEQUENCE = (1 << 64) - 1, (1 << 63) - 1


class Position(NamedTuple):
    """The last entry read of one feed.

    Attributes:
        at: its stream id.
        sequence: its number, or that of the last one known to be gone after it.
    """

    at: str
    sequence: int


BEGINNING = Position("0-0", 0)
"""Before the first change there ever was."""

OLDEST = Position("0-0", UNKNOWN)
"""Before the oldest change that is kept."""


@dataclass(slots=True)
class Trail:
    """The positions at the beginning of a pass, and each step since: a cursor costs nothing until it is asked for.

    Attributes:
        tag: marks whose feeds they are; see `tag_of`.
        base: the position in each partition with entries.
        steps: partitions and the positions reached in them, in order.
    """

    tag: int
    base: Mapping[int, Position]
    steps: list[tuple[int, Position]] = field(default_factory=list)

    def cursor(self, step: int) -> str:
        """The cursor after so many steps."""
        return encode_cursor(self.tag, {**self.base, **dict(self.steps[:step])})


def tag_of(prefix: str, tenant: str, path: str | None) -> int:
    """A number that marks a watch's subject, so that another one's cursor is refused instead of skipping changes."""
    return crc32(repr((prefix, tenant, path)).encode())


def encode_cursor(tag: int, positions: Mapping[int, Position]) -> str:
    """Positions as a string; about 16 bytes a partition."""
    ids = {
        partition: tuple(map(int, position.at.split("-")))
        for partition, position in positions.items()
        if position != BEGINNING
    }
    # Times count back from the newest: small numbers take few bytes.
    newest = max((id_[0] for id_ in ids.values()), default=0)
    numbers = [tag, newest]
    for partition, (time, number) in ids.items():
        numbers += [partition, newest - time, number, positions[partition].sequence]
    return urlsafe_b64encode(encode(numbers)).decode()


def _numbers(text: object) -> list[int]:
    """The numbers of a cursor, whatever an untyped caller passes for one."""
    numbers = decode(urlsafe_b64decode(text.encode("ascii"))) if isinstance(text, str) else None
    if not isinstance(numbers, list) or any(type(number) is not int for number in numbers):
        raise ValueError("it holds something else than whole numbers")
    return numbers


def _position(partition: int, time: int, number: int, sequence: int) -> Position:
    if not 0 <= partition < PARTITIONS:
        raise ValueError("there is no such partition")
    # After the greatest id nothing can come: a server refuses to read from there.
    if not (0 <= time < _LARGEST_ID and 0 <= number <= _LARGEST_ID and UNKNOWN <= sequence <= _LARGEST_SEQUENCE):
        raise ValueError("a number is out of range")
    return Position(f"{time}-{number}", sequence)


def decode_cursor(text: str, tag: int) -> dict[int, Position]:
    """The inverse of `encode_cursor`.

    Raises:
        InvalidInput: the text is no cursor, or another subject's.
    """
    try:
        wanted, newest, *rest = _numbers(text)
        positions = {
            partition: _position(partition, newest - back, number, last)
            for partition, back, number, last in zip(*(iter(rest),) * _NUMBERS, strict=True)
        }
    except (CodecError, ValueError, TypeError) as error:
        raise InvalidInput(
            "that is no cursor of a watch: pass a change's cursor, '0' for the oldest, or None"
        ) from error
    if wanted != tag:
        raise InvalidInput("the cursor belongs to another scope, tenant or prefix: pass one of this watch's own")
    return positions
