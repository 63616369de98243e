"""This package's `WorkingLayer`, as a worker of a service would use it."""

from __future__ import annotations

from typing import Any

from symfonic_redis import MemoryEntry, StreamGraphStore, TenantScope, WorkingLayer, connect

PACKAGES = ("symfonic-redis", "redis")


def scope_of(conversation: str) -> TenantScope:
    return TenantScope.root("org", "acme").child("conversation", conversation)


class Peer:
    """See loops.py.

    Args:
        url: of the server.
        ttl: of window and mirror, in seconds; None keeps them.
        window: turns of the window.
        mirror: nodes kept in the mirror; None for no mirror.
        feed: changes kept in the feed; None for no feed.
        prefix: starts every key.
        options: of `connect`.
        layer: more options of the layer.
    """

    threads = False

    def __init__(
        self,
        url: str,
        *,
        ttl: float | None = None,
        window: int = 10,
        mirror: int | None = None,
        feed: int | None = None,
        prefix: str = "bench",
        options: dict[str, Any] | None = None,
        layer: dict[str, Any] | None = None,
    ) -> None:
        self.deployment = connect(url, prefix=prefix, feed=feed, **(options or {}))
        self.layer = WorkingLayer(
            self.deployment,
            window,
            None if mirror is None else StreamGraphStore(self.deployment, ttl=ttl),
            working_graph_retention=mirror,
            ttl=ttl,
            **(layer or {}),
        )

    async def session(self, conversation: str) -> Any:
        return scope_of(conversation)

    def message(self, text: str) -> Any:
        return MemoryEntry(
            tenant_id="acme", content=text, metadata={"speaker": "user", "turn_id": text.split(" ", 1)[0]}
        )

    async def append(self, session: Any, message: Any) -> None:
        await self.layer.push(session, message)

    async def read(self, session: Any) -> list[MemoryEntry]:
        return await self.layer.get_context(session)

    async def texts(self, session: Any) -> list[str]:
        return [entry.content for entry in await self.read(session)]

    async def close(self) -> None:
        await self.deployment.aclose()
