"""Relaying: at least once, in order per scope, once per id in the target, whatever dies in between."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from servers import Server, binary
from symfonic.memory.backends.in_memory import InMemoryGraphBackend
from targets import ListTarget, SqliteTarget
from test_cli import answer, fails, run

from symfonic_redis import (
    ConfigurationError,
    MemoryEntry,
    MemoryLayer,
    MemoryNode,
    Relay,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    connect,
    relay_status,
)
from symfonic_redis.books import Books, Feed, LeaseLost
from symfonic_redis.erasure import purge, purge_tenant
from symfonic_redis.keys import lease_key, partition_of, scope_keys
from symfonic_redis.scope import format_scope
from symfonic_redis.telemetry import rows_damaged

HERE = Path(__file__).parent


@pytest.fixture
async def fed(server, prefix):
    """A deployment with a feed, on each backend in turn."""
    async with connect(server.url, prefix=prefix, feed=100) as deployment:
        yield deployment


@pytest.fixture
async def one_fed(valkey, prefix):
    async with connect(valkey.url, prefix=prefix, feed=100) as deployment:
        yield deployment


def mirrored(redis, **options):
    return WorkingLayer(redis, graph_store=StreamGraphStore(redis), **options)


def said(scope, number, **metadata):
    return MemoryEntry.turn(scope, speaker="user", turn_id=f"t{number}", content=f"turn {number}", metadata=metadata)


def quick(redis, target, **options):
    """A relay whose retries are due at once."""
    return Relay(redis, target, **{"first_pause": 0.001, "longest_pause": 0.001, "lease": 5.0, "idle": 0.2, **options})


def together(scope, count):
    """Scopes of one tenant and one partition."""
    found, number = [], 0
    while len(found) < count:
        other = TenantScope.root("org", scope.tenant_id).child("conversation", f"x{number}")
        if partition_of(other.scope_path) == partition_of(scope.scope_path):
            found.append(other)
        number += 1
    return found


async def progress(redis, tenant="acme"):
    found = await relay_status(redis)
    return next(one for one in found.tenants if one.tenant == tenant)


async def until(done):
    """Await an async condition; fails when it does not come."""
    async with asyncio.timeout(60):
        while not await done():  # noqa: ASYNC110 - asked of a server
            await asyncio.sleep(0.02)


async def test_what_happens_to_nodes_happens_in_the_reference_backend(fed, scope):
    """Compared node by node with our own store, which is the original of the copy."""
    layer, graph, backend = mirrored(fed), StreamGraphStore(fed), InMemoryGraphBackend()
    parent = TenantScope.root("org", "acme")
    relay = quick(fed, backend)

    async def same():
        await relay.drain()
        for whose in (scope, parent, other):
            ours = await graph.query_nodes(whose)
            visible = await backend.query_nodes(whose, {}, limit=None)
            theirs = [node for node in visible if node.properties["scope_path"] == whose.scope_path]
            assert [node.id for node in theirs] == [node.id for node in ours]
            for one, copy in zip(ours, theirs, strict=True):
                assert {**one.properties, "scope_path": whose.scope_path} == copy.properties
                assert (one.label, one.importance, one.layer, one.tenant_id, one.created_at) == (
                    copy.label,
                    copy.importance,
                    copy.layer,
                    copy.tenant_id,
                    copy.created_at,
                )

    other = TenantScope.root("org", "other").child("conversation", "c-123")
    receipts = [await layer.push(scope, said(scope, number, mood=number)) for number in range(6)]
    await layer.push(parent, said(parent, 7), durability="transient")
    await layer.push(other, said(other, 8))
    await same()
    await graph.update_node(scope, receipts[0].node_id, {"durability": "expired", "importance": 8.0, "label": "other"})
    await graph.delete_node(scope, receipts[1].node_id)
    fact = await graph.add_node(
        scope, MemoryNode(layer=MemoryLayer.SEMANTIC, tenant_id="acme", label="fact", properties={"layer": "odd"})
    )
    await graph.update_node(scope, fact.id, {"properties": {"label": "a property of that name"}})
    await same()
    assert (await backend.get_node(scope, receipts[0].node_id)).durability == "expired"
    await layer.push(scope, said(scope, 9))
    await layer.clear(scope)
    await layer.push(scope, said(scope, 10))
    await same()
    assert len(await backend.query_nodes(parent, {}, limit=None)) == 1
    assert (await progress(fed)).lag == 0


async def test_only_what_was_mirrored_is_copied(fed, scope):
    target = ListTarget()
    await WorkingLayer(fed).push(scope, said(scope, 1))
    await WorkingLayer(fed).rehydrate_from_messages(scope.child("m", "2"), [{"role": "user", "content": "hello"}])
    await mirrored(fed).push(scope, said(scope, 2))
    assert await quick(fed, target).drain() == 3
    assert target.turns == ["t2"]


async def test_a_second_relay_copies_only_what_is_new_and_another_name_everything(fed, scope):
    layer = mirrored(fed)
    await layer.push(scope, said(scope, 1))
    first, second, third = ListTarget(), ListTarget(), ListTarget()
    await quick(fed, first).drain()
    await layer.push(scope, said(scope, 2))
    await quick(fed, second).drain()
    await quick(fed, third, name="archive").drain()
    assert (first.turns, second.turns, third.turns) == (["t1"], ["t2"], ["t1", "t2"])
    assert (await relay_status(fed, "archive")).lag == 0
    assert (await relay_status(fed, "never")).lag == 2


async def test_a_failure_holds_up_its_scope_and_no_other(fed, scope):
    first, second = together(scope, 2)
    broken = {"t1"}
    target = ListTarget(lambda turn: turn in broken)
    layer = mirrored(fed)
    for number in range(4):
        await layer.push(first, said(first, number))
        await layer.push(second, said(second, 10 + number))
    relay = quick(fed, target, attempts=10**6)
    await relay.drain()
    assert sorted(target.turns) == ["t0", "t10", "t11", "t12", "t13"]
    status = await progress(fed)
    assert (status.changes, status.handled, status.lag, status.pending) == (8, 5, 3, 3)
    broken.clear()

    async def copied():
        await relay.drain()
        return (await progress(fed)).lag == 0

    await until(copied)
    assert [turn for path, turn in target.calls if path == first.scope_path] == ["t0", "t1", "t2", "t3"]
    assert [turn for path, turn in target.calls if path == second.scope_path] == ["t10", "t11", "t12", "t13"]


async def test_after_its_last_try_a_change_is_a_dead_letter(fed, scope, caplog):
    tries = []

    def broken(turn):
        tries.append(turn)
        return turn == "t1"

    target, layer = ListTarget(broken), mirrored(fed)
    for number in range(3):
        await layer.push(scope, said(scope, number))
    relay = quick(fed, target, attempts=3)

    async def settled():
        await relay.drain()
        return (await progress(fed)).lag == 0

    await until(settled)
    assert target.turns == ["t0", "t2"]
    assert tries.count("t1") == 3
    status = await progress(fed)
    assert (status.handled, status.dead, status.dead_kept, status.trimmed) == (3, 1, 1, 0)
    shared = scope_keys(fed.prefix, scope).shared
    ((_, flat),) = await fed.call("test", "XRANGE", shared.dead, "-", "+")
    letter = dict(zip(flat[::2], flat[1::2], strict=True))
    original = next(
        entry for entry in await fed.call("test", "XRANGE", shared.feed, "-", "+") if entry[0] == letter[b"entry"]
    )
    assert {name: letter.pop(name) for name in (b"relay", b"error", b"failures")} == {
        b"relay": b"relay",
        b"error": b"ConnectionResetError",
        b"failures": b"3",
    }
    del letter[b"entry"]
    assert letter == dict(zip(original[1][::2], original[1][1::2], strict=True))
    assert "4111" not in caplog.text
    assert "ConnectionResetError" in caplog.text
    # Nothing is left in the books of what failed.
    assert not [name for name in await fed.call("test", "HKEYS", shared.relay) if b" f " in name]


async def test_retries_wait_longer_each_time_and_failures_outlive_the_process(one_fed, scope):
    shared = scope_keys(one_fed.prefix, scope).shared

    async def failures():
        names = await one_fed.call("test", "HKEYS", shared.relay)
        found = [await one_fed.call("test", "HGET", shared.relay, name) for name in names if b" f " in name]
        return [int(part) for value in found for part in value.split()]

    await mirrored(one_fed).push(scope, said(scope, 1))
    for tries, first_pause in enumerate((0.001, 0.001, 10.0), 1):
        relay = Relay(one_fed, ListTarget(lambda turn: True), first_pause=first_pause, longest_pause=60.0, lease=5.0)

        async def tried(relay=relay, tries=tries):
            await relay.drain()
            return (await failures())[0] == tries

        await until(tried)
    now = int((await one_fed.call("test", "TIME"))[0])
    # The third failure: four times the first pause, up to a quarter less.
    assert 25 < (await failures())[1] / 1000 - now < 42
    # Until then nothing of it is due, for whoever looks.
    assert await Relay(one_fed, ListTarget(), lease=5.0).drain() == 0
    assert (await progress(one_fed)).pending == 1


async def test_a_target_that_hangs_is_a_failure(one_fed, scope):
    class Hanging(ListTarget):
        async def add_node(self, scope, node):
            if node.properties["turn_id"] == "t0":
                await asyncio.Event().wait()
            return await super().add_node(scope, node)

    target = Hanging()
    for number in range(2):
        await mirrored(one_fed).push(scope, said(scope, number))
    relay = quick(one_fed, target, attempts=1, timeout=0.05)
    await relay.drain()
    assert target.turns == ["t1"]
    assert (await progress(one_fed)).dead == 1


async def test_a_node_that_may_be_there_is_looked_for_first(fed, scope, tmp_path):
    """The target inserts and refuses a second row of an id; the first relay dies between the copy and its note."""
    target = SqliteTarget(str(tmp_path / "target"))
    for number in range(3):
        await mirrored(fed).push(scope, said(scope, number))
    relay = quick(fed, target)

    async def dies(*_):
        raise asyncio.CancelledError

    relay._books.ack = dies
    with contextlib.suppress(asyncio.CancelledError):
        await relay.drain()
    assert (await progress(fed)).pending == 3
    await quick(fed, target).drain()
    assert [turn for (turn,) in target.db.execute("SELECT turn FROM nodes ORDER BY rowid")] == ["t0", "t1", "t2"]
    assert target.db.execute("SELECT count(*) FROM arrivals").fetchone() == (3,)
    assert (await progress(fed)).lag == 0
    target.db.close()


async def test_who_lost_its_lease_can_note_nothing(fed, scope):
    await mirrored(fed).push(scope, said(scope, 1))
    keys = scope_keys(fed.prefix, scope)
    paused, other = (Books(fed, "relay", holder, 5.0) for holder in ("paused", "other"))
    lease = await paused.take(keys.partition)
    (entry,) = (await paused.read(lease, "acme", 10)).entries
    assert await other.take(keys.partition) is None
    # The paused one's time runs out on the server.
    await fed.call("test", "DEL", lease_key(fed.prefix, keys.partition, "relay"))
    taken = await other.take(keys.partition)
    assert int(taken.value.partition(":")[0]) == int(lease.value.partition(":")[0]) + 1
    assert [(one.id, one.again) for one in (await other.read(taken, "acme", 10)).entries] == [(entry.id, True)]
    before = await fed.call("test", "XPENDING", keys.shared.feed, "relay")
    for call in (
        paused.ack(lease, "acme", [entry.id], None),
        paused.fail(lease, "acme", entry.id, 1, None, "Error"),
        paused.fail(lease, "acme", entry.id, 1, 5.0, "Error"),
        paused.read(lease, "acme", 10),
    ):
        with pytest.raises(LeaseLost):
            await call
    assert not lease.held
    await paused.release(lease)
    assert await fed.call("test", "GET", lease_key(fed.prefix, keys.partition, "relay")) == taken.value.encode()
    status = await other.status(Feed(keys.partition, "acme"))
    assert (status.pending, status.handled, status.dead, status.kept) == (1, 0, 0, 0)
    assert await fed.call("test", "EXISTS", keys.shared.dead) == 0
    # Pending, and the other's; who is gone leaves no consumer behind.
    assert await fed.call("test", "XPENDING", keys.shared.feed, "relay") == before
    assert before[3] == [[b"other", b"1"]]
    assert len(await fed.call("test", "XINFO", "CONSUMERS", keys.shared.feed, "relay")) == 1
    assert await other.ack(taken, "acme", [entry.id], None) == 1


async def test_a_relay_that_lost_its_lease_stops_copying(one_fed, scope):
    partition = scope_keys(one_fed.prefix, scope).partition
    for number in range(3):
        await mirrored(one_fed).push(scope, said(scope, number))
    held = []

    class Stolen(ListTarget):
        async def add_node(self, scope, node):
            # As after a long pause: another has the lease, and this process's own clock says so too.
            await one_fed.call("test", "SET", lease_key(one_fed.prefix, partition, "relay"), "999:other")
            held[0].until = 0.0
            return await super().add_node(scope, node)

    target = Stolen()
    relay = quick(one_fed, target)
    read = relay._books.read

    async def noted(lease, tenant, limit):
        held.append(lease)
        return await read(lease, tenant, limit)

    relay._books.read = noted
    await relay.drain()
    assert target.turns == ["t0"]
    status = await progress(one_fed)
    assert (status.lag, status.pending) == (3, 3)
    assert await one_fed.call("test", "GET", lease_key(one_fed.prefix, partition, "relay")) == b"999:other"


async def test_a_lost_reply_loses_and_reorders_nothing(one_fed, scope):
    """Every call of the books made twice, as after a reply that was lost."""
    original = one_fed.run

    async def twice(operation, script, keys, args):
        await original(operation, script, keys, args)
        return await original(operation, script, keys, args)

    first, second = together(scope, 2)
    target, layer = ListTarget(lambda turn: turn == "t3"), mirrored(one_fed)
    for number in range(8):
        await layer.push(first, said(first, number))
        await layer.push(second, said(second, 100 + number))
    one_fed.run = twice
    relay = quick(one_fed, target, attempts=2)

    async def settled():
        await relay.drain()
        return (await progress(one_fed)).lag == 0

    await until(settled)
    one_fed.run = original
    assert [turn for path, turn in target.calls if path == first.scope_path] == [f"t{n}" for n in range(8) if n != 3]
    assert [turn for path, turn in target.calls if path == second.scope_path] == [f"t{n}" for n in range(100, 108)]
    status = await progress(one_fed)
    assert (status.changes, status.handled, status.trimmed, status.dead, status.dead_kept) == (16, 16, 0, 1, 1)


async def test_what_was_trimmed_unread_is_no_success(fed, scope):
    """1,500 written at a cap of 100, a hard cap of 1,000, and nobody there to read."""
    layer, target = mirrored(fed), ListTarget()
    await layer.push(scope, said(scope, 0))
    await quick(fed, target).drain()
    for start in range(1, 1501, 100):
        await layer.push_many(scope, [said(scope, number) for number in range(start, start + 100)])
    status = await progress(fed)
    assert (status.changes, status.lag, status.trimmed, status.handled) == (1501, 1000, 500, 1)
    await quick(fed, target).drain()
    assert target.turns == ["t0", *(f"t{number}" for number in range(501, 1501))]
    status = await progress(fed)
    assert (status.changes, status.lag, status.trimmed, status.handled, status.pending) == (1501, 0, 500, 1001, 0)
    # Acknowledged, it is trimmed again to the cap, a bounded number a write.
    for number in range(2000, 2020):
        await layer.push(scope, said(scope, number))
        await quick(fed, target).drain()
    assert await fed.call("test", "XLEN", scope_keys(fed.prefix, scope).shared.feed) <= 101


async def test_what_is_trimmed_while_it_waits_for_a_retry_is_counted(fed, scope):
    target = ListTarget(lambda turn: True)
    layer, relay = mirrored(fed), quick(fed, ListTarget(lambda turn: True), attempts=10**6)
    await layer.push_many(scope, [said(scope, number) for number in range(10)])
    await relay.drain()
    assert (await progress(fed)).pending == 10
    for start in range(10, 1310, 100):
        await layer.push_many(scope, [said(scope, number) for number in range(start, start + 100)])
    target = ListTarget()

    async def settled():
        await quick(fed, target).drain()
        return (await progress(fed)).lag == 0

    await until(settled)
    assert target.turns == [f"t{number}" for number in range(310, 1310)]
    status = await progress(fed)
    assert (status.changes, status.handled, status.trimmed, status.pending) == (1310, 1000, 310, 0)
    assert not [n for n in await fed.call("test", "HKEYS", scope_keys(fed.prefix, scope).shared.relay) if b" f " in n]


async def test_a_feed_that_was_erased_begins_anew(fed, scope):
    layer, shared = mirrored(fed), scope_keys(fed.prefix, scope).shared
    target = ListTarget()
    await layer.push_many(scope, [said(scope, number) for number in range(5)])
    await quick(fed, target).drain()
    await fed.call("test", "UNLINK", shared.feed, shared.feed_seq)
    await layer.push_many(scope, [said(scope, number) for number in range(5, 8)])
    await quick(fed, target).drain()
    assert target.turns == [f"t{number}" for number in range(8)]
    status = await progress(fed)
    assert (status.changes, status.handled, status.trimmed, status.lag) == (3, 3, 0, 0)


async def test_what_a_purge_erased_is_counted_and_its_copies_go(fed, scope):
    """As a purge does it: the entries go, and one says that the scope was purged."""
    backend, layer, keys = InMemoryGraphBackend(), mirrored(fed), scope_keys(fed.prefix, scope)
    (other,) = together(scope, 1)
    await layer.push_many(scope, [said(scope, number) for number in range(3)])
    await layer.push(other, said(other, 9))
    await quick(fed, backend).drain()
    await layer.push_many(scope, [said(scope, number) for number in range(3, 6)])
    for at, fields in await fed.call("test", "XRANGE", keys.shared.feed, "-", "+"):
        if keys.path.encode() in fields:
            await fed.call("test", "XDEL", keys.shared.feed, at)
    number = await fed.call("test", "INCR", keys.shared.feed_seq)
    await fed.call("test", "XADD", keys.shared.feed, "*", "s", number, "k", "purge", "p", keys.path)
    await quick(fed, backend).drain()
    assert await backend.query_nodes(scope, {}, limit=None) == []
    assert len(await backend.query_nodes(other, {}, limit=None)) == 1
    status = await progress(fed)
    assert (status.changes, status.handled, status.trimmed, status.lag) == (8, 5, 3, 0)


async def test_a_purge_reaches_the_target_also_when_nothing_else_is_left(fed, scope):
    """The tenant's last scope of the partition goes while no relay runs; then the whole tenant."""
    backend, keys = InMemoryGraphBackend(), scope_keys(fed.prefix, scope)
    await mirrored(fed).push(scope, said(scope, 1))
    await quick(fed, backend).drain()
    await purge(fed, scope)
    assert not await fed.call("test", "EXISTS", keys.shared.tenants)
    assert (await progress(fed)).lag == 1
    await quick(fed, backend).drain()
    assert await backend.query_nodes(scope, {}, limit=None) == []
    assert (await progress(fed)).lag == 0
    await purge_tenant(fed, scope.tenant_id)
    await quick(fed, backend).drain()
    assert (await relay_status(fed)).tenants == ()
    # Only the count of leases stays, which is no tenant's.
    left = {key.decode().rpartition("}:")[2] for key in await fed.call("test", "KEYS", f"{fed.prefix}:*@*")}
    assert left == {"lease@relay:token"}


