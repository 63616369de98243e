"""A mirror that is not ours is called after the push; whatever it does, the conversation goes on."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from seen import texts

from symfonic_redis import MemoryEntry, MemoryLayer, StreamGraphStore, TenantScope, WorkingLayer, connect


class Backend:
    """Shows a scope its parents' nodes too, as the reference package's backends do."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[str, object]] = {}

    async def add_node(self, scope, node):
        node.properties["scope_path"] = scope.scope_path
        self.nodes[node.id] = (scope.scope_path, node)
        return node

    async def query_nodes(self, scope, layer=None):
        return [node for path, node in self.nodes.values() if path in scope.ancestor_prefix_paths()]

    async def delete_node(self, scope, node_id):
        self.nodes.pop(node_id, None)

    def labels(self, scope) -> list[str]:
        return [node.label for path, node in self.nodes.values() if path == scope.scope_path]


class Failing(Backend):
    async def add_node(self, *_, **__):
        raise RuntimeError("down")

    query_nodes = delete_node = add_node


class FailingAtOnce:
    """Raises before there is anything to await."""

    def add_node(self, *_, **__):
        raise RuntimeError("down")

    query_nodes = delete_node = add_node


class NotAsync:
    """Answers, but with nothing that could be awaited."""

    def add_node(self, *_, **__):
        return None

    query_nodes = delete_node = add_node


async def test_turns_are_added_after_the_window(one_redis, scope, turn):
    backend = Backend()
    layer = WorkingLayer(one_redis, max_entries=2, graph_store=backend)
    for _ in range(3):
        receipt = await layer.push(scope, turn(importance=7), durability="transient")
    assert texts(await layer.get_context(scope)) == ["turn 2", "turn 3"]
    assert backend.labels(scope) == ["turn 1", "turn 2", "turn 3"]
    node = backend.nodes[receipt.node_id][1]
    assert (node.layer, node.importance, node.durability) == (MemoryLayer.WORKING, 7, "transient")


@pytest.mark.parametrize("kept", [0, 2])
async def test_only_this_scopes_nodes_are_pruned_and_cleared(one_redis, scope, turn, kept):
    backend = Backend()
    layer = WorkingLayer(one_redis, graph_store=backend, working_graph_retention=kept)
    parent = TenantScope.root("org", "acme")
    await WorkingLayer(one_redis, graph_store=backend).push_many(parent, [turn("parent's")] * 3)
    for _ in range(4):
        await layer.push(scope, turn())
    assert len(backend.labels(scope)) == kept
    assert len(backend.labels(parent)) == 3
    await layer.clear(scope)
    assert (len(backend.labels(scope)), len(backend.labels(parent))) == (0, 3)
    assert await layer.get_context(scope) == []


async def test_a_redelivered_turn_is_added_once(one_redis, scope, turn):
    backend = Backend()
    layer = WorkingLayer(one_redis, graph_store=backend)
    for _ in range(2):
        await layer.push(scope, turn(), idempotency_key="job")
    assert backend.labels(scope) == ["turn 1"]


async def test_a_turn_that_is_refused_is_not_added(one_redis, scope):
    backend = Backend()
    layer = WorkingLayer(one_redis, graph_store=backend)
    with pytest.raises(ValueError):
        await layer.push(scope, MemoryEntry(tenant_id="other", content="x"))
    assert backend.nodes == {}


async def test_a_node_is_deleted_and_a_replay_is_not_mirrored(one_redis, scope, turn):
    backend = Backend()
    layer = WorkingLayer(one_redis, graph_store=backend)
    await layer.rehydrate_from_messages(scope, [{"role": "user", "content": "hello"}])
    assert backend.nodes == {}
    receipt = await layer.push(scope, turn())
    await layer.delete(scope, receipt.node_id)
    assert backend.nodes == {}
    assert len(await layer.get_context(scope)) == 2


@pytest.mark.parametrize(
    "store", [Failing(), FailingAtOnce(), NotAsync(), object()], ids=lambda store: type(store).__name__
)
async def test_its_failures_are_logged_and_never_raised(one_redis, scope, turn, store, caplog):
    layer = WorkingLayer(one_redis, graph_store=store, working_graph_retention=1)
    with caplog.at_level(logging.WARNING, "symfonic_redis"):
        receipt = await layer.push(scope, turn("a secret"))
        await layer.push_many(scope, [turn(), turn()])
        await layer.delete(scope, "some node")
        await layer.clear(scope)
        await layer.push(scope, turn("after"))
    assert receipt.node_ids == ()
    assert texts(await layer.get_context(scope)) == ["after"]
    assert caplog.records
    assert not any("secret" in record.getMessage() for record in caplog.records)


async def test_a_turn_it_cannot_show_is_stored_all_the_same(one_redis, scope, turn):
    layer = WorkingLayer(one_redis, graph_store=Backend())
    unusual = SimpleNamespace(**{**vars(turn("unusual")), "metadata": {"n": 10**5_000}})
    await layer.push_many(scope, [turn(), unusual])
    assert texts(await layer.get_context(scope)) == ["turn 2", "unusual"]


async def test_the_receipt_names_the_nodes_as_the_store_does(one_redis, valkey, scope, turn):
    async with connect(valkey.url, prefix=f"{one_redis.prefix}:other") as elsewhere:
        graph = StreamGraphStore(elsewhere)
        layer = WorkingLayer(one_redis, graph_store=graph, working_graph_retention=2)
        for _ in range(3):
            receipt = await layer.push(scope, turn())
        nodes = await graph.query_nodes(scope)
        assert [node.label for node in nodes] == ["turn 2", "turn 3"]
        assert receipt.node_id == nodes[-1].id
        await layer.delete(scope, receipt.node_id)
        assert [node.label for node in await graph.query_nodes(scope)] == ["turn 2"]
        await layer.clear(scope)
        assert await graph.count(scope) == 0


async def test_the_reference_packages_store_is_one(one_redis, scope, turn):
    reason = "the reference package symfonic-core is not installed"
    memory = pytest.importorskip("symfonic.memory.backends.in_memory", reason=reason)
    graph = pytest.importorskip("symfonic.memory.graph.store", reason=reason)
    backend = graph.GraphMemoryStore(memory.InMemoryGraphBackend())
    layer = WorkingLayer(one_redis, graph_store=backend, working_graph_retention=2)
    for _ in range(3):
        await layer.push(scope, turn())
    nodes = await backend.query_nodes(scope, layer=MemoryLayer.WORKING)
    assert sorted(node.label for node in nodes) == ["turn 2", "turn 3"]
    await layer.clear(scope)
    assert await backend.query_nodes(scope, layer=MemoryLayer.WORKING) == []
