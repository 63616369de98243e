"""A master that sentinels know by name: the driver's pool, with the sentinels asked once for all who wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

LOOK = 1.0
"""Seconds that one sentinel has to answer; then the next one is asked."""


class _Sentinels(Sentinel):
    """The driver's, which loses sentinels from its list when several tasks find one of them gone at once."""

    _asking: asyncio.Task[tuple[str, int]] | None = None

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """The address of the master; asked once for all who ask meanwhile."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(super().discover_master(service_name))
            self._asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._asking)


class SentinelPool(SentinelConnectionPool):
    """Connections to the master of a name, or to its replicas. Closing it closes those to the sentinels too.

    Args:
        name: of the service.
        addresses: of the sentinels.
        credentials: for the sentinels.
        is_master: the master's connections, or its replicas'.
        options: of the connections.
    """

    def __init__(
        self,
        name: str,
        addresses: Sequence[tuple[str, int]],
        credentials: dict[str, Any],
        *,
        is_master: bool = True,
        **options: Any,
    ) -> None:
        patience = {"socket_timeout": LOOK, "socket_connect_timeout": LOOK, "retry": Retry(NoBackoff(), 0)}
        sentinels = _Sentinels(addresses, sentinel_kwargs={**patience, **credentials})  # type: ignore[no-untyped-call]  # the driver's
        super().__init__(name, sentinels, is_master=is_master, **options)  # type: ignore[no-untyped-call]  # the same

    async def aclose(self) -> None:
        """Close all connections."""
        await super().aclose()
        await self.sentinel_manager.aclose()
