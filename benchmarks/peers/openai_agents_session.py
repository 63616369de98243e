"""OpenAI Agents SDK: `RedisSession`, on one client with its default pool, a session object for each writer."""

from __future__ import annotations

from typing import Any

from agents.extensions.memory.redis_session import RedisSession
from redis.asyncio import Redis

PACKAGES = ("openai-agents", "redis")


class Peer:
    """See loops.py."""

    threads = False

    def __init__(self, url: str, *, ttl: int) -> None:
        self._client = Redis.from_url(url)
        self._ttl = ttl

    async def session(self, conversation: str) -> RedisSession:
        return RedisSession(conversation, redis_client=self._client, ttl=self._ttl)

    def message(self, text: str) -> Any:
        return {"role": "user", "content": text}

    async def append(self, session: RedisSession, message: Any) -> None:
        await session.add_items([message])

    async def read(self, session: RedisSession) -> list[Any]:
        return await session.get_items(10)

    async def texts(self, session: RedisSession) -> list[str]:
        return [item["content"] for item in await session.get_items()]

    async def close(self) -> None:
        await self._client.aclose()
