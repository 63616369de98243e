"""Rows that nobody can read, and keys that are not ours: the conversation goes on, or the answer says what is wrong."""

from __future__ import annotations

import logging
import re

import pytest
from keyspace import dump
from seen import keys_of, snapshot, texts

from symfonic_redis import (
    CodecError,
    KeyConflict,
    MemoryLayer,
    MemoryNode,
    MemoryRecord,
    RedisMemoryWriter,
    ServerRefused,
    StreamGraphStore,
    WorkingLayer,
    WriteRequest,
    connect,
)
from symfonic_redis.codec import encode
from symfonic_redis.keys import scope_keys
from symfonic_redis.rows import encode_entry
from symfonic_redis.sealing import PLAIN

DAMAGED = {
    "nothing": b"",
    "text": b"hello",
    "the version alone": b"\x01",
    "a newer version": b"\x02\x90",
    "no entry": encode({"a": 1}),
    "no moment": encode(["id", "content", 7, {}]),
    "a claim of 4 GiB": b"\x01\xdd\xff\xff\xff\xff",
}
damaged = pytest.mark.parametrize("row", DAMAGED.values(), ids=DAMAGED)


@damaged
async def test_a_damaged_row_is_skipped_and_left_where_it_is(redis, scope, turn, row, caplog):
    layer = WorkingLayer(redis, max_entries=4)
    await layer.push_many(scope, [turn() for _ in range(4)])
    key = scope_keys(redis.prefix, scope).turns
    await redis.call("test", "LSET", key, 1, row)
    with caplog.at_level(logging.WARNING, "symfonic_redis"):
        for _ in range(3):
            assert texts(await layer.get_context(scope)) == ["turn 1", "turn 2", "turn 4"]
            assert texts(await layer.retrieve(scope, "", top_k=3)) == ["turn 1", "turn 2", "turn 4"]
    (record,) = caplog.records
    assert f"row 1 of {key} " in record.getMessage()
    assert await redis.call("test", "LINDEX", key, 1) == row
    assert (await layer.push(scope, turn())).window_length == 4
    assert texts(await layer.get_context(scope)) == ["turn 2", "turn 4", "turn 5"]
    await layer.clear(scope)
    assert await layer.get_context(scope) == []


@damaged
async def test_a_strict_layer_names_the_damaged_row(redis, scope, turn, row):
    await WorkingLayer(redis).push_many(scope, [turn() for _ in range(4)])
    key = scope_keys(redis.prefix, scope).turns
    await redis.call("test", "LSET", key, 2, row)
    with pytest.raises(CodecError, match=rf"^row 2 of {re.escape(key)} cannot be read"):
        await WorkingLayer(redis, strict=True).get_context(scope)
    assert texts(await WorkingLayer(redis, max_entries=2, strict=True).get_context(scope)) == ["turn 3", "turn 4"]


async def test_each_conversation_with_damage_is_told_once(redis, scope, turn, caplog):
    layer = WorkingLayer(redis)
    scopes = [scope, scope.child("part", "a"), scope.child("part", "b")]
    for one in scopes:
        await layer.push_many(one, [turn(), turn()])
        for index in (0, 1):
            await redis.call("test", "LSET", scope_keys(redis.prefix, one).turns, index, b"x")
    for one in scopes * 2:
        assert await layer.get_context(one) == []
    assert len(caplog.records) == len(scopes)


def row_of(turn) -> bytes:
    return encode_entry(turn(), limit=1000, seal=PLAIN)


NODE = MemoryNode(layer=MemoryLayer.WORKING, tenant_id="acme", label="x")
ODD_ENTRIES = {
    "no field of ours": lambda turn: [b"z", b"1"],
    "a damaged row": lambda turn: [b"r", b"\x01\x94"],
    "a row that is no entry": lambda turn: [b"r", encode([1, 2])],
    "a damaged extra": lambda turn: [b"r", row_of(turn), b"x", b"\x01\x91"],
    "an extra that is none": lambda turn: [b"r", row_of(turn), b"x", encode("durable")],
    "an extra of another length": lambda turn: [b"r", row_of(turn), b"x", encode(["durable", {}, 1])],
    "a damaged node": lambda turn: [b"n", b"\x01\xc1"],
    "a node that is none": lambda turn: [b"n", encode([1])],
    "a node with keys that are no names": lambda turn: [b"n", encode({1: 2})],
    "a node without a label": lambda turn: [b"n", encode({"tenant_id": "acme"})],
    "a node of importance 11": lambda turn: [b"n", encode({**NODE.model_dump(exclude={"layer"}), "importance": 11})],
}


