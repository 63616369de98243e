"""The graph store as the reference system's consumers use it: updates, deletion, order, retention."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from symfonic_redis import (
    ConfigurationError,
    InvalidInput,
    MemoryLayer,
    MemoryNode,
    NodeNotFound,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    connect,
)
from symfonic_redis.keys import scope_keys


@pytest.fixture
def graph(redis):
    return StreamGraphStore(redis)


async def mirrored(redis, graph, scope, turn, count=1, **options):
    """Push `count` turns; return the layer."""
    layer = WorkingLayer(redis, graph_store=graph, **options)
    for _ in range(count):
        await layer.push(scope, turn())
    return layer


async def test_an_update_changes_what_it_names_and_nothing_else(redis, graph, scope, turn):
    await mirrored(redis, graph, scope, turn)
    (before,) = await graph.query_nodes(scope)
    after = await graph.update_node(
        scope, before.id, {"durability": "expired", "colour": "blue", "access_count": 3, "importance": 9}
    )
    assert (after.durability, after.access_count, after.importance) == ("expired", 3, 9)
    assert after.properties == {**before.properties, "durability": "expired", "colour": "blue"}
    assert (after.id, after.label, after.created_at) == (before.id, before.label, before.created_at)
    assert after.updated_at >= before.updated_at
    assert await graph.get_node(scope, before.id) == after
    assert await graph.query_nodes(scope) == [after]


async def test_updates_of_different_names_at_once_all_stay(redis, graph, scope, turn):
    await mirrored(redis, graph, scope, turn)
    (node,) = await graph.query_nodes(scope)
    await asyncio.gather(*(graph.update_node(scope, node.id, {f"k {number}/ñ": number}) for number in range(50)))
    (node,) = await graph.query_nodes(scope)
    assert {name: value for name, value in node.properties.items() if name.startswith("k ")} == {
        f"k {number}/ñ": number for number in range(50)
    }


async def test_a_later_update_wins(redis, graph, scope, turn):
    await mirrored(redis, graph, scope, turn)
    (node,) = await graph.query_nodes(scope)
    for colour in ("blue", "red"):
        node = await graph.update_node(scope, node.id, {"colour": colour, "properties": {"nested": [1, {2: 3}]}})
    assert (node.properties["colour"], node.properties["nested"]) == ("red", [1, {2: 3}])
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    node = await graph.update_node(scope, node.id, {"updated_at": noon.isoformat()})
    assert node.updated_at == noon


@pytest.mark.parametrize(
    "change",
    [
        {"id": "x"},
        {"layer": "semantic"},
        {"tenant_id": "t"},
        {"importance": 11},
        {"access_count": -1},
        {"label": ""},
        {"durability": "sometimes"},
        {"properties": 3},
        {"bad": object()},
    ],
)
async def test_a_change_that_cannot_be_is_refused(one_redis, scope, turn, change):
    graph = StreamGraphStore(one_redis)
    await mirrored(one_redis, graph, scope, turn)
    (node,) = await graph.query_nodes(scope)
    with pytest.raises(InvalidInput):
        await graph.update_node(scope, node.id, {"fine": 1, **change})
    assert await graph.query_nodes(scope) == [node]


async def test_an_unknown_node_is_none_to_get_nothing_to_delete_and_an_error_to_change(redis, graph, scope, turn):
    await mirrored(redis, graph, scope, turn)
    (node,) = await graph.query_nodes(scope)
    other = scope.child("part", "1")
    at, _, digest = node.id.split(".")
    for name in ("", "x", "1-1", f"1-1.working.{digest}", f"{at}.semantic.{digest}", f"{at}.nonsense.{digest}"):
        assert await graph.get_node(scope, name) is None
        await graph.delete_node(scope, name)
        with pytest.raises(NodeNotFound, match="no such node"):
            await graph.update_node(scope, name, {"a": 1})
    for call in (graph.get_node(other, node.id), graph.delete_node(other, node.id)):
        assert await call is None
    with pytest.raises(KeyError):
        await graph.update_node(other, node.id, {"a": 1})
    assert await graph.query_nodes(scope) == [node]


async def test_what_was_changed_of_a_node_goes_with_it(redis, graph, scope, turn):
    layer = await mirrored(redis, graph, scope, turn, 6, working_graph_retention=6)
    key = scope_keys(redis.prefix, scope).edits("working")
    nodes = await graph.query_nodes(scope)
    for node in nodes:
        await graph.update_node(scope, node.id, {"seen": True, "access_count": 1})
    assert await redis.call("test", "HLEN", key) == 6 * 4
    await graph.delete_node(scope, nodes[5].id)
    assert await redis.call("test", "HLEN", key) == 5 * 4
    for _ in range(3):  # 5 nodes are left of 6 that may be: two go
        await layer.push(scope, turn())
    assert await redis.call("test", "HLEN", key) == 3 * 4
    await layer.clear(scope)
    assert await redis.call("test", "EXISTS", key) == 0


async def test_a_lowered_cap_drops_the_edits_of_many_nodes_at_once(redis, graph, scope, turn):
    layer = WorkingLayer(redis, graph_store=graph)
    await layer.push_many(scope, [turn() for _ in range(200)])
    nodes = await graph.query_nodes(scope)
    for node in (nodes[0], nodes[100], nodes[199]):
        await graph.update_node(scope, node.id, {"seen": True})
    small = WorkingLayer(redis, graph_store=graph, working_graph_retention=2)
    await small.push(scope, turn())
    left = await graph.query_nodes(scope)
    assert [node.properties.get("seen") for node in left] == [True, None]
    assert await redis.call("test", "HLEN", scope_keys(redis.prefix, scope).edits("working")) == 3


async def test_newest_first_reads_from_the_end(redis, graph, scope, turn):
    await mirrored(redis, graph, scope, turn, 5)
    newest = await graph.query_nodes(scope, layer="working", newest_first=True, limit=2)
    assert [node.label for node in newest] == ["turn 5", "turn 4"]
    assert [node.label async for node in graph.nodes(scope, "working", newest_first=True)] == [
        f"turn {number}" for number in (5, 4, 3, 2, 1)
    ]


async def test_newest_first_pages_through_a_long_stream(one_redis, scope, turn):
    graph = StreamGraphStore(one_redis)
    await WorkingLayer(one_redis, graph_store=graph).push_many(scope, [turn() for _ in range(1203)])
    backwards = await graph.query_nodes(scope, newest_first=True)
    assert backwards == (await graph.query_nodes(scope))[::-1]
    assert len(backwards) == 1203


async def test_nodes_of_all_layers_come_in_the_order_of_their_writing(redis, graph, scope, turn):
    layers = [MemoryLayer.SEMANTIC, MemoryLayer.WORKING, MemoryLayer.EPISODIC, MemoryLayer.SEMANTIC]
    for number, layer in enumerate(layers):
        await graph.add_node(scope, MemoryNode(layer=layer, tenant_id="acme", label=f"n{number}"))
        await asyncio.sleep(0.002)  # ids of different streams are only ordered across milliseconds
    found = await graph.query_nodes(scope)
    assert [node.label for node in found] == ["n0", "n1", "n2", "n3"]
    assert [node.label for node in await graph.query_nodes(scope, newest_first=True, limit=2)] == ["n3", "n2"]
    assert [node.label for node in await graph.query_nodes(scope, layer=MemoryLayer.SEMANTIC)] == ["n0", "n3"]


async def test_filters_look_at_attributes_and_properties(redis, graph, scope):
    for number in range(4):
        node = MemoryNode(
            layer=MemoryLayer.SEMANTIC,
            tenant_id="acme",
            label=f"fact {number % 2}",
            properties={"n": number, "none": None},
            importance=number + 1,
        )
        await graph.add_node(scope, node)
    query = graph.query_nodes
    assert [node.properties["n"] for node in await query(scope, label="fact 1")] == [1, 3]
    assert [node.properties["n"] for node in await query(scope, label_prefix="fact", limit=3)] == [0, 1, 2]
    assert [node.properties["n"] for node in await query(scope, filters={"importance": 2})] == [1]
    assert [node.properties["n"] for node in await query(scope, filters={"n": 2, "label": "fact 0"})] == [2]
    assert await query(scope, filters={"missing": None}) == []
    assert len(await query(scope, filters={"none": None})) == 4
    assert await query(scope, limit=0) == []
    assert len(await query(scope, {"layer": "semantic", "label_prefix": "fact"})) == 4
    with pytest.raises(InvalidInput, match="unknown layer"):
        await query(scope, layer="profile")


async def test_edges_are_none_and_cannot_be_added(one_redis, scope, turn):
    graph = StreamGraphStore(one_redis)
    await mirrored(one_redis, graph, scope, turn)
    (node,) = await graph.query_nodes(scope)
    assert await graph.get_neighbors(scope, node.id) == []
    assert await graph.traverse(scope, node.id, 3) == [node]
    assert await graph.query_edges(scope) == []
    with pytest.raises(ConfigurationError, match="no edges"):
        await graph.add_edge(scope, object())


async def test_it_serves_as_the_backend_of_the_reference_systems_graph_store(redis, graph, turn):
    store = pytest.importorskip("symfonic.memory.graph.store")
    reference_scope = pytest.importorskip("symfonic.core.scope").TenantScope
    reference_node = pytest.importorskip("symfonic.memory.models.node").MemoryNode
    original = store.GraphMemoryStore(graph)
    scope = reference_scope.root("org", "acme").child("conversation", "c-1")
    added = await original.add_node(scope, reference_node(layer="semantic", tenant_id="acme", label="likes tea"))
    read = await original.get_node(scope, added.id)
    assert (read.label, read.access_count) == ("likes tea", 1)
    assert [node.id for node in await original.query_nodes(scope, label_prefix="likes", limit=5)] == [added.id]
    await original.update_node(scope, added.id, {"durability": "transient"})
    assert (await original.get_node(scope, added.id)).durability == "transient"
    assert (await original.distinct_labels(scope))[0]["count"] == 1
    await original.delete_node(scope, added.id)
    assert await original.get_node(scope, added.id) is None


async def test_the_edits_live_as_long_as_their_stream(redis, scope, turn):
    graph = StreamGraphStore(redis, ttl=100)
    layer = await mirrored(redis, graph, scope, turn)
    (node,) = await graph.query_nodes(scope)
    await graph.update_node(scope, node.id, {"seen": True})
    key = scope_keys(redis.prefix, scope).edits("working")
    assert 0 < await redis.call("test", "PTTL", key) <= 100_000
    longer = WorkingLayer(redis, graph_store=StreamGraphStore(redis, ttl=1000))
    await longer.push(scope, turn())
    assert 100_000 < await redis.call("test", "PTTL", key) <= 1_000_000
    assert await layer.get_context(scope)


async def test_retention_holds_under_load(valkey, prefix, scope, turn):
    """16 writers on one scope: never more than the cap, and at the end the newest of the server's order."""
    cap, each = 100, 250
    async with connect(valkey.url, prefix=prefix) as redis:
        graph = StreamGraphStore(redis)
        layer = WorkingLayer(redis, 10, graph, working_graph_retention=cap, evicted_retention=16 * each)
        longest = 0
        done = asyncio.Event()

        async def watch():
            nonlocal longest
            while not done.is_set():
                longest = max(longest, await graph.count(scope))

        async def write(writer):
            for number in range(each):
                await layer.push(scope, turn(f"{writer}:{number}"))

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(write(writer) for writer in range(16)))
        done.set()
        await watching
        wide = WorkingLayer(redis, 16 * each, evicted_retention=0)
        order = [entry.content for entry in await wide.get_context(scope)]
        assert len(order) == 16 * each
        assert [node.label for node in await graph.query_nodes(scope)] == order[-cap:]
        assert longest == cap


async def test_scopes_that_are_alike_share_no_node(redis, graph):
    alike = [TenantScope.root("org", "a"), TenantScope.root("org", "a").child("b", "c"), TenantScope.root("org", "a/b")]
    for scope in alike:
        await graph.add_node(scope, MemoryNode(layer="semantic", tenant_id=scope.tenant_id, label=scope.scope_path))
    for scope in alike:
        assert [node.label for node in await graph.query_nodes(scope)] == [scope.scope_path]
