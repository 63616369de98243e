"""A saved transcript is replayed into an empty window, once, whoever comes first."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace

import pytest
from seen import keys_of, texts

from symfonic_redis import InvalidInput, StreamGraphStore, WorkingLayer, connect


def messages(count: int) -> list[dict[str, object]]:
    """A transcript of `count` turns, among calls of tools."""
    found: list[dict[str, object]] = [{"role": "system", "content": "be kind"}]
    for number in range(1, count + 1):
        found.append({"role": ("assistant", "user")[number % 2], "content": f"turn {number}", "id": f"m{number}"})
        found.append({"role": "assistant", "content": None, "tool_calls": [{}]})
        found.append({"role": "tool", "content": "42", "tool_call_id": "x"})
    return found


async def test_the_tail_of_a_transcript_becomes_the_window(redis, scope):
    layer = WorkingLayer(redis, max_entries=3)
    assert await layer.rehydrate_from_messages(scope, messages(5)) == 3
    entries = await layer.get_context(scope)
    assert texts(entries) == ["turn 3", "turn 4", "turn 5"]
    assert [entry.metadata for entry in entries] == [
        {"speaker": speaker, "turn_id": turn_id, "source": "resume_rehydrate"}
        for speaker, turn_id in (("user", "m3"), ("assistant", "m4"), ("user", "m5"))
    ]
    assert {entry.tenant_id for entry in entries} == {"acme"}


@pytest.mark.parametrize(("most", "replayed"), [(None, 4), (2, 2), (9, 4), (1, 1), (0, 0), (-1, 0)])
async def test_at_most_so_many_turns_are_replayed(redis, scope, most, replayed):
    layer = WorkingLayer(redis, max_entries=4)
    assert await layer.rehydrate_from_messages(scope, messages(6), max_turns=most) == replayed
    assert texts(await layer.get_context(scope)) == [f"turn {number}" for number in range(7 - replayed, 7)]


async def test_messages_of_several_makes_are_replayed(redis, scope):
    layer = WorkingLayer(redis)
    mixed = [
        SimpleNamespace(type="human", content=[{"type": "text", "text": "one "}, "and a half"], id=None),
        SimpleNamespace(type="ai", content=" two ", id="m2"),
        {"role": "user", "content": "three"},
    ]
    assert await layer.rehydrate_from_messages(scope, mixed) == 3
    entries = await layer.get_context(scope)
    assert texts(entries) == ["one and a half", "two", "three"]
    assert entries[1].metadata["turn_id"] == "m2"
    for entry in (entries[0], entries[2]):
        assert re.fullmatch("[0-9a-f]{12}", entry.metadata["turn_id"])


async def test_nothing_to_replay_changes_nothing(redis, scope):
    layer = WorkingLayer(redis)
    for nothing in ([], [{"role": "tool", "content": "42"}], [{"role": "user", "content": " "}]):
        assert await layer.rehydrate_from_messages(scope, nothing) == 0
        assert await layer.rehydrate_from_messages(scope, nothing, only_if_empty=False) == 0
    assert await keys_of(redis) == set()


async def test_a_window_that_survived_is_not_doubled(redis, scope, turn):
    layer = WorkingLayer(redis)
    await layer.push(scope, turn())
    assert await layer.rehydrate_from_messages(scope, messages(2)) == 0
    assert texts(await layer.get_context(scope)) == ["turn 1"]


async def test_a_transcript_is_appended_when_that_is_asked_for(redis, scope, turn):
    layer = WorkingLayer(redis, max_entries=3, evicted_retention=1)
    await layer.push_many(scope, [turn("one"), turn("two")])
    assert await layer.rehydrate_from_messages(scope, messages(2), only_if_empty=False) == 2
    assert texts(await layer.get_context(scope)) == ["two", "turn 1", "turn 2"]
    assert await layer.rehydrate_from_messages(scope, messages(3), only_if_empty=False) == 3
    assert texts(await WorkingLayer(redis, max_entries=9).get_context(scope)) == [
        "turn 1",
        "turn 2",
        "turn 1",
        "turn 2",
        "turn 3",
    ]


async def test_a_cleared_window_is_replayed_again(redis, scope):
    layer = WorkingLayer(redis)
    for _ in range(2):
        assert await layer.rehydrate_from_messages(scope, messages(2)) == 2
        await layer.clear(scope)
    assert await layer.get_context(scope) == []


async def test_of_workers_that_resume_at_once_one_replays(redis, server, prefix, scope):
    async with connect(server.url, prefix=prefix) as other:
        layers = [WorkingLayer(one) for one in (redis, other, redis, other)]
        replayed = await asyncio.gather(*(layer.rehydrate_from_messages(scope, messages(4)) for layer in layers))
    assert sorted(replayed) == [0, 0, 0, 4]
    assert texts(await layers[0].get_context(scope)) == ["turn 1", "turn 2", "turn 3", "turn 4"]


async def test_the_mirror_is_not_written(redis, scope):
    graph = StreamGraphStore(redis)
    layer = WorkingLayer(redis, graph_store=graph)
    await layer.rehydrate_from_messages(scope, messages(3))
    await layer.rehydrate_from_messages(scope, messages(3), only_if_empty=False)
    assert await graph.query_nodes(scope) == []


async def test_a_transcript_that_is_refused_leaves_nothing_behind(redis, scope):
    layer = WorkingLayer(redis)
    for bad in ({"role": "user", "content": "x" * (1 << 20)}, {"role": "user", "content": "x", "id": object()}):
        with pytest.raises(InvalidInput):
            await layer.rehydrate_from_messages(scope, [*messages(2), bad])
    assert await keys_of(redis) == set()


async def test_a_long_transcript_fills_a_long_window(redis, scope):
    layer = WorkingLayer(redis, max_entries=9_000)
    assert await layer.rehydrate_from_messages(scope, messages(9_500)) == 9_000
    found = texts(await layer.get_context(scope))
    assert (len(found), found[0], found[-1]) == (9_000, "turn 501", "turn 9500")
