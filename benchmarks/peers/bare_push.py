"""One RPUSH a turn through redis-py: the least that storing a turn costs anybody, without a bound or a promise."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis

PACKAGES = ("redis",)


class Peer:
    """See loops.py."""

    threads = False

    def __init__(self, url: str) -> None:
        self._client = Redis.from_url(url)

    async def session(self, conversation: str) -> str:
        return f"bare-push:{{{conversation}}}"

    def message(self, text: str) -> Any:
        return text

    async def append(self, session: str, message: Any) -> None:
        await self._client.execute_command("RPUSH", session, message)

    async def read(self, session: str) -> Any:
        return await self._client.lrange(session, -10, -1)

    async def texts(self, session: str) -> list[str]:
        return [row.decode() for row in await self._client.lrange(session, 0, -1)]

    async def close(self) -> None:
        await self._client.aclose()