@pytest.mark.parametrize("fields", ODD_ENTRIES.values(), ids=ODD_ENTRIES)
async def test_a_damaged_entry_of_the_mirror_is_skipped_and_left_where_it_is(redis, scope, turn, fields, caplog):
    graph = StreamGraphStore(redis)
    layer = WorkingLayer(redis, graph_store=graph)
    key = scope_keys(redis.prefix, scope).graph("working")
    await layer.push(scope, turn("before"))
    at = (await redis.call("test", "XADD", key, "*", *fields(turn))).decode()
    await layer.push(scope, turn("after"))
    name = f"{at}.working.{scope_keys(redis.prefix, scope).digest}"
    for _ in range(2):
        assert [node.label for node in await graph.query_nodes(scope)] == ["before", "after"]
        assert await graph.get_node(scope, name) is None
    (record,) = caplog.records
    assert f"row {at} of {key} " in record.getMessage()
    assert await graph.count(scope) == 3
    with pytest.raises(CodecError, match=rf"^row {at} of {re.escape(key)} cannot be read"):
        await StreamGraphStore(redis, strict=True).query_nodes(scope)


async def test_an_entry_of_an_impossible_time_does_not_take_the_mirror_down(redis, scope, turn):
    graph = StreamGraphStore(redis)
    await WorkingLayer(redis, graph_store=graph).push(scope, turn("before"))
    key = scope_keys(redis.prefix, scope).graph("working")
    await redis.call("test", "XADD", key, "18446744073709551614-1", "r", row_of(turn))
    assert [node.label for node in await graph.query_nodes(scope)][:1] == ["before"]


async def test_a_mirror_that_takes_no_more_nodes_leaves_the_window_as_it_was(redis, scope, turn):
    # The last id there is: the server refuses every XADD after it.
    layer = WorkingLayer(redis, graph_store=StreamGraphStore(redis))
    await layer.push(scope, turn())
    last = f"{2**64 - 1}-{2**64 - 1}"
    await redis.call("test", "XADD", scope_keys(redis.prefix, scope).graph("working"), last, "z", "1")
    before = await snapshot(redis)
    with pytest.raises(ServerRefused):
        await layer.push(scope, turn(), idempotency_key="job")
    # The index is told first: it may name a scope that gets nothing, never miss one that has something.
    index = scope_keys(redis.prefix, scope).shared.scopes.encode()
    after = await snapshot(redis)
    assert {**after, index: None} == {**before, index: None}


# --- keys of another type ---

KEYS = {
    "turns": lambda keys: keys.turns,
    "ops": lambda keys: keys.ops,
    "ops:old": lambda keys: keys.ops_old,
    "graph": lambda keys: keys.graph("working"),
    "idem": lambda keys: keys.idem,
}


@pytest.mark.parametrize("chosen", KEYS.values(), ids=KEYS)
async def test_a_push_over_a_foreign_key_names_it_and_writes_nothing(redis, scope, turn, chosen):
    layer = WorkingLayer(redis, graph_store=StreamGraphStore(redis))
    key = chosen(scope_keys(redis.prefix, scope))
    await layer.push(scope, turn(), idempotency_key="before")
    await redis.call("test", "DEL", key)
    await redis.call("test", "SET", key, "not ours")
    await _a_generation_came_before(redis, scope)
    before = await snapshot(redis)
    for entries in ([turn()], [turn(), turn()]):
        with pytest.raises(KeyConflict, match=re.escape(key)) as refused:
            await layer.push_many(scope, entries, idempotency_key="job")
        assert "nothing was written" in str(refused.value)
        assert "holds a string" in str(refused.value)
    assert await snapshot(redis) == before
    await redis.call("test", "DEL", key)
    assert not (await layer.push(scope, turn(), idempotency_key="job")).duplicate


async def _a_generation_came_before(redis, scope):
    """Operation ids of the generation before are asked for where there was one."""
    ops = scope_keys(redis.prefix, scope).ops
    if await redis.call("test", "TYPE", ops) == b"hash":
        await redis.call("test", "HDEL", ops, "old")


async def test_a_foreign_key_in_the_place_of_older_ids_stops_what_would_replace_it(redis, scope, turn):
    layer = WorkingLayer(redis, graph_store=StreamGraphStore(redis))
    keys = scope_keys(redis.prefix, scope)
    await layer.push(scope, turn())
    await redis.call("test", "SET", keys.ops_old, "not ours")
    # No generation came before, so none is asked.
    await layer.push(scope, turn())
    await redis.call("test", "HSET", keys.ops, "born", "1000")
    before = await snapshot(redis)
    for call in (layer.push(scope, turn()), layer.clear(scope)):
        with pytest.raises(KeyConflict, match=re.escape(keys.ops_old)):
            await call
    assert await snapshot(redis) == before


