"""The mirror of the working layer, written by the push's own script: one node a turn, as many as are kept."""

from __future__ import annotations

import contextlib
import enum
import uuid
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
from seen import texts

from symfonic_redis import (
    InvalidInput,
    MemoryEntry,
    MemoryLayer,
    MemoryNode,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
)


class Mood(enum.Enum):
    GOOD = "good"
    BAD = 1


class Tone(enum.StrEnum):
    CALM = "calm"


METADATA = {
    "text": "ü",
    "none": None,
    "yes": True,
    "int": 7,
    "big": 1 << 70,
    "float": 0.1,
    "bytes": b"\x00x",
    "list": [1, "two", None, Mood.GOOD],
    "tuple": (1, (2,)),
    "dict": {"a": {1: Tone.CALM}},
    "enum": Mood.GOOD,
    "number": Mood.BAD,
    "tone": Tone.CALM,
    "utc": datetime(2024, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    "offset": datetime(2024, 1, 2, tzinfo=timezone(timedelta(hours=-3), "BRT")),
    "zone": datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Paris")),
    "listed": [datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Paris"))],
    "id": uuid.UUID(int=7),
    "amount": Decimal("1.10"),
}


def mirrored(redis, **options):
    graph = StreamGraphStore(redis)
    return graph, WorkingLayer(redis, graph_store=graph, **options)


async def only_node(redis, scope, entry, **options) -> MemoryNode:
    graph, layer = mirrored(redis)
    receipt = await layer.push(scope, entry, **options)
    (node,) = await graph.query_nodes(scope)
    assert node.id == receipt.node_id
    assert await graph.get_node(scope, node.id) == node
    return node


async def test_a_node_shows_what_the_turn_was(redis, scope, turn):
    before = datetime.now(UTC) - timedelta(minutes=5)
    node = await only_node(redis, scope, turn("Where is my order?", importance=7))
    assert (node.layer, node.tenant_id, node.label) == (MemoryLayer.WORKING, "acme", "Where is my order?")
    assert node.properties == {"content": "Where is my order?", "speaker": "user", "turn_id": "t1"}
    assert node.importance == 7
    assert before < node.created_at == node.updated_at < before + timedelta(minutes=10)


async def test_metadata_are_shown_as_their_text(redis, scope, turn):
    node = await only_node(redis, scope, turn(metadata=METADATA))
    expected = {"content": "turn 1", **METADATA, "speaker": "user", "turn_id": "t1"}
    assert node.properties == {key: str(value) for key, value in expected.items()}


@pytest.mark.parametrize("content", ["x" * 79, "x" * 80, "x" * 81, "\n" * 100, "😀" * 200, " "], ids=len)
async def test_a_label_is_the_first_eighty_characters(redis, scope, content):
    node = await only_node(redis, scope, MemoryEntry(tenant_id="acme", content=content))
    assert node.label == content[:80]
    assert node.properties == {"content": content}


async def test_a_turn_without_text_has_a_label_all_the_same(redis, scope):
    node = await only_node(redis, scope, MemoryEntry(tenant_id="acme", content=""))
    assert (node.label, node.properties) == ("working-context", {"content": ""})


async def test_a_metadata_key_named_content_wins(redis, scope, turn):
    node = await only_node(redis, scope, turn("said", metadata={"content": "shown"}))
    assert (node.label, node.properties["content"]) == ("said", "shown")


@pytest.mark.parametrize(("importance", "shown"), [(0, 1), (-5, 1), (99, 10), (float("inf"), 10), (3, 3), (10, 10)])
async def test_importance_is_clamped(redis, scope, turn, importance, shown):
    entry = SimpleNamespace(**{**vars(turn()), "importance": importance})
    assert (await only_node(redis, scope, entry)).importance == shown


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


UNUSUAL = {
    "lone surrogates": {"content": "\ud800 hello", "metadata": {"a": "\udfff"}},
    "a number of 5,000 digits": {"metadata": {"n": 10**5_000}},
    "a number of 5,000 digits in a list": {"metadata": {"n": [10**5_000]}},
    "a metadata key that is a number": {"metadata": {7: "seven"}},
    "lists in lists": {"metadata": {"n": nested(1_010)}},
}


@pytest.mark.parametrize("values", UNUSUAL.values(), ids=UNUSUAL)
async def test_an_unusual_turn_is_refused_or_takes_neither_window_nor_mirror_down(redis, scope, turn, values):
    graph, layer = mirrored(redis)
    await layer.push(scope, turn("before"))
    with contextlib.suppress(InvalidInput):
        await layer.push(scope, SimpleNamespace(**{**vars(turn("unusual")), **values}))
    await layer.push(scope, turn("after"))
    assert {"before", "after"} <= {node.label for node in await graph.query_nodes(scope)}
    assert {"before", "after"} <= set(texts(await layer.get_context(scope)))


async def test_lone_surrogates_and_long_numbers_are_mirrored(redis, scope, turn):
    node = await only_node(redis, scope, turn("\ud800", metadata={"\ud800": "\udfff", "n": 10**1_000}))
    assert (node.label, node.properties["\ud800"], node.properties["n"]) == ("\ud800", "\udfff", str(10**1_000))


# --- durability ---


@pytest.mark.parametrize(
    "markers",
    [
        (None, ..., ...),
        (None, None, "None"),
        (None, "", "durable"),
        (None, "transient", "transient"),
        ("", ..., "durable"),
        ("expired", ..., "expired"),
        ("durable", "transient", "durable"),
        ("transient", "nonsense", "transient"),
        ("transient", None, "transient"),
    ],
    ids=str,
)
async def test_durability_is_the_argument_then_the_metadata_then_none(redis, scope, turn, markers):
    argument, marker, shown = markers
    metadata = {} if marker is ... else {"durability": marker}
    node = await only_node(redis, scope, turn(metadata=metadata), durability=argument)
    assert node.properties.get("durability", ...) == shown


async def test_every_turn_of_a_batch_has_its_own_durability(redis, scope, turn):
    graph, layer = mirrored(redis)
    batch = [turn(), turn(metadata={"durability": "transient"}), turn(metadata={"mood": Mood.GOOD}), turn()]
    await layer.push_many(scope, batch)
    await layer.push_many(scope, batch, durability="expired")
    found = [node.properties.get("durability") for node in await graph.query_nodes(scope)]
    assert found == [None, "transient", None, None, *["expired"] * 4]


# --- retention ---


async def test_every_node_is_kept_unless_said_otherwise(redis, scope, turn):
    graph, layer = mirrored(redis, max_entries=2, evicted_retention=0)
    for _ in range(30):
        await layer.push(scope, turn())
    assert await graph.count(scope) == 30


@pytest.mark.parametrize("kept", [0, 1, 3])
@pytest.mark.parametrize("batch", [1, 2, 7])
async def test_exactly_the_newest_nodes_are_kept(redis, scope, turn, kept, batch):
    graph, layer = mirrored(redis, working_graph_retention=kept)
    pushed: list[MemoryEntry] = []
    for _ in range(3):
        pushed += (more := [turn() for _ in range(batch)])
        receipt = await layer.push_many(scope, more)
        nodes = await graph.query_nodes(scope)
        assert [node.label for node in nodes] == texts(pushed)[len(pushed) - min(kept, len(pushed)) :]
        assert receipt.node_ids == tuple(node.id for node in nodes)[-min(batch, kept) or len(nodes) :]


async def test_another_retention_takes_effect_at_the_next_write(redis, scope, turn):
    graph, layer = mirrored(redis)
    await layer.push_many(scope, [turn() for _ in range(400)])
    for kept, left in ((300, 300), (350, 301), (5, 5), (None, 6), (0, 0), (2, 1)):
        _, changed = mirrored(redis, working_graph_retention=kept)
        assert await graph.count(scope) != left or kept == 300
        await changed.push(scope, turn())
        assert await graph.count(scope) == left


async def test_only_working_nodes_of_exactly_this_scope_are_pruned_and_cleared(redis, scope, turn):
    graph, layer = mirrored(redis, working_graph_retention=1)
    parent, child = TenantScope.root("org", "acme"), scope.child("part", "p")
    semantic = MemoryNode(layer=MemoryLayer.SEMANTIC, tenant_id="acme", label="fact")
    for one in (parent, scope, child):
        await layer.push(one, turn())
        await graph.add_node(one, semantic)
    for _ in range(3):
        await layer.push(scope, turn())
    await layer.clear(scope)
    assert [node.label for node in await graph.query_nodes(scope)] == ["fact"]
    for other in (parent, child):
        assert len(await graph.query_nodes(other)) == 2
        assert len(await layer.get_context(other)) == 1


# --- deleting and clearing ---


async def test_deleting_a_node_leaves_the_window(redis, scope, turn):
    graph, layer = mirrored(redis)
    first, second = await layer.push(scope, turn()), await layer.push(scope, turn())
    await layer.delete(scope, first.node_id)
    await layer.delete(scope, first.node_id)
    await layer.delete(scope, "unknown")
    assert [node.id for node in await graph.query_nodes(scope)] == [second.node_id]
    assert texts(await layer.get_context(scope)) == ["turn 1", "turn 2"]


async def test_a_layer_without_a_graph_store_leaves_the_mirror_alone(redis, scope, turn):
    graph, layer = mirrored(redis)
    receipt = await layer.push(scope, turn())
    plain = WorkingLayer(redis)
    assert (await plain.push(scope, turn())).node_id is None
    await plain.delete(scope, receipt.node_id)
    await plain.clear(scope)
    assert [node.id for node in await graph.query_nodes(scope)] == [receipt.node_id]
    assert await layer.get_context(scope) == []


async def test_the_turns_that_left_the_window_are_still_mirrored(redis, scope, turn):
    graph, layer = mirrored(redis, max_entries=1, evicted_retention=0)
    for _ in range(4):
        await layer.push(scope, turn())
    assert [node.label for node in await graph.query_nodes(scope)] == ["turn 1", "turn 2", "turn 3", "turn 4"]
