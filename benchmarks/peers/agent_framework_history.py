"""Microsoft Agent Framework: `RedisHistoryProvider`, with a bound, a provider for each writer on one client."""

from __future__ import annotations

from typing import Any

from agent_framework import Message
from agent_framework_redis import RedisHistoryProvider
from redis.asyncio import Redis

PACKAGES = ("agent-framework-redis", "redis")


class Peer:
    """See loops.py. It has no expiry."""

    threads = False

    def __init__(self, url: str, *, ttl: int, window: int) -> None:  # noqa: ARG002 - every peer is offered a ttl
        self._client = Redis.from_url(url, decode_responses=True)
        self._window = window

    async def session(self, conversation: str) -> Any:
        provider = RedisHistoryProvider(
            redis_client=self._client, application_id="bench", agent_id="a", max_messages=self._window
        )
        return provider, conversation

    def message(self, text: str) -> Any:
        return Message("user", [text])

    async def append(self, session: Any, message: Any) -> None:
        provider, conversation = session
        await provider.save_messages(conversation, [message])

    async def read(self, session: Any) -> list[Any]:
        provider, conversation = session
        return list(await provider.get_messages(conversation))

    async def texts(self, session: Any) -> list[str]:
        return [message.text for message in await self.read(session)]

    async def close(self) -> None:
        await self._client.aclose()
