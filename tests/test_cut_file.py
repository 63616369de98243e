"""An append-only file that ends in the middle of a write: what remains is a whole beginning of what was written.

A file cut by hand has lost turns that were acknowledged; nothing can bring them back but whoever still has them. What
must hold is that nothing is left half done, and that sending the turns again stores exactly those that are missing.
"""

from __future__ import annotations

import random

import pytest
from own_server import own_server
from servers import BINARIES

from symfonic_redis import (
    Deployment,
    MemoryEntry,
    MemoryRecord,
    RedisEvictedSource,
    RedisMemoryLifecycle,
    RedisMemoryWriter,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    WriteRequest,
    connect,
)
from symfonic_redis.keys import scope_keys

CUTS = 15
WINDOW, EVICTED = 4, 5
SCOPES = [TenantScope.root("org", "acme").child("conversation", f"c{number}") for number in range(2)]
# How many turns each step writes, and how.
STEPS = [("push", 1), ("many", 3), ("stage", 2), ("push", 1), ("many", 4), ("stage", 1), ("push", 1), ("many", 2)]


def _layer(redis: Deployment) -> WorkingLayer:
    return WorkingLayer(redis, WINDOW, StreamGraphStore(redis), evicted_retention=EVICTED)


async def _write(redis: Deployment) -> None:
    """Write all steps to all scopes, each under the same names whenever it is done."""
    layer = _layer(redis)
    writer, lifecycle = RedisMemoryWriter(layer), RedisMemoryLifecycle(layer)
    first = 1
    for kind, count in STEPS:
        for scope in SCOPES:
            key = f"step {first}"
            turns = [
                MemoryEntry.turn(scope, speaker="user", turn_id=str(number), content=str(number))
                for number in range(first, first + count)
            ]
            if kind == "stage":
                records = [MemoryRecord(scope=scope, content=one.content, metadata=one.metadata) for one in turns]
                await writer.write(WriteRequest(scope, records, key))
                await lifecycle.flush(scope)
            else:
                await layer.push_many(scope, turns, idempotency_key=key)
        first += count


async def _stored(redis: Deployment, scope: TenantScope) -> list[int]:
    """The turns of a scope, when window, evicted turns, mirror and feed agree about them."""
    source = RedisEvictedSource(_layer(redis))
    memory = await source.read(scope)
    nodes = [node async for node in StreamGraphStore(redis).nodes(scope, "working")]
    contents = [str(node.properties["content"]) for node in nodes]
    window = max(0, len(contents) - WINDOW)
    assert [entry.content for entry in memory.window] == contents[window:]
    assert [entry.content for entry in memory.evicted] == contents[max(0, window - EVICTED) : window]
    assert memory.evicted.older_gone == (window > EVICTED)
    keys = scope_keys(redis.prefix, scope)
    changes = await redis.call("feed", "XRANGE", keys.shared.feed, "-", "+")
    fields = [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in changes]
    published = [one[b"i"].decode() for one in fields if one.get(b"i") and one[b"p"].decode() == keys.path]
    assert published == [node.id.partition(".")[0] for node in nodes]
    return [int(content) for content in contents]


@pytest.mark.parametrize("kind", list(BINARIES))
async def test_a_file_that_was_cut_leaves_a_whole_beginning(kind, prefix, tmp_path):
    total = sum(count for _, count in STEPS)
    boundaries = {sum(count for _, count in STEPS[:steps]) for steps in range(len(STEPS) + 1)}
    options = ("--appendonly", "yes", "--appendfsync", "always", "--aof-load-truncated", "yes")
    with own_server(*options, kind=kind, directory=str(tmp_path)) as server:
        async with connect(server.url, prefix=prefix, feed=1000):
            pass
        file = next(path for path in (*tmp_path.glob("appendonlydir/*.incr.aof"), tmp_path / "appendonly.aof"))
        bare = file.stat().st_size
        async with connect(server.url, prefix=prefix, feed=1000) as redis:
            await _write(redis)
            # Acknowledged and not cut: a SIGKILL takes nothing.
            server.kill()
            server.start()
            assert [await _stored(redis, scope) for scope in SCOPES] == [[*range(1, total + 1)]] * 2
        server.kill()
        whole = file.read_bytes()
        chance = random.Random(kind)
        seen = set()
        for end in [bare, len(whole) - 1, *(chance.randrange(bare, len(whole)) for _ in range(CUTS))]:
            file.write_bytes(whole[:end])
            server.start()
            async with connect(server.url, prefix=prefix, feed=1000) as redis:
                for scope in SCOPES:
                    stored = await _stored(redis, scope)
                    assert stored == [*range(1, len(stored) + 1)]
                    assert len(stored) in boundaries, "half of a write"
                    seen.add(len(stored))
                await _write(redis)
                assert [await _stored(redis, scope) for scope in SCOPES] == [[*range(1, total + 1)]] * 2
            server.kill()
        assert len(seen) > 3, "the cuts all fell into the same place"
