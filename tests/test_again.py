"""A push after another looks at less than the first (ADR-008): whatever happens in between, it ends in the same."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keyspace import keys_of, kinds
from seen import snapshot, texts

from symfonic_redis import (
    Deployment,
    KeyConflict,
    MemoryEntry,
    MemoryLayer,
    MemoryNode,
    MemoryRecord,
    RedisMemoryLifecycle,
    RedisMemoryWriter,
    ServerRefused,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    WriteRequest,
    connect,
    export,
    import_,
    purge,
    purge_tenant,
    purge_tree,
    reopen,
    reopen_tenant,
    reopen_tree,
    scopes,
)
from symfonic_redis.keys import ScopeKeys, scope_keys

TTL, MIRROR_TTL = 100, 200
LONGEST = 60_000  # ms that a generation of operation ids lives, with the deadline that is set when none is


def layer_of(redis: Deployment, *, ttl: float | None = None, mirror_ttl: float | None = None, cap: int | None = 3):
    graph = StreamGraphStore(redis, ttl=mirror_ttl)
    return WorkingLayer(redis, 2, graph, working_graph_retention=cap, evicted_retention=1, ttl=ttl)


async def told(redis: Deployment, keys: ScopeKeys) -> bytes:
    return await redis.call("test", "HGET", keys.ops, "told") or b""


async def forget_what_was_told(redis: Deployment, keys: ScopeKeys) -> None:
    if await redis.call("test", "EXISTS", keys.ops):
        await redis.call("test", "HDEL", keys.ops, "told")


# --- the same as a push that looks at everything ---

PUSHES = st.lists(
    st.tuples(
        st.sampled_from([(None, None), (TTL, MIRROR_TTL), (TTL, None), (None, MIRROR_TTL), (TTL, 70)]),
        st.sampled_from([None, 0, 1, 3]),
        st.booleans(),
        st.integers(1, 3),
    ).flatmap(lambda one: st.lists(st.just(one), min_size=1, max_size=4)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(runs=PUSHES, feed=st.sampled_from([None, 4]))
async def test_it_ends_in_the_same_as_a_push_that_looks_at_everything(redis, server, runs, feed):
    root = TenantScope.root("org", "acme")
    ends = []
    for looks in (False, True):
        prefix = f"{redis.prefix}{time.monotonic_ns()}"
        scope = root.child("c", "1")
        keys = scope_keys(prefix, scope)
        async with connect(server.url, prefix=prefix, feed=feed) as one:
            seen = []
            for (ttl, mirror_ttl), cap, transient, window in [push for run in runs for push in run]:
                graph = StreamGraphStore(one, ttl=mirror_ttl)
                layer = WorkingLayer(one, window, graph, working_graph_retention=cap, evicted_retention=1, ttl=ttl)
                if looks:
                    await forget_what_was_told(one, keys)
                entry = MemoryEntry.turn(scope, speaker="user", turn_id="t", content=str(len(seen)))
                receipt = await layer.push(scope, entry, durability="transient" if transient else None)
                seen.append((receipt.window_length, receipt.evicted, bool(receipt.node_id)))
            seen.append(texts(await layer.get_context(scope)))
            seen.append([node.label for node in await graph.query_nodes(scope)])
            lives = await one.call_many("test", [("PTTL", keys.turns), ("PTTL", keys.graph("working"))])
            seen.append([round(left, -5) for left in lives])
            changes = await one.call("test", "XRANGE", keys.shared.feed, "-", "+")
            seen.append([(flat[1], flat[3]) for _, flat in changes])
            await is_in_order(one, keys, ttl, mirror_ttl)
            ends.append(seen)
            await one.call_many("test", [("DEL", key) for key in await keys_of(one, f"{prefix}:*")])
    assert ends[0] == ends[1]


async def is_in_order(redis: Deployment, keys: ScopeKeys, ttl: float | None, mirror_ttl: float | None) -> None:
    """What holds after a push of a layer with these times to live, whatever was before."""
    lives = {key: await redis.call("test", "PTTL", key) for key in (keys.turns, keys.graph("working"), keys.staged)}
    lives[keys.edits("working")] = await redis.call("test", "PTTL", keys.edits("working"))
    expected = {keys.turns: ttl, keys.staged: ttl, keys.graph("working"): mirror_ttl, keys.edits("working"): mirror_ttl}
    for key, left in lives.items():
        if left != -2:
            wanted = expected[key]
            assert left == -1 if wanted is None else 1000 * wanted - 30_000 < left <= 1000 * wanted, key
    assert lives[keys.turns] != -2
    now = time.time() * 1000
    score = await redis.call("test", "ZSCORE", keys.shared.scopes, keys.path)
    if None in (ttl, mirror_ttl):
        assert float(score) - 1e14 > now - 30_000
    else:
        assert float(score) > now + 1000 * max(ttl, mirror_ttl) - 30_000
    assert await redis.call("test", "SISMEMBER", keys.shared.tenants, "acme") == 1
    longest = max(lives.values())
    for index in (keys.shared.scopes, keys.shared.tenants):
        left = await redis.call("test", "PTTL", index)
        assert left == -1 or (-1 not in lives.values() and left >= longest)


# --- what may happen in between ---

OTHER = TenantScope.root("org", "acme")
RECORD = "a record"


async def _push_other(redis, scope, **options):
    entry = MemoryEntry.turn(scope, speaker="user", turn_id="t", content="other")
    await layer_of(redis, **options).push(scope, entry)


async def _stage(redis, scope):
    writer = RedisMemoryWriter(layer_of(redis, ttl=5))
    await writer.write(WriteRequest(scope, [MemoryRecord(scope=scope, content=RECORD)]))


async def _flush(redis, scope):
    await _stage(redis, scope)
    await RedisMemoryLifecycle(layer_of(redis, ttl=5, mirror_ttl=5)).flush(scope)


async def _purge(redis, scope):
    await purge(redis, scope)
    await reopen(redis, scope)


async def _purge_tree(redis, scope):
    await purge_tree(redis, OTHER)
    await reopen_tree(redis, OTHER)


async def _purge_tenant(redis, scope):
    await purge_tenant(redis, "acme")
    await reopen_tenant(redis, "acme")


async def _clear(redis, scope):
    await layer_of(redis).clear(scope)


async def _rehydrate(redis, scope):
    messages = [{"role": "user", "content": "hello"}]
    await layer_of(redis, ttl=5).rehydrate_from_messages(scope, messages, only_if_empty=False)


async def _expire(redis, scope):
    """All that the scope holds expires, and a listing takes it out of the index."""
    keys = scope_keys(redis.prefix, scope)
    await redis.call("test", "DEL", *keys.everything)
    await scopes(redis, "acme")
    assert await redis.call("test", "ZSCORE", keys.shared.scopes, keys.path) is None


async def _expire_alone(redis, scope):
    await redis.call("test", "DEL", *scope_keys(redis.prefix, scope).everything)


async def _lose_the_index(redis, scope):
    shared = scope_keys(redis.prefix, scope).shared
    await redis.call("test", "DEL", shared.scopes, shared.tenants)


async def _lose_the_turns(redis, scope):
    await redis.call("test", "DEL", scope_keys(redis.prefix, scope).turns)


async def _lose_the_mirror(redis, scope):
    await redis.call("test", "DEL", scope_keys(redis.prefix, scope).graph("working"))


async def _update(redis, scope):
    graph = StreamGraphStore(redis)
    (node, *_) = await graph.query_nodes(scope, MemoryLayer.WORKING)
    await graph.update_node(scope, node.id, {"colour": "red"})


async def _delete(redis, scope):
    graph = StreamGraphStore(redis)
    (node, *_) = await graph.query_nodes(scope, MemoryLayer.WORKING)
    await graph.delete_node(scope, node.id)


async def _add(redis, scope, layer):
    await StreamGraphStore(redis, ttl=5).add_node(scope, MemoryNode(layer=layer, tenant_id="acme", label="x"))


async def _import(redis, scope):
    lines = [line async for line in export(redis, scope)]
    await _purge(redis, scope)
    await import_(redis, scope, lines, ttl=5, mirror_ttl=5)


async def _begin_a_generation(redis, scope):
    await redis.call("test", "HSET", scope_keys(redis.prefix, scope).ops, "born", "1000")


EVENTS: dict[str, Callable[[Deployment, TenantScope], Awaitable[None]]] = {
    "nothing": lambda redis, scope: asyncio.sleep(0),
    "purge": _purge,
    "purge of a tree": _purge_tree,
    "purge of the tenant": _purge_tenant,
    "an import": _import,
    "clear": _clear,
    "rehydration": _rehydrate,
    "staging": _stage,
    "publishing": _flush,
    "expiry, and forgotten": _expire,
    "expiry": _expire_alone,
    "loss of the index": _lose_the_index,
    "loss of the turns": _lose_the_turns,
    "loss of the mirror": _lose_the_mirror,
    "an edit": _update,
    "a deletion": _delete,
    "a working node": lambda redis, scope: _add(redis, scope, MemoryLayer.WORKING),
    "another node": lambda redis, scope: _add(redis, scope, MemoryLayer.SEMANTIC),
    "a generation of ids": _begin_a_generation,
    "a layer that keeps for ever": _push_other,
    "a layer that keeps briefly": lambda redis, scope: _push_other(redis, scope, ttl=5, mirror_ttl=5),
    "a layer with another mirror": lambda redis, scope: _push_other(redis, scope, ttl=TTL, mirror_ttl=5),
}


@pytest.mark.parametrize("times", [(None, None), (TTL, MIRROR_TTL), (TTL, None)], ids=["for ever", "both", "turns"])
@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
async def test_whatever_comes_in_between_the_scope_is_in_order_after_the_next_push(redis, scope, turn, event, times):
    ttl, mirror_ttl = times
    keys = scope_keys(redis.prefix, scope)
    layer = layer_of(redis, ttl=ttl, mirror_ttl=mirror_ttl)
    for _ in range(2):
        await layer.push(scope, turn())
    assert await told(redis, keys)
    await event(redis, scope)
    for _ in range(2):
        await layer.push(scope, turn())
        await is_in_order(redis, keys, ttl, mirror_ttl)
        assert await StreamGraphStore(redis).count(scope, MemoryLayer.WORKING) <= 3
    # Enough to push out what was edited: nothing of it stays.
    for _ in range(3):
        await layer.push(scope, turn())
    await is_in_order(redis, keys, ttl, mirror_ttl)
    assert await redis.call("test", "EXISTS", keys.edits("working")) == 0


@pytest.mark.parametrize("event", ["purge", "expiry, and forgotten", "loss of the index"])
async def test_the_purge_of_the_tenant_finds_the_scope(redis, scope, turn, event):
    layer = layer_of(redis, ttl=TTL, mirror_ttl=MIRROR_TTL)
    for _ in range(2):
        await layer.push(scope, turn())
    await EVENTS[event](redis, scope)
    for _ in range(2):
        await layer.push(scope, turn())
    await purge_tenant(redis, "acme")
    assert kinds(await keys_of(redis, f"{redis.prefix}:*")) <= {"ops", "closed", "config"}


async def test_what_was_told_is_not_believed_in_another_generation_of_ids(redis, scope, turn):
    keys = scope_keys(redis.prefix, scope)
    layer = layer_of(redis, ttl=TTL, mirror_ttl=MIRROR_TTL)
    for _ in range(2):
        await layer.push(scope, turn())
    # The indexes live for less than what they name, which only something else can have done.
    for index in (keys.shared.scopes, keys.shared.tenants):
        await redis.call("test", "PEXPIRE", index, 1_000_000)
        await redis.call("test", "PEXPIRE", index, 10_000)
    await redis.call("test", "HSET", keys.ops, "born", "1000")
    await layer.push(scope, turn())
    await is_in_order(redis, keys, TTL, MIRROR_TTL)


async def test_a_time_to_live_shorter_than_a_generation_is_told_each_time(redis, scope, turn):
    keys = scope_keys(redis.prefix, scope)
    layer = layer_of(redis, ttl=1, mirror_ttl=(LONGEST - 1) / 1000)
    for _ in range(2):
        await layer.push(scope, turn())
        assert await told(redis, keys) == b""
    await layer_of(redis, ttl=1, mirror_ttl=LONGEST / 1000).push(scope, turn())
    assert await told(redis, keys)
    # The index holds for whatever is written as long as that is believed.
    assert await redis.call("test", "PTTL", keys.shared.scopes) >= 2 * LONGEST - 1000


async def test_who_keeps_ids_for_longer_has_the_indexes_told_again(redis, server, scope, turn):
    keys = scope_keys(redis.prefix, scope)
    for _ in range(2):
        await layer_of(redis, ttl=TTL, mirror_ttl=TTL).push(scope, turn())
    assert await told(redis, keys)
    async with connect(server.url, prefix=redis.prefix, deadline=60) as patient:
        for _ in range(2):
            await layer_of(patient, ttl=TTL, mirror_ttl=TTL).push(scope, turn())
            assert await told(redis, keys) == b""


async def test_what_was_told_while_the_clock_was_behind_is_not_kept(redis, scope, turn):
    keys = scope_keys(redis.prefix, scope)
    layer = layer_of(redis, ttl=TTL, mirror_ttl=TTL)
    await layer.push(scope, turn())
    await redis.call("test", "HSET", keys.ops, "born", int(time.time() * 1000) + 100_000, "told", "")
    await layer.push(scope, turn())
    assert await told(redis, keys) == b""


# --- keys that are not what they were ---

FOREIGN = {
    "turns": lambda keys: keys.turns,
    "graph": lambda keys: keys.graph("working"),
    "scopes": lambda keys: keys.shared.scopes,
    "ops": lambda keys: keys.ops,
    "closed": lambda keys: keys.shared.closed,
}


@pytest.mark.parametrize("chosen", FOREIGN.values(), ids=FOREIGN)
async def test_a_foreign_key_stops_it_before_it_writes(redis, scope, turn, chosen):
    keys = scope_keys(redis.prefix, scope)
    layer = layer_of(redis, ttl=TTL, mirror_ttl=MIRROR_TTL)
    for _ in range(2):
        await layer.push(scope, turn())
    key = chosen(keys)
    await redis.call("test", "DEL", key)
    await redis.call("test", "SET", key, "not ours")
    before = await snapshot(redis)
    with pytest.raises(KeyConflict, match=re.escape(key)):
        await layer.push(scope, turn())
    assert await snapshot(redis) == before


@pytest.mark.parametrize("cap", [None, 3])
async def test_a_mirror_that_takes_no_more_nodes_leaves_the_window_as_it_was(redis, scope, turn, cap):
    keys = scope_keys(redis.prefix, scope)
    layer = layer_of(redis, cap=cap)
    for _ in range(6):
        await layer.push(scope, turn())
    last = f"{2**64 - 1}-{2**64 - 1}"
    await redis.call("test", "XADD", keys.graph("working"), last, "z", "1")
    before = await snapshot(redis)
    with pytest.raises(ServerRefused):
        await layer.push(scope, turn())
    after = await snapshot(redis)
    index = keys.shared.scopes.encode()
    assert {**after, index: None} == {**before, index: None}


# --- what else lives as long as the turns or the mirror ---


@pytest.mark.parametrize(
    ("change", "chosen"),
    [(_stage, lambda keys: keys.staged), (_update, lambda keys: keys.edits("working"))],
    ids=["staged", "edits"],
)
async def test_it_starts_its_time_again_with_every_push(redis, scope, turn, change, chosen):
    keys = scope_keys(redis.prefix, scope)
    layer = layer_of(redis, ttl=TTL, mirror_ttl=MIRROR_TTL, cap=100)
    for _ in range(2):
        await layer.push(scope, turn())
    await change(redis, scope)
    for _ in range(3):
        await redis.call("test", "PEXPIRE", chosen(keys), 10_000)
        await layer.push(scope, turn())
        assert await redis.call("test", "PTTL", chosen(keys)) > 10_000


async def test_what_was_told_for_a_shorter_generation_is_not_believed_in_a_longer_one(redis, server, scope, turn):
    keys = scope_keys(redis.prefix, scope)
    for _ in range(2):
        await layer_of(redis, ttl=TTL, mirror_ttl=MIRROR_TTL).push(scope, turn())
    # For the first worker this generation is over; the second one's is four times as long.
    await redis.call("test", "HSET", keys.ops, "born", int(time.time() * 1000) - LONGEST)
    for index in (keys.shared.scopes, keys.shared.tenants):
        await redis.call("test", "PEXPIRE", index, 10_000)
    async with connect(server.url, prefix=redis.prefix, deadline=60) as patient:
        await layer_of(patient, ttl=TTL, mirror_ttl=MIRROR_TTL).push(scope, turn())
    await is_in_order(redis, keys, TTL, MIRROR_TTL)
