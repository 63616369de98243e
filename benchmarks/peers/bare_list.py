"""A bare LPUSH and LTRIM in one script, through redis-py: the least that a bounded window costs the server."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis

PACKAGES = ("redis",)
SCRIPT = "redis.call('LPUSH', KEYS[1], ARGV[1]) redis.call('LTRIM', KEYS[1], 0, ARGV[2])"


def key(conversation: str) -> str:
    return f"bare:{{{conversation}}}"


class Peer:
    """See loops.py. `rows` is how many the list keeps."""

    threads = False

    def __init__(self, url: str, *, rows: int = 61) -> None:
        self._client = Redis.from_url(url)
        self._rows = rows
        self._sha = ""

    async def session(self, conversation: str) -> str:
        self._sha = self._sha or await self._client.script_load(SCRIPT)
        return key(conversation)

    def message(self, text: str) -> Any:
        return text

    async def append(self, session: str, message: Any) -> None:
        await self._client.execute_command("EVALSHA", self._sha, 1, session, message, self._rows - 1)

    async def read(self, session: str) -> Any:
        return await self._client.lrange(session, 0, 9)

    async def texts(self, session: str) -> list[str]:
        return [row.decode() for row in reversed(await self._client.lrange(session, 0, -1))]

    async def close(self) -> None:
        await self._client.aclose()
