"""A layer that goes on while the server is away: what it serves, what it keeps, and what it stores afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from signal import SIGCONT, SIGSTOP

import pytest
from exported import exported
from own_server import own_server, until
from proxy import Proxy

from symfonic_redis import (
    ConfigurationError,
    InvalidInput,
    MemoryEntry,
    MemoryLayer,
    MemoryUnavailable,
    NotReplicated,
    RedisEvictedSource,
    StandbyLayer,
    StreamGraphStore,
    WorkingLayer,
    connect,
    purge,
)
from symfonic_redis.keys import scope_keys

AOF = ("--appendonly", "yes", "--appendfsync", "always")


@contextlib.asynccontextmanager
async def worker(url: str, **options) -> AsyncIterator[StandbyLayer]:
    async with connect(url, deadline=0.3, attempt_timeout=0.2) as deployment:
        layer = StandbyLayer(deployment, **{"max_entries": 4, "graph_store": StreamGraphStore(deployment), **options})
        yield layer
        await layer.aclose(0)


@pytest.fixture
def server(tmp_path):
    with own_server(*AOF, directory=str(tmp_path)) as started:
        yield started


def said(scope, text):
    return MemoryEntry.turn(scope, speaker="user", turn_id=text, content=text)


async def texts(layer, scope):
    return [entry.content for entry in await layer.get_context(scope)]


async def back(layer):
    async def nothing_waits():
        return not layer.queued and not layer.away

    await until(nothing_waits)


async def stored(layer, scope):
    """The whole history, as the mirror has it."""
    store = StreamGraphStore(layer.deployment)
    return [node.properties["content"] for node in await store.query_nodes(scope, MemoryLayer.WORKING)]


async def test_while_the_server_is_away_windows_are_served_and_pushes_wait(server, scope):
    async with worker(server.url) as layer:
        for text in "abc":
            await layer.push(scope, said(scope, text))
        assert await texts(layer, scope) == ["a", "b", "c"]
        server.kill()
        receipt = await layer.push(scope, said(scope, "d"))
        assert (receipt.queued, receipt.duplicate, receipt.node_ids, receipt.window_length) == (True, False, (), 4)
        assert layer.away
        assert (await layer.push_many(scope, [said(scope, "e"), said(scope, "f")])).queued
        # What the worker said itself is there, at the end, and the window keeps its bound.
        assert await texts(layer, scope) == ["c", "d", "e", "f"]
        assert [entry.content for entry in await layer.retrieve(scope, "", top_k=2)] == ["c", "d"]
        assert layer.queued == 2
        server.start()
        await back(layer)
        assert await texts(layer, scope) == ["c", "d", "e", "f"]
        assert await stored(layer, scope) == ["a", "b", "c", "d", "e", "f"]
        receipt = await layer.push(scope, said(scope, "g"))
        assert (receipt.queued, len(receipt.node_ids)) == (False, 1)
        # Read, pushed, away: what was pushed since the last read is known too.
        server.kill()
        assert await texts(layer, scope) == ["d", "e", "f", "g"]


async def test_an_answer_that_was_lost_is_not_stored_twice(server, scope):
    async with Proxy(server.port) as proxy, worker(proxy.url) as layer:
        await layer.push(scope, said(scope, "a"))
        # Stored, and every answer is lost until the deadline has passed.
        proxy.chance = lambda arguments: "lose" if arguments[0] == b"EVALSHA" else None
        assert (await layer.push(scope, said(scope, "b"))).queued
        assert (await layer.push(scope, said(scope, "c"))).queued
        proxy.chance = lambda _: None
        await back(layer)
        assert await stored(layer, scope) == ["a", "b", "c"]


async def test_what_others_wrote_meanwhile_stands_before_what_waited(server, scope):
    async with Proxy(server.port) as proxy, worker(proxy.url) as layer, connect(server.url) as other:
        await layer.push(scope, said(scope, "a"))
        await texts(layer, scope)
        proxy.chance = lambda _: "drop"
        assert (await layer.push(scope, said(scope, "mine"))).queued
        graph = StreamGraphStore(other)
        await WorkingLayer(other, max_entries=4, graph_store=graph).push(scope, said(scope, "theirs"))
        assert await texts(layer, scope) == ["a", "mine"]
        proxy.chance = lambda _: None
        await back(layer)
        assert await texts(layer, scope) == ["a", "theirs", "mine"]


async def test_many_conversations_return_each_in_its_order(server, scope):
    scopes = [scope.child("part", str(number)) for number in range(20)]
    async with worker(server.url, max_entries=50) as layer:
        for one in scopes:
            await layer.push(one, said(one, "0"))
        server.signal(SIGSTOP)
        for turn in range(1, 11):
            for one in scopes:
                assert (await layer.push(one, said(one, str(turn)))).queued
        server.signal(SIGCONT)
        # New pushes go behind those that wait, whether the server is back or not.
        await asyncio.gather(*(layer.push(one, said(one, "11")) for one in scopes))
        await back(layer)
        for one in scopes:
            assert await stored(layer, one) == [str(turn) for turn in range(12)]


async def test_a_full_queue_refuses_and_drops_nothing(server, scope):
    async with worker(server.url, max_queued=2) as layer:
        await layer.push(scope, said(scope, "a"))
        server.kill()
        assert (await layer.push(scope, said(scope, "b"))).queued
        assert (await layer.push(scope, said(scope, "c"))).queued
        with pytest.raises(MemoryUnavailable, match="2 pushes wait"):
            await layer.push(scope, said(scope, "d"))
        server.start()
        await back(layer)
        assert await stored(layer, scope) == ["a", "b", "c"]


async def test_bytes_that_wait_are_bounded_too(server, scope, monkeypatch):
    monkeypatch.setattr("symfonic_redis.standby.MAX_QUEUED_BYTES", 2000)
    async with worker(server.url) as layer:
        await layer.push(scope, said(scope, "a"))
        server.kill()
        assert (await layer.push(scope, said(scope, "b" * 500))).queued
        with pytest.raises(MemoryUnavailable, match="wait already"):
            await layer.push(scope, said(scope, "c" * 500))
        server.start()
        await back(layer)
        server.kill()
        assert (await layer.push(scope, said(scope, "d" * 500))).queued  # the place was given back


async def test_a_window_that_was_never_read_is_not_made_up(server, scope):
    other = scope.child("part", "other")
    async with worker(server.url, max_windows=1) as layer:
        await texts(layer, scope)
        await texts(layer, other)  # takes the only place
        server.kill()
        assert await texts(layer, other) == []
        for one in (scope, scope.child("part", "third")):
            with pytest.raises(MemoryUnavailable, match="has not read"):
                await layer.get_context(one)
        # Its own waiting turns are no window either: what came before them is unknown.
        assert (await layer.push(scope, said(scope, "a"))).queued
        with pytest.raises(MemoryUnavailable, match="has not read"):
            await layer.get_context(scope)


async def test_only_an_unreachable_server_puts_a_layer_on_standby(one_redis, scope):
    layer = StandbyLayer(one_redis)
    with pytest.raises(InvalidInput):
        await layer.push(scope, said(scope.child("a", "b"), "x").model_copy(update={"tenant_id": "other"}))
    await layer.push(scope, said(scope, "a"))
    assert (layer.away, layer.queued) == (False, 0)
    assert await layer.aclose() == 0


async def test_a_bad_turn_is_refused_before_it_waits(server, scope):
    async with worker(server.url) as layer:
        await layer.push(scope, said(scope, "a"))
        server.kill()
        assert (await layer.push(scope, said(scope, "b"))).queued
        with pytest.raises(InvalidInput):
            await layer.push(scope, said(scope, "x").model_copy(update={"metadata": {"a": object()}}))
        assert layer.queued == 1


async def test_what_the_caller_does_to_a_turn_later_changes_nothing(server, scope):
    async with worker(server.url) as layer:
        await layer.push(scope, said(scope, "a"))
        await texts(layer, scope)
        server.kill()
        turn = said(scope, "b")
        await layer.push(scope, turn)
        turn.content = "changed"
        (await layer.get_context(scope))[0].content = "changed"
        assert await texts(layer, scope) == ["a", "b"]
        server.start()
        await back(layer)
        assert await texts(layer, scope) == ["a", "b"]


async def test_erasure_wins_over_what_waits(server, scope, caplog):
    other = scope.child("part", "other")
    async with Proxy(server.port) as proxy, worker(proxy.url) as layer, connect(server.url) as eraser:
        await layer.push(scope, said(scope, "a"))
        proxy.chance = lambda _: "drop"
        for text in "bc":
            assert (await layer.push(scope, said(scope, text))).queued
        assert (await layer.push(other, said(other, "d"))).queued
        await purge(eraser, scope)
        proxy.chance = lambda _: None
        with exported() as seen:
            await back(layer)
            assert seen.total("symfonic.pushes.lost") == 2
        assert "purged" in caplog.text
        assert await stored(layer, scope) == []
        assert await stored(layer, other) == ["d"]


async def test_a_clear_comes_after_what_waited_before_it(server, scope):
    async with worker(server.url) as layer:
        await layer.push(scope, said(scope, "a"))
        await texts(layer, scope)
        server.kill()
        assert (await layer.push(scope, said(scope, "b"))).queued
        with pytest.raises(MemoryUnavailable):
            await layer.clear(scope)
        server.start()
        await layer.clear(scope)
        await back(layer)
        assert await texts(layer, scope) == []
        assert (await layer.push(scope, said(scope, "c"))).queued is False
        assert await texts(layer, scope) == ["c"]


async def test_what_the_server_refuses_goes_on_waiting(server, scope):
    other = scope.child("part", "other")
    async with Proxy(server.port) as proxy, worker(proxy.url) as layer, connect(server.url) as admin:
        await layer.push(scope, said(scope, "a"))
        proxy.chance = lambda _: "drop"
        for one in (scope, other):
            assert (await layer.push(one, said(one, "b"))).queued
        await admin.call("test", "CONFIG", "SET", "maxmemory", 1)
        proxy.chance = lambda _: None

        async def answered():
            return not layer.away

        await until(answered)
        assert layer.queued
        assert (await layer.push(scope, said(scope, "c"))).queued
        await admin.call("test", "CONFIG", "SET", "maxmemory", 0)
        await back(layer)
        assert await stored(layer, scope) == ["a", "b", "c"]
        assert await stored(layer, other) == ["b"]


async def test_a_worker_that_ends_says_what_it_lost(server, scope, caplog):
    async with worker(server.url) as layer:
        await layer.push(scope, said(scope, "a"))
        server.kill()
        for text in "bc":
            await layer.push(scope, said(scope, text))
        with exported() as seen:
            assert await layer.aclose(0) == 2
            assert seen.total("symfonic.pushes.lost") == 2
        assert "2 pushes" in caplog.text
        assert layer.queued == 0


async def test_a_worker_that_ends_waits_for_the_server(server, scope):
    async with worker(server.url) as layer:
        await layer.push(scope, said(scope, "a"))
        server.kill()
        await layer.push(scope, said(scope, "b"))
        server.start()
        assert await layer.aclose(20) == 0
        assert await stored(layer, scope) == ["a", "b"]


async def test_standby_is_counted(server, scope):
    async with worker(server.url) as layer:
        await layer.push(scope, said(scope, "a"))
        await texts(layer, scope)
        server.kill()
        with exported() as seen:
            await layer.push(scope, said(scope, "b"))
            await texts(layer, scope)
            server.start()
            await back(layer)
            assert seen.total("symfonic.pushes.queued") == 1
            assert seen.total("symfonic.windows.stale") == 1
            assert seen.total("symfonic.pushes.replayed") == 1


async def test_the_evicted_turns_have_the_layers_bounds(server, scope):
    async with worker(server.url, max_entries=1) as layer:
        await layer.push_many(scope, [said(scope, text) for text in "ab"])
        assert [entry.content for entry in await RedisEvictedSource(layer).evicted(scope)] == ["a"]


async def test_a_call_that_is_cancelled_does_not_put_the_layer_on_standby(server, scope):
    async with worker(server.url) as layer:
        await layer.push(scope, said(scope, "a"))
        server.signal(SIGSTOP)
        task = asyncio.create_task(layer.push(scope, said(scope, "b")))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (layer.away, layer.queued) == (False, 0)
        server.signal(SIGCONT)


@pytest.mark.parametrize("wrong", [{"max_queued": 0}, {"max_queued": True}, {"max_windows": -1}], ids=str)
def test_a_wrong_bound_is_refused(one_redis, wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        StandbyLayer(one_redis, **wrong)


async def test_a_turn_that_a_read_saw_before_its_push_was_answered_is_known_once(one_redis, scope, monkeypatch):
    layer = StandbyLayer(one_redis, 5)
    await layer.get_context(scope)
    push_each = layer.store.push_each

    async def answered_late(*calls):
        replies = await push_each(*calls)
        assert len(await layer.get_context(scope)) == 1
        return replies

    monkeypatch.setattr(layer.store, "push_each", answered_late)
    await layer.push(scope, said(scope, "a"))
    assert len(layer._windows[scope_keys(one_redis.prefix, scope).turns]) == 1


async def test_what_was_replayed_is_known_in_the_next_outage(server, scope):
    async with worker(server.url) as layer:
        await layer.push(scope, said(scope, "a"))
        await texts(layer, scope)
        for turn in ("b", "c"):
            server.kill()
            assert (await layer.push(scope, said(scope, turn))).queued
            server.start()
            await back(layer)
        server.kill()
        assert await texts(layer, scope) == ["a", "b", "c"]


async def test_a_window_that_was_rehydrated_is_not_served_as_it_was_before(server, scope):
    async with worker(server.url) as layer:
        assert await texts(layer, scope) == []
        await layer.rehydrate_from_messages(scope, [{"role": "user", "content": "saved"}])
        server.kill()
        with pytest.raises(MemoryUnavailable):
            await layer.get_context(scope)


async def test_a_job_that_is_delivered_twice_meanwhile_waits_once(server, scope):
    async with worker(server.url) as layer:
        await layer.push(scope, said(scope, "a"))
        await texts(layer, scope)
        server.kill()
        receipts = [await layer.push(scope, said(scope, "b"), idempotency_key="job") for _ in range(2)]
        assert [receipt.duplicate for receipt in receipts] == [False, True]
        assert await texts(layer, scope) == ["a", "b"]
        assert layer.queued == 1


async def test_a_master_that_is_back_before_its_replica_strands_nothing(tmp_path, scope):
    with own_server(*AOF, directory=str(tmp_path)) as master:
        async with connect(master.url, deadline=0.3, attempt_timeout=0.2, min_replicas=1) as deployment:
            layer = StandbyLayer(deployment, max_entries=4)
            master.kill()
            for turn in "abc":
                assert (await layer.push(scope, said(scope, turn))).queued
            master.start()
            await back(layer)  # no replica ever acknowledges: each is stored all the same
            assert await texts(layer, scope) == ["a", "b", "c"]
            with pytest.raises(NotReplicated):
                await layer.push(scope, said(scope, "d"))
            master.kill()
            assert await texts(layer, scope) == ["a", "b", "c", "d"]
            assert (await layer.push(scope, said(scope, "e"))).queued
            assert await layer.aclose(0) == 1
