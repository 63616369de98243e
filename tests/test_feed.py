"""Watching: resumable, filtered, and never with a silent gap."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from itertools import pairwise

import pytest
from test_cli import answer, fails, run

from symfonic_redis import (
    ConfigurationError,
    InvalidInput,
    MemoryEntry,
    MemoryLayer,
    MemoryNode,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    connect,
    latest_cursor,
    watch,
)
from symfonic_redis.changes import PathScope
from symfonic_redis.codec import encode
from symfonic_redis.cursors import encode_cursor, tag_of
from symfonic_redis.keys import encode_id, partition_of, scope_keys, tenant_keys
from symfonic_redis.telemetry import rows_damaged


@pytest.fixture
async def fed(server, prefix):
    """A deployment with a feed, on each backend in turn."""
    async with connect(server.url, prefix=prefix, feed=20) as deployment:
        yield deployment


@pytest.fixture
async def one_fed(valkey, prefix):
    async with connect(valkey.url, prefix=prefix, feed=20) as deployment:
        yield deployment


def mirrored(redis, **options):
    return WorkingLayer(redis, graph_store=StreamGraphStore(redis), **options)


def said(scope, number, **metadata):
    return MemoryEntry.turn(scope, speaker="user", turn_id=f"t{number}", content=f"turn {number}", metadata=metadata)


async def take(changes, count):
    """The next `count` changes; fails when they do not come."""
    found = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found.append(await anext(changes))
    return found


async def all_after(redis, whose, cursor, end):
    """What a watch tells from a cursor up to a change of this kind."""
    changes = watch(redis, whose, after=cursor)
    found = await take(changes, 1)
    while found[-1].kind != end:
        found += await take(changes, 1)
    await changes.aclose()
    return found


def neighbours(scope):
    """A scope of the same tenant and partition, and one of another partition."""
    partition = partition_of(scope.scope_path)
    others = (TenantScope.root("org", scope.tenant_id).child("conversation", f"o{number}") for number in range(100_000))
    near = far = None
    for other in others:
        if partition_of(other.scope_path) == partition:
            near = near or other
        else:
            far = far or other
        if near and far:
            return near, far
    raise AssertionError


async def test_every_change_of_a_scope_is_told_with_what_it_holds(fed, scope):
    layer, graph = mirrored(fed), StreamGraphStore(fed)
    start = await latest_cursor(fed, scope)
    receipt = await layer.push(scope, said(scope, 1, mood="calm"), durability="transient")
    await WorkingLayer(fed).push(scope, said(scope, 2))
    await graph.update_node(scope, receipt.node_id, {"importance": 9.0, "durability": "durable"})
    note = await graph.add_node(scope, MemoryNode(layer=MemoryLayer.SEMANTIC, tenant_id="acme", label="fact"))
    await graph.delete_node(scope, note.id)
    await layer.clear(scope)
    await layer.rehydrate_from_messages(scope, [{"role": "user", "content": "hello"}])
    changes = await all_after(fed, scope, start, "rehydrate")
    assert [one.kind for one in changes] == ["push", "push", "update", "node", "delete", "clear", "rehydrate"]
    assert [one.sequence for one in changes] == list(range(1, 8))
    assert {one.scope for one in changes} == {scope}
    push, unmirrored, update, node, delete, clear, rehydrate = changes
    assert push.node_id == push.node.id == receipt.node_id
    assert push.node.properties == {
        "content": "turn 1",
        "speaker": "user",
        "turn_id": "t1",
        "mood": "calm",
        "durability": "transient",
    }
    assert push.entry.content == "turn 1"
    assert (unmirrored.entry.content, unmirrored.node, unmirrored.node_id) == ("turn 2", None, None)
    assert (update.node_id, update.updates) == (
        receipt.node_id,
        {"importance": 9.0, "properties": {"durability": "durable"}},
    )
    assert (node.layer, node.node.label, node.node_id) == ("semantic", "fact", note.id)
    assert (delete.node_id, delete.node) == (note.id, None)
    assert clear.mirror
    assert rehydrate.count == 1
    assert abs((push.at - push.node.created_at).total_seconds()) < 1


async def test_a_watch_resumes_after_any_change(fed, scope):
    layer = mirrored(fed)
    await layer.push_many(scope, [said(scope, number) for number in range(10)])
    whole = await take(watch(fed, scope, after="0"), 10)
    for index in (0, 4, 8):
        rest = await take(watch(fed, scope, after=whole[index].cursor), 9 - index)
        assert rest == whole[index + 1 :]
    assert whole[-1].cursor == await latest_cursor(fed, scope)


async def test_a_change_comes_while_it_is_waited_for(fed, scope):
    start = await latest_cursor(fed, scope)
    waiting = asyncio.create_task(take(watch(fed, scope, after=start), 1))
    await mirrored(fed).push(scope, said(scope, 1))
    (change,) = await waiting
    assert change.entry.content == "turn 1"


async def test_from_now_on_means_from_the_first_step(one_fed, scope):
    layer = mirrored(one_fed)
    await layer.push(scope, said(scope, 1))
    changes = watch(one_fed, scope)
    first = asyncio.create_task(take(changes, 1))
    # Pushed until told: the first step may come before any of them.
    number = 2
    while not first.done():
        await layer.push(scope, said(scope, number))
        number += 1
    assert (await first)[0].entry.content != "turn 1"


async def test_a_scope_is_told_of_nobody_else(one_fed, scope):
    layer = mirrored(one_fed)
    near, far = neighbours(scope)
    stranger = TenantScope.root("org", "other").child("conversation", "c-123")
    for number, whose in enumerate((near, scope, far, stranger, scope.child("message", "m"), scope)):
        await layer.push(whose, said(whose, number))
    assert [one.entry.content for one in await take(watch(one_fed, scope, after="0"), 2)] == ["turn 1", "turn 5"]


async def test_a_tenant_is_told_of_all_its_scopes_in_order_of_each(fed):
    layer = mirrored(fed)
    root = TenantScope.root("org", "acme")
    scopes = [root.child("conversation", str(number)) for number in range(30)]
    start = await latest_cursor(fed, "acme")
    for number in range(4):
        for scope in scopes:
            await layer.push(scope, said(scope, number))
    await layer.push(TenantScope.root("org", "other"), said(TenantScope.root("org", "other"), 0))
    changes = await take(watch(fed, "acme", after=start), 120)
    for scope in scopes:
        assert [one.entry.content for one in changes if one.scope == scope] == [f"turn {n}" for n in range(4)]
    rest = await take(watch(fed, "acme", after=changes[69].cursor), 50)
    assert sorted(one.node_id for one in rest) == sorted(one.node_id for one in changes[70:])


async def test_who_falls_behind_the_cap_is_told_how_many(fed, scope):
    layer = mirrored(fed)
    await layer.push(scope, said(scope, 0))
    (first,) = await take(watch(fed, scope, after="0"), 1)
    for number in range(1, 50):
        await layer.push(scope, said(scope, number))
    changes = await take(watch(fed, scope, after=first.cursor), 21)
    assert (changes[0].kind, changes[0].count, changes[0].scope) == ("missed", 29, None)
    assert [one.entry.content for one in changes[1:]] == [f"turn {number}" for number in range(30, 50)]
    # From within: the cursor of `missed` does not tell of it again.
    assert (await take(watch(fed, scope, after=changes[0].cursor), 1))[0] == changes[1]
    # From the oldest that is kept nothing is missing.
    assert (await take(watch(fed, scope, after="0"), 1))[0].entry.content == "turn 30"
    (told,) = await take(watch(fed, scope.tenant_id, after=await stale(fed, scope)), 1)
    assert (told.kind, told.count) == ("missed", 30)


async def stale(redis, scope):
    """The cursor of a tenant's watch from before there was anything."""
    async with connect(redis.url, prefix=redis.prefix + "x", feed=20) as empty:
        cursor = await latest_cursor(empty, scope.tenant_id)
        with pytest.raises(InvalidInput, match="belongs to another"):
            watch(redis, scope.tenant_id, after=cursor)
    return encode_cursor(tag_of(redis.prefix, scope.tenant_id, None), {})


