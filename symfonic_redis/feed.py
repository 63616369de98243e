"""Watching: the changes of a scope or of a tenant as they happen, resumable, and never with a silent gap.

A feed is a stream for each partition of a tenant, capped by `connect(..., feed=N)`. Its entries are numbered without
gaps, so a reader knows how many it did not see.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from redis import asyncio as redis

from symfonic_redis.changes import MISSED, Change, decode_change, sequence_of
from symfonic_redis.connection import deployment_of
from symfonic_redis.cursors import BEGINNING, OLDEST, UNKNOWN, Position, Trail, decode_cursor, encode_cursor, tag_of
from symfonic_redis.deployment import Deployment
from symfonic_redis.errors import CodecError, ConfigurationError
from symfonic_redis.keys import PARTITIONS, TenantKeys, scope_keys, tenant_keys
from symfonic_redis.scope import ScopeLike, check_id
from symfonic_redis.store import Store
from symfonic_redis.telemetry import Operation

PAGE = 100
"""Entries read of one feed at a time."""

ABREAST = 16
"""Feeds read in one round trip. With `PAGE`, it bounds what a watch holds."""

POLL = 0.5
"""Seconds between two looks at a tenant's feeds when nothing happens."""

Raw = tuple[int, int, list[tuple[str, dict[bytes, bytes]]]]
"""What was read of a feed: its partition, the number of its last change, its next entries."""


def watch(
    redis: Deployment | redis.Redis, whose: ScopeLike | str, *, after: str | None = None, poll: float = POLL
) -> AsyncIterator[Change]:
    """The changes of a scope, or of a tenant, as they happen; it never ends by itself.

    Args:
        redis: what `connect(..., feed=N)` returns.
        whose: a scope, exactly this one; or a tenant's id, for all its scopes. Changes of one scope come in order;
            those of two scopes of different partitions may not.
        after: a change's `cursor`, or `latest_cursor`'s, to resume there; `"0"` or `""` for the oldest that is kept;
            None for what happens from the first step of the iteration on.
        poll: seconds between two looks at a tenant's feeds when nothing happens. A scope's changes come at once.

    A change of kind `missed` says how many changes the feed lost before they were read here: it was trimmed at its
    cap, or a purge erased them. It counts those of the whole partition: how many were the scope's nobody can know.
    A damaged entry is skipped, counted in telemetry, and left in place.

    Cost: of a scope, a blocking read, for which it holds a connection, and two round trips for 100 changes. Of a
    tenant, 1,024 GETs in one round trip a look, and one round trip for each 16 feeds with changes.

    Raises:
        ConfigurationError: at once, when the deployment has no feed.
        InvalidInput: at once, when `after` is no cursor, or another watch's.
        MemoryUnavailable: from the iteration, when the server is not reached; resume from the last cursor.
    """
    subject = _Subject(deployment_of(redis), whose)
    positions: dict[int, Position] | None = None
    if after is not None:
        given: object = after  # an untyped caller may pass bytes, which warn when compared
        oldest = isinstance(given, str) and given in ("", "0")
        positions = dict.fromkeys(subject.partitions, OLDEST) if oldest else decode_cursor(after, subject.tag)
    return _follow(subject, positions, poll)


async def latest_cursor(redis: Deployment | redis.Redis, whose: ScopeLike | str) -> str:
    """The cursor of now: a watch from there tells what happens after this call, whenever it begins.

    Cost: one round trip. Raises as `watch`.
    """
    subject = _Subject(deployment_of(redis), whose)
    return encode_cursor(subject.tag, await subject.latest())


class _Subject:
    """What is watched: a tenant's feeds, or one of them for one scope."""

    def __init__(self, deployment: Deployment, whose: ScopeLike | str) -> None:
        if deployment.feed is None:
            raise ConfigurationError("this deployment has no feed: connect with feed=N, here and in every writer")
        self.deployment = deployment
        self.store = Store(deployment)
        self.path: str | None = None
        self.partitions: Sequence[int] = range(PARTITIONS)
        if isinstance(whose, str):
            self.tenant = check_id(whose)
        else:
            keys = scope_keys(deployment.prefix, whose)
            self.tenant, self.path, self.partitions = keys.tenant, keys.path, (keys.partition,)
        self.tag = tag_of(deployment.prefix, self.tenant, self.path)

    def keys(self, partition: int) -> TenantKeys:
        return tenant_keys(self.deployment.prefix, self.tenant, partition)

    def concerns(self, fields: dict[bytes, bytes]) -> bool:
        """Whether an entry is of this subject. The purge of a tree has an entry for each of its scopes."""
        return self.path is None or fields.get(b"p", b"").decode("ascii", "replace") == self.path

    async def _ask(self, commands: Sequence[Sequence[str | bytes | int]]) -> list[Any]:
        with Operation("watch", self.deployment.attributes):
            return await self.deployment.call_many("watch", commands)

    async def sequences(self) -> dict[int, int]:
        """The number of the last change of each feed that ever had one."""
        replies = await self._ask([("GET", self.keys(partition).feed_seq) for partition in self.partitions])
        found = zip(self.partitions, replies, strict=True)
        return {partition: int(number) for partition, number in found if number is not None}

    async def latest(self) -> dict[int, Position]:
        """The position after the newest change of each feed."""
        commands: list[Sequence[str | bytes | int]] = []
        for partition in self.partitions:
            keys = self.keys(partition)
            # In this order: whatever is numbered up to the counter is in the stream by then, or gone.
            commands += [("GET", keys.feed_seq), ("XREVRANGE", keys.feed, "+", "-", "COUNT", 1)]
        replies = await self._ask(commands)
        positions = {}
        for partition, number, newest in zip(self.partitions, replies[::2], replies[1::2], strict=True):
            if number is not None or newest:
                at, sequence = "0-0", 0
                if newest:
                    at, sequence = newest[0][0].decode(), sequence_of(_pairs(newest[0][1])) or 0
                positions[partition] = Position(at, max(sequence, int(number or 0)))
        return positions

    async def read(self, wanted: Sequence[int], positions: dict[int, Position]) -> list[Raw]:
        """The next entries of feeds, and the number of each feed's last change."""
        commands: list[Sequence[str | bytes | int]] = []
        for partition in wanted:
            keys, at = self.keys(partition), positions.get(partition, BEGINNING).at
            # In this order, as in `latest`.
            commands += [("GET", keys.feed_seq), ("XRANGE", keys.feed, f"({at}", "+", "COUNT", PAGE)]
        replies = await self._ask(commands)
        return [
            (partition, int(number or 0), [(at.decode(), _pairs(fields)) for at, fields in entries or ()])
            for partition, number, entries in zip(wanted, replies[::2], replies[1::2], strict=True)
        ]

    async def wait(self, position: Position) -> bool:
        """Wait until the one feed has an entry after `position`; False when it has none for half an attempt."""
        feed = self.keys(self.partitions[0]).feed
        # Well within one attempt: a read that is cut off by its time-out counts as an outage.
        block = max(1, int(500 * min(self.deployment.attempt_timeout, self.deployment.deadline)))
        command = ("XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", feed, position.at)
        return bool(await self.store.read("watch", feed, *command))


