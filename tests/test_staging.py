"""Staged records: unseen until they are published, once, by whichever worker, whatever dies in between."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from acl_users import acl_users
from own_server import everything_said, own_server, until
from proxy import Proxy
from redis.asyncio import Redis
from seen import keys_of, snapshot
from servers import BINARIES, free_port
from symfonic.memory.backends.in_memory import InMemoryGraphBackend
from symfonic.memory.graph.store import GraphMemoryStore
from test_scripts import commands_of, stated

from symfonic_redis import (
    AccessDenied,
    CodecError,
    ConfigurationError,
    InvalidInput,
    KeyConflict,
    MemoryEntry,
    MemoryLayer,
    MemoryRecord,
    OutOfMemory,
    RedisMemoryLifecycle,
    RedisMemoryWriter,
    Relay,
    ScopeClosed,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    WriteRequest,
    connect,
    latest_cursor,
    purge,
    watch,
)
from symfonic_redis.keys import scope_keys
from symfonic_redis.pending import decode_record, encode_record
from symfonic_redis.scope import format_scope
from symfonic_redis.scripts import script
from symfonic_redis.sealing import PLAIN

HERE = Path(__file__).parent
SCRIPT = b"EVALSHA"
SECRET = "4111 1111 1111 1111"
CRASHES = int(os.environ.get("CRASHES", "200"))


class Worker:
    """A worker: a layer with a mirror, its writer and its lifecycle, on one deployment."""

    def __init__(self, deployment, **options) -> None:
        self.deployment = deployment
        self.graph = StreamGraphStore(deployment)
        self.layer = WorkingLayer(deployment, **{"max_entries": 3, "graph_store": self.graph, **options})
        self.writer = RedisMemoryWriter(self.layer)
        self.lifecycle = RedisMemoryLifecycle(self.layer)

    async def stage(self, scope, *records, **values):
        return await self.writer.write(WriteRequest(scope, records, **values))

    async def window(self, scope):
        return [entry.content for entry in await self.layer.get_context(scope)]

    async def labels(self, scope):
        """Every node of the scope, by layer."""
        found = {
            layer.value: [node.label for node in await self.graph.query_nodes(scope, layer)] for layer in MemoryLayer
        }
        return {layer: labels for layer, labels in found.items() if labels}

    async def waits(self, scope):
        return [record.content for record in await self.lifecycle.staged(scope)]


@pytest.fixture
def worker(redis) -> Worker:
    return Worker(redis)


@pytest.fixture
def one(one_redis) -> Worker:
    return Worker(one_redis)


def said(scope, content, **values):
    return MemoryRecord.turn(scope, speaker="user", turn_id=content, content=content, **values)


def fact(scope, content, layer="semantic", **values):
    return MemoryRecord(scope=scope, content=content, layer=layer, **values)


async def load_scripts(url):
    """Let the server know the scripts, so that a write is exactly one EVALSHA."""
    async with Redis.from_url(url) as client:
        for name in ("push", "clear", "stage", "flush", "nodes"):
            await client.script_load(script(name).text)


# --- from staged to published ---


async def test_a_staged_record_cannot_be_retrieved_until_it_is_flushed(worker, scope):
    records = [said(scope, "hello"), fact(scope, "likes tea"), fact(scope, "allergic", "profile")]
    receipt = await worker.stage(scope, *records)
    assert receipt.accepted == tuple(record.id for record in records)
    assert (receipt.degraded, receipt.reason, receipt.duplicate) == (False, "", False)
    assert await worker.window(scope) == []
    assert await worker.labels(scope) == {}
    assert await worker.lifecycle.staged(scope) == tuple(records) == await worker.writer.staged(scope)
    flushed = await worker.lifecycle.flush(scope)
    assert flushed.committed == receipt.accepted
    assert await worker.window(scope) == ["hello"]
    assert await worker.labels(scope) == {"working": ["hello"], "semantic": ["likes tea", "allergic"]}
    assert await worker.lifecycle.staged(scope) == ()
    nodes = [await worker.graph.get_node(scope, name) for name in flushed.node_ids]
    assert [node.label for node in nodes] == ["hello", "likes tea", "allergic"]
    assert (await worker.lifecycle.flush(scope)).committed == ()


async def test_a_published_turn_is_what_a_push_would_have_made(worker, scope):
    entry = MemoryEntry.turn(scope, speaker="user", turn_id="t1", content="hi", metadata={"n": 1}, importance=8)
    await worker.layer.push(scope, entry, durability="transient")
    record = MemoryRecord.turn(
        scope, speaker="user", turn_id="t1", content="hi", metadata={"n": 1}, importance=8, durability="transient"
    )
    await worker.stage(scope, record)
    await worker.lifecycle.flush(scope)
    pushed, published = await worker.layer.get_context(scope)
    assert published.id == record.id
    assert published.created_at == record.created_at
    # What was given apart from the metadata of a push stands in the record's.
    assert published.metadata == {**pushed.metadata, "durability": "transient"}
    same = {"id", "created_at", "metadata"}
    assert published.model_dump(exclude=same) == pushed.model_dump(exclude=same)
    theirs, ours = await worker.graph.query_nodes(scope)
    assert ours.properties == theirs.properties
    assert (ours.label, ours.importance, ours.durability) == (theirs.label, theirs.importance, theirs.durability)


async def test_a_published_node_says_where_it_came_from(worker, scope):
    record = fact(scope, "x" * 100, "profile", id="r1", importance=9, durability="durable", metadata={"source": 3})
    await worker.stage(scope, record)
    await worker.lifecycle.flush(scope)
    (node,) = await worker.graph.query_nodes(scope, "semantic", filters={"record_layer": "profile"})
    assert node.properties == {
        "content": "x" * 100,
        "source": 3,
        "record_id": "r1",
        "record_layer": "profile",
        "durability": "durable",
    }
    assert (node.label, node.importance, node.tenant_id) == ("x" * 80, 9, "acme")
    assert node.created_at == record.created_at


async def test_every_layer_has_its_own_stream(worker, scope):
    layers = [layer.value for layer in MemoryLayer]
    await worker.stage(scope, *(fact(scope, layer, layer) for layer in layers))
    assert len((await worker.lifecycle.flush(scope)).committed) == 5
    assert await worker.labels(scope) == {layer: [layer] for layer in layers}


async def test_any_worker_publishes_what_any_worker_staged(server, prefix, scope):
    async with connect(server.url, prefix=prefix) as first, connect(server.url, prefix=prefix) as second:
        one, other = Worker(first), Worker(second, max_entries=2, working_graph_retention=3)
        await one.stage(scope, *(said(scope, str(number)) for number in range(5)))
        await other.stage(scope, said(scope, "5"), fact(scope, "f"))
        # The one that publishes gives the bounds.
        assert len((await other.lifecycle.flush(scope)).committed) == 7
        assert await other.window(scope) == ["4", "5"]
        assert await one.window(scope) == ["3", "4", "5"]
        assert await one.labels(scope) == {"working": ["3", "4", "5"], "semantic": ["f"]}


@pytest.mark.parametrize("retention", [None, 0, 2])
@pytest.mark.parametrize("fill", [0, 1, 4])
async def test_the_bounds_are_those_of_a_push(worker, scope, turn, retention, fill):
    pushing = Worker(worker.deployment, max_entries=2, evicted_retention=2, working_graph_retention=retention)
    other = scope.child("part", "pushed")
    for whose in (scope, other):
        await pushing.layer.push_many(whose, [turn(str(number)) for number in range(fill)])
    await pushing.layer.push_many(other, [turn(str(number)) for number in range(fill, fill + 3)])
    await pushing.stage(scope, *(said(scope, str(number)) for number in range(fill, fill + 3)))
    assert len((await pushing.lifecycle.flush(scope)).committed) == 3
    assert await pushing.window(scope) == await pushing.window(other)
    assert await pushing.labels(scope) == await pushing.labels(other)
    lengths = [
        await worker.deployment.call("test", "LLEN", scope_keys(worker.deployment.prefix, whose).turns)
        for whose in (scope, other)
    ]
    assert lengths[0] == lengths[1]


async def test_without_a_mirror_turns_have_no_nodes_and_facts_do(redis, scope):
    worker = Worker(redis, graph_store=None)
    await worker.stage(scope, said(scope, "hello"), fact(scope, "f"))
    receipt = await worker.lifecycle.flush(scope)
    assert [bool(node) for node in receipt.node_ids] == [False, True]
    assert await worker.window(scope) == ["hello"]
    assert await worker.labels(scope) == {"semantic": ["f"]}


async def test_turns_reach_a_graph_store_that_is_not_ours(redis, scope):
    backend = InMemoryGraphBackend()
    worker = Worker(redis, graph_store=GraphMemoryStore(backend), working_graph_retention=2)
    await worker.layer.push(scope, MemoryEntry.turn(scope, speaker="user", turn_id="0", content="0"))
    await worker.stage(scope, said(scope, "1", durability="transient"), fact(scope, "f"), said(scope, "2"))
    receipt = await worker.lifecycle.flush(scope)
    nodes = await backend.query_nodes(scope, {}, limit=None)
    assert sorted(node.label for node in nodes) == ["1", "2"]
    assert {node.id for node in nodes} == {receipt.node_ids[0], receipt.node_ids[2]}
    assert next(node for node in nodes if node.label == "1").properties["durability"] == "transient"


async def test_staging_alone_shows_nothing_and_a_flush_tells_the_feed_each_record(server, prefix, scope):
    async with connect(server.url, prefix=prefix, feed=100) as redis:
        worker = Worker(redis)
        start = await latest_cursor(redis, scope)
        await worker.stage(scope, said(scope, "hello"), fact(scope, "f"))
        assert await latest_cursor(redis, scope) == start
        receipt = await worker.lifecycle.flush(scope)
        changes = []
        async with asyncio.timeout(30):
            async for change in watch(redis, scope, after=start):
                changes.append(change)
                if change.kind == "flush":
                    break
        assert [change.kind for change in changes] == ["push", "node", "flush"]
        assert tuple(change.node_id for change in changes[:2]) == receipt.node_ids
        assert (changes[0].entry.content, changes[1].node.label, changes[2].count) == ("hello", "f", 2)


async def test_a_relay_copies_what_was_published(server, prefix, scope):
    async with connect(server.url, prefix=prefix, feed=100) as redis:
        worker, backend = Worker(redis), InMemoryGraphBackend()
        await worker.stage(scope, said(scope, "hello"), fact(scope, "f"), fact(scope, "p", "profile"))
        receipt = await worker.lifecycle.flush(scope)
        await Relay(redis, backend).drain()
        copies = await backend.query_nodes(scope, {}, limit=None)
        assert {node.id: node.label for node in copies} == dict(zip(receipt.node_ids, ["hello", "f", "p"], strict=True))


# --- what waits: its bounds and its end ---


async def test_past_the_cap_a_write_is_refused_whole_and_says_so(redis, scope):
    layer = WorkingLayer(redis)
    writer, lifecycle = RedisMemoryWriter(layer, max_staged=3), RedisMemoryLifecycle(layer)
    assert len((await writer.write(WriteRequest(scope, [said(scope, "1"), said(scope, "2")]))).accepted) == 2
    before = await snapshot(redis)
    refused = await writer.write(WriteRequest(scope, [said(scope, SECRET), said(scope, "4")]))
    assert (refused.accepted, refused.degraded) == ((), True)
    assert refused.reason.startswith("2 records of ")
    assert "cap of 3 records" in refused.reason
    assert "flush the scope" in refused.reason
    assert SECRET not in refused.reason
    assert await snapshot(redis) == before
    # One that fits is taken, and after a flush all is.
    assert len((await writer.write(WriteRequest(scope, [said(scope, "3")]))).accepted) == 1
    assert (await writer.write(WriteRequest(scope, [said(scope, "4")]))).degraded
    await lifecycle.flush(scope)
    assert (await writer.write(WriteRequest(scope, [said(scope, "4")]))).accepted
    assert [record.content for record in await lifecycle.staged(scope)] == ["4"]
    # What could never fit is told so, without asking the server.
    never = await writer.write(WriteRequest(scope, [said(scope, str(number)) for number in range(4)]))
    assert never.degraded
    assert "write fewer at once" in never.reason


async def test_bytes_are_capped_too(one, scope):
    large = [fact(scope, "x" * 1_000_000) for _ in range(17)]
    for record in large[:16]:
        assert (await one.stage(scope, record)).accepted
    refused = await one.stage(scope, large[16])
    assert refused.degraded
    assert "16777216 bytes" in refused.reason
    assert (await one.stage(scope, fact(scope, "small"))).accepted
    assert len((await one.lifecycle.flush(scope)).committed) == 17


async def test_what_waits_lives_exactly_as_long_as_the_window(redis, scope, turn):
    worker = Worker(redis, ttl=100)
    keys = scope_keys(redis.prefix, scope)

    async def left():
        return await redis.call_many("test", [("PTTL", key) for key in (keys.turns, keys.staged)])

    async def replay():
        messages = [{"role": "user", "content": "hello"}]
        await worker.layer.rehydrate_from_messages(scope, messages, only_if_empty=False)

    await worker.layer.push(scope, turn())
    for write in (
        lambda: worker.stage(scope, fact(scope, "f")),
        lambda: worker.layer.push(scope, turn()),
        replay,
        lambda: worker.stage(scope, fact(scope, "f"), idempotency_key="job"),
    ):
        await write()
        assert all(50_000 < ms <= 100_000 for ms in await left())
        await redis.call_many("test", [("PEXPIRE", key, 1_000) for key in (keys.turns, keys.staged)])
    assert await worker.waits(scope) == ["f", "f"]  # reading starts nothing again
    assert all(ms <= 1_000 for ms in await left())
    # A layer without a time to live keeps what an earlier one would have let go.
    await Worker(redis).stage(scope, fact(scope, "f"))
    assert await left() == [-1, -1]


async def test_publishing_starts_the_times_again(redis, scope):
    graph = StreamGraphStore(redis, ttl=200)
    worker = Worker(redis, ttl=100, graph_store=graph)
    await worker.stage(scope, said(scope, "hello"), fact(scope, "f"))
    await worker.lifecycle.flush(scope)
    keys = scope_keys(redis.prefix, scope)
    names = (keys.turns, keys.graph("working"), keys.graph("semantic"))
    turns, *streams = await redis.call_many("test", [("PTTL", name) for name in names])
    assert 50_000 < turns <= 100_000
    assert all(150_000 < ms <= 200_000 for ms in streams)
    # The index holds the scope as long as the longest of it.
    now, _ = await redis.call("test", "TIME")
    score = float(await redis.call("test", "ZSCORE", keys.shared.scopes, keys.path))
    assert 150_000 < score - 1000 * int(now) < 210_000


async def test_what_waits_is_gone_when_its_time_is_over(redis, scope):
    worker = Worker(redis, ttl=0.05)
    await worker.stage(scope, fact(scope, "f"))

    async def gone():
        return not await worker.lifecycle.staged(scope)

    await until(gone)
    assert (await worker.lifecycle.flush(scope)).committed == ()


async def test_a_writer_on_a_bare_deployment_has_a_ttl_of_its_own(redis, scope):
    writer = RedisMemoryWriter(redis, ttl=100)
    await writer.write(WriteRequest(scope, [fact(scope, "f")]))
    assert 50_000 < await redis.call("test", "PTTL", scope_keys(redis.prefix, scope).staged) <= 100_000
    assert [record.content for record in await writer.staged(scope)] == ["f"]


@pytest.mark.parametrize("ttl", [100, None], ids=["a ttl", "for ever"])
async def test_a_writer_without_a_ttl_leaves_the_turns_theirs(redis, scope, ttl):
    worker = Worker(redis, ttl=ttl, graph_store=None)
    await worker.layer.push(scope, MemoryEntry.turn(scope, speaker="user", turn_id="t", content="a"))
    keys = scope_keys(redis.prefix, scope)
    await RedisMemoryWriter(redis).write(WriteRequest(scope, [fact(scope, "f")]))
    for key in (keys.turns, keys.staged):
        left = await redis.call("test", "PTTL", key)
        assert 50_000 < left <= 100_000 if ttl else left == -1
    # The index of scopes tells the same: a purge finds the scope as long as anything of it is there, and no longer.
    ends = float(await redis.call("test", "ZSCORE", keys.shared.scopes, keys.path))
    assert (ends < 1e14) is (ttl is not None)


async def test_what_waits_without_turns_and_without_a_ttl_stays(redis, scope):
    await RedisMemoryWriter(redis).write(WriteRequest(scope, [fact(scope, "f")]))
    keys = scope_keys(redis.prefix, scope)
    assert await redis.call("test", "PTTL", keys.staged) == -1
    assert float(await redis.call("test", "ZSCORE", keys.shared.scopes, keys.path)) >= 1e14


async def test_a_writer_without_a_ttl_leaves_what_waits_its_own(redis, scope):
    worker = Worker(redis, ttl=100)
    await worker.stage(scope, fact(scope, "a"))  # no turns yet
    await RedisMemoryWriter(redis).write(WriteRequest(scope, [fact(scope, "b")]))
    assert 50_000 < await redis.call("test", "PTTL", scope_keys(redis.prefix, scope).staged) <= 100_000


async def test_records_of_another_version_do_not_use_up_the_room(worker, scope):
    keys = scope_keys(worker.deployment.prefix, scope)
    strangers = [b"2 working a 1\nx", b"damaged", b"", b"1 working a"] * 3
    await worker.deployment.call("test", "RPUSH", keys.staged, *strangers)
    writer = RedisMemoryWriter(worker.layer, max_staged=2)
    assert (await writer.write(WriteRequest(scope, [said(scope, "a"), said(scope, "b")]))).accepted
    refused = await writer.write(WriteRequest(scope, [said(scope, "c")]))
    assert refused.degraded
    assert refused.reason.startswith("2 records of ")
    assert len((await worker.lifecycle.flush(scope)).committed) == 2
    # What could not be read goes on waiting, and new records find room.
    assert await worker.deployment.call("test", "LRANGE", keys.staged, 0, -1) == strangers
    assert (await writer.write(WriteRequest(scope, [said(scope, "c")]))).accepted


async def test_clearing_removes_staged_turns_and_no_other_staged_record(worker, scope):
    other = scope.child("part", "other")
    await worker.stage(scope, said(scope, "a"), fact(scope, "working "), said(scope, "b"), fact(scope, "p", "profile"))
    await worker.stage(other, said(other, "c"))
    await worker.deployment.call("test", "PEXPIRE", scope_keys(worker.deployment.prefix, scope).staged, 50_000)
    await worker.layer.clear(scope)
    assert await worker.waits(scope) == ["working ", "p"]
    assert await worker.waits(other) == ["c"]
    assert await worker.deployment.call("test", "PTTL", scope_keys(worker.deployment.prefix, scope).staged) > 0
    assert len((await worker.lifecycle.flush(scope)).committed) == 2
    assert await worker.window(scope) == []
    # Nothing but turns: nothing is left of the list.
    await worker.layer.clear(other)
    assert scope_keys(worker.deployment.prefix, other).staged.encode() not in await keys_of(worker.deployment)


async def test_a_purge_removes_what_waits_and_refuses_a_late_writer(worker, scope):
    await worker.stage(scope, fact(scope, "f"))
    await purge(worker.deployment, scope)
    assert await worker.lifecycle.staged(scope) == ()
    with pytest.raises(ScopeClosed):
        await worker.stage(scope, fact(scope, "f"))
    with pytest.raises(ScopeClosed):
        await worker.lifecycle.flush(scope)


async def test_what_cannot_be_read_goes_on_waiting_and_holds_nothing_up(worker, scope, caplog):
    key = scope_keys(worker.deployment.prefix, scope).staged
    good = encode_record(fact(scope, "good"), "acme", limit=1000, seal=PLAIN)
    strange = [b"2 semantic x 5\nnewer", b"", b"\n", b"1 semantic", b"1 imaginary x 1\nx", b"1 semantic x 999\nshort"]
    await worker.deployment.call("test", "RPUSH", key, *strange[:3], good, *strange[3:])
    assert await worker.waits(scope) == ["good"]
    assert "cannot be read" in caplog.text
    assert len((await worker.lifecycle.flush(scope)).committed) == 1
    assert "6 staged records of a scope" in caplog.text
    assert await worker.labels(scope) == {"semantic": ["good"]}
    assert await worker.deployment.call("test", "LRANGE", key, 0, -1) == strange
    with pytest.raises(CodecError):
        decode_record(strange[0], scope_keys("p", scope), scope, seal=PLAIN)


# --- once ---


async def test_two_that_flush_at_once_publish_each_record_once(server, prefix, scope):
    deployments = [connect(server.url, prefix=prefix) for _ in range(4)]
    try:
        workers = [Worker(deployment, max_entries=1000) for deployment in deployments]
        staged, committed = [], []
        for round_number in range(25):
            for number, worker in enumerate(workers):
                name = f"{round_number}.{number}"
                staged += (await worker.stage(scope, said(scope, name), fact(scope, name))).accepted
            receipts = await asyncio.gather(*(worker.lifecycle.flush(scope) for worker in workers))
            committed += [name for receipt in receipts for name in receipt.committed]
        assert committed == staged
        names = [f"{round_number}.{number}" for round_number in range(25) for number in range(4)]
        assert await workers[0].window(scope) == names
        assert await workers[0].labels(scope) == {"working": names, "semantic": names}
    finally:
        for deployment in deployments:
            await deployment.aclose()


async def test_writers_and_flushers_at_once_lose_and_double_nothing(server, prefix, scope):
    async with connect(server.url, prefix=prefix) as first, connect(server.url, prefix=prefix) as second:
        workers = [Worker(first, max_entries=1000), Worker(second, max_entries=1000)]
        staged, committed, done = [], [], asyncio.Event()

        async def write(number):
            for step in range(50):
                staged.extend((await workers[number % 2].stage(scope, said(scope, f"{number}.{step}"))).accepted)

        async def flush(number):
            while not done.is_set():
                committed.extend((await workers[number].lifecycle.flush(scope)).committed)

        flushing = [asyncio.create_task(flush(number)) for number in range(2)]
        await asyncio.gather(*map(write, range(6)))
        done.set()
        await asyncio.gather(*flushing)
        committed += (await workers[0].lifecycle.flush(scope)).committed
        assert sorted(committed) == sorted(staged)
        window = await workers[0].window(scope)
        assert len(window) == len(set(window)) == 300
        for number in range(6):
            assert [name for name in window if name.startswith(f"{number}.")] == [f"{number}.{s}" for s in range(50)]


@pytest.mark.parametrize("fault", ["drop", "lose"])
async def test_whatever_the_network_loses_a_record_is_staged_and_published_once(server, prefix, scope, fault):
    await load_scripts(server.url)
    async with Proxy(server.port) as proxy, connect(proxy.url, prefix=prefix) as deployment:
        worker = Worker(deployment)
        await worker.stage(scope, said(scope, "a"))
        lost = proxy.on(SCRIPT, fault, times=3)
        records = said(scope, "b"), fact(scope, "f")
        receipt = await worker.stage(scope, *records)
        assert receipt.accepted == tuple(record.id for record in records)
        assert lost.reached.is_set()
        assert await worker.waits(scope) == ["a", "b", "f"]
        lost = proxy.on(SCRIPT, fault, times=3)
        flushed = await worker.lifecycle.flush(scope)
        assert lost.reached.is_set()
        assert flushed.committed[1:] == receipt.accepted
        assert all(flushed.node_ids)
        assert await worker.window(scope) == ["a", "b"]
        assert await worker.labels(scope) == {"working": ["a", "b"], "semantic": ["f"]}


async def test_a_staging_whose_reply_was_lost_is_not_repeated_after_anothers_flush(valkey, prefix, scope):
    await load_scripts(valkey.url)
    async with (
        Proxy(valkey.port) as proxy,
        connect(proxy.url, prefix=prefix) as shaky,
        connect(valkey.url, prefix=prefix) as direct,
    ):
        worker, other = Worker(shaky), Worker(direct)
        await worker.lifecycle.staged(scope)
        retry = proxy.on(SCRIPT, "hold", nth=2)
        proxy.on(SCRIPT, "lose")
        write = asyncio.create_task(worker.stage(scope, said(scope, "a")))
        await retry.reached.wait()
        assert len((await other.lifecycle.flush(scope)).committed) == 1
        retry.release()
        assert len((await write).accepted) == 1
        assert await other.waits(scope) == []
        assert await other.window(scope) == ["a"]


async def test_a_flush_whose_reply_was_lost_does_not_publish_what_came_after(valkey, prefix, scope):
    await load_scripts(valkey.url)
    async with (
        Proxy(valkey.port) as proxy,
        connect(proxy.url, prefix=prefix) as shaky,
        connect(valkey.url, prefix=prefix) as direct,
    ):
        worker, other = Worker(shaky), Worker(direct)
        await worker.stage(scope, said(scope, "a"))
        retry = proxy.on(SCRIPT, "hold", nth=2)
        proxy.on(SCRIPT, "lose")
        flush = asyncio.create_task(worker.lifecycle.flush(scope))
        await retry.reached.wait()
        await other.stage(scope, said(scope, "b"))
        retry.release()
        assert len((await flush).committed) == 1
        assert await other.waits(scope) == ["b"]
        assert await other.window(scope) == ["a"]


async def test_a_job_that_is_delivered_again_stages_its_records_once(worker, scope):
    first = await worker.stage(scope, said(scope, "a"), idempotency_key="job-1")
    assert first.accepted
    for _ in range(2):
        again = await worker.stage(scope, said(scope, "a"), idempotency_key="job-1")
        assert (again.accepted, again.duplicate, again.degraded) == ((), True, False)
        assert again.reason
        await worker.lifecycle.flush(scope)  # published or not, it was staged
    assert await worker.window(scope) == ["a"]
    assert (await worker.stage(scope, said(scope, "b"), idempotency_key="job-2")).accepted
    # A job may push under the name it staged under: neither write hides the other.
    entry = MemoryEntry.turn(scope, speaker="user", turn_id="c", content="c")
    for duplicate in (False, True):
        assert (await worker.layer.push(scope, entry, idempotency_key="job-1")).duplicate is duplicate


# --- crashes ---


class Zygote:
    """Workers to be killed; see staging_worker.py."""

    def __init__(self, process) -> None:
        self._process = process

    @classmethod
    async def start(cls):
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                str(HERE / "staging_worker.py"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path])},
            )
        )

    async def words(self):
        async with asyncio.timeout(60):
            line = await self._process.stdout.readline()
        assert line, "the zygote is gone"
        return line.decode().split()

    async def fork(self, *words) -> int:
        self._process.stdin.write((" ".join(words) + "\n").encode())
        kind, pid = await self.words()
        assert kind == "pid"
        return int(pid)

    async def stop(self) -> None:
        self._process.stdin.close()
        await self._process.wait()


async def test_after_a_kill_at_any_moment_the_next_flush_publishes_each_staged_record_once(valkey, prefix):
    chance = random.Random(11)
    zygote = await Zygote.start()
    moments = Counter()
    try:
        async with connect(valkey.url, prefix=prefix) as deployment:
            worker = Worker(deployment, max_entries=1000)
            for number in range(CRASHES):
                scope = TenantScope.root("org", "acme").child("conversation", f"c{number}")
                pid = await zygote.fork(valkey.url, prefix, format_scope(scope))
                told = {"staged": [], "flushed": []}
                for _ in range(chance.randrange(1, 12)):
                    kind, *names = await zygote.words()
                    told[kind] += names
                await asyncio.sleep(chance.choice((0, 0.0003, 0.001, 0.002)))
                os.kill(pid, signal.SIGKILL)
                while (words := await zygote.words()) != ["gone"]:
                    told[words[0]] += words[1:]
                waiting = [record.id for record in await worker.lifecycle.staged(scope)]
                moments["with records waiting" if waiting else "with none waiting"] += 1
                # What was told as staged waits, or was published before the kill.
                nodes = await worker.graph.query_nodes(scope, "semantic")
                before = [node.properties["record_id"] for node in nodes]
                before += [entry.id for entry in await worker.layer.get_context(scope)]
                assert set(told["staged"]) <= {*waiting, *before}
                assert set(told["flushed"]) <= set(before)
                assert not set(waiting) & set(before)
                receipt = await worker.lifecycle.flush(scope)
                assert list(receipt.committed) == waiting
                nodes = await worker.graph.query_nodes(scope, "semantic")
                after = [node.properties["record_id"] for node in nodes]
                turns = [entry.id for entry in await worker.layer.get_context(scope)]
                assert sorted(after + turns) == sorted(before + waiting)
                assert len({*after, *turns}) == len(after + turns)
                assert [node.label for node in await worker.graph.query_nodes(scope, "working")] == await worker.window(
                    scope
                )
                assert (await worker.lifecycle.flush(scope)).committed == ()
    finally:
        await zygote.stop()
    assert moments["with records waiting"] > CRASHES / 4
    print(f"{CRASHES} kills: {dict(moments)}")  # noqa: T201 - shown by -s


# --- when the store does not answer, and what it is asked ---


async def test_an_unreachable_store_degrades_and_raises_nothing(scope):
    port = free_port()
    worker = Worker(connect(f"redis://user:{SECRET[:4]}@127.0.0.1:{port}/0", deadline=0.3))
    written = await worker.stage(scope, said(scope, SECRET))
    flushed = await worker.lifecycle.flush(scope)
    for receipt in (written, flushed):
        assert receipt.degraded
        assert f"127.0.0.1:{port} is unavailable" in receipt.reason
        assert SECRET[:4] not in receipt.reason
    assert written.accepted == flushed.committed == ()


async def test_a_store_that_goes_away_and_comes_back_keeps_what_waited(valkey, prefix, scope):
    async with Proxy(valkey.port) as proxy, connect(proxy.url, prefix=prefix, deadline=0.5) as deployment:
        worker = Worker(deployment)
        await worker.stage(scope, said(scope, "a"))
        proxy.refuse()
        assert (await worker.stage(scope, said(scope, "b"))).degraded
        assert (await worker.lifecycle.flush(scope)).degraded
        await proxy.listen()
        deployment.deadline = 30
        assert len((await worker.lifecycle.flush(scope)).committed) == 1
        assert await worker.window(scope) == ["a"]


@pytest.mark.parametrize("what", ["write", "flush"])
async def test_cancellation_passes_through(valkey, prefix, scope, what):
    await load_scripts(valkey.url)
    async with Proxy(valkey.port) as proxy, connect(proxy.url, prefix=prefix) as deployment:
        worker = Worker(deployment)
        await worker.lifecycle.staged(scope)
        held = proxy.on(SCRIPT, "hold")
        call = worker.stage(scope, said(scope, "a")) if what == "write" else worker.lifecycle.flush(scope)
        task = asyncio.create_task(call)
        await held.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        held.release()


async def test_each_call_is_one_round_trip(server, prefix, scope):
    await load_scripts(server.url)
    async with Proxy(server.port) as proxy, connect(proxy.url, prefix=prefix) as deployment:
        worker = Worker(deployment)
        await worker.stage(scope, said(scope, "a"))
        for call, costs in (
            (worker.stage(scope, said(scope, "b"), fact(scope, "f")), {"EVALSHA": 1}),
            (worker.lifecycle.staged(scope), {"LRANGE": 1}),
            (worker.lifecycle.flush(scope), {"EVALSHA": 1}),
            (worker.lifecycle.flush(scope), {"EVALSHA": 1}),
            (worker.stage(scope), {}),
        ):
            proxy.requests.clear()
            await call
            assert proxy.counted() == costs


async def test_staging_and_flushing_cost_what_their_headers_say(one, scope):
    (staging,) = stated("stage")[:1]
    nothing, fixed, layer, record, full = stated("flush")[:5]
    await one.stage(scope, said(scope, "a"))
    assert await commands_of(one.deployment, one.stage(scope, said(scope, "b"))) == staging
    await one.lifecycle.flush(scope)
    assert await commands_of(one.deployment, one.lifecycle.flush(scope)) == nothing
    for records, layers in (([said], 1), ([said, fact], 2), ([fact, fact, said], 2)):
        await one.stage(scope, *(make(scope, "x") for make in records))
        expected = fixed + layer * layers + record * len(records)
        assert await commands_of(one.deployment, one.lifecycle.flush(scope)) == expected
    bounded = Worker(one.deployment, working_graph_retention=1)
    await bounded.stage(scope, said(scope, "x"))
    await bounded.lifecycle.flush(scope)
    await bounded.stage(scope, said(scope, "x"))
    assert await commands_of(one.deployment, bounded.lifecycle.flush(scope)) == fixed + layer + record + full


async def test_as_many_as_may_ever_wait_are_published_at_once(one_redis, scope):
    layer = WorkingLayer(one_redis, 5_000, StreamGraphStore(one_redis))
    writer = RedisMemoryWriter(layer, max_staged=4_000)
    records = [said(scope, str(number)) for number in range(4_000)]
    assert len((await writer.write(WriteRequest(scope, records))).accepted) == 4_000
    assert len((await RedisMemoryLifecycle(layer).flush(scope)).committed) == 4_000
    assert [entry.content for entry in await layer.get_context(scope)] == [record.content for record in records]


async def test_it_works_on_the_fake_server_too(scope):
    async with connect("fake://", feed=100) as redis:
        worker = Worker(redis, ttl=100, working_graph_retention=1)
        await worker.stage(scope, said(scope, "a"), fact(scope, "f"), said(scope, "b"), idempotency_key="job")
        assert (await worker.stage(scope, said(scope, "a"), idempotency_key="job")).duplicate
        assert len((await worker.lifecycle.flush(scope)).committed) == 3
        assert await worker.window(scope) == ["a", "b"]
        assert await worker.labels(scope) == {"working": ["b"], "semantic": ["f"]}
        await worker.stage(scope, said(scope, "c"), fact(scope, "g"))
        await worker.layer.clear(scope)
        assert await worker.waits(scope) == ["g"]


@pytest.mark.parametrize("kind", list(BINARIES))
async def test_a_full_server_refuses_and_keeps_what_waits(scope, kind):
    with own_server("--maxmemory-policy", "noeviction", kind=kind) as server:
        async with connect(server.url) as deployment, Redis.from_url(server.url) as admin:
            worker = Worker(deployment)
            await worker.stage(scope, said(scope, "a"), fact(scope, "f"))
            await admin.config_set("maxmemory", 1)
            for call in (worker.stage(scope, said(scope, "b")), worker.lifecycle.flush(scope)):
                with pytest.raises(OutOfMemory):
                    await call
            assert await worker.waits(scope) == ["a", "f"]
            assert await worker.labels(scope) == {}
            # What frees memory must not need any.
            await worker.layer.clear(scope)
            assert await worker.waits(scope) == ["f"]
            await admin.config_set("maxmemory", 0)
            assert len((await worker.lifecycle.flush(scope)).committed) == 1


@pytest.mark.parametrize("command", ["lrange", "xadd", "lpush", "unlink", "hset", "pexpire"])
async def test_a_user_who_may_not_do_all_of_it_does_nothing(valkey, prefix, scope, command):
    async with acl_users(valkey) as users, connect(valkey.url, prefix=prefix) as direct:
        worker = Worker(direct)
        await worker.stage(scope, said(scope, "a"), fact(scope, "f"))
        url = await users.make(f"~{prefix}:*", "+@all", f"-{command}")
        before = await snapshot(direct)
        async with connect(url, prefix=prefix) as limited:
            with pytest.raises(AccessDenied):
                await Worker(limited).lifecycle.flush(scope)
        assert await snapshot(direct) == before


# --- bad input ---


async def test_what_is_refused_leaves_nothing_behind(one, scope):
    other = TenantScope.root("org", "globex")
    before = await snapshot(one.deployment)
    for records in (
        [said(scope, "a"), fact(other, SECRET)],
        [said(scope, "a"), fact(scope.child("part", "1"), SECRET)],
        [said(scope, "a"), SECRET],
        [said(scope, "a"), fact(scope, SECRET, metadata={"tags": {"a set"}})],
        [said(scope, "a"), fact(scope, SECRET * (1 << 17))],
    ):
        with pytest.raises(InvalidInput) as caught:
            await one.writer.write(WriteRequest(scope, records))
        assert SECRET not in everything_said(caught.value)
    with pytest.raises(InvalidInput, match="idempotency_key"):
        await one.writer.write(WriteRequest(scope, [said(scope, "a")], idempotency_key=7))
    assert await snapshot(one.deployment) == before
    assert (await one.writer.write(WriteRequest(scope))).accepted == ()


@pytest.mark.parametrize("what", ["staged", "turns", "graph:semantic", "graph:semantic:edits"])
async def test_a_key_of_another_type_stops_a_flush_before_anything_is_written(one, scope, what):
    keys = scope_keys(one.deployment.prefix, scope)
    await one.stage(scope, said(scope, "a"), fact(scope, "f"))
    await one.deployment.call("test", "SET", f"{keys.base}:{what}", "a string")
    before = await snapshot(one.deployment)
    with pytest.raises(KeyConflict, match=what):
        await one.lifecycle.flush(scope)
    assert await snapshot(one.deployment) == before


def test_what_a_constructor_refuses(one_redis):
    layer = WorkingLayer(one_redis)
    for wrong in (0, -1, 4001, True, 1.5, "3", None):
        with pytest.raises(ConfigurationError, match="max_staged"):
            RedisMemoryWriter(layer, max_staged=wrong)
    with pytest.raises(ConfigurationError, match="its layer's ttl"):
        RedisMemoryWriter(layer, ttl=5)
    with pytest.raises(ConfigurationError, match="ttl"):
        RedisMemoryWriter(one_redis, ttl=0)
    with pytest.raises(ConfigurationError, match="no connection"):
        RedisMemoryWriter("redis://localhost")
    for wrong in (one_redis, None, "redis://localhost"):
        with pytest.raises(ConfigurationError, match="pass the WorkingLayer"):
            RedisMemoryLifecycle(wrong)
