"""The working layer against every server there is: what a call does, and what it refuses."""

from __future__ import annotations

import asyncio
import warnings
from types import SimpleNamespace

import pytest
from seen import keys_of, texts

from symfonic_redis import (
    ConfigurationError,
    InvalidInput,
    MemoryEntry,
    MultiScopeIgnoredWarning,
    PushReceipt,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    connect,
)
from symfonic_redis.keys import scope_keys


async def test_the_window_holds_the_newest_turns_oldest_first(redis, scope, turn):
    layer = WorkingLayer(redis, max_entries=3)
    for _ in range(5):
        receipt = await layer.push(scope, turn())
    assert texts(await layer.get_context(scope)) == ["turn 3", "turn 4", "turn 5"]
    assert receipt == PushReceipt((), 3, 1, duplicate=False)


async def test_a_turn_is_mirrored_by_the_push_itself(redis, scope, turn):
    graph = StreamGraphStore(redis)
    layer = WorkingLayer(redis, graph_store=graph, working_graph_retention=2)
    for _ in range(3):
        receipt = await layer.push(scope, turn())
    nodes = await graph.query_nodes(scope)
    assert [node.label for node in nodes] == ["turn 2", "turn 3"]
    assert receipt.node_id == nodes[-1].id


async def test_a_turn_comes_back_as_it_was_pushed(redis, scope, turn):
    layer = WorkingLayer(redis)
    pushed = [turn(importance=7), turn("ü\x00😀\ud800", metadata={"a": [1, (2,), None]}), turn(content=" ")]
    for entry in pushed:
        await layer.push(scope, entry)
    assert await layer.get_context(scope) == pushed


async def test_every_worker_sees_the_same_window(redis, server, prefix, scope, turn):
    async with connect(server.url, prefix=prefix) as other:
        here, there = WorkingLayer(redis), WorkingLayer(other)
        for number in range(6):
            await (here, there)[number % 2].push(scope, turn())
        assert texts(await here.get_context(scope)) == [f"turn {number}" for number in range(1, 7)]
        assert await here.get_context(scope) == await there.get_context(scope)


@pytest.mark.parametrize("sub", [None, "", "b"])
async def test_the_reference_packages_scopes_and_entries_are_taken(redis, sub):
    reason = "the reference package symfonic-core is not installed"
    scopes = pytest.importorskip("symfonic.core.scope", reason=reason)
    models = pytest.importorskip("symfonic.memory.models.entry", reason=reason)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        theirs = scopes.TenantScope(tenant_id="acme", sub_tenant_id=sub)
    layer = WorkingLayer(redis, graph_store=StreamGraphStore(redis))
    entry = models.MemoryEntry(layer="working", tenant_id="acme", content="hello", metadata={"speaker": "user"})
    await layer.push(theirs, entry)
    (found,) = await layer.get_context(TenantScope(tenant_id="acme", sub_tenant_id=sub))
    assert found.model_dump(mode="json") == entry.model_dump(mode="json")
    await layer.clear(theirs)
    assert await layer.get_context(theirs) == []


async def test_an_unknown_conversation_is_empty(redis, scope):
    layer = WorkingLayer(redis, graph_store=StreamGraphStore(redis))
    assert await layer.get_context(scope) == []
    assert await layer.retrieve(scope, "anything") == []
    await layer.clear(scope)
    await layer.delete(scope, "unknown")
    assert await layer.get_context(scope) == []


async def test_write_pushes_and_link_does_nothing(redis, scope, turn):
    layer = WorkingLayer(redis)
    assert await layer.write(scope, turn()) is None
    before = await keys_of(redis)
    assert await layer.link(scope, "a", "b", "follows") is None
    assert await keys_of(redis) == before
    assert texts(await layer.get_context(scope)) == ["turn 1"]


async def test_a_batch_is_stored_in_its_order_and_next_to_each_other(redis, scope, turn):
    layer = WorkingLayer(redis, max_entries=100)
    batches = [[turn() for _ in range(7)] for _ in range(8)]
    await asyncio.gather(*(layer.push_many(scope, iter(batch)) for batch in batches))
    found = texts(await layer.get_context(scope))
    assert sorted(found[at : at + 7] for at in range(0, 56, 7)) == sorted(texts(batch) for batch in batches)


async def test_an_empty_batch_changes_nothing(redis, scope, turn):
    layer = WorkingLayer(redis, max_entries=2)
    assert await layer.push_many(scope, []) == PushReceipt((), 0, 0, duplicate=False)
    assert await keys_of(redis) == set()
    await layer.push_many(scope, [turn(), turn(), turn()])
    assert await layer.push_many(scope, ()) == PushReceipt((), 2, 0, duplicate=False)


