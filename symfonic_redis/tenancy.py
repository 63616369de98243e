"""What a tenant has: its scopes, the most recent first, and how much they hold. No turn and no node is read."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from redis import asyncio as redis

from symfonic_redis.batches import BATCH, chunks
from symfonic_redis.changes import address_from
from symfonic_redis.connection import deployment_of
from symfonic_redis.deployment import Deployment
from symfonic_redis.errors import InvalidInput
from symfonic_redis.keys import PARTITIONS, is_encoded
from symfonic_redis.models import MemoryLayer
from symfonic_redis.scope import ScopeLike, check_id
from symfonic_redis.tenant_store import Place, TenantStore

MAX_LIMIT = 10_000
"""The most scopes of one page."""

NEVER = 10**14
"""Added to the time of a scope's last write where the scope does not expire; see lua/scope.lua."""

Progress = Callable[[int, int], None]
"""`progress(done, total)`: called as the work goes on."""


class ScopeEntry(NamedTuple):
    """A scope as the index knows it.

    Attributes:
        scope: its address; a `TenantScope` unless another package's writers chose a path that one cannot have.
        expires_at: when the last of it will be gone at the latest, unless it is written again; None for never.
        last_write: when a turn or a node was last added; None where it is not known, as of a scope that expires.
    """

    scope: ScopeLike
    expires_at: datetime | None
    last_write: datetime | None


class ScopePage(NamedTuple):
    """Some scopes of a tenant.

    Attributes:
        entries: the scopes.
        before: pass it to get the next page; None when this is the last one.
    """

    entries: tuple[ScopeEntry, ...]
    before: str | None


class Totals(NamedTuple):
    """How much a tenant has.

    Attributes:
        scopes: that hold anything.
        turns: rows of all windows with their evicted turns.
        nodes: by layer.
    """

    scopes: int
    turns: int
    nodes: dict[str, int]


async def scopes(
    redis: Deployment | redis.Redis, tenant: str, *, limit: int = 100, before: str | None = None
) -> ScopePage:
    """The scopes of a tenant, recent first: those that never expire by their last write, then the others by expiry.

    A scope of which nothing is left is not listed and is taken out of the index. Between pages a scope is neither
    missed nor doubled, unless it is written meanwhile: then it has moved to the front.

    Args:
        redis: what `connect` returns, or a `redis.asyncio` client.
        tenant: the tenant's id.
        limit: scopes of one page, 1 to 10,000.
        before: the last page's `before`.

    Cost: about 4 commands for each of 1,024 partitions, in a few round trips, and one for each scope listed.

    Raises:
        InvalidInput: a limit out of range, or a `before` that no page returned.
        MemoryUnavailable: the server was not reached within the deadline.
    """
    store = TenantStore(deployment_of(redis))
    given: object = limit  # an untyped caller may pass anything
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MAX_LIMIT:
        raise InvalidInput(f"limit must be a whole number from 1 to {MAX_LIMIT}: correct it")
    found: list[Place] = []
    async for places in _recent(store, check_id(tenant), None if before is None else _read(before), limit):
        # One more than asked for tells whether another page follows.
        for part in chunks(filter(_is_ours, places), min(BATCH, limit + 1)):
            there = await store.present([store.scope(tenant, path) for _, path in part])
            found += [place for place, held in zip(part, there, strict=True) if held]
            if len(found) > limit:
                entries = tuple(_entry(tenant, place) for place in found[:limit])
                return ScopePage(entries, _write(found[limit - 1]))
    return ScopePage(tuple(_entry(tenant, place) for place in found), None)


async def totals(redis: Deployment | redis.Redis, tenant: str, *, progress: Progress | None = None) -> Totals:
    """How many scopes, turns and nodes a tenant has, by their lengths alone.

    What is written meanwhile may or may not be counted. Memory is bounded, whatever the tenant has.

    Args:
        redis: what `connect` returns, or a `redis.asyncio` client.
        tenant: the tenant's id.
        progress: called with the number of scopes looked at, and of all.

    Cost: 1,024 commands for the index and 7 for each scope, 512 in a round trip.

    Raises:
        MemoryUnavailable: the server was not reached within the deadline.
    """
    store = TenantStore(deployment_of(redis))
    lengths = await store.lengths(check_id(tenant))
    total, done, held, turns = sum(lengths.values()), 0, 0, 0
    nodes = dict.fromkeys((layer.value for layer in MemoryLayer), 0)
    async for paths in store.walk(tenant, lengths):
        for part in chunks(paths, BATCH):
            for size in await store.sizes([store.scope(tenant, path) for path in part]):
                held += size.there
                turns += size.turns
                for layer, count in size.nodes.items():
                    nodes[layer] += count
            done += len(part)
            if progress:
                progress(min(done, total), total)
    return Totals(held, turns, nodes)


@dataclass(slots=True)
class _Reader:
    """Where the reading of one partition's index stands: below `last`, `ties` places of its score being known."""

    last: Place | None
    ties: int = 0
    waiting: list[Place] = field(default_factory=list)


async def _recent(store: TenantStore, tenant: str, last: Place | None, limit: int) -> AsyncIterator[list[Place]]:
    """All places of a tenant below `last`, from the greatest down, merged over the partitions' indexes.

    A partition is read a few places at a time. What is greater than the least place read of every partition that has
    more is in its final order.
    """
    few = 4 + 2 * limit // PARTITIONS
    readers = {number: _Reader(last) for number in range(PARTITIONS)}
    asked = list(readers)
    pending: list[Place] = []
    while readers:
        wanted = [(number, _score(readers[number].last), few + readers[number].ties) for number in asked]
        for (number, _, count), places in zip(wanted, await store.newest(tenant, wanted), strict=True):
            reader = readers[number]
            # The score of `last` is asked for again: others may share it.
            fresh = [place for place in places if reader.last is None or place < reader.last]
            pending += fresh
            if len(places) < count:
                del readers[number]
            elif fresh:
                reader.last = fresh[-1]
                reader.ties = sum(score == fresh[-1][0] for score, _ in places)
            else:
                reader.ties += few
        # A reader without a place has been asked and has more, so by now it has one.
        edge = max((reader.last for reader in readers.values() if reader.last), default=None)
        pending.sort(reverse=True)
        ready = [place for place in pending if edge is None or place >= edge]
        del pending[: len(ready)]
        if ready:
            yield ready
        behind = sorted(readers, key=lambda number: readers[number].last or (0, ""), reverse=True)
        asked = behind[: max(1, len(behind) // 4)]


def _score(place: Place | None) -> int | None:
    return None if place is None else place[0]


def _is_ours(place: Place) -> bool:
    """Whether a place names a scope and a time: something else may have written into the index."""
    return 0 <= place[0] < 2 * NEVER and is_encoded(place[1])


def _entry(tenant: str, place: Place) -> ScopeEntry:
    score, path = place
    scope = address_from(tenant, path)
    if score >= NEVER:
        return ScopeEntry(scope, None, _time(score - NEVER))
    return ScopeEntry(scope, _time(score), None)


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _write(place: Place) -> str:
    return base64.urlsafe_b64encode(f"{place[0]} {place[1]}".encode()).decode()


def _read(before: str) -> Place:
    try:
        score, path = base64.b64decode(before.encode(), altchars=b"-_", validate=True).decode("ascii").split(" ")
        return int(score), path
    except (ValueError, binascii.Error, AttributeError) as error:
        raise InvalidInput("before is not what a page of scopes returned: pass it on unchanged") from error