async def test_what_a_purge_erased_counts_as_missed(fed, scope):
    layer = mirrored(fed)
    feed = scope_keys(fed.prefix, scope).shared.feed
    await layer.push_many(scope, [said(scope, number) for number in range(6)])
    whole = await take(watch(fed, scope, after="0"), 6)
    ids = [at for at, _ in await fed.call("test", "XRANGE", feed, "-", "+")]
    await fed.call("test", "XDEL", feed, ids[2], ids[3], ids[5])
    told = await take(watch(fed, scope, after=whole[0].cursor), 4)
    assert [(one.kind, one.count) for one in told] == [("push", None), ("missed", 2), ("push", None), ("missed", 1)]
    await layer.push(scope, said(scope, 6))
    (rest,) = await take(watch(fed, scope, after=told[-1].cursor), 1)
    assert rest.entry.content == "turn 6"


async def test_a_feed_that_began_anew_is_told(fed, scope):
    layer, shared = mirrored(fed), scope_keys(fed.prefix, scope).shared
    await layer.push_many(scope, [said(scope, number) for number in range(6)])
    cursor = await latest_cursor(fed, scope)
    await fed.call("test", "UNLINK", shared.feed, shared.feed_seq)
    (told,) = await take(watch(fed, scope, after=cursor), 1)
    assert (told.kind, told.count) == ("missed", None)
    await layer.push_many(scope, [said(scope, number) for number in range(10, 12)])
    assert [one.entry.content for one in await take(watch(fed, scope, after=told.cursor), 2)] == ["turn 10", "turn 11"]
    assert [one.kind for one in await take(watch(fed, scope, after=cursor), 3)] == ["missed", "push", "push"]
    # Also when there are more by now than there were before.
    await layer.push_many(scope, [said(scope, number) for number in range(12, 20)])
    assert [one.kind for one in await take(watch(fed, scope, after=cursor), 11)] == ["missed", *["push"] * 10]


