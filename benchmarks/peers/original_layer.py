"""The reference system's own `WorkingLayer`: in this process's memory, without a server."""

from __future__ import annotations

from typing import Any

from symfonic.core.scope import TenantScope
from symfonic.memory.layers.working import WorkingLayer
from symfonic.memory.models.entry import MemoryEntry
from symfonic.memory.types import MemoryLayer

PACKAGES = ("symfonic-core",)


class Peer:
    """See loops.py. There is no expiry and no other worker; the window is the whole."""

    threads = False

    def __init__(self, url: str = "", *, window: int = 10) -> None:  # noqa: ARG002 - every contender is offered a server
        self._layer = WorkingLayer(window)

    async def session(self, conversation: str) -> Any:
        return TenantScope.root("org", "acme").child("conversation", conversation)

    def message(self, text: str) -> Any:
        return MemoryEntry(
            layer=MemoryLayer.WORKING,
            tenant_id="acme",
            content=text,
            metadata={"speaker": "user", "turn_id": text.split(" ", 1)[0]},
        )

    async def append(self, session: Any, message: Any) -> None:
        await self._layer.push(session, message)

    async def read(self, session: Any) -> list[Any]:
        return list(await self._layer.get_context(session))

    async def texts(self, session: Any) -> list[str]:
        return [entry.content for entry in await self.read(session)]

    async def close(self) -> None:
        """Nothing is open."""
