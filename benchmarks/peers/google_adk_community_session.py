"""Google ADK community: `RedisSessionService`. It keeps a conversation whole; the last writer's copy stays."""

from __future__ import annotations

from adk_events import Events
from google.adk_community.sessions import RedisSessionService

PACKAGES = ("google-adk-community", "google-adk", "redis")


class Peer(Events):
    """See loops.py."""

    def __init__(self, url: str, *, ttl: int) -> None:
        self._service = RedisSessionService(uri=url, expire=ttl)

    async def close(self) -> None:
        await self._service.cache.aclose()
