"""What a test sees of a deployment besides the public calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from symfonic_redis import Deployment


def texts(entries: Iterable[Any]) -> list[str]:
    return [entry.content for entry in entries]


async def keys_of(redis: Deployment) -> set[bytes]:
    """Every key of the deployment but its configuration."""
    found: set[bytes] = set()
    cursor = b"0"
    while True:
        cursor, page = await redis.call("test", "SCAN", cursor, "MATCH", f"{redis.prefix}:*", "COUNT", 1000)
        found.update(page)
        if cursor == b"0":
            return found - {f"{redis.prefix}:config".encode()}


async def snapshot(redis: Deployment) -> dict[bytes, bytes]:
    """Every key with its serialized value."""
    return {key: await redis.call("test", "DUMP", key) for key in await keys_of(redis)}
