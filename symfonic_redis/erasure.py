"""Erasing for good: a scope, a scope with all below it, or a tenant. And opening again what an erasure closed.

A purge closes first: a late writer gets `ScopeClosed` and cannot bring back what was erased. Then it erases, in steps
that are short whatever there is: memory is given back by the server in the background. What is left are the tombstones,
which expire when the time of closure ends, and the ids of recent operations, which expire after four deadlines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from redis import asyncio as redis

from symfonic_redis.batches import BATCH, chunks
from symfonic_redis.connection import deployment_of
from symfonic_redis.deployment import Deployment
from symfonic_redis.errors import InvalidInput
from symfonic_redis.keys import PARTITIONS, ScopeKeys, scope_keys
from symfonic_redis.scope import ScopeLike, check_id
from symfonic_redis.tenancy import Progress
from symfonic_redis.tenant_store import TenantStore

CLOSED_FOR = 86_400.0
"""Seconds for which a purge closes what it erased, unless told otherwise: a day."""

SHORTEST, LONGEST = 0.001, 100 * 365 * 86_400.0
"""The shortest and the longest closure, in seconds."""

_TENANT = "tenant"


class Purged(NamedTuple):
    """What a purge erased.

    Attributes:
        scopes: that had any key.
        keys: of these scopes.
        feed_entries: of these scopes; 0 for a tenant, whose feeds go as a whole.
    """

    scopes: int
    keys: int
    feed_entries: int


async def purge(redis: Deployment | redis.Redis, scope: ScopeLike, *, closed_for: float = CLOSED_FOR) -> Purged:
    """Erase everything of exactly this scope and close it for a while.

    Turns, evicted turns, the nodes of all layers, what is staged, idempotency keys, and the scope's entries in the
    feed and among the dead letters of relays. The feed then tells of the purge. Scopes below stay; see `purge_tree`.

    What goes from a feed can be read by nobody; its bytes stay in the server's memory and on its disk until the rest
    of the same block (4 KiB) goes too, as the feed is trimmed. Everything else is given back at once.

    Args:
        redis: what `connect` returns, or a `redis.asyncio` client.
        scope: whose memory.
        closed_for: seconds for which writes to the scope are refused.

    Cost: two round trips; one more for each 256 entries of the partition's feed.

    Raises:
        InvalidInput: `closed_for` is not a positive number of seconds.
        MemoryUnavailable: the server was not reached within the deadline. Purge again: what is done stays done.
    """
    store = TenantStore(deployment_of(redis))
    keys = scope_keys(store.deployment.prefix, scope)
    ((removed, at),) = await store.purge([keys], _milliseconds(closed_for))
    erased = 0 if at == "-" else await store.erase(keys.shared.feed, keys.path, tree=False, last=at)
    erased += await _erase_up_to(store, await store.ends([keys.shared.dead]), keys.path, tree=False)
    return Purged(int(removed > 0), removed, erased)


async def purge_tree(
    redis: Deployment | redis.Redis,
    scope: ScopeLike,
    *,
    closed_for: float = CLOSED_FOR,
    progress: Progress | None = None,
) -> Purged:
    """Erase a scope and every scope below it, and close all of them for a while, also those that do not exist yet.

    Args:
        redis: what `connect` returns, or a `redis.asyncio` client.
        scope: the top of the tree.
        closed_for: seconds for which writes are refused. Let it be longer than the purge takes.
        progress: called with the number of the tenant's scopes looked at, and of all.

    Cost: 1,024 short calls to close, then the tenant's index, a call for each scope, and each feed; 64 calls in a
    round trip. None keeps the server longer than a fraction of a millisecond.

    Raises:
        InvalidInput: `closed_for` is not a positive number of seconds, or the path has half a level.
        MemoryUnavailable: the server was not reached within the deadline. Purge again: what is done stays done.
    """
    store = TenantStore(deployment_of(redis))
    top = scope_keys(store.deployment.prefix, scope)
    await store.close(top.tenant, _tree(top), _milliseconds(closed_for))
    # What is in the feeds by now is to go; what a reopened tree writes later is not.
    every = [store.keys(top.tenant, number) for number in range(PARTITIONS)]
    ends = await store.ends([keys.feed for keys in every])
    scopes, keys_gone = await _erase_scopes(store, top.tenant, lambda path: _within(path, top.path), progress)
    erased = await _erase_up_to(store, ends, top.path, tree=True)
    # Only now: a relay may have moved an entry from a feed to the dead letters until it was erased there.
    erased += await _erase_up_to(store, await store.ends([keys.dead for keys in every]), top.path, tree=True)
    return Purged(scopes, keys_gone, erased)


async def purge_tenant(
    redis: Deployment | redis.Redis,
    tenant: str,
    *,
    closed_for: float = CLOSED_FOR,
    progress: Progress | None = None,
) -> Purged:
    """Erase everything of a tenant, its feeds too, and close it for a while.

    Args:
        redis: what `connect` returns, or a `redis.asyncio` client.
        tenant: the tenant's id.
        closed_for: seconds for which writes to any scope of the tenant are refused. Let it be longer than the purge
            takes.
        progress: called with the number of scopes erased, and of all.

    Cost and errors: as `purge_tree`; 2,048 short calls for the feeds.
    """
    store = TenantStore(deployment_of(redis))
    await store.close(check_id(tenant), _TENANT, _milliseconds(closed_for))
    await store.drop_feeds(tenant)
    scopes, keys = await _erase_scopes(store, tenant, None, progress)
    # Once more: what was under way when the tenant was closed, such as the purge of a scope, may have told a feed.
    await store.drop_feeds(tenant)
    return Purged(scopes, keys, 0)


async def reopen(redis: Deployment | redis.Redis, scope: ScopeLike) -> bool:
    """Take back the closure of a purged scope; return whether it was closed.

    A closure of a tree above it, or of the tenant, is not taken back: see `reopen_tree`, `reopen_tenant`. One round
    trip. Raises `MemoryUnavailable` when the server was not reached within the deadline.
    """
    store = TenantStore(deployment_of(redis))
    return await store.reopen_scope(scope_keys(store.deployment.prefix, scope))


async def reopen_tree(redis: Deployment | redis.Redis, scope: ScopeLike) -> bool:
    """Take back the closure of a purged tree; return whether it was closed.

    Scopes in it that were purged by themselves stay closed. 1,024 short calls, 64 in a round trip. Errors as `reopen`.
    """
    store = TenantStore(deployment_of(redis))
    top = scope_keys(store.deployment.prefix, scope)
    return await store.reopen(top.tenant, _tree(top))


async def reopen_tenant(redis: Deployment | redis.Redis, tenant: str) -> bool:
    """Take back the closure of a purged tenant; return whether it was closed.

    Scopes and trees that were purged by themselves stay closed. Cost and errors as `reopen_tree`.
    """
    return await TenantStore(deployment_of(redis)).reopen(check_id(tenant), _TENANT)


async def _erase_up_to(store: TenantStore, ends: Mapping[str, str], path: str, *, tree: bool) -> int:
    """Erase a scope's entries, or a tree's, from each stream up to the id that is named for it; return how many."""
    return sum([await store.erase(stream, path, tree=tree, last=last) for stream, last in ends.items()])


async def _erase_scopes(
    store: TenantStore, tenant: str, wanted: Callable[[str], bool] | None, progress: Progress | None
) -> tuple[int, int]:
    """Erase the scopes of a closed tenant, or those whose path is wanted; return how many, and how many keys."""
    lengths = await store.lengths(tenant)
    total, done, scopes, keys = sum(lengths.values()), 0, 0, 0
    async for paths in store.walk(tenant, lengths):
        for part in chunks(paths, BATCH):
            chosen = [store.scope(tenant, path) for path in part if wanted is None or wanted(path)]
            for removed, _ in await store.purge(chosen, None, published=wanted is not None):
                scopes += removed > 0
                keys += removed
            done += len(part)
            if progress:
                progress(min(done, total), total)
    if progress:
        progress(total, total)
    return scopes, keys


def _within(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")


def _tree(top: ScopeKeys) -> str:
    if top.path.count("/") % 2 == 0:
        # The tombstone could not be found from below: lua/closed.lua goes level by level.
        raise InvalidInput("the scope's path ends with half a level: purge the tree above it, or this scope alone")
    return f"tree:{top.path}"


def _milliseconds(closed_for: float) -> int:
    given: object = closed_for  # an untyped caller may pass anything
    if isinstance(given, bool) or not isinstance(given, int | float) or not SHORTEST <= given <= LONGEST:
        raise InvalidInput("closed_for must be a positive number of seconds, at most 100 years: correct it")
    return int(given * 1000)