@pytest.mark.parametrize("name", ["turns", "ops", "ops:old"])
async def test_any_other_write_over_a_foreign_key_names_it_and_writes_nothing(redis, scope, name):
    graph = StreamGraphStore(redis)
    layer = WorkingLayer(redis, graph_store=graph)
    keys = scope_keys(redis.prefix, scope)
    key = KEYS[name](keys)
    await redis.call("test", "SADD", key, "not ours")
    before = await snapshot(redis)
    calls = [layer.clear(scope), layer.rehydrate_from_messages(scope, [{"role": "user", "content": "hello"}])]
    if name != "turns":
        calls.append(graph.add_node(scope, NODE))
    for call in calls:
        with pytest.raises(KeyConflict, match=re.escape(key)):
            await call
    assert await snapshot(redis) == before


async def test_reading_a_foreign_key_names_it(redis, scope):
    graph = StreamGraphStore(redis)
    layer = WorkingLayer(redis, graph_store=graph)
    keys = scope_keys(redis.prefix, scope)
    await redis.call("test", "SET", keys.turns, "not ours")
    await redis.call("test", "SET", keys.graph("working"), "not ours")
    for call in (layer.get_context(scope), layer.push_many(scope, [])):
        with pytest.raises(KeyConflict, match=re.escape(keys.turns)):
            await call
    node = f"1-1.working.{keys.digest}"
    calls = (graph.query_nodes(scope), graph.count(scope), graph.get_node(scope, node), layer.delete(scope, node))
    for call in (*calls, graph.add_node(scope, NODE)):
        with pytest.raises(KeyConflict, match=re.escape(keys.graph("working"))):
            await call
    assert await keys_of(redis) == {keys.turns.encode(), keys.graph("working").encode()}


async def test_a_foreign_key_beside_what_a_call_needs_does_not_matter(redis, scope, turn):
    keys = scope_keys(redis.prefix, scope)
    for key in (keys.graph("working"), keys.idem):
        await redis.call("test", "SET", key, "not ours")
    layer = WorkingLayer(redis)
    await layer.push(scope, turn())
    assert len(await layer.get_context(scope)) == 1
    await layer.clear(scope)
    assert await redis.call("test", "GET", keys.graph("working")) == b"not ours"


@pytest.mark.parametrize("name", ["ops", "ops_old", "closed", "scopes", "tenants", "feed", "feed_seq"])
async def test_a_shared_key_of_another_type_stops_every_write_before_it_writes(server, prefix, scope, turn, name):
    async with connect(server.url, prefix=prefix, feed=10) as redis:
        graph = StreamGraphStore(redis)
        layer = WorkingLayer(redis, graph_store=graph)
        await layer.push(scope, turn())
        (node,) = await graph.query_nodes(scope)
        keys = scope_keys(prefix, scope)
        key = getattr(keys, name, None) or getattr(keys.shared, name)
        await redis.call("test", "DEL", key)
        await redis.call("test", "LPUSH" if name != "ops" else "SADD", key, "not ours")
        await _a_generation_came_before(redis, scope)
        content = [keys.turns, keys.graph("working"), keys.edits("working"), keys.graph("semantic")]
        before = [await redis.call("test", "DUMP", one) for one in content]
        calls = {
            "push": layer.push(scope, turn()),
            "rehydrate": layer.rehydrate_from_messages(scope, [{"role": "user", "content": "x"}], only_if_empty=False),
            "clear": layer.clear(scope),
            "add": graph.add_node(scope, NODE),
            "update": graph.update_node(scope, node.id, {"a": 1}),
            "delete": graph.delete_node(scope, node.id),
        }
        # An index of scopes that exist already is not looked at by what neither adds a scope nor removes one.
        spared = {"scopes": {"clear", "update", "delete"}, "tenants": set(calls)}.get(name, set())
        for what, call in calls.items():
            if what in spared:
                call.close()
                continue
            with pytest.raises(KeyConflict):
                await call
        assert [await redis.call("test", "DUMP", one) for one in content] == before


async def test_a_scopes_first_write_beside_a_tenants_key_of_another_type_leaves_no_trace(server, prefix, scope, turn):
    async with connect(server.url, prefix=prefix, feed=10) as redis:
        await redis.call("test", "LPUSH", scope_keys(prefix, scope).shared.tenants, "not ours")
        layer = WorkingLayer(redis, graph_store=StreamGraphStore(redis))
        before = await dump(redis, f"{prefix}:*")
        for call in (
            layer.push(scope, turn()),
            layer.rehydrate_from_messages(scope, [{"role": "user", "content": "x"}]),
            StreamGraphStore(redis).add_node(scope, NODE),
            RedisMemoryWriter(layer).write(WriteRequest(scope, [MemoryRecord(scope=scope, content="x")])),
        ):
            with pytest.raises(KeyConflict):
                await call
        assert await dump(redis, f"{prefix}:*") == before
