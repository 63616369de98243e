"""The turns behind the window: all of them, no gap, no double, across workers; and one round trip for both."""

from __future__ import annotations

import asyncio
import os
import pickle
import random

import pytest
from proxy import Proxy
from redis.asyncio import Redis
from seen import texts
from servers import free_port

from symfonic_redis import (
    CodecError,
    ConfigurationError,
    EvictedTurns,
    EvictedWorkingSource,
    InvalidInput,
    LegacyConversationSource,
    MemoryEntry,
    MemoryUnavailable,
    RedisEvictedSource,
    STMSummaryResult,
    TenantScope,
    WorkingLayer,
    WorkingMemorySummaryService,
    WorkingWindow,
    connect,
    hydrate,
    summarize_entries,
    validate_summary,
)
from symfonic_redis.keys import scope_keys

# Enough for every run of the suite; EVICTED_CONVERSATIONS=500 takes more.
CONVERSATIONS = int(os.environ.get("EVICTED_CONVERSATIONS", "40"))


def numbered(scope, *numbers: int) -> list[MemoryEntry]:
    return [MemoryEntry.turn(scope, speaker="user", turn_id=f"t{n}", content=f"turn {n}") for n in numbers]


def small(redis, **options) -> WorkingLayer:
    return WorkingLayer(redis, **{"max_entries": 2, "evicted_retention": 3, **options})


async def test_what_left_the_window_is_there_oldest_first(redis, scope):
    layer = small(redis)
    source = RedisEvictedSource(layer)
    assert isinstance(source, EvictedWorkingSource)
    seen = []
    for number in range(8):
        await layer.push(scope, numbered(scope, number)[0])
        evicted = await source.evicted(scope)
        seen.append((texts(evicted), evicted.older_gone))
        memory = await source.read(scope)
        assert list(memory.window) == await layer.get_context(scope)
        assert (memory.evicted, memory.evicted.older_gone) == (evicted, evicted.older_gone)
    turns = [f"turn {number}" for number in range(8)]
    expected = [(turns[max(0, end - 3) : end], end > 3) for end in (0, 0, 1, 2, 3, 4, 5, 6)]
    assert seen == expected


async def test_no_scope_sees_what_another_let_go(redis, scope):
    layer = small(redis)
    await layer.push_many(scope, numbered(scope, *range(5)))
    source = RedisEvictedSource(layer)
    for other in (TenantScope.root("org", "acme"), scope.child("part", "1"), TenantScope.root("org", "b")):
        assert await source.evicted(other) == EvictedTurns()
    await layer.clear(scope)
    evicted = await source.evicted(scope)
    assert (evicted, evicted.older_gone) == ((), False)


async def test_the_bounds_are_the_layers_and_another_workers_rows_change_nothing(redis, scope):
    wide = WorkingLayer(redis, 5, evicted_retention=50)
    await wide.push_many(scope, numbered(scope, *range(20)))
    memory = await RedisEvictedSource(small(redis)).read(scope)
    assert texts(memory.window) == ["turn 18", "turn 19"]
    assert texts(memory.evicted) == ["turn 15", "turn 16", "turn 17"]
    assert memory.evicted.older_gone
    memory = await RedisEvictedSource(wide).read(scope)
    assert texts(memory.evicted) == [f"turn {number}" for number in range(15)]
    assert not memory.evicted.older_gone


async def test_a_replayed_transcript_has_evicted_nothing(redis, scope):
    layer = small(redis)
    await layer.rehydrate_from_messages(scope, [{"role": "user", "content": str(number)} for number in range(9)])
    assert await RedisEvictedSource(layer).evicted(scope) == ()


async def test_eight_workers_and_many_conversations_leave_no_gap_and_no_double(valkey, prefix):
    chance = random.Random(4)
    workers = [connect(valkey.url, prefix=prefix) for _ in range(8)]
    layers = [WorkingLayer(worker, 10) for worker in workers]
    pushed: dict[TenantScope, list[str]] = {}
    scopes = [TenantScope.root("org", "acme").child("conversation", f"c-{n}") for n in range(CONVERSATIONS)]

    async def converse(scope: TenantScope, turns: int) -> None:
        mine = pushed.setdefault(scope, [])
        source = LegacyConversationSource(layers[0])
        while turns > 0:
            # Any worker takes the next turn, some of them several at once.
            worker, count = chance.randrange(8), min(turns, chance.choice([1, 1, 1, 2, 5]))
            entries = numbered(scope, *range(len(mine), len(mine) + count))
            await layers[worker].push_many(scope, entries)
            mine.extend(texts(entries))
            turns -= count
        assert [turn.text for turn in await source.recent(scope, 10)] == mine[-10:]

    # Lengths around the bounds: a window, a window and all that is kept behind it, one more, many more.
    await asyncio.gather(*(converse(scope, chance.choice([3, 10, 11, 30, 59, 60, 61, 62, 90])) for scope in scopes))
    for number, (scope, said) in enumerate(pushed.items()):
        source = RedisEvictedSource(layers[number % 8])
        memory = await source.read(scope)
        assert texts(memory.evicted) + texts(memory.window) == said[-60:]
        assert texts(memory.window) == said[-10:]
        assert memory.evicted.older_gone == (len(said) > 60)
        assert await source.evicted(scope) == memory.evicted
    await asyncio.gather(*(worker.aclose() for worker in workers))


