"""The calls that span the scopes of a tenant: its index, its tombstones, its feeds. Each is bounded, whatever it holds.

A tenant has an index in each of 1,024 partitions. They are asked many at a time, in one round trip.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from symfonic_redis.batches import BATCH, chunks
from symfonic_redis.errors import AccessDenied
from symfonic_redis.evaluate import Call
from symfonic_redis.keys import (
    PARTITIONS,
    ScopeKeys,
    TenantKeys,
    encode_id,
    feeds_key,
    indexed_keys,
    is_encoded,
    relays_key,
    tenant_keys,
)
from symfonic_redis.models import MemoryLayer
from symfonic_redis.scripts import script
from symfonic_redis.store import Store
from symfonic_redis.telemetry import Operation

ABREAST = 128
"""Partitions asked in one round trip."""

STEP = 100
"""Members of an index read by one command. A small index is read whole: the server keeps it as one block."""

_FAR = 1e15
"""Beyond any score of ours, in ms: an infinite one is no number of Python's."""

Place = tuple[int, str]
"""Where a scope stands in the order of the index: its score, then its encoded path. Greater is more recent."""


class Size(NamedTuple):
    """How much a scope holds: whether anything at all, its rows, its nodes by layer."""

    there: bool
    turns: int
    nodes: dict[str, int]