async def test_a_damaged_entry_is_skipped_counted_and_left(fed, scope, monkeypatch):
    counted = []
    monkeypatch.setattr(rows_damaged, "add", lambda number, attributes: counted.append(number))
    layer, keys = mirrored(fed), scope_keys(fed.prefix, scope)
    await layer.push(scope, said(scope, 1))
    feed, sequence = keys.shared.feed, keys.shared.feed_seq
    for kind, *fields in (
        ("push", "l", "working", "i", "1-1", "r", b"\x01\xc1"),
        ("clear",),
        ("update", "i", "x", "a:label", "?"),
    ):
        number = await fed.call("test", "INCR", sequence)
        await fed.call("test", "XADD", feed, "*", "s", number, "k", kind, "p", keys.path, *fields)
    await fed.call("test", "XADD", feed, "*", "not", "ours")
    await layer.push(scope, said(scope, 2))
    changes = await take(watch(fed, scope, after="0"), 2)
    assert [one.entry.content for one in changes] == ["turn 1", "turn 2"]
    assert sum(counted) == 4
    assert await fed.call("test", "XLEN", feed) == 6


async def test_something_strange_at_the_end_does_not_make_a_watch_spin(one_fed, scope):
    feed = scope_keys(one_fed.prefix, scope).shared.feed
    await mirrored(one_fed).push(scope, said(scope, 1))
    await one_fed.call("test", "XADD", feed, "*", "not", "ours")
    calls = []
    original = one_fed.call_many

    async def counting(operation, commands):
        calls.append(operation)
        return await original(operation, commands)

    one_fed.call_many = counting
    changes = watch(one_fed, scope, after="0")
    await take(changes, 1)
    waiting = asyncio.create_task(take(changes, 1))
    await asyncio.sleep(0.5)  # nothing to wait for: the point is that nothing happens
    assert len(calls) < 10
    await mirrored(one_fed).push(scope, said(scope, 2))
    assert (await waiting)[0].entry.content == "turn 2"


async def test_ids_of_any_kind_come_back_as_they_were(one_fed):
    layer = mirrored(one_fed)
    for id_ in ("a:b", "{x}", "*", "\N{PARTY POPPER}", "50%", "a/b=c", "\ud800"):
        scope = TenantScope.root("org", id_).child("conversation", id_)
        await layer.push(scope, said(scope, 1))
        for whose in (scope, id_):
            (change,) = await take(watch(one_fed, whose, after="0"), 1)
            assert change.scope == scope
            assert change.tenant == id_


async def test_a_path_that_is_no_scope_of_ours_is_told_by_its_address(one_fed):
    odd = PathScope("acme", "org\x1facme\x1forg\x1ftwice")
    await mirrored(one_fed).push(odd, said(odd, 1))
    (change,) = await take(watch(one_fed, odd, after="0"), 1)
    assert (change.scope, change.address) == (None, odd)


async def test_a_deployment_without_a_feed_is_refused_at_once(one_redis, scope):
    with pytest.raises(ConfigurationError, match="feed=N"):
        watch(one_redis, scope)
    with pytest.raises(ConfigurationError, match="feed=N"):
        await latest_cursor(one_redis, "acme")


@pytest.mark.parametrize("cursor", ["x", "1-1", "é", "AQ==", "AcA=", "AZEB", "AaF4"])
def test_what_is_no_cursor_is_refused_at_once(cursor, scope):
    redis = connect("redis://localhost:1/0", feed=10)
    with pytest.raises(InvalidInput, match="cursor"):
        watch(redis, scope, after=cursor)


