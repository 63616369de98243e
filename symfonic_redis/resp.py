"""Commands as the protocol has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Packed(NamedTuple):
    """Words that are sent again and again, packed once.

    Attributes:
        words: they themselves.
        data: what is sent.
    """

    words: tuple[str | bytes | int, ...]
    data: bytes


Word = str | bytes | int
"""A command's name, or an argument."""

Command = Sequence[Word | Packed]
"""A command's name and its arguments."""


def packed(*words: Word) -> Packed:
    """Words to be sent next to each other, as parts of a command."""
    return Packed(words, _pack(words)[1])


def pack(commands: Sequence[Command]) -> bytes:
    """Commands to be sent. The driver's own packing takes several times as long for many arguments."""
    return b"".join([b"*%d\r\n%b" % _pack(command) for command in commands])


def _pack(words: Command) -> tuple[int, bytes]:
    count = len(words)
    parts: list[bytes] = []
    for word in words:
        if type(word) is Packed:
            count += len(word.words) - 1
            parts.append(word.data)
        else:
            data = word if type(word) is bytes else str(word).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return count, b"".join(parts)
