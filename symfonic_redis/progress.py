"""How far a relay is: lag, pending, trimmed and dead, per tenant."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel, ConfigDict, Field
from redis import asyncio as redis

from symfonic_redis.books import Books, Feed, FeedStatus
from symfonic_redis.connection import deployment_of
from symfonic_redis.deployment import Deployment

ABREAST = 32
"""Feeds asked at a time."""


class TenantProgress(BaseModel):
    """How far a relay is with one tenant, over all partitions: `changes = handled + trimmed + lag`."""

    model_config = ConfigDict(frozen=True)

    tenant: str = Field(description="Whose.")
    changes: int = Field(description="Written since the tenant's feeds began.")
    handled: int = Field(description="Copied, in need of no copy, or moved to the dead letters.")
    lag: int = Field(description="In the feed and not handled yet.")
    pending: int = Field(description="Of the lag: read by a relay and not finished, such as what waits for a retry.")
    trimmed: int = Field(description="Gone before they were read, trimmed at the cap or erased by a purge: not copied.")
    dead: int = Field(description="Moved to the dead letters by this relay.")
    dead_kept: int = Field(description="Dead letters that are still there, of every relay.")


class RelayStatus(BaseModel):
    """How far a relay is, tenant by tenant."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(description="The relay's name.")
    tenants: tuple[TenantProgress, ...] = Field(description="By name; only those with a feed.")

    @property
    def lag(self) -> int:
        """Changes of all tenants that are in a feed and not handled yet."""
        return sum(tenant.lag for tenant in self.tenants)

    @property
    def pending(self) -> int:
        """Of the lag: read by a relay and not finished."""
        return sum(tenant.pending for tenant in self.tenants)

    @property
    def trimmed(self) -> int:
        """Changes of all tenants that were gone before they were read."""
        return sum(tenant.trimmed for tenant in self.tenants)

    @property
    def dead(self) -> int:
        """Changes of all tenants that went to the dead letters."""
        return sum(tenant.dead for tenant in self.tenants)


async def relay_status(redis: Deployment | redis.Redis, name: str = "relay") -> RelayStatus:
    """How far the relay of that name is; it need not run.

    Cost: one round trip of 1,024 SUNIONs, a GET and a small script for each feed.

    Raises:
        ConfigurationError: the name cannot be a relay's.
        MemoryUnavailable: the server is not reached.
    """
    books = Books(deployment_of(redis), name, "status", 1.0)
    latest = await books.latest(sorted(await books.feeds()))
    limit = asyncio.Semaphore(ABREAST)

    async def ask(feed: Feed) -> tuple[str, FeedStatus]:
        async with limit:
            return feed.tenant, await books.status(feed)

    found: dict[str, list[FeedStatus]] = {}
    for tenant, status in await asyncio.gather(*(ask(feed) for feed in latest)):
        found.setdefault(tenant, []).append(status)
    return RelayStatus(name=name, tenants=tuple(_sum(tenant, found[tenant]) for tenant in sorted(found)))


def _sum(tenant: str, feeds: list[FeedStatus]) -> TenantProgress:
    return TenantProgress(
        tenant=tenant,
        changes=sum(feed.changes for feed in feeds),
        handled=sum(feed.handled for feed in feeds),
        lag=sum(feed.lag for feed in feeds),
        pending=sum(feed.pending for feed in feeds),
        trimmed=sum(feed.trimmed for feed in feeds),
        dead=sum(feed.dead for feed in feeds),
        dead_kept=sum(feed.kept for feed in feeds),
    )