@pytest.mark.parametrize(
    "numbers",
    [
        (5, 6, 0, 1),
        (1 << 64, 0, 0, 1),
        ((1 << 64) - 1, 0, (1 << 64) - 1, 1),
        (5, 0, -1, 1),
        (5, 0, 1 << 64, 1),
        (5, 0, 0, float("inf")),
        (5, 0, 0, -2),
        (5, 0, 0, 1 << 63),
        (5.0, 0, 0, 1),
        ("5", 0, 0, 1),
        (5, True, 0, 1),
    ],
)
def test_a_forged_cursor_is_refused_at_once(numbers, scope):
    redis = connect("redis://localhost:1/0", feed=10)
    keys = scope_keys(redis.prefix, scope)
    newest, *rest = numbers
    forged = encode([tag_of(redis.prefix, keys.tenant, keys.path), newest, keys.partition, *rest])
    with pytest.raises(InvalidInput, match="no cursor"):
        watch(redis, scope, after=urlsafe_b64encode(forged).decode())


@pytest.mark.parametrize("cursor", [b"0", b"AQ==", 7, 1.5, [], {}, True])
def test_what_is_no_text_is_no_cursor(cursor, scope):
    redis = connect("redis://localhost:1/0", feed=10)
    for whose in (scope, scope.tenant_id):
        with pytest.raises(InvalidInput, match="no cursor"):
            watch(redis, whose, after=cursor)


async def test_a_cursor_of_another_scope_is_refused(one_fed, scope):
    cursor = await latest_cursor(one_fed, scope)
    for whose in (scope.tenant_id, scope.child("message", "m"), TenantScope.root("org", "other")):
        with pytest.raises(InvalidInput, match="belongs to another"):
            watch(one_fed, whose, after=cursor)


async def test_a_tenants_cursor_stays_small(one_fed):
    layer = mirrored(one_fed)
    root = TenantScope.root("org", "acme")
    scopes = [root.child("conversation", str(number)) for number in range(2000)]
    for start in range(0, len(scopes), 100):
        await asyncio.gather(*(layer.push(scope, said(scope, 0)) for scope in scopes[start : start + 100]))
    changes = await take(watch(one_fed, "acme", after="0"), 2000)
    assert len(changes[-1].cursor) < 20_000
    assert len(changes[0].cursor) < 20_000
    assert changes[-1].cursor.isascii()


async def test_more_than_a_page_comes_in_order(valkey, prefix, scope):
    async with connect(valkey.url, prefix=prefix, feed=1000) as redis:
        await mirrored(redis).push_many(scope, [said(scope, number) for number in range(700)])
        changes = await take(watch(redis, scope, after="0"), 700)
        assert [one.entry.content for one in changes] == [f"turn {number}" for number in range(700)]
        assert all(one.sequence + 1 == two.sequence for one, two in pairwise(changes))


# --- command line ---


def test_the_command_line_watches(valkey, prefix):
    at = ("--url", valkey.url, "--prefix", prefix)
    scope = "org=acme/conversation=c-1"
    for number in range(3):
        answer("push", scope, f"hello {number}", "--feed", "100", *at)
    lines = run("watch", scope, "--after", "0", "--count", "3", *at).stdout.splitlines()
    assert [line.rpartition("user: ")[2] for line in lines] == ["hello 0", "hello 1", "hello 2"]
    records = [
        json.loads(line)
        for line in run("watch", "--tenant", "acme", "--after", "0", "--count", "2", "--json", *at).stdout.splitlines()
    ]
    assert [record["entry"]["content"] for record in records] == ["hello 0", "hello 1"]
    (rest,) = run("watch", "--tenant", "acme", "--after", records[1]["cursor"], "--count", "1", *at).stdout.splitlines()
    assert rest.endswith("hello 2")
    assert "watch one thing" in fails("watch", *at)
    assert "cursor" in fails("watch", scope, "--after", "nonsense", *at)


async def test_the_feed_key_of_a_tenant_is_the_one_that_scripts_write(one_fed, scope):
    await mirrored(one_fed).push(scope, said(scope, 1))
    keys = tenant_keys(one_fed.prefix, scope.tenant_id, partition_of(scope.scope_path))
    assert keys.feed.endswith(f":{encode_id('acme')}:feed")
    assert await one_fed.call("test", "XLEN", keys.feed) == 1