async def _follow(subject: _Subject, positions: dict[int, Position] | None, poll: float) -> AsyncIterator[Change]:
    if positions is None:
        positions = await subject.latest()
    there = False
    while True:
        last = await subject.sequences()
        behind = [
            partition
            for partition in subject.partitions
            if there or last.get(partition, 0) != positions.get(partition, BEGINNING).sequence
        ]
        for start in range(0, len(behind), ABREAST):
            wanted = behind[start : start + ABREAST]
            while wanted:
                trail = Trail(subject.tag, dict(positions))
                pages = await subject.read(wanted, positions)
                for partition, number, entries in pages:
                    for change in _Reader(subject, partition, positions, trail).changes(number, entries):
                        yield change
                wanted = [partition for partition, _, entries in pages if len(entries) == PAGE]
        there = False
        if not behind:
            if subject.path is None:
                await asyncio.sleep(poll)
            else:
                there = await subject.wait(positions.get(subject.partitions[0], BEGINNING))


class _Reader:
    """Goes through a page of one feed, and moves the position along."""

    def __init__(self, subject: _Subject, partition: int, positions: dict[int, Position], trail: Trail) -> None:
        self._subject = subject
        self._partition = partition
        self._positions = positions
        self._trail = trail
        self._at, self._sequence = positions.get(partition, BEGINNING)

    def changes(self, last: int, entries: list[tuple[str, dict[bytes, bytes]]]) -> Iterator[Change]:
        """The page's changes of the subject, and `missed` wherever numbers are missing."""
        for at, fields in entries:
            sequence = sequence_of(fields)
            if sequence is None:
                self._reached(at, self._sequence)
                self._damaged(at, CodecError("the entry has no sequence number"))
                continue
            if sequence <= self._sequence:
                # Erased, and begun anew: to be read from its beginning, which may lie before this entry.
                yield self._anew()
                return
            if self._sequence not in (UNKNOWN, sequence - 1):
                yield self._missed(self._at, sequence - 1)
            self._reached(at, sequence)
            if self._subject.concerns(fields):
                yield from self._decoded(at, fields)
        if len(entries) < PAGE:
            yield from self._end(last, empty=not entries)

    def _end(self, last: int, *, empty: bool) -> Iterator[Change]:
        """What is missing at the end: numbers that were given and are not there, because a purge erased them."""
        if self._sequence == UNKNOWN:
            self._reached(self._at, last)
        elif last > self._sequence:
            yield self._missed(self._at, last)
        elif last < self._sequence and empty:
            yield self._anew()

    def _decoded(self, at: str, fields: dict[bytes, bytes]) -> Iterator[Change]:
        subject = self._subject
        try:
            where = subject.deployment.prefix, subject.tenant, self._partition
            yield decode_change(*where, at, fields, self._trail, ring=subject.deployment.encryption)
        except CodecError as error:
            self._damaged(at, error)

    def _missed(self, at: str, last: int) -> Change:
        count = last - self._sequence
        self._reached(at, last)
        return self._told(count)

    def _anew(self) -> Change:
        """The feed was erased and numbers its changes from one again: nobody can know how many there were."""
        self._reached(*BEGINNING)
        return self._told(None)

    def _told(self, count: int | None) -> Change:
        tenant, trail = self._subject.tenant, self._trail
        return Change(MISSED, tenant, self._partition, self._sequence, count=count, trail=trail, step=len(trail.steps))

    def _reached(self, at: str, sequence: int) -> None:
        self._at, self._sequence = at, sequence
        position = self._positions[self._partition] = Position(at, sequence)
        self._trail.steps.append((self._partition, position))

    def _damaged(self, at: str, error: CodecError) -> None:
        self._subject.store.damaged(self._subject.keys(self._partition).feed, at, error)


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
