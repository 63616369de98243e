"""What the relays of one name share on the server: leases on partitions, and the books of each feed. One script a call.

A relay is a consumer group of every feed. Its books (a hash beside the feed) count by sequence number what was handled
and what was gone unread, so that its lag is a difference of numbers and not of what happens to be left.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from symfonic_redis.deployment import Deployment
from symfonic_redis.errors import ConfigurationError, SymfonicRedisError
from symfonic_redis.keys import (
    PARTITIONS,
    TenantKeys,
    decode_id,
    encode_id,
    feeds_key,
    is_encoded,
    lease_key,
    relays_key,
    tenant_keys,
    tenants_key,
)
from symfonic_redis.limits import HARD_CAP
from symfonic_redis.scripts import script
from symfonic_redis.telemetry import Operation

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_PIPELINE = 1024
_FENCED, _GONE = -1, 0
_TRIPLE = 3


class LeaseLost(SymfonicRedisError):  # noqa: N818 - names the condition
    """The partition is another relay's by now; nothing was written."""


class Entry(NamedTuple):
    """A change as the relay read it.

    Attributes:
        id: its stream id in the feed.
        fields: see lua/feed.lua.
        again: some relay may have copied it already.
    """

    id: str
    fields: dict[bytes, bytes]
    again: bool


class Failure(NamedTuple):
    """How often a change could not be copied, and for how many ms it is left alone."""

    times: int
    wait: int


class Batch(NamedTuple):
    """The next changes of a feed, oldest first, and those among them that failed before."""

    entries: list[Entry]
    failures: dict[str, Failure]


class Feed(NamedTuple):
    """A feed by its partition and its tenant, decoded."""

    partition: int
    tenant: str


class FeedStatus(NamedTuple):
    """How far a relay is with one feed, by numbers: `changes = handled + trimmed + lag`.

    Attributes:
        changes: written since the feed began.
        handled: copied, or in need of no copy, or moved to the dead letters.
        trimmed: gone from the feed before they were read: never copied.
        pending: read and not finished yet; part of the lag.
        dead: moved to the dead letters since the feed began.
        kept: dead letters, of every relay, that are still there.
    """

    changes: int
    handled: int
    trimmed: int
    pending: int
    dead: int
    kept: int

    @property
    def lag(self) -> int:
        """Changes that are in the feed and not handled yet."""
        return max(0, self.changes - self.handled - self.trimmed)


class Lease:
    """A partition, held for a while.

    Attributes:
        partition: which.
        value: what the server knows it by.
        until: by this process's monotonic clock, when it may be another's.
    """

    def __init__(self, partition: int, value: str, until: float) -> None:
        self.partition = partition
        self.value = value
        self.until = until

    @property
    def held(self) -> bool:
        """Whether it surely is still ours."""
        return asyncio.get_running_loop().time() < self.until


