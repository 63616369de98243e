"""One list holds the window and, behind it, the turns that left it."""

from __future__ import annotations

import itertools
import logging

import pytest

from symfonic_redis import MemoryEntry, TenantScope, WorkingLayer
from symfonic_redis.keys import scope_keys
from symfonic_redis.rows import decode_entry
from symfonic_redis.sealing import PLAIN


async def rows_of(redis, scope) -> list[str]:
    """The contents of the whole list, newest first."""
    rows = await redis.call("test", "LRANGE", scope_keys(redis.prefix, scope).turns, 0, -1)
    return [decode_entry(row, scope.tenant_id, seal=PLAIN).content for row in rows]


def turns(count: int, first: int = 1) -> list[MemoryEntry]:
    return [MemoryEntry(tenant_id="acme", content=str(number)) for number in range(first, first + count)]


def newest(last: int, count: int) -> list[str]:
    return [str(number) for number in range(last, max(0, last - count), -1)]


async def window_of(layer, scope) -> list[str]:
    return [entry.content for entry in await layer.get_context(scope)]


@pytest.mark.parametrize(("window", "evicted"), [(1, 0), (1, 1), (3, 0), (3, 2), (4, 7)])
async def test_every_fill_and_every_batch_gives_the_receipt_and_the_rows_it_should(redis, window, evicted):
    layer = WorkingLayer(redis, max_entries=window, evicted_retention=evicted)
    kept = window + evicted + 1 if evicted else window
    fills = {0, 1, window - 1, window, window + 1, kept, kept + 3}
    for fill, batch in itertools.product(fills, (1, 2, 5, 13, 20)):
        scope = TenantScope.root("org", "acme").child("conversation", f"{fill}-{batch}")
        await layer.push_many(scope, turns(fill))
        receipt = await layer.push_many(scope, turns(batch, fill + 1))
        out = max(0, fill + batch - window) - max(0, fill - window)
        assert receipt == ((), min(window, fill + batch), out, False, False)
        assert await rows_of(redis, scope) == newest(fill + batch, kept)
        assert await window_of(layer, scope) == newest(fill + batch, window)[::-1]


async def test_fifty_turns_and_one_are_kept_behind_the_window_unless_said_otherwise(redis, scope):
    layer = WorkingLayer(redis)
    await layer.push_many(scope, turns(60))
    assert await rows_of(redis, scope) == newest(60, 60)
    for turn in turns(10, 61):
        await layer.push(scope, turn)
    assert await rows_of(redis, scope) == newest(70, 61)


async def test_the_extra_row_tells_that_older_turns_are_gone(redis, scope):
    layer = WorkingLayer(redis, max_entries=2, evicted_retention=3)
    await layer.push_many(scope, turns(5))
    assert len(await rows_of(redis, scope)) == 5
    await layer.push_many(scope, turns(1, 6))
    assert len(await rows_of(redis, scope)) == 6
    await layer.push_many(scope, turns(1, 7))
    assert len(await rows_of(redis, scope)) == 6


async def test_without_retention_only_the_window_is_there(redis, scope):
    layer = WorkingLayer(redis, max_entries=3, evicted_retention=0)
    for turn in turns(9):
        await layer.push(scope, turn)
    assert await rows_of(redis, scope) == newest(9, 3)


async def test_another_window_needs_no_migration(redis, scope):
    await WorkingLayer(redis, max_entries=4).push_many(scope, turns(9))
    assert await window_of(WorkingLayer(redis, max_entries=2), scope) == ["8", "9"]
    wider = WorkingLayer(redis, max_entries=7)
    assert await window_of(wider, scope) == ["3", "4", "5", "6", "7", "8", "9"]
    assert await wider.push_many(scope, turns(1, 10)) == ((), 7, 1, False, False)
    assert await WorkingLayer(redis, max_entries=2).push_many(scope, turns(1, 11)) == ((), 2, 1, False, False)
    assert len(await rows_of(redis, scope)) == 11


async def test_a_smaller_bound_cuts_at_most_sixteen_rows_more_than_it_adds(redis, scope, caplog):
    await WorkingLayer(redis, max_entries=300).push_many(scope, turns(200))
    small = WorkingLayer(redis, max_entries=3, evicted_retention=2)
    with caplog.at_level(logging.WARNING, "symfonic_redis"):
        receipt = await small.push_many(scope, turns(1, 201))
        assert receipt == ((), 3, 1, False, False)
        assert await rows_of(redis, scope) == newest(201, 184)
        await small.push_many(scope, turns(50, 202))
        assert await rows_of(redis, scope) == newest(251, 168)
        assert await window_of(small, scope) == ["249", "250", "251"]
        lengths = []
        for turn in turns(12, 252):
            await small.push(scope, turn)
            lengths.append(len(await rows_of(redis, scope)))
    assert lengths == [152, 136, 120, 104, 88, 72, 56, 40, 24, 8, 6, 6]
    (record,) = caplog.records
    assert "184 rows where this worker keeps 6" in record.getMessage()
    assert scope.tenant_id not in record.getMessage()


async def test_a_smaller_bound_cuts_no_more_when_it_rehydrates(redis, scope):
    await WorkingLayer(redis, max_entries=300).push_many(scope, turns(200))
    small = WorkingLayer(redis, max_entries=3, evicted_retention=2)
    messages = [{"role": "user", "content": "hello"}]
    assert await small.rehydrate_from_messages(scope, messages, only_if_empty=False) == 1
    assert len(await rows_of(redis, scope)) == 184


async def test_equal_bounds_are_nothing_to_warn_about(redis, scope, caplog):
    for _ in range(3):
        layer = WorkingLayer(redis, max_entries=3, evicted_retention=2)
        for turn in turns(9):
            await layer.push(scope, turn)
    assert caplog.records == []


async def test_another_kept_number_takes_effect_at_the_next_write(redis, scope):
    await WorkingLayer(redis, max_entries=3, evicted_retention=9).push_many(scope, turns(20))
    assert len(await rows_of(redis, scope)) == 13
    await WorkingLayer(redis, max_entries=3, evicted_retention=0).push_many(scope, turns(1, 21))
    assert await rows_of(redis, scope) == newest(21, 3)
