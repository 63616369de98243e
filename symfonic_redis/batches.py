"""Many calls of one script in one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from redis import exceptions as driver

from symfonic_redis.connection import Deployment
from symfonic_redis.errors import ServerRefused
from symfonic_redis.scripts import Script

BATCH = 64
"""Calls sent in one go. Each is short; together they must not keep other clients waiting either."""

Call = tuple[Sequence[str], Sequence[str | bytes | int]]
"""Keys and arguments of one call."""


_T = TypeVar("_T")


def chunks(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """The items in lists of `size`, the last one shorter."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


async def run_many(deployment: Deployment, operation: str, script: Script, calls: Sequence[Call]) -> list[Any]:
    """Run a script once for each of `calls`, at most `BATCH` of them; return the raw replies in order.

    All are sent again when one is not answered, and all are sent whole when the server does not know the script: each
    call carries an operation id, or may be repeated without harm.

    Cost: one round trip; two when the server does not know the script yet.

    Raises:
        MemoryUnavailable, ServerRefused, KeyConflict: one of them failed; see `retry.persist`.
    """
    try:
        return await deployment.call_many(
            operation, [("EVALSHA", script.sha, len(keys), *keys, *args) for keys, args in calls]
        )
    except ServerRefused as error:
        if not isinstance(error.__cause__, driver.NoScriptError):
            raise
    return await deployment.call_many(
        operation, [("EVAL", script.text, len(keys), *keys, *args) for keys, args in calls]
    )