async def test_a_read_among_pushes_has_no_gap_and_no_double(valkey, prefix, scope):
    async with connect(valkey.url, prefix=prefix) as one, connect(valkey.url, prefix=prefix) as other:
        writers = [WorkingLayer(one, 2, evicted_retention=100), WorkingLayer(other, 2, evicted_retention=100)]
        source = RedisEvictedSource(small(other))
        shown: list[list[str]] = []

        async def look() -> None:
            for _ in range(60):
                memory = await source.read(scope)
                shown.append(texts(memory.evicted) + texts(memory.window))

        pushes = [writers[number % 2].push_many(scope, numbered(scope, number)) for number in range(60)]
        await asyncio.gather(look(), look(), *pushes)
        everything = await RedisEvictedSource(writers[0]).read(scope)
    order = texts(everything.evicted) + texts(everything.window)
    assert len(set(order)) == 60
    # Whatever a read shows is a stretch of the one sequence.
    for turns in filter(None, shown):
        first = order.index(turns[0])
        assert turns == order[first : first + len(turns)]
    assert any(shown)


# --- one round trip ---


@pytest.fixture
async def line(server, prefix):
    async with Proxy(server.port) as proxy, connect(proxy.url, prefix=prefix) as deployment:
        yield proxy, deployment


async def test_a_turns_memory_work_is_one_round_trip(line, scope):
    proxy, deployment = line
    layer = small(deployment, max_entries=3)
    await layer.push_many(scope, numbered(scope, *range(9)))
    source = RedisEvictedSource(layer)
    window = WorkingWindow(LegacyConversationSource(layer))
    for mode in ("extractive", "off"):
        summary = WorkingMemorySummaryService(source, mode=mode)
        proxy.requests.clear()
        found = await hydrate(source, scope, window=window, summary=summary)
        assert dict(proxy.counted()) == {"LRANGE": 1}
        assert found.window.text == "user: turn 6\nuser: turn 7\nuser: turn 8"
        assert found.summary.text == ("- turn 3\n- turn 4\n- turn 5" if mode == "extractive" else "")
        assert found.older_gone
    for read in (source.evicted, source.read):
        proxy.requests.clear()
        await read(scope)
        assert dict(proxy.counted()) == {"LRANGE": 1}


async def test_a_turns_memory_is_what_its_parts_are(redis, scope):
    layer = small(redis)
    await layer.push_many(scope, numbered(scope, *range(5)))
    source = RedisEvictedSource(layer)
    window = WorkingWindow(LegacyConversationSource(layer))
    summary = WorkingMemorySummaryService(source)
    found = await hydrate(source, scope, window=window, summary=summary)
    assert found.window == await window.block(scope)
    evicted = await source.evicted(scope)
    assert found.summary.text == summarize_entries(evicted, mode="extractive").text
    assert not found.older_gone


async def test_without_a_memory_both_are_degraded(scope):
    deployment = connect(f"redis://127.0.0.1:{free_port()}/0", deadline=0.2)
    layer = WorkingLayer(deployment)
    source = RedisEvictedSource(layer)
    found = await hydrate(
        source,
        scope,
        window=WorkingWindow(LegacyConversationSource(layer)),
        summary=WorkingMemorySummaryService(source),
    )
    assert found.window.degraded
    assert found.summary.degraded
    assert (found.window.text, found.summary.text, found.older_gone) == ("", "", False)
    with pytest.raises(MemoryUnavailable):
        await source.evicted(scope)
    await deployment.aclose()


# --- bad input ---


async def test_a_damaged_row_is_skipped_and_named_by_its_place(one_redis, valkey, scope, caplog):
    layer = small(one_redis)
    await layer.push_many(scope, numbered(scope, *range(5)))
    key = scope_keys(one_redis.prefix, scope).turns
    async with Redis.from_url(valkey.url) as admin:
        await admin.lset(key, 3, b"\x01broken")
    assert texts(await RedisEvictedSource(layer).evicted(scope)) == ["turn 0", "turn 2"]
    assert f"row 3 of {key}" in caplog.text
    strict = RedisEvictedSource(small(one_redis, strict=True))
    with pytest.raises(CodecError, match="row 3 of"):
        await strict.evicted(scope)
    with pytest.raises(CodecError, match="row 3 of"):
        await strict.read(scope)


@pytest.mark.parametrize("thing", [None, "scope", 5])
async def test_what_is_no_scope_is_refused(one_redis, thing):
    with pytest.raises(InvalidInput):
        await RedisEvictedSource(WorkingLayer(one_redis)).evicted(thing)


def test_what_keeps_no_evicted_turns_is_refused_at_once():
    layer = WorkingLayer(connect("fake://"), evicted_retention=0)
    with pytest.raises(ConfigurationError, match="evicted_retention"):
        RedisEvictedSource(layer)
    for other in (None, object(), LegacyConversationSource(layer)):
        with pytest.raises(ConfigurationError, match="WorkingLayer"):
            RedisEvictedSource(other)


def test_evicted_turns_are_a_tuple_that_says_whether_it_begins_at_the_beginning(scope):
    turns = EvictedTurns(numbered(scope, 1, 2), older_gone=True)
    assert turns == tuple(turns)
    assert not EvictedTurns().older_gone
    copy = pickle.loads(pickle.dumps(turns))  # noqa: S301 - our own bytes
    assert (copy, copy.older_gone) == (turns, True)


async def test_any_summary_that_passes_the_check_may_be_hydrated_with(redis, scope, turn):
    class Port:
        async def summarize(self, request):
            return STMSummaryResult(f"of {request.scope.tenant_id}")

    layer = WorkingLayer(redis, max_entries=2)
    await layer.push_many(scope, [turn() for _ in range(4)])
    source = RedisEvictedSource(layer)
    window = WorkingWindow(LegacyConversationSource(layer))
    for summary, text in ((Port(), "of acme"), (None, "")):
        validate_summary(summary)
        found = await hydrate(source, scope, window=window, summary=summary)
        assert (found.summary.text, len(found.window.turns)) == (text, 2)
    with pytest.raises(ConfigurationError, match="async summarize"):
        await hydrate(source, scope, window=window, summary=object())
