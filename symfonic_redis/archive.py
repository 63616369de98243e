"""A scope as lines of text: to keep, to move, to read. Out and in again without a loss."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import NamedTuple

from redis import asyncio as redis

from symfonic_redis.archive_lines import Entry, Row, end_line, header_line, node_line, read_lines, turn_line
from symfonic_redis.archive_seals import seal_record, unseal_entry, unseal_row
from symfonic_redis.archive_store import ArchiveStore
from symfonic_redis.connection import deployment_of
from symfonic_redis.deployment import Deployment
from symfonic_redis.keys import scope_keys
from symfonic_redis.models import MemoryLayer, check_ttl
from symfonic_redis.scope import ScopeLike

PAGE = 200
"""Nodes read in one round trip."""

BATCH, BATCH_BYTES = 250, 512 * 1024
"""The most records and, but for a single one, the most bytes written in one round trip: a fraction of a millisecond."""


class Imported(NamedTuple):
    """How many turns and nodes an import brought."""

    turns: int
    nodes: int


async def export(redis: Deployment | redis.Redis, scope: ScopeLike) -> AsyncIterator[str]:
    """The lines of a scope's archive, without line ends, in ASCII: its turns, the evicted ones too, and all its nodes.

    Lossless: rows and nodes as they are stored, nodes with their ids and with what was changed of them. Idempotency
    keys are not part of it. How long keys had left to live is noted, for people. The turns are of one
    moment; of nodes that are written meanwhile, some may be in and some not. An archive is plain text, also of a
    deployment whose rows are sealed.

    Args:
        redis: what `connect` returns, or a `redis.asyncio` client.
        scope: exactly this one; scopes below it are not part of it.

    Cost: two round trips, and one for each 200 nodes of a layer. The turns are held in memory, nodes are not.

    Raises:
        MemoryUnavailable: the server was not reached within the deadline.
        KeyringMismatch: a row needs a key that is not here: an archive without it would lack content.
    """
    store = ArchiveStore(deployment_of(redis))
    keys = scope_keys(store.deployment.prefix, scope)
    seal = store.seal(keys)
    yield header_line(keys, await store.ttls(keys))
    rows = await store.rows(keys)
    for number, row in enumerate(rows, 1):
        yield turn_line(keys, number, unseal_row(row, seal))
    nodes = 0
    for layer in MemoryLayer:
        first = "-"
        while first:
            page, more = await store.nodes(keys, layer, first=first, count=PAGE)
            for at, fields, edits in page:
                yield node_line(keys, unseal_entry(layer, at, fields, edits, seal))
            nodes += len(page)
            first = f"({page[-1][0]}" if more else ""
    yield end_line(len(rows), nodes)


async def import_(
    redis: Deployment | redis.Redis,
    scope: ScopeLike,
    lines: Iterable[str] | AsyncIterable[str],
    *,
    ttl: float | None = None,
    mirror_ttl: float | None = None,
) -> Imported:
    """Bring an archive into an empty scope: all of it or nothing, once.

    All lines are checked before anything is written: also that no time is over a day ahead of the server's, and that
    nothing was changed of a node that cannot be. Then they are put together beside the scope, where no reader
    sees them, and moved into their place by one call, which also decides whether the scope is still empty. Left alone
    half-way, as by a crash, what was put together goes with the next import, a purge, or after an hour.

    The scope may be another than the archive's, and another tenant's: turns name no tenant, and nodes are made this
    one's. A node's id holds a mark of its scope: in the same scope ids stay what they were.

    Args:
        redis: what `connect` returns, or a `redis.asyncio` client.
        scope: where it goes.
        lines: of the archive. A list, or anything that can be gone through twice, is; an iterator is held in memory.
        ttl: seconds after which the turns vanish unless the scope is written; None keeps them.
        mirror_ttl: seconds after which the nodes vanish unless they are written to; None keeps them.

    Cost: three round trips, and one for each 250 turns or nodes or 512 KiB.

    Raises:
        InvalidInput: a line is damaged or missing, the scope is not empty, or another import into it began later;
            nothing was imported.
        ScopeClosed: the scope was purged and is not reopened.
        MemoryUnavailable: the server was not reached within the deadline; nothing was imported, or all of it was.
    """
    store = ArchiveStore(deployment_of(redis))
    keys = scope_keys(store.deployment.prefix, scope)
    seal = store.seal(keys)
    kept = check_ttl(ttl), check_ttl(mirror_ttl)
    again = await _repeatable(lines)
    limit, latest = store.deployment.max_row_bytes - seal.overhead, await store.latest()
    for _ in read_lines(again, keys, limit=limit, latest=latest):
        pass
    import_id = os.urandom(16).hex()
    await store.begin(keys, import_id)
    turns = nodes = 0
    for records in _batches(read_lines(again, keys, limit=limit, latest=latest)):
        await store.add(keys, import_id, [seal_record(record, seal) for record in records])
        if isinstance(records[0], Row):
            turns += len(records)
        else:
            nodes += len(records)
    await store.commit(keys, import_id, turns, nodes, *kept)
    return Imported(turns, nodes)


async def _repeatable(lines: Iterable[str] | AsyncIterable[str]) -> Iterable[str]:
    if isinstance(lines, AsyncIterable):
        return [line async for line in lines]
    if isinstance(lines, str):
        return lines.split("\n")
    return list(lines) if isinstance(lines, Iterator) else lines


def _batches(records: Iterable[Row | Entry]) -> Iterator[list[Row | Entry]]:
    """Records in batches of one kind and layer."""
    batch: list[Row | Entry] = []
    size, kind = 0, ""
    for record in records:
        of = record.layer if isinstance(record, Entry) else ""
        if batch and (of != kind or len(batch) == BATCH or size + record.size > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size, kind = size + record.size, of
    if batch:
        yield batch