async def test_a_damaged_entry_is_skipped_counted_and_left(fed, scope, monkeypatch):
    counted, target = [], ListTarget()
    monkeypatch.setattr(rows_damaged, "add", lambda number, attributes: counted.append(number))
    layer, keys = mirrored(fed), scope_keys(fed.prefix, scope)
    await layer.push(scope, said(scope, 1))
    number = await fed.call("test", "INCR", keys.shared.feed_seq)
    damaged = ("s", number, "k", "push", "p", keys.path, "l", "working", "i", "1-1", "r", b"\x01\xc1")
    await fed.call("test", "XADD", keys.shared.feed, "*", *damaged)
    await fed.call("test", "XADD", keys.shared.feed, "*", "not", "ours")
    await layer.push(scope, said(scope, 2))
    await quick(fed, target).drain()
    assert target.turns == ["t1", "t2"]
    assert counted == [1]
    assert await fed.call("test", "XLEN", keys.shared.feed) == 4
    status = await progress(fed)
    assert (status.changes, status.handled, status.lag, status.pending, status.dead) == (3, 3, 0, 0, 0)


async def test_a_relay_runs_until_it_is_told_to_stop(one_fed, scope):
    started = asyncio.Event()

    class Slow(ListTarget):
        async def add_node(self, scope, node):
            started.set()
            await asyncio.sleep(0)
            return await super().add_node(scope, node)

    target = Slow()
    relay = quick(one_fed, target)
    running = asyncio.create_task(relay.run())
    for number in range(50):
        await mirrored(one_fed).push(scope, said(scope, number))
    await started.wait()
    relay.stop()
    handled = await running
    # What was copied is noted: the next one begins where this one ended.
    assert (await progress(one_fed)).handled == handled == len(target.calls)
    assert await one_fed.call("test", "EXISTS", lease_key(one_fed.prefix, partition_of(scope.scope_path), "relay")) == 0
    await quick(one_fed, target).drain()
    assert target.turns == [f"t{number}" for number in range(50)]


