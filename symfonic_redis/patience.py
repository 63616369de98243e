"""What a relay goes on after: a server that is away, and one feed that the server refuses to serve."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from symfonic_redis.books import Feed
from symfonic_redis.errors import (
    AccessDenied,
    KeyConflict,
    MemoryUnavailable,
    OutOfMemory,
    PersistenceFailed,
    ServerRefused,
)
from symfonic_redis.keys import tenant_keys

_log = logging.getLogger("symfonic_redis.relay")

_T = TypeVar("_T")


async def patiently(call: Awaitable[_T], otherwise: _T) -> _T:
    """What a call returns; when the server is away or takes no writes, say so and go on."""
    try:
        return await call
    except (MemoryUnavailable, OutOfMemory, PersistenceFailed) as error:
        _log.warning("the relay waits for the server: %s", error)
        return otherwise


class Refusals:
    """The feeds that the server refused to serve, each left alone for a while, longer each time.

    Args:
        prefix: of the deployment.
        pause: for how many seconds after so many refusals in a row.
    """

    def __init__(self, prefix: str, pause: Callable[[int], float]) -> None:
        self._prefix = prefix
        self._pause = pause
        self._refused: dict[Feed, tuple[int, float]] = {}

    async def served(self, feed: Feed, call: Awaitable[_T], otherwise: _T) -> _T:
        """What a call for a feed returns; when the server refuses it for what this feed holds, say so and go on."""
        try:
            found = await call
        except (AccessDenied, OutOfMemory, PersistenceFailed):
            raise  # hardly this feed's alone
        except (KeyConflict, ServerRefused) as error:
            count = 1 + self._refused.get(feed, (0, 0.0))[0]
            self._refused[feed] = count, time.monotonic() + self._pause(count)
            # The type alone: the message is the server's, and may quote anything.
            key = tenant_keys(self._prefix, feed.tenant, feed.partition).feed
            _log.error("the relay leaves the feed %s for a while: %s, %d in a row", key, type(error).__name__, count)
            return otherwise
        self._refused.pop(feed, None)
        return found

    def waits(self, feed: Feed) -> bool:
        """Whether the feed is to be left alone now."""
        return time.monotonic() < self._refused.get(feed, (0, 0.0))[1]

    def keep(self, feeds: set[Feed]) -> None:
        """Forget all feeds but these."""
        self._refused = {feed: noted for feed, noted in self._refused.items() if feed in feeds}
