"""LlamaIndex: `RedisChatStore`, its asynchronous calls. It has no bound: a read gets the whole conversation."""

from __future__ import annotations

from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.storage.chat_store.redis import RedisChatStore

PACKAGES = ("llama-index-storage-chat-store-redis", "redis")


class Peer:
    """See loops.py."""

    threads = False

    def __init__(self, url: str, *, ttl: int) -> None:
        self._store = RedisChatStore(redis_url=url, ttl=ttl)

    async def session(self, conversation: str) -> str:
        return conversation

    def message(self, text: str) -> Any:
        return ChatMessage(role="user", content=text)

    async def append(self, session: str, message: Any) -> None:
        await self._store.async_add_message(session, message)

    async def read(self, session: str) -> list[Any]:
        return await self._store.aget_messages(session)

    async def texts(self, session: str) -> list[str]:
        return [str(message.content) for message in await self.read(session)]

    async def close(self) -> None:
        """The store closes its clients itself, with the process."""