async def test_a_running_relay_notices_a_new_tenant(one_fed, scope):
    target = ListTarget()
    relay = quick(one_fed, target)
    running = asyncio.create_task(relay.run())
    for tenant in ("one", "two"):
        whose = TenantScope.root("org", tenant)
        await mirrored(one_fed).push(whose, said(whose, tenant))

        async def copied(turn=f"t{tenant}"):
            return turn in target.turns

        await until(copied)
    relay.stop()
    assert await running == 2


async def test_an_idle_look_costs_a_get_for_each_feed(one_fed, scope):
    sent = []
    original = one_fed.call_many

    async def counting(operation, commands):
        sent.extend(command[0] for command in commands)
        return await original(operation, commands)

    relay = quick(one_fed, ListTarget())
    for whose in [scope, *together(scope, 1), TenantScope.root("org", "other")]:
        await mirrored(one_fed).push(whose, said(whose, 1))
    await relay.drain()
    await relay.drain()
    one_fed.call_many = counting
    await relay.drain()
    assert Counter(sent) == {"SUNION": 1024, "GET": len({scope.tenant_id, "other"})}


async def test_the_relay_outlives_the_server(tmp_path, prefix, scope):
    server = Server(binary("valkey"), "--appendonly", "yes", "--appendfsync", "always")
    try:
        async with connect(server.url, prefix=prefix, feed=100, deadline=0.2) as redis:
            target = ListTarget()
            await mirrored(redis).push(scope, said(scope, 1))
            relay = quick(redis, target)
            running = asyncio.create_task(relay.run())

            async def copied():
                return bool(target.calls)

            await until(copied)
            server.kill()
            server.start()
            async with connect(server.url, prefix=prefix, feed=100) as writer:
                await mirrored(writer).push(scope, said(scope, 2))

            async def both():
                return len(target.calls) >= 2

            await until(both)
            relay.stop()
            await running
            assert sorted(set(target.turns)) == ["t1", "t2"]
    finally:
        server.stop()


