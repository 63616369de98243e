"""What tests of tracked reads ask of a tracker."""

from __future__ import annotations

import asyncio

from own_server import until
from redis import exceptions as driver

from symfonic_redis import Deployment, MemoryEntry
from symfonic_redis.tracker import Tracker


def tracker_of(deployment: Deployment) -> Tracker:
    assert deployment.tracker is not None
    return deployment.tracker


async def heard(deployment: Deployment) -> None:
    """Return when all that servers had to say by now was heard, or the connection is known to be lost."""
    for listener in list(tracker_of(deployment)._listeners.values()):
        if listener._source is not None:
            try:
                async with asyncio.timeout(10):
                    await listener._ask(listener._source, [("PING",)], asyncio.get_running_loop().time() + 5)
            except driver.ConnectionError:
                pass


async def connected(deployment: Deployment) -> None:
    """Return when a lost connection is there again; a read must have missed it."""

    async def all_ready() -> bool:
        return all(listener.ready for listener in tracker_of(deployment)._listeners.values())

    await until(all_ready)


def said(scope, text: str) -> MemoryEntry:
    return MemoryEntry.turn(scope, speaker="user", turn_id=text, content=text)


def texts(entries) -> list[str]:
    return [entry.content for entry in entries]