class Books:
    """The calls of one relay process.

    Args:
        deployment: where.
        name: of the relay, 1 to 32 lower-case letters, digits, `_` or `-`; processes of one name share the work.
        holder: this process, unlike every other.
        lease: seconds for which a silent process keeps a partition.

    Raises:
        ConfigurationError: the name cannot be one.
    """

    def __init__(self, deployment: Deployment, name: str, holder: str, lease: float) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigurationError("a relay's name is 1 to 32 of a-z, 0-9, '_' and '-': choose another")
        self.deployment = deployment
        self.name = name
        self.holder = holder
        self._ttl = lease
        self._milliseconds = max(1, int(1000 * lease))

    async def take(self, partition: int) -> Lease | None:
        """Take a partition, or keep it; None when another process has it. See lua/relay_lease.lua."""
        now = asyncio.get_running_loop().time()
        key = lease_key(self.deployment.prefix, partition, self.name)
        args: list[str | int] = [self.holder, self._milliseconds]
        value = (await self._run("relay_lease", [key, f"{key}:token"], args)).decode()
        return Lease(partition, value, now + self._ttl) if value else None

    async def release(self, lease: Lease) -> None:
        """Give a partition back, if it still is ours. See lua/relay_release.lua."""
        key = lease_key(self.deployment.prefix, lease.partition, self.name)
        await self._run("relay_release", [key], [lease.value, self._milliseconds])

    async def read(self, lease: Lease, tenant: str, limit: int) -> Batch:
        """The next changes of a feed; unfinished ones first, none of a feed that is gone. See lua/relay_read.lua.

        Raises:
            LeaseLost: the partition is another process's.
        """
        keys = self._keys(lease, tenant)
        prefix, partition = self.deployment.prefix, lease.partition
        feeds = feeds_key(prefix, partition, self.name)
        names = [keys.feed, keys.feed_seq, keys.relay, feeds, relays_key(prefix, partition)]
        args: list[str | int] = [self.name, self.holder, limit, encode_id(tenant)]
        reply = await self._fenced("relay_read", lease, names, args)
        if reply[0] == _GONE:
            return Batch([], {})
        _, unfinished, new, failures = reply
        entries = [Entry(at.decode(), _pairs(fields), again=True) for at, fields in unfinished]
        entries += [Entry(at.decode(), _pairs(fields), again=False) for at, fields in new]
        triples = zip(*(iter(failures),) * _TRIPLE, strict=True)
        return Batch(entries, {at.decode(): Failure(times, wait) for at, times, wait in triples})

    async def ack(self, lease: Lease, tenant: str, done: Sequence[str], wait: float | None) -> int:
        """Note what is done, and in how many seconds what failed is due; return how many it was: 0 of a gone feed.

        Raises:
            LeaseLost: the partition is another process's; nothing was noted.
        """
        keys = self._keys(lease, tenant)
        args: list[str | int] = [self.name, "" if wait is None else int(1000 * wait), *done]
        reply = await self._fenced("relay_ack", lease, [keys.feed, keys.relay], args)
        return 0 if reply[0] == _GONE else int(reply[1])

    async def fail(  # noqa: PLR0917 - one row of the books
        self, lease: Lease, tenant: str, at: str, count: int, wait: float | None, error: str
    ) -> bool:
        """Note a failure; without a next try, move the change to the dead letters, and return whether it went there.

        Raises:
            LeaseLost: the partition is another process's; nothing was noted.
        """
        keys = self._keys(lease, tenant)
        cap = (self.deployment.feed or 1000) * HARD_CAP
        args: list[str | int] = [self.name, at, count, "" if wait is None else int(1000 * wait), error, cap]
        reply = await self._fenced("relay_fail", lease, [keys.feed, keys.relay, keys.dead], args)
        return reply[0] != _GONE and bool(reply[1])

    async def feeds(self) -> set[Feed]:
        """Every feed of a tenant with a scope, and every one that this relay has read: a purge may have been the last.

        Cost: one round trip of 1,024 SUNIONs.
        """
        prefix = self.deployment.prefix
        replies = await self._ask(
            [
                ("SUNION", tenants_key(prefix, partition), feeds_key(prefix, partition, self.name))
                for partition in range(PARTITIONS)
            ]
        )
        return {
            Feed(partition, decode_id(tenant.decode()))
            for partition, tenants in enumerate(replies)
            for tenant in tenants
            # Whatever a tenant's user, who may write into the set of tenants, put there: it stops no relay.
            if is_encoded(tenant.decode("latin-1"))
        }

    async def forget(self, feeds: Iterable[Feed]) -> None:
        """Take feeds that were erased out of those that this relay has read. One round trip, or none."""
        prefix, name = self.deployment.prefix, self.name
        # A feed that begins at this very moment is still found through its tenant's scopes.
        await self._ask([("SREM", feeds_key(prefix, feed.partition, name), encode_id(feed.tenant)) for feed in feeds])

    async def latest(self, feeds: Sequence[Feed]) -> dict[Feed, int]:
        """The number of the last change of each feed that has one. Cost: a GET each, 1,024 in a round trip."""
        found: dict[Feed, int] = {}
        for start in range(0, len(feeds), _PIPELINE):
            part = feeds[start : start + _PIPELINE]
            commands = [("GET", self._shared(feed).feed_seq) for feed in part]
            replies = await self._ask(commands)
            found.update({feed: int(number) for feed, number in zip(part, replies, strict=True) if number is not None})
        return found

    async def due(self, latest: Mapping[Feed, int]) -> tuple[set[Feed], set[Feed]]:
        """Of feeds and their last numbers: those with something to do now, and those with nothing at all to do.

        Cost: one round trip for 1,024 feeds, a HMGET each.
        """
        feeds, names = list(latest), [f"{self.name} {name}" for name in ("handled", "trimmed", "waiting", "due")]
        due, settled = set(), set()
        for start in range(0, len(feeds), _PIPELINE):
            part = feeds[start : start + _PIPELINE]
            commands: list[Sequence[str]] = [("HMGET", self._shared(feed).relay, *names) for feed in part]
            clock, *replies = await self._ask([("TIME",), *commands])
            now = int(clock[0]) * 1000 + int(clock[1]) // 1000
            for feed, reply in zip(part, replies, strict=True):
                handled, trimmed, waiting, at = (int(value or 0) for value in reply)
                lag = latest[feed] - handled - trimmed
                if lag == 0:
                    settled.add(feed)
                elif lag != waiting or at <= now:
                    due.add(feed)
        return due, settled

    async def status(self, feed: Feed) -> FeedStatus:
        """How far this relay is with a feed. One round trip. See lua/relay_status.lua."""
        keys = self._shared(feed)
        names = [keys.feed, keys.feed_seq, keys.relay, keys.dead]
        return FeedStatus(*await self._run("relay_status", names, [self.name]))

    def _shared(self, feed: Feed) -> TenantKeys:
        return tenant_keys(self.deployment.prefix, feed.tenant, feed.partition)

    def _keys(self, lease: Lease, tenant: str) -> TenantKeys:
        return tenant_keys(self.deployment.prefix, tenant, lease.partition)

    async def _fenced(
        self, name: str, lease: Lease, keys: Sequence[str], args: Sequence[str | bytes | int]
    ) -> list[Any]:
        now = asyncio.get_running_loop().time()
        names = [lease_key(self.deployment.prefix, lease.partition, self.name), *keys]
        reply = await self._run(name, names, [lease.value, self._milliseconds, *args])
        if reply[0] == _FENCED:
            lease.until = 0.0
            raise LeaseLost("this relay's lease on a partition ran out and another took it: nothing was written")
        lease.until = now + self._ttl
        return list(reply)

    async def _run(self, name: str, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:
        with Operation(name, self.deployment.attributes):
            return await self.deployment.run(name, script(name), keys, args)

    async def _ask(self, commands: Sequence[Sequence[str | bytes | int]]) -> list[Any]:
        if not commands:
            return []
        with Operation("relay_look", self.deployment.attributes):
            return await self.deployment.call_many("relay_look", commands)


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
