"""A job that is delivered again stores its turn once, from whichever worker, for as long as was asked."""

from __future__ import annotations

import asyncio
import time

from seen import keys_of, texts

from symfonic_redis import StreamGraphStore, TenantScope, WorkingLayer, connect
from symfonic_redis.keys import scope_keys

PATIENCE = 30.0


async def test_a_redelivered_turn_is_stored_once_from_two_workers(redis, server, prefix, scope, turn):
    async with connect(server.url, prefix=prefix) as other:
        first = WorkingLayer(redis, max_entries=2, graph_store=StreamGraphStore(redis))
        second = WorkingLayer(other, max_entries=2, graph_store=StreamGraphStore(other))
        await first.push_many(scope, [turn("a"), turn("b")])
        stored = await first.push(scope, turn("c"), idempotency_key="job-42")
        again = await second.push(scope, turn("c again"), idempotency_key="job-42")
        assert (stored.duplicate, stored.evicted, len(stored.node_ids)) == (False, 1, 1)
        assert again == ((), 2, 0, True, False)
        assert texts(await second.get_context(scope)) == ["b", "c"]
        assert len(await StreamGraphStore(other).query_nodes(scope)) == 3


async def test_of_many_deliveries_at_once_one_is_stored(redis, scope, turn):
    layer = WorkingLayer(redis)
    receipts = await asyncio.gather(*(layer.push(scope, turn(), idempotency_key="job") for _ in range(40)))
    assert sum(not receipt.duplicate for receipt in receipts) == 1
    assert len(await layer.get_context(scope)) == 1


async def test_a_batch_is_stored_once_whole(redis, scope, turn):
    layer = WorkingLayer(redis)
    batch = [turn(), turn(), turn()]
    assert not (await layer.push_many(scope, batch, idempotency_key="job")).duplicate
    assert (await layer.push_many(scope, batch, idempotency_key="job")).duplicate
    assert await layer.get_context(scope) == batch


async def test_keys_and_scopes_are_told_apart(redis, scope, turn):
    layer = WorkingLayer(redis, max_entries=100)
    keys = ["job", "job ", "JOB", "j" * 10_000, "\ud800", "é", "e\u0301", "0", "\x00"]
    for key in keys:
        assert not (await layer.push(scope, turn(), idempotency_key=key)).duplicate
        assert (await layer.push(scope, turn(), idempotency_key=key)).duplicate
    for other in (scope.child("part", "p"), TenantScope.root("org", "acme")):
        assert not (await layer.push(other, turn(), idempotency_key="job")).duplicate
    assert len(await layer.get_context(scope)) == len(keys)


async def test_a_turn_without_a_key_is_stored_as_often_as_it_is_pushed(redis, scope, turn):
    layer, entry = WorkingLayer(redis), turn()
    await layer.push(scope, entry, idempotency_key="job")
    for _ in range(2):
        assert not (await layer.push(scope, entry)).duplicate
    assert await layer.get_context(scope) == [entry] * 3


async def test_a_key_outlives_a_clear(redis, scope, turn):
    layer = WorkingLayer(redis)
    await layer.push(scope, turn(), idempotency_key="job")
    await layer.clear(scope)
    assert await layer.push(scope, turn(), idempotency_key="job") == ((), 0, 0, True, False)
    assert await layer.get_context(scope) == []


async def test_a_key_is_forgotten_when_its_time_is_over(redis, scope, turn):
    layer = WorkingLayer(redis)
    await layer.push(scope, turn("first"), idempotency_key="job", idempotency_ttl=0.05)
    await layer.push(scope, turn("kept"), idempotency_key="other", idempotency_ttl=1_000)
    until = time.monotonic() + PATIENCE
    while (await layer.push(scope, turn("again"), idempotency_key="job", idempotency_ttl=1_000)).duplicate:
        assert time.monotonic() < until
        await asyncio.sleep(0.02)
    assert (await layer.push(scope, turn(), idempotency_key="job")).duplicate
    assert (await layer.push(scope, turn(), idempotency_key="other")).duplicate
    assert texts(await layer.get_context(scope)) == ["first", "kept", "again"]


async def test_the_keys_of_a_scope_last_as_long_as_the_longest(redis, scope, turn):
    layer = WorkingLayer(redis)
    key = scope_keys(redis.prefix, scope).idem
    await layer.push(scope, turn(), idempotency_key="long", idempotency_ttl=1_000)
    await layer.push(scope, turn(), idempotency_key="short", idempotency_ttl=1)
    assert 500_000 < await redis.call("test", "PTTL", key) <= 1_000_000
    await layer.push(scope, turn(), idempotency_key="longest", idempotency_ttl=100 * 365 * 86_400)
    assert await redis.call("test", "PTTL", key) > 10**12


async def test_forgotten_keys_are_removed_a_few_at_each_write(redis, scope, turn):
    layer = WorkingLayer(redis)
    key = scope_keys(redis.prefix, scope).idem
    await layer.push(scope, turn(), idempotency_key="kept")
    for number in range(40):
        await layer.push(scope, turn(), idempotency_key=f"job-{number}", idempotency_ttl=0.001)
    until = time.monotonic() + PATIENCE
    number = 0
    while await redis.call("test", "ZCARD", key) > 2:
        assert time.monotonic() < until
        await layer.push(scope, turn(), idempotency_key=f"more-{(number := number + 1)}", idempotency_ttl=0.001)
        await asyncio.sleep(0.005)
    assert (await layer.push(scope, turn(), idempotency_key="kept")).duplicate


async def test_only_a_digest_of_the_key_is_stored(redis, scope, turn):
    await WorkingLayer(redis).push(scope, turn(), idempotency_key="a-secret-job")
    keys = scope_keys(redis.prefix, scope)
    members = await redis.call("test", "ZRANGE", keys.idem, 0, -1)
    assert [len(member) for member in members] == [16]
    names = (keys.turns, keys.ops, keys.idem, keys.shared.scopes, keys.shared.tenants)
    assert await keys_of(redis) == {key.encode() for key in names}
