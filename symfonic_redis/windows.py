"""Windows, one or many: what is asked for them, how many at a time, and which the server need not be asked for."""

from __future__ import annotations

from collections.abc import Sequence

from symfonic_redis.drafts import draft_of, entry_of
from symfonic_redis.errors import KeyConflict
from symfonic_redis.keys import ScopeKeys
from symfonic_redis.models import MemoryEntry
from symfonic_redis.store import Store
from symfonic_redis.telemetry import Operation
from symfonic_redis.tracker import Tracker
from symfonic_redis.tracking import Window
from symfonic_redis.wire import together

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

    Cost: one round trip; on a cluster one to each node that has some of them, at the same time. None for windows that
    are tracked (docs/tracking.md).

    Raises:
        KeyConflict: a list of theirs is none; it names the first.
    """
    found = await _find(store, operation, scopes, length)
    return [one.rows[:length] if isinstance(one, Window) else one for one in found]


async def read_entries(
    store: Store, operation: str, scopes: Sequence[ScopeKeys], length: int
) -> list[list[MemoryEntry]]:
    """As `read_windows`, but as entries, oldest first."""
    found = await _find(store, operation, scopes, length)
    return [
        _copies(store, keys, one, length) if isinstance(one, Window) else store.entries(keys, one)
        for keys, one in zip(scopes, found, strict=True)
    ]


async def _find(store: Store, operation: str, scopes: Sequence[ScopeKeys], length: int) -> list[Window | Rows]:
    """Each window, as it is kept here or else as it is read now."""
    tracker = store.deployment.tracker
    if tracker is None:
        return await _read(store, operation, scopes, length)
    found: list[Window | Rows | None] = [tracker.find(keys.turns, length) for keys in scopes]
    missing = [keys for keys, window in zip(scopes, found, strict=True) if window is None]
    read = iter(await _read(store, operation, missing, length, tracker) if missing else ())
    return [next(read) if window is None else window for window in found]


async def _read(
    store: Store, operation: str, scopes: Sequence[ScopeKeys], length: int, tracker: Tracker | None = None
) -> list[Window | Rows]:
    deployment = store.deployment
    with Operation(operation, deployment.attributes):
        try:
            if tracker is None:
                commands = [("LRANGE", keys.turns, 0, length - 1) for keys in scopes]
                return await deployment.call_many(operation, commands, replica=True)
            loads = [deployment.repeat(operation, tracker.read(keys.turns, length)) for keys in scopes]
            return await together(loads)
        except KeyConflict as error:
            raise await store.name_conflict([keys.turns for keys in scopes], error) from error


def _copies(store: Store, keys: ScopeKeys, window: Window, length: int) -> list[MemoryEntry]:
    """The entries of a window that is kept: a caller's own, whatever is done to them."""
    if window.drafts is not None:
        return [entry_of(draft) for draft in window.drafts[-length:]]
    entries = store.entries(keys, window.rows[:length])
    # Sealed rows stay sealed, and a damaged one is found anew by each read.
    if store.deployment.encryption is None and len(entries) == len(window.rows):
        window.drafts = [draft_of(entry) for entry in entries]
    return entries
