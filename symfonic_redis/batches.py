"""How many calls go in one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

BATCH = 64
"""Calls sent in one go. Each is short; together they must not keep other clients waiting either."""

_T = TypeVar("_T")


def chunks(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """The items in lists of `size`, the last one shorter."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
