"""fake:// behaves as the real servers do, so that a user's unit tests need none."""

from __future__ import annotations

import pytest
from seen import texts

from symfonic_redis import InvalidInput, KeyConflict, StreamGraphStore, WorkingLayer, connect
from symfonic_redis.keys import scope_keys

pytest.importorskip("fakeredis", reason="fakeredis is not installed")


@pytest.fixture
async def fake():
    async with connect("fake://") as deployment:
        yield deployment


async def test_a_conversation_from_its_first_turn_to_its_end(fake, scope, turn):
    graph = StreamGraphStore(fake, ttl=100)
    layer = WorkingLayer(
        fake, max_entries=3, evicted_retention=2, graph_store=graph, working_graph_retention=4, ttl=100
    )
    receipt = await layer.push_many(scope, [turn() for _ in range(5)], durability="transient")
    assert (receipt.window_length, receipt.evicted, len(receipt.node_ids)) == (3, 2, 4)
    assert (await layer.push(scope, turn(), idempotency_key="job")).evicted == 1
    assert (await layer.push(scope, turn(), idempotency_key="job")).duplicate
    assert texts(await layer.get_context(scope)) == ["turn 4", "turn 5", "turn 6"]
    assert await fake.call("test", "LLEN", scope_keys(fake.prefix, scope).turns) == 6
    nodes = await graph.query_nodes(scope)
    assert [node.label for node in nodes] == ["turn 3", "turn 4", "turn 5", "turn 6"]
    assert nodes[0].durability == "transient"
    await layer.delete(scope, nodes[0].id)
    assert await graph.count(scope) == 3
    await layer.clear(scope)
    assert await layer.get_context(scope) == await graph.query_nodes(scope) == []
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    assert await layer.rehydrate_from_messages(scope, messages) == 2
    assert await layer.rehydrate_from_messages(scope, messages) == 0
    assert texts(await layer.get_context(scope)) == ["hello", "hi"]


async def test_what_is_refused_is_refused_there_too(fake, scope, turn):
    layer = WorkingLayer(fake)
    with pytest.raises(InvalidInput):
        await layer.push(scope, turn(metadata={"a": {1}}))
    await fake.call("test", "SET", scope_keys(fake.prefix, scope).turns, "not ours")
    with pytest.raises(KeyConflict, match="turns"):
        await layer.push(scope, turn())


async def test_a_name_is_shared_and_no_name_is_private(scope, turn, prefix):
    async with connect(f"fake://{prefix}") as one, connect(f"fake://{prefix}") as same, connect("fake://") as other:
        await WorkingLayer(one).push(scope, turn())
        assert len(await WorkingLayer(same).get_context(scope)) == 1
        assert await WorkingLayer(other).get_context(scope) == []