async def test_three_hundred_pushes_at_once_are_all_there_once(redis, scope, turn):
    layer = WorkingLayer(redis, max_entries=300)
    receipts = await asyncio.gather(*(layer.push(scope, turn()) for _ in range(300)))
    assert sorted(receipt.window_length for receipt in receipts) == list(range(1, 301))
    found = await layer.get_context(scope)
    assert len({entry.id for entry in found}) == len(found) == 300


async def test_ten_thousand_turns_go_in_one_write(redis, scope):
    graph = StreamGraphStore(redis)
    layer = WorkingLayer(redis, max_entries=10_000, graph_store=graph)
    turns = [MemoryEntry.turn(scope, speaker="user", turn_id=str(n), content=f"turn {n}") for n in range(10_000)]
    receipt = await layer.push_many(scope, turns, durability="transient")
    assert (receipt.window_length, receipt.evicted, len(set(receipt.node_ids))) == (10_000, 0, 10_000)
    assert await layer.get_context(scope) == turns
    assert await graph.count(scope) == 10_000


async def test_one_more_is_refused_and_nothing_is_written(redis, scope, turn):
    layer = WorkingLayer(redis)
    with pytest.raises(InvalidInput, match="10001 rows"):
        await layer.push_many(scope, [turn()] * 10_001)
    assert await keys_of(redis) == set()


async def test_the_first_of_the_window_are_retrieved(redis, scope, turn):
    layer = WorkingLayer(redis, max_entries=8)
    await layer.push_many(scope, [turn() for _ in range(10)])
    assert texts(await layer.retrieve(scope, "turn 9")) == [f"turn {number}" for number in range(3, 8)]
    assert texts(await layer.retrieve(scope, "", top_k=2)) == ["turn 3", "turn 4"]
    assert await layer.retrieve(scope, "", top_k=0) == []
    assert len(await layer.retrieve(scope, "", top_k=100)) == 8


async def test_inheritance_is_warned_about_once_for_each_layer_tenant_and_sub_tenant(redis):
    def heir(tenant: str, sub: str | None = None) -> TenantScope:
        return TenantScope(tenant_id=tenant, sub_tenant_id=sub, inherits_from=(TenantScope(tenant_id="parent"),))

    layer = WorkingLayer(redis)
    for scope in (heir("acme"), heir("acme", "b"), heir("other")):
        # Not from these: a warning is an error here.
        await layer.push(scope, MemoryEntry(tenant_id=scope.tenant_id, content="hello"))
        await layer.get_context(scope)
        with pytest.warns(MultiScopeIgnoredWarning) as caught:
            assert texts(await layer.retrieve(scope, "")) == ["hello"]
        assert caught[0].filename == __file__
        await layer.retrieve(scope, "")
        await layer.retrieve(scope.child("conversation", "c") if scope.sub_tenant_id else scope, "")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        await WorkingLayer(redis).retrieve(heir("acme"), "")
        await WorkingLayer(redis).retrieve(TenantScope(tenant_id="acme"), "")
    assert [warning.category for warning in caught] == [MultiScopeIgnoredWarning]


async def test_a_summary_is_made_when_asked_for(one_redis, scope, turn):
    entries = [turn("One. Two. Three."), turn("Four.")]
    for mode, text in (("off", ""), ("extractive", "- One. … Three.\n- Four."), ("llm", "- One. … Three.\n- Four.")):
        layer = WorkingLayer(one_redis, stm_summary_mode=mode)
        assert await layer.summarize(scope, entries) == text
        assert await layer.summarize(scope, []) == ""
    assert await WorkingLayer(one_redis).summarize(scope, entries) == ""
    assert await keys_of(one_redis) == set()


async def test_an_entry_is_rendered_for_a_prompt(one_redis, turn):
    layer = WorkingLayer(one_redis)
    assert layer.render_for_prompt(turn("Where is my order?")) == "[working] user: Where is my order?"
    entry = MemoryEntry(tenant_id="acme", content="SOUL: x", metadata={"properties": {"a": "1", "token": "t"}})
    assert layer.render_for_prompt(entry, lambda value: {"a": value["a"]}) == "[working] x (a=1)"


async def test_clear_empties_the_window_and_what_is_behind_it(redis, scope, turn):
    layer = WorkingLayer(redis, max_entries=2)
    await layer.push_many(scope, [turn() for _ in range(5)])
    await layer.clear(scope)
    assert await layer.get_context(scope) == []
    assert await WorkingLayer(redis, max_entries=100).get_context(scope) == []
    assert scope_keys(redis.prefix, scope).turns.encode() not in await keys_of(redis)
    assert (await layer.push(scope, turn())).window_length == 1


