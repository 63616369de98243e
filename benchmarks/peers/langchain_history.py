"""langchain-community: `RedisChatMessageHistory`. It blocks, so writers are threads. It has no bound."""

from __future__ import annotations

from typing import Any

from langchain_community.chat_message_histories import RedisChatMessageHistory
from langchain_core.messages import HumanMessage
from redis import Redis

PACKAGES = ("langchain-community", "redis")


class Peer:
    """See loops.py."""

    threads = True

    def __init__(self, url: str, *, ttl: int) -> None:
        self._url, self._ttl = url, ttl
        self._client = Redis.from_url(url)

    async def session(self, conversation: str) -> RedisChatMessageHistory:
        history = RedisChatMessageHistory(conversation, url=self._url, ttl=self._ttl)
        # Its own would connect anew for each history; a worker would keep one, and it has a pool for the threads.
        history.redis_client = self._client
        return history

    def message(self, text: str) -> Any:
        return HumanMessage(text)

    def append(self, session: RedisChatMessageHistory, message: Any) -> None:
        session.add_message(message)

    def read(self, session: RedisChatMessageHistory) -> list[Any]:
        return session.messages

    async def texts(self, session: RedisChatMessageHistory) -> list[str]:
        return [str(message.content) for message in session.messages]

    async def close(self) -> None:
        self._client.close()
