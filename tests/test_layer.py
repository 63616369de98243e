"""The working layer against every server there is."""

from __future__ import annotations

from symfonic_redis import StreamGraphStore, WorkingLayer


async def test_the_window_holds_the_newest_turns_oldest_first(redis, scope, turn):
    layer = WorkingLayer(redis, max_entries=3)
    for _ in range(5):
        receipt = await layer.push(scope, turn())
    assert [entry.content for entry in await layer.get_context(scope)] == ["turn 3", "turn 4", "turn 5"]
    assert receipt == ((), 3, 1, False)


async def test_a_turn_is_mirrored_by_the_push_itself(redis, scope, turn):
    graph = StreamGraphStore(redis)
    layer = WorkingLayer(redis, graph_store=graph, working_graph_retention=2)
    for _ in range(3):
        receipt = await layer.push(scope, turn())
    nodes = await graph.query_nodes(scope)
    assert [node.label for node in nodes] == ["turn 2", "turn 3"]
    assert receipt.node_id == nodes[-1].id
