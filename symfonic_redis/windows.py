"""Windows as the server has them, one or many: what is sent for them, and how many are asked for at a time."""

from __future__ import annotations

from collections.abc import Sequence

from symfonic_redis.errors import KeyConflict
from symfonic_redis.keys import ScopeKeys
from symfonic_redis.store import Store
from symfonic_redis.telemetry import Operation

MAX_WINDOWS = 1_000
"""The most windows of one exchange."""

MAX_ROWS = 100_000
"""The most rows of one exchange, unless one window may have more.

A server answers an exchange without a pause: so many rows keep others waiting some milliseconds.
"""

Rows = list[bytes]
"""A window as it is stored: newest first."""


def at_once(length: int) -> int:
    """How many windows of `length` are read in one exchange."""
    return max(1, min(MAX_WINDOWS, MAX_ROWS // length))


async def read_windows(store: Store, operation: str, scopes: Sequence[ScopeKeys], length: int) -> list[Rows]:
    """The newest `length` rows of each scope, in the order asked, by an LRANGE each. A replica may answer.

    Cost: one round trip; on a cluster one to each node that has some of them, at the same time.

    Raises:
        KeyConflict: a list of theirs is none; it names the first.
    """
    commands = [("LRANGE", keys.turns, 0, length - 1) for keys in scopes]
    with Operation(operation, store.deployment.attributes):
        try:
            return await store.deployment.call_many(operation, commands, replica=True)
        except KeyConflict as error:
            raise await store.name_conflict([keys.turns for keys in scopes], error) from error