SCOPES = [
    TenantScope.root("org", "acme"),
    TenantScope.root("org", "acme").child("conversation", "c"),
    TenantScope.root("org", "acme").child("conversation", "c").child("part", "p"),
    TenantScope.root("org", "acme").child("conversation", "c-1"),
    TenantScope.root("org", "acme").child("conversation", "c:turns"),
    TenantScope.root("org", "acme/conversation/c"),
    TenantScope.root("org", "acme-corp"),
    TenantScope.root("tenant", "acme"),
    TenantScope.root("org", "ACME"),
    TenantScope.root("org", "acme}:{*"),
]


async def test_no_scope_sees_or_clears_another(redis):
    graph = StreamGraphStore(redis)
    layer = WorkingLayer(redis, max_entries=2, graph_store=graph, working_graph_retention=2)
    for scope in SCOPES:
        entry = MemoryEntry(tenant_id=scope.tenant_id, content=scope.scope_path)
        await layer.push_many(scope, [entry] * 3)
    for at, scope in enumerate(SCOPES):
        await layer.clear(scope)
        assert await layer.get_context(scope) == []
        assert await graph.count(scope) == 0
        for other in SCOPES[at + 1 :]:
            assert texts(await layer.get_context(other)) == [other.scope_path] * 2
            assert [node.properties["content"] for node in await graph.query_nodes(other)] == [other.scope_path] * 2


REFUSED = {
    "another tenant's": {"tenant_id": "other"},
    "too long": {"content": "x" * (1 << 20)},
    "not storable": {"metadata": {"a": {1, 2}}},
    "of an unknown durability": {"metadata": {"durability": "eternal"}},
    "of an unknown layer": {"layer": "unknown"},
    "without text": {"content": None},
    "with metadata that are none": {"metadata": ["speaker"]},
}


@pytest.mark.parametrize("values", REFUSED.values(), ids=REFUSED)
async def test_an_entry_that_is_refused_leaves_nothing_behind(redis, scope, turn, values):
    layer = WorkingLayer(redis, graph_store=StreamGraphStore(redis))
    bad = SimpleNamespace(**{**vars(turn("bad")), **values})
    with pytest.raises(ValueError) as refused:
        await layer.push(scope, bad, idempotency_key="job")
    assert isinstance(refused.value, InvalidInput)
    with pytest.raises(InvalidInput):
        await layer.push_many(scope, [turn(), bad, turn()])
    assert await keys_of(redis) == set()
    assert not (await layer.push(scope, turn("good"), idempotency_key="job")).duplicate
    assert texts(await layer.get_context(scope)) == ["good"]


async def test_an_argument_that_is_refused_leaves_nothing_behind(redis, scope, turn):
    layer = WorkingLayer(redis, graph_store=StreamGraphStore(redis))
    for options in ({"durability": "eternal"}, {"durability": 7}, {"idempotency_key": ""}, {"idempotency_key": 42}):
        with pytest.raises(InvalidInput):
            await layer.push(scope, turn(), **options)
    for ttl in (0, -1, float("nan"), float("inf")):
        with pytest.raises((InvalidInput, ConfigurationError), match="ttl"):
            await layer.push(scope, turn(), idempotency_key="job", idempotency_ttl=ttl)
    for thing in (None, "acme", SimpleNamespace(tenant_id="acme")):
        for call in (layer.push(thing, turn()), layer.get_context(thing), layer.clear(thing)):
            with pytest.raises(InvalidInput):
                await call
    assert await keys_of(redis) == set()


@pytest.mark.parametrize(
    "options",
    [{"max_entries": bad} for bad in (0, -1, 1.5, "10", True, None)]
    + [{"working_graph_retention": bad} for bad in (-1, 0.5, "1", False)]
    + [{"evicted_retention": bad} for bad in (-1, 0.5, None)]
    + [{"ttl": bad} for bad in (0, -1, float("nan"), float("inf"), "60", True)]
    + [{"stm_summary_mode": bad} for bad in ("", "on", None)],
    ids=str,
)
async def test_a_layer_that_makes_no_sense_is_refused(one_redis, options):
    with pytest.raises(ConfigurationError):
        WorkingLayer(one_redis, **options)


async def test_a_layer_needs_a_deployment():
    for thing in (None, "redis://localhost", object()):
        with pytest.raises(ConfigurationError):
            WorkingLayer(thing)
