"""Times to live: sliding with every write, apart for the mirror, and taken back by a layer without one."""

from __future__ import annotations

import asyncio
import itertools
import time

from seen import keys_of, texts

from symfonic_redis import MemoryEntry, MemoryLayer, MemoryNode, StreamGraphStore, TenantScope, WorkingLayer
from symfonic_redis.keys import partition_of, scope_keys

MESSAGES = [{"role": "user", "content": "hello"}]
PATIENCE = 30.0


async def left(redis, key: str) -> int:
    """Milliseconds until a key vanishes; -1 when it does not."""
    return await redis.call("test", "PTTL", key)


async def test_every_write_starts_the_time_again(redis, scope, turn):
    layer = WorkingLayer(redis, ttl=100)
    key = scope_keys(redis.prefix, scope).turns

    async def replayed() -> None:
        await layer.rehydrate_from_messages(scope, MESSAGES, only_if_empty=False)

    for write in (
        lambda: layer.push(scope, turn()),
        lambda: layer.push_many(scope, [turn(), turn()]),
        lambda: layer.push(scope, turn(), idempotency_key="job"),
        lambda: layer.write(scope, turn()),
        replayed,
    ):
        await write()
        assert 1_000 < await left(redis, key) <= 100_000
        await redis.call("test", "PEXPIRE", key, 1_000)


async def test_reading_does_not_start_it_again(redis, scope, turn):
    layer = WorkingLayer(redis, ttl=100)
    await layer.push(scope, turn())
    key = scope_keys(redis.prefix, scope).turns
    await redis.call("test", "PEXPIRE", key, 50_000)
    await layer.get_context(scope)
    await layer.retrieve(scope, "")
    assert await left(redis, key) <= 50_000


async def test_a_conversation_vanishes_when_its_time_is_over(redis, scope, turn):
    layer = WorkingLayer(redis, ttl=0.05)
    await layer.push(scope, turn())
    until = time.monotonic() + PATIENCE
    while await layer.get_context(scope):
        assert time.monotonic() < until
        await asyncio.sleep(0.02)
    assert (await layer.push(scope, turn())).window_length == 1


async def test_a_layer_without_a_time_keeps_what_another_would_have_let_go(redis, scope, turn):
    keys = scope_keys(redis.prefix, scope)
    brief = WorkingLayer(redis, ttl=100, graph_store=StreamGraphStore(redis, ttl=200))
    lasting = WorkingLayer(redis, graph_store=StreamGraphStore(redis))
    await brief.push(scope, turn())
    await lasting.push(scope, turn())
    assert [await left(redis, keys.turns), await left(redis, keys.graph("working"))] == [-1, -1]
    await brief.push(scope, turn())
    assert await left(redis, keys.turns) > 0
    await lasting.rehydrate_from_messages(scope, MESSAGES, only_if_empty=False)
    assert await left(redis, keys.turns) == -1
    assert await left(redis, keys.graph("working")) > 0


async def test_the_mirror_has_a_time_of_its_own(redis, scope, turn):
    keys = scope_keys(redis.prefix, scope)
    await WorkingLayer(redis, ttl=100, graph_store=StreamGraphStore(redis, ttl=5_000)).push(scope, turn())
    assert 0 < await left(redis, keys.turns) <= 100_000
    assert 100_000 < await left(redis, keys.graph("working")) <= 5_000_000
    await WorkingLayer(redis, ttl=100, graph_store=StreamGraphStore(redis)).push(scope, turn())
    assert 0 < await left(redis, keys.turns) <= 100_000
    assert await left(redis, keys.graph("working")) == -1


async def test_a_node_starts_the_time_of_its_own_layer(redis, scope, turn):
    graph = StreamGraphStore(redis, ttl=100)
    keys = scope_keys(redis.prefix, scope)
    await WorkingLayer(redis, graph_store=StreamGraphStore(redis)).push(scope, turn())
    node = MemoryNode(layer=MemoryLayer.SEMANTIC, tenant_id="acme", label="x")
    await graph.add_node(scope, node)
    assert 0 < await left(redis, keys.graph("semantic")) <= 100_000
    assert await left(redis, keys.graph("working")) == -1
    await StreamGraphStore(redis).add_node(scope, node)
    assert await left(redis, keys.graph("semantic")) == -1


async def without_time(redis) -> list[bytes]:
    return [key for key in await keys_of(redis) if await left(redis, key) < 0]


async def test_no_key_stays_for_ever_when_times_are_set(redis, scope, turn):
    graph = StreamGraphStore(redis, ttl=100)
    layer = WorkingLayer(redis, max_entries=2, evicted_retention=1, ttl=100, graph_store=graph)
    capped = WorkingLayer(redis, ttl=100, graph_store=graph, working_graph_retention=1)
    for _ in range(6):
        receipt = await layer.push(scope, turn())
    await layer.push_many(scope, [turn() for _ in range(9)], idempotency_key="job")
    await capped.push(scope, turn(), durability="transient")
    await layer.delete(scope, receipt.node_id)
    for name in MemoryLayer:
        node = await graph.add_node(scope, MemoryNode(layer=name, tenant_id="acme", label="x"))
        await graph.delete_node(scope, node.id)
    assert await without_time(redis) == []
    await layer.clear(scope)
    assert await without_time(redis) == []
    assert await layer.rehydrate_from_messages(scope, MESSAGES) == 1
    assert await layer.rehydrate_from_messages(scope, MESSAGES) == 0
    assert await without_time(redis) == []
    assert texts(await layer.get_context(scope)) == ["hello"]


async def test_a_mirror_that_keeps_nothing_any_more_gets_its_time_too(redis, scope, turn):
    await WorkingLayer(redis, ttl=100, graph_store=StreamGraphStore(redis)).push(scope, turn())
    none = WorkingLayer(redis, ttl=100, graph_store=StreamGraphStore(redis, ttl=100), working_graph_retention=0)
    await none.push(scope, turn())
    # The index keeps what was once to stay for ever, until somebody looks.
    assert [key for key in await without_time(redis) if not key.endswith((b":scopes", b":tenants"))] == []


async def test_the_list_of_tenants_lives_as_long_as_each_tenants_index(redis):
    first = TenantScope.root("org", "one")
    # Another tenant in the same partition: its list is the same key.
    second = next(
        scope
        for number in itertools.count()
        if partition_of((scope := TenantScope.root("org", f"two-{number}")).scope_path)
        == partition_of(first.scope_path)
    )
    layer = WorkingLayer(redis, ttl=100)
    for scope in (first, second):
        await layer.push(scope, MemoryEntry.turn(scope, speaker="user", turn_id="t", content="x"))
    keys = scope_keys(redis.prefix, second).shared
    # As it is when the tenants wrote out of step: the index is due for more time, the list not by itself.
    await redis.call("test", "PEXPIRE", keys.scopes, 50_000)
    await redis.call("test", "PEXPIRE", keys.tenants, 120_000)
    # The index is looked at again in each generation of operation ids (ADR-008).
    await redis.call("test", "HDEL", scope_keys(redis.prefix, second).ops, "told")
    await layer.push(second, MemoryEntry.turn(second, speaker="user", turn_id="t", content="x"))
    assert await left(redis, keys.tenants) >= await left(redis, keys.scopes) > 150_000