class TenantStore(Store):
    """Reads and writes what a deployment keeps of whole tenants."""

    def keys(self, tenant: str, partition: int) -> TenantKeys:
        """The keys of a tenant in a partition."""
        return tenant_keys(self.deployment.prefix, tenant, partition)

    def scope(self, tenant: str, path: str) -> ScopeKeys:
        """The keys of a scope as the index names it."""
        return indexed_keys(self.deployment.prefix, tenant, path)

    async def ask(self, operation: str, commands: Iterable[Sequence[str | bytes | int]]) -> list[Any]:
        """Send commands that may be repeated without harm, in as many round trips as their number needs."""
        replies: list[Any] = []
        with Operation(operation, self.deployment.attributes):
            for part in chunks(commands, 8 * BATCH):
                replies += await self.deployment.call_many(operation, part)
        return replies

    async def lengths(self, tenant: str) -> dict[int, int]:
        """How many scopes each partition's index names, of those that name any."""
        replies = await self.ask(
            "scopes", (("ZCARD", self.keys(tenant, number).scopes) for number in range(PARTITIONS))
        )
        return {number: length for number, length in enumerate(replies) if length}

    async def walk(self, tenant: str, partitions: Iterable[int]) -> AsyncIterator[list[str]]:
        """The encoded paths of some partitions' indexes, a number at a time, each once.

        A path that is there all the while is found, whatever else is written or removed meanwhile.
        """
        for group in chunks(partitions, ABREAST):
            cursors = dict.fromkeys(group, b"0")
            # A cursor may bring a path twice.
            seen: set[str] = set()
            while cursors:
                asked = list(cursors)
                replies = await self.ask(
                    "scopes", [("ZSCAN", self.keys(tenant, at).scopes, cursors[at], "COUNT", STEP) for at in asked]
                )
                found: list[str] = []
                for partition, (cursor, members) in zip(asked, replies, strict=True):
                    found += filter(is_encoded, map(_text, members[::2]))
                    cursors[partition] = cursor
                cursors = {partition: cursor for partition, cursor in cursors.items() if cursor != b"0"}
                fresh = [path for path in dict.fromkeys(found) if path not in seen]
                seen.update(fresh)
                if fresh:
                    yield fresh

    async def newest(self, tenant: str, asked: Sequence[tuple[int, int | None, int]]) -> list[list[Place]]:
        """The next places of several partitions' indexes, each from the greatest down.

        Args:
            tenant: whose.
            asked: the partition, the greatest score wanted or None for any, and how many.
        """
        commands = [
            (
                "ZREVRANGEBYSCORE",
                self.keys(tenant, partition).scopes,
                "+inf" if score is None else score,
                "-inf",
                "WITHSCORES",
                "LIMIT",
                0,
                count,
            )
            for partition, score, count in asked
        ]
        return [_places(reply) for reply in await self.ask("scopes", commands)]

    async def present(self, scopes: Sequence[ScopeKeys]) -> list[bool]:
        """Whether each scope is there. One of which nothing is left is taken out of the index. See lua/forget.lua."""
        counts = await self.ask("scopes", [("EXISTS", *scope.content) for scope in scopes])
        gone = [scope for scope, count in zip(scopes, counts, strict=True) if not count]
        with suppress(AccessDenied):  # who may only read leaves the index as it is
            await self._many(
                "forget",
                [
                    (
                        [scope.shared.scopes, scope.shared.tenants, *scope.everything],
                        [scope.path, encode_id(scope.tenant)],
                    )
                    for scope in gone
                ],
            )
        return [bool(count) for count in counts]

    async def sizes(self, scopes: Sequence[ScopeKeys]) -> list[Size]:
        """How much each scope holds, without reading any of it."""
        commands: list[Sequence[str]] = []
        for scope in scopes:
            commands.append(("EXISTS", *scope.content))
            commands.append(("LLEN", scope.turns))
            commands += [("XLEN", scope.graph(layer)) for layer in MemoryLayer]
        replies = await self.ask("totals", commands)
        layers = [layer.value for layer in MemoryLayer]
        return [
            Size(bool(there), turns, dict(zip(layers, nodes, strict=True)))
            for there, turns, *nodes in chunks(replies, 2 + len(layers))
        ]

    async def close(self, tenant: str, mark: str, milliseconds: int) -> None:
        """Close a tree or a whole tenant in every partition. See lua/close.lua."""
        await self._everywhere("close", tenant, [mark, milliseconds])

    async def reopen(self, tenant: str, mark: str) -> bool:
        """Take a tree's or a tenant's tombstones away in every partition; return whether there were any."""
        return b"1" in await self._everywhere("reopen", tenant, [mark])

    async def reopen_scope(self, scope: ScopeKeys) -> bool:
        """Take a scope's own tombstone away; return whether there was one. See lua/reopen.lua."""
        keys = [scope.ops, scope.ops_old, scope.shared.closed]
        args: list[str | bytes | int] = [*self.operation("reopen"), f"scope:{scope.path}"]
        return await self._write_many("reopen", [(keys, args)]) == [b"1"]

    async def purge(
        self, scopes: Sequence[ScopeKeys], milliseconds: int | None, *, published: bool = True
    ) -> list[tuple[int, str]]:
        """Erase all that scopes hold; close each for a time, unless that is None. See lua/purge.lua.

        Returns for each how many keys went, and the id of its entry in the feed, or `-`.
        """
        calls = []
        for scope in scopes:
            own = ["" if milliseconds is None else milliseconds]
            keys, args = self._call_of(scope, scope.everything, own, "purge")
            if not published:
                args[4:6] = ["", "-"]
            calls.append((keys, args))
        receipts = [receipt.decode().split() for receipt in await self._write_many("purge", calls)]
        return [(int(removed), at) for removed, at in receipts]

    async def erase(self, stream: str, path: str, *, tree: bool, last: str) -> int:
        """Remove the entries of a scope, or of it and those below, from a feed up to an id. See lua/erase.lua."""
        first, erased = "-", 0
        while first:
            ((following, removed),) = await self._many("erase", [([stream], [path, int(tree), first, last])])
            first, erased = following.decode(), erased + removed
        return erased

    async def ends(self, streams: Sequence[str]) -> dict[str, str]:
        """The last id of each of these streams that holds anything."""
        replies = await self.ask("purge", [("XREVRANGE", stream, "+", "-", "COUNT", 1) for stream in streams])
        return {stream: reply[0][0].decode() for stream, reply in zip(streams, replies, strict=True) if reply}

    async def drop_feeds(self, tenant: str) -> None:
        """Remove all that a tenant's feeds consist of, and that relays have read them. See lua/drop.lua."""
        prefix = self.deployment.prefix
        args: list[str | bytes | int] = [*self.operation("drop"), encode_id(tenant)]
        relays = await self.ask("purge", [("SMEMBERS", relays_key(prefix, number)) for number in range(PARTITIONS)])
        calls: list[Call] = []
        for number, names in enumerate(relays):
            keys = self.keys(tenant, number)
            own = [keys.ops, keys.ops_old, keys.feed, keys.feed_seq, keys.relay, keys.dead]
            calls.append(
                (
                    [
                        *own,
                        *(feeds_key(prefix, number, name) for name in sorted(map(_text, names)) if is_encoded(name)),
                    ],
                    args,
                )
            )
        await self._write_many("drop", calls)

    async def _everywhere(self, name: str, tenant: str, own: Sequence[str | int]) -> list[bytes]:
        operation = self.operation(name)
        every = [self.keys(tenant, number) for number in range(PARTITIONS)]
        calls = [([keys.ops, keys.ops_old, keys.closed], [*operation, *own]) for keys in every]
        return await self._write_many(name, calls)

    async def _write_many(self, name: str, calls: Sequence[Call]) -> list[bytes]:
        """The receipts of many calls of a write script."""
        replies = await self._many(name, calls)
        for reply in replies:
            self._admit(name, reply)
        return [receipt for _, receipt in replies]

    async def _many(self, name: str, calls: Sequence[Call]) -> list[Any]:
        replies: list[Any] = []
        with Operation(name, self.deployment.attributes):
            for part in chunks(calls, BATCH):
                replies += await self.deployment.run_many(name, script(name), part)
        return replies


def _places(reply: Sequence[Any]) -> list[Place]:
    """A member and its score alternate in version 2 of the protocol; in version 3 they come in pairs."""
    pairs = reply if reply and isinstance(reply[0], list) else list(zip(reply[::2], reply[1::2], strict=True))
    return [(int(max(-_FAR, min(_FAR, float(score)))), _text(member)) for member, score in pairs]


def _text(member: bytes) -> str:
    """A member of an index, which something else may have written: any bytes, and their order is kept."""
    return member.decode("latin-1")
