"""The whole keyspace of a server, listed."""

from __future__ import annotations

from symfonic_redis import Deployment


async def keys_of(redis: Deployment, pattern: str = "*") -> set[str]:
    """Every key that matches, whatever the size of the keyspace."""
    found: set[str] = set()
    cursor = b"0"
    while True:
        cursor, page = await redis.call("test", "SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
        found.update(key.decode() for key in page)
        if cursor == b"0":
            return found


async def dump(redis: Deployment, pattern: str = "*") -> dict[str, bytes]:
    """Every key that matches with its serialised value."""
    keys = sorted(await keys_of(redis, pattern))
    values = await redis.call_many("test", [("DUMP", key) for key in keys])
    return {key: value for key, value in zip(keys, values, strict=True) if value is not None}


def kinds(keys: set[str]) -> set[str]:
    """What the keys are for, by their last parts: `ops:old` counts as `ops`."""
    return {key.removesuffix(":old").rpartition(":")[2] for key in keys}
