"""Google ADK: `RedisSessionService`. It keeps a conversation whole, as one value."""

from __future__ import annotations

from adk_events import Events
from google.adk.integrations.redis import RedisSessionService
from redis.asyncio import Redis

PACKAGES = ("google-adk", "redis")


class Peer(Events):
    """See loops.py. Its expiry is its own default, seven days."""

    def __init__(self, url: str, *, ttl: int) -> None:  # noqa: ARG002 - every peer is offered a ttl
        self._client = Redis.from_url(url, decode_responses=True)
        self._service = RedisSessionService(redis_client=self._client)

    async def close(self) -> None:
        await self._client.aclose()
