"""The graph store: nodes in streams, found by scope, layer, label and filter, and deleted by id alone."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace

import pytest
from seen import keys_of

from symfonic_redis import (
    ConfigurationError,
    InvalidInput,
    MemoryEntry,
    MemoryLayer,
    MemoryNode,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
)
from symfonic_redis.keys import scope_keys

OTHERS = [
    TenantScope.root("org", "acme"),
    TenantScope.root("org", "acme").child("conversation", "c-123").child("part", "p"),
    TenantScope.root("org", "acme").child("conversation", "c-12"),
]


def node_of(label: str = "x", layer: MemoryLayer = MemoryLayer.SEMANTIC, **values: object) -> MemoryNode:
    return MemoryNode(**{"layer": layer, "tenant_id": "acme", "label": label, **values})


def labels(nodes) -> list[str]:
    return [node.label for node in nodes]


async def test_a_node_comes_back_under_the_id_it_was_given(redis, scope):
    graph = StreamGraphStore(redis)
    node = node_of(
        "ü\x00",
        properties={"a": [1, (2,), None], "b": {"c": Decimal("1.5")}, "when": datetime(2024, 1, 1, tzinfo=UTC)},
        embedding=[0.5, -1.0],
        importance=7.5,
        access_count=3,
        spreading_access_count=4,
    )
    stored = await graph.add_node(scope, node)
    assert stored == node.model_copy(update={"id": stored.id})
    assert stored.id != node.id
    assert await graph.get_node(scope, stored.id) == stored
    assert await graph.query_nodes(scope) == [stored]


async def test_a_node_of_another_package_is_stored_by_its_attributes(redis, scope):
    reason = "the reference package symfonic-core is not installed"
    models = pytest.importorskip("symfonic.memory.models.node", reason=reason)
    types = pytest.importorskip("symfonic.memory.types", reason=reason)
    theirs = models.MemoryNode(layer=types.MemoryLayer.EPISODIC, tenant_id="acme", label="x", properties={"a": 1})
    graph = StreamGraphStore(redis)
    stored = await graph.add_node(scope, theirs)
    assert (stored.layer, stored.properties) == (MemoryLayer.EPISODIC, {"a": 1})
    assert await graph.query_nodes(scope, types.MemoryLayer.EPISODIC) == [stored]


async def test_nodes_of_all_layers_come_in_the_order_they_were_added(redis, scope):
    graph = StreamGraphStore(redis)
    layers = [*MemoryLayer, *reversed(MemoryLayer)]
    for number, layer in enumerate(layers):
        await graph.add_node(scope, node_of(str(number), layer))
        await asyncio.sleep(0.002)  # streams agree on the order of milliseconds only
    assert labels(await graph.query_nodes(scope)) == [str(number) for number in range(len(layers))]
    for layer in MemoryLayer:
        expected = [str(number) for number, one in enumerate(layers) if one is layer]
        assert labels(await graph.query_nodes(scope, layer)) == expected
        assert labels(await graph.query_nodes(scope, layer.value)) == expected
        assert await graph.count(scope, layer) == 2


async def test_nodes_are_found_by_label_prefix_and_filters(redis, scope):
    graph = StreamGraphStore(redis)
    for number, label in enumerate(["order", "order 7", "refund", "Order"]):
        properties = {"n": number, "even": number % 2 == 0}
        await graph.add_node(scope, node_of(label, properties=properties, importance=number + 1))
    find = graph.query_nodes
    assert labels(await find(scope, label="order")) == ["order"]
    assert labels(await find(scope, label_prefix="order")) == ["order", "order 7"]
    assert labels(await find(scope, label="order", label_prefix="refund")) == []
    assert labels(await find(scope, label_prefix="")) == ["order", "order 7", "refund", "Order"]
    assert labels(await find(scope, filters={"even": True})) == ["order", "refund"]
    assert labels(await find(scope, filters={"even": True, "n": 2})) == ["refund"]
    assert labels(await find(scope, filters={"importance": 4})) == ["Order"]
    assert labels(await find(scope, filters={"missing": 1})) == []
    assert len(await find(scope, filters={})) == 4
    assert labels(await find(scope, MemoryLayer.SEMANTIC, None, "order", {"n": 1}, 5)) == ["order 7"]
    assert await find(scope, MemoryLayer.WORKING, label="order") == []


@pytest.mark.parametrize(("limit", "found"), [(None, 4), (0, 0), (-1, 0), (1, 1), (3, 3), (4, 4), (99, 4)])
async def test_at_most_so_many_are_found_and_the_oldest_of_them(redis, scope, limit, found):
    graph = StreamGraphStore(redis)
    for number in range(4):
        await graph.add_node(scope, node_of(f"a{number}"))
    expected = [f"a{number}" for number in range(found)]
    assert labels(await graph.query_nodes(scope, limit=limit)) == expected
    assert labels(await graph.query_nodes(scope, MemoryLayer.SEMANTIC, label_prefix="a", limit=limit)) == expected


async def test_a_limit_counts_what_matches_over_all_layers(redis, scope):
    graph = StreamGraphStore(redis)
    for number, layer in enumerate((MemoryLayer.WORKING, MemoryLayer.SEMANTIC, MemoryLayer.WORKING)):
        await graph.add_node(scope, node_of(f"a{number}", layer))
        await graph.add_node(scope, node_of("other", layer))
        await asyncio.sleep(0.002)
    assert labels(await graph.query_nodes(scope, label_prefix="a", limit=2)) == ["a0", "a1"]


async def test_more_nodes_than_a_page_are_read_page_by_page(redis, scope, turn):
    graph = StreamGraphStore(redis)
    layer = WorkingLayer(redis, graph_store=graph)
    await layer.push_many(scope, [turn() for _ in range(1_203)])
    expected = [f"turn {number}" for number in range(1, 1_204)]
    nodes = await graph.query_nodes(scope)
    assert labels(nodes) == expected
    assert len({node.id for node in nodes}) == 1_203
    assert labels([node async for node in graph.nodes(scope, "working")]) == expected
    assert labels(await graph.query_nodes(scope, limit=501)) == expected[:501]
    assert labels(await graph.query_nodes(scope, label="turn 1203")) == ["turn 1203"]
    assert await graph.count(scope) == 1_203


@pytest.mark.parametrize("count", [499, 500, 501, 1000])
async def test_a_page_that_is_just_full_is_not_the_end(one_redis, scope, turn, count):
    graph = StreamGraphStore(one_redis)
    await WorkingLayer(one_redis, graph_store=graph).push_many(scope, [turn() for _ in range(count)])
    assert len(await graph.query_nodes(scope, MemoryLayer.WORKING)) == count


async def test_a_node_is_deleted_once_and_alone(redis, scope):
    graph = StreamGraphStore(redis)
    first, second, third = [await graph.add_node(scope, node_of(str(number))) for number in range(3)]
    for _ in range(2):
        await graph.delete_node(scope, second.id)
        assert await graph.query_nodes(scope) == [first, third]
        assert await graph.get_node(scope, second.id) is None
    assert await graph.count(scope, MemoryLayer.SEMANTIC) == 2


async def test_an_unknown_id_is_no_node_and_deletes_nothing(redis, scope):
    graph = StreamGraphStore(redis)
    node = await graph.add_node(scope, node_of())
    at, digest = node.id.split(".")[0], scope_keys(redis.prefix, scope).digest
    unknown = [
        "",
        "unknown",
        at,
        f"{at}.semantic",
        f"{at}.working.{digest}",
        f"{at}.nonsense.{digest}",
        f"{at}.semantic.{'0' * 16}",
        f"{at}.semantic.{digest.upper()}x",
        f" {node.id}",
        f"{node.id}\n",
        f"{node.id}.x",
        f"0-0.semantic.{digest}",
        f"-.semantic.{digest}",
        f"{'9' * 30}-1.semantic.{digest}",
        f"1-{'9' * 30}.semantic.{digest}",
        f"\u0661-\u0661.semantic.{digest}",  # digits, but not of a stream id
        f"0{node.id}",  # the same number in another spelling is another id
        "\ud800",
        "*",
        "x" * 100_000,
    ]
    for name in unknown:
        assert await graph.get_node(scope, name) is None, name[:60]
        await graph.delete_node(scope, name)
    assert await graph.query_nodes(scope) == [node]


async def test_another_scopes_node_is_unknown(redis, scope):
    graph = StreamGraphStore(redis)
    node = await graph.add_node(scope, node_of())
    for other in OTHERS:
        assert await graph.get_node(other, node.id) is None
        assert await graph.query_nodes(other) == []
        await graph.delete_node(other, node.id)
        await WorkingLayer(redis, graph_store=graph).delete(other, node.id)
    assert await graph.get_node(scope, node.id) == node


async def test_no_two_nodes_share_an_id_across_scopes_and_layers(redis, scope, turn):
    graph = StreamGraphStore(redis)
    layer = WorkingLayer(redis, graph_store=graph)
    scopes = [scope, *OTHERS]
    adds = [graph.add_node(one, node_of(layer=name)) for one in scopes for name in MemoryLayer for _ in range(5)]
    pushes = [layer.push_many(one, [turn(), turn(), turn()]) for one in scopes for _ in range(5)]
    nodes, receipts = await asyncio.gather(asyncio.gather(*adds), asyncio.gather(*pushes))
    ids = [node.id for node in nodes] + [name for receipt in receipts for name in receipt.node_ids]
    assert len(set(ids)) == len(ids) == len(scopes) * (25 + 15)
    for one in scopes:
        for node in await graph.query_nodes(one):
            assert await graph.get_node(one, node.id) == node


async def test_an_id_is_not_given_again_after_a_clear(redis, scope, turn):
    layer = WorkingLayer(redis, graph_store=StreamGraphStore(redis))
    seen = set()
    for _ in range(20):
        seen.add((await layer.push(scope, turn())).node_id)
        await layer.clear(scope)
    assert len(seen) == 20


@pytest.mark.parametrize(
    "values",
    [
        {"tenant_id": "other"},
        {"properties": {"a": {1}}},
        {"properties": {7: "x"}},
        {"layer": "nonsense"},
        {"label": object},
        {"label": ""},
        {"importance": 11},
        {"access_count": -1},
        {"embedding": "x"},
    ],
    ids=str,
)
async def test_a_node_that_is_refused_leaves_nothing_behind(redis, scope, values):
    graph = StreamGraphStore(redis)
    with pytest.raises(ValueError):
        await graph.add_node(scope, SimpleNamespace(**{**vars(node_of()), **values}))
    assert await keys_of(redis) == set()


async def test_what_is_no_node_is_refused(redis, scope):
    graph = StreamGraphStore(redis)
    for thing in (
        None,
        "x",
        SimpleNamespace(tenant_id="acme", layer="working"),
        MemoryEntry(tenant_id="acme", content=""),
    ):
        with pytest.raises(InvalidInput):
            await graph.add_node(scope, thing)
    assert await keys_of(redis) == set()


async def test_a_node_over_the_size_of_a_row_is_refused(redis, scope):
    with pytest.raises(InvalidInput, match="limit"):
        await StreamGraphStore(redis).add_node(scope, node_of(properties={"a": "x" * redis.max_row_bytes}))
    assert await keys_of(redis) == set()


async def test_an_unknown_layer_is_a_value_error(one_redis, scope):
    graph = StreamGraphStore(one_redis)
    for call in (graph.query_nodes(scope, "nonsense"), graph.count(scope, "nonsense")):
        with pytest.raises(ValueError):
            await call


async def test_a_store_that_makes_no_sense_is_refused(one_redis):
    for ttl in (0, -1, float("nan"), "60"):
        with pytest.raises(ConfigurationError, match="ttl"):
            StreamGraphStore(one_redis, ttl=ttl)
    with pytest.raises(ConfigurationError):
        StreamGraphStore("redis://localhost")


async def test_a_mirrored_turn_is_a_node_among_others(redis, scope):
    graph = StreamGraphStore(redis)
    entry = MemoryEntry(tenant_id="acme", content="hello")
    receipt = await WorkingLayer(redis, graph_store=graph).push(scope, entry)
    other = await graph.add_node(scope, node_of("by hand", MemoryLayer.WORKING))
    assert [node.id for node in await graph.query_nodes(scope, MemoryLayer.WORKING)] == [receipt.node_id, other.id]
