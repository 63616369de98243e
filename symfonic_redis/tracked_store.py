"""Windows that are read without the server while it says that they are unchanged; see docs/tracking.md."""

from __future__ import annotations

from typing import Any

from symfonic_redis.connection import Deployment
from symfonic_redis.drafts import draft_of, entry_of
from symfonic_redis.errors import KeyConflict
from symfonic_redis.keys import ScopeKeys
from symfonic_redis.models import MemoryEntry
from symfonic_redis.store import Store
from symfonic_redis.telemetry import Operation
from symfonic_redis.tracker import Tracker


class TrackedStore(Store):
    """A `Store` whose windows are kept by a tracker."""

    def __init__(self, deployment: Deployment, tracker: Tracker, *, strict: bool = False) -> None:
        super().__init__(deployment, strict=strict)
        self._tracker = tracker

    async def window(self, keys: ScopeKeys, length: int) -> list[MemoryEntry]:
        """See `Store.window`. No round trip for a window that is kept."""
        found = self._tracker.find(keys.turns, length)
        if found is None:
            return self.entries(keys, await self._read(keys, length))
        if found.drafts is not None:
            return [entry_of(draft) for draft in found.drafts[-length:]]
        entries = self.entries(keys, found.rows[:length])
        # Sealed rows stay sealed, and a damaged one is found anew by each read.
        if self.deployment.encryption is None and len(entries) == len(found.rows):
            found.drafts = [draft_of(entry) for entry in entries]
        return entries

    async def window_rows(self, keys: ScopeKeys, length: int) -> Any:
        """See `Store.window_rows`. No round trip for a window that is kept."""
        found = self._tracker.find(keys.turns, length)
        return await self._read(keys, length) if found is None else found.rows[:length]

    async def _read(self, keys: ScopeKeys, length: int) -> list[bytes]:
        with Operation("get_context", self.deployment.attributes):
            try:
                return await self.deployment.repeat("get_context", self._tracker.read(keys.turns, length))
            except KeyConflict as error:
                raise await self._name_conflict((keys.turns,), error) from error


def store_of(deployment: Deployment, *, strict: bool) -> Store:
    """The store for a deployment's windows, tracked where it says so."""
    tracker = deployment.tracker
    return Store(deployment, strict=strict) if tracker is None else TrackedStore(deployment, tracker, strict=strict)