@pytest.mark.parametrize(
    "options", [{"attempts": 0}, {"lease": 0}, {"name": "Relay"}, {"name": "a b"}, {"timeout": -1}]
)
async def test_wrong_arguments_are_refused(one_fed, options):
    with pytest.raises(ConfigurationError):
        Relay(one_fed, ListTarget(), **options)


async def test_a_target_without_add_node_and_a_deployment_without_a_feed_are_refused(one_fed, one_redis):
    with pytest.raises(ConfigurationError, match="add_node"):
        Relay(one_fed, object())
    with pytest.raises(ConfigurationError, match="feed=N"):
        Relay(one_redis, ListTarget())


# --- processes ---


def start_relay(url, prefix, path, feed):
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "symfonic_redis.cli",
            "relay",
            "targets:sqlite_target",
            "--url",
            url,
            "--prefix",
            prefix,
            "--lease",
            "2",
            "--feed",
            str(feed),
        ],
        cwd=HERE,
        env={**os.environ, "TARGET_FILE": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


async def storm(url, prefix, path, *, turns, scopes, writers, relays, kill_every, kills=10**6):
    """Writers push while relays copy and one after another is killed with SIGKILL; check the target, return figures."""
    feed = 1000
    SqliteTarget(path).db.close()
    root = TenantScope.root("org", "acme")
    where = [root.child("conversation", str(number)) for number in range(scopes)]
    processes = [start_relay(url, prefix, path, feed) for _ in range(relays)]
    killed = 0
    async with connect(url, prefix=prefix, feed=feed) as redis:
        layer = mirrored(redis, max_entries=10)

        async def write(writer):
            for number in range(writer, turns, writers):
                scope = where[number % scopes]
                await layer.push(scope, said(scope, number))

        async def kill():
            nonlocal killed
            while killed < kills:
                await asyncio.sleep(kill_every)
                victim = killed % relays
                processes[victim].kill()
                processes[victim].communicate()
                killed += 1
                processes[victim] = start_relay(url, prefix, path, feed)

        async def copied():
            status = await relay_status(redis)
            return status.lag == 0 and sum(one.changes for one in status.tenants) == turns

        killer = asyncio.create_task(kill())
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await asyncio.gather(*(write(writer) for writer in range(writers)))
            written = loop.time() - began
            async with asyncio.timeout(600):
                while not await copied():  # noqa: ASYNC110 - asked of a server
                    await asyncio.sleep(0.2)
            took = loop.time() - began
        finally:
            killer.cancel()
            for process in processes:
                process.stderr.readline()  # it says that it relays: now it stops gracefully
                process.send_signal(signal.SIGTERM)
            errors = [process.communicate(timeout=60)[1].decode() for process in processes]
        status = await relay_status(redis)
        graph = StreamGraphStore(redis)
        expected = {format_scope(scope): [node.id for node in await graph.query_nodes(scope)] for scope in where}
    target = SqliteTarget(path)
    arrived: dict[str, list[str]] = {}
    repeated, seen = 0, set()
    for id_, scope in target.db.execute("SELECT id, scope FROM arrivals ORDER BY number"):
        if id_ in seen:
            repeated += 1
        else:
            seen.add(id_)
            arrived.setdefault(scope, []).append(id_)
    rows = target.db.execute("SELECT count(*), count(DISTINCT id) FROM nodes").fetchone()
    target.db.close()
    assert [process.returncode for process in processes] == [0] * relays, errors
    assert rows == (turns, turns)
    assert arrived == expected
    assert (status.lag, status.pending, status.trimmed, status.dead) == (0, 0, 0, 0)
    return {"written": written, "took": took, "killed": killed, "repeated": repeated}


async def test_relays_are_killed_and_nothing_is_lost_doubled_or_out_of_order(valkey, prefix, tmp_path):
    figures = await storm(
        valkey.url,
        prefix,
        str(tmp_path / "target"),
        turns=5000,
        scopes=200,
        writers=8,
        relays=3,
        kill_every=1.5,
        kills=6,  # on a machine so busy that a relay needs longer to start, it ends all the same
    )
    assert figures["killed"] >= 1


# --- command line ---


async def test_the_command_line_relays_and_says_how_far_it_is(valkey, prefix, scope, tmp_path):
    at = ("--url", valkey.url, "--prefix", prefix)
    async with connect(valkey.url, prefix=prefix, feed=10) as redis:
        for number in range(150):
            await mirrored(redis).push(scope, said(scope, number))
    (status,) = answer("relay", "--status", *at)["tenants"]
    assert (status["tenant"], status["changes"], status["lag"], status["trimmed"]) == ("acme", 150, 10, 140)
    env = {
        "TARGET_FILE": str(tmp_path / "target"),
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
    }
    assert answer("relay", "targets:sqlite_target", "--once", *at, env=env)["handled"] == 10
    shown = run("relay", "--status", *at).stdout
    assert "140" in shown
    assert "raise feed" in shown
    assert "module:factory" in fails("relay", *at)
    assert "cannot be imported" in fails("relay", "no_such_module:make", *at)
    assert "cannot be imported" in fails("relay", "json", *at)
    assert "is no function" in fails("relay", "json:__name__", *at)
    assert json.loads(run("relay", "--status", "--name", "other", "--json", *at).stdout)["tenants"][0]["handled"] == 0
