"""Whole tenants: listing, counting, erasing for good, opening again."""

from __future__ import annotations

import asyncio
import itertools
import re
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from acl_users import acl_users
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keyspace import dump, keys_of, kinds
from own_server import own_server, until
from proxy import Proxy
from targets import ListTarget

from symfonic_redis import (
    InvalidInput,
    MemoryEntry,
    MemoryLayer,
    MemoryNode,
    Relay,
    ScopeClosed,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    connect,
    purge,
    purge_tenant,
    purge_tree,
    reopen,
    reopen_tenant,
    reopen_tree,
    scopes,
    totals,
)
from symfonic_redis.errors import AccessDenied
from symfonic_redis.keys import encode_path, partition_of, scope_keys, tenant_keys
from symfonic_redis.scripts import script
from symfonic_redis.tenant_store import TenantStore

ACME = TenantScope.root("org", "acme")


def turn_of(scope, content="hello"):
    return MemoryEntry.turn(scope, speaker="user", turn_id=uuid.uuid4().hex[:8], content=content)


def layer_of(redis, **options):
    return WorkingLayer(redis, 2, StreamGraphStore(redis), evicted_retention=2, **options)


async def fill(redis, *wanted, turns=1, **options):
    layer = layer_of(redis, **options)
    for scope in wanted:
        for number in range(turns):
            await layer.push(scope, turn_of(scope, f"turn {number}"), idempotency_key=uuid.uuid4().hex)


async def everything(redis, tenant, limit=100):
    """All pages of a tenant's scopes, and how many pages there were."""
    found, before = [], None
    pages = 0
    while before is not None or not pages:
        page = await scopes(redis, tenant, limit=limit, before=before)
        found += page.entries
        before, pages = page.before, pages + 1
        assert len(page.entries) == limit or (before is None and len(page.entries) < limit)
    return found, pages


async def of_tenant(redis, tenant):
    """The tenant's keys, in every partition."""
    return await keys_of(redis, f"{redis.prefix}:{{*}}:{tenant}:*")


def sharing_a_partition(scope, count, *, kind="s"):
    """Other scopes of the same tenant whose partition is the same."""
    number = partition_of(scope.scope_path)
    parent = TenantScope.from_path(scope.path[:1])
    others = (parent.child(kind, str(at)) for at in itertools.count())
    return list(itertools.islice((one for one in others if partition_of(one.scope_path) == number), count))


# --- scopes ---


async def test_scopes_are_listed_recent_first(redis):
    mine = [ACME.child("c", str(number)) for number in range(5)]
    started = datetime.now(UTC)
    for scope in mine:
        await fill(redis, scope)
        await asyncio.sleep(0.002)
    await fill(redis, mine[1])
    page = await scopes(redis, "acme")
    assert [entry.scope for entry in page.entries] == [mine[1], mine[4], mine[3], mine[2], mine[0]]
    assert page.before is None
    assert all(entry.expires_at is None for entry in page.entries)
    times = [entry.last_write for entry in page.entries]
    assert times == sorted(times, reverse=True)
    assert abs(times[0] - started) < timedelta(seconds=60)


async def test_a_scope_that_expires_says_when(redis, scope, turn):
    layer = WorkingLayer(redis, ttl=1000)
    await layer.push(scope, turn())
    (entry,) = (await scopes(redis, "acme")).entries
    assert entry.last_write is None
    assert abs(entry.expires_at - datetime.now(UTC) - timedelta(seconds=1000)) < timedelta(seconds=60)


async def test_a_scope_that_is_gone_is_not_listed_and_is_forgotten(redis, scope, turn):
    # Its score still says that it never expires: the ttl was shortened.
    await WorkingLayer(redis).push(scope, turn())
    await WorkingLayer(redis, ttl=0.05).push(scope, turn())
    keys = scope_keys(redis.prefix, scope)
    await until(lambda: _absent(redis, keys.turns))
    assert await redis.call("test", "ZSCORE", keys.shared.scopes, keys.path) is not None
    assert await scopes(redis, "acme") == ((), None)
    assert await redis.call("test", "ZSCORE", keys.shared.scopes, keys.path) is None
    assert await redis.call("test", "SISMEMBER", keys.shared.tenants, "acme") == 0


async def _absent(redis, key):
    return not await redis.call("test", "EXISTS", key)


async def test_a_scope_with_idempotency_keys_alone_is_not_listed_and_is_not_forgotten(redis, scope, turn):
    await WorkingLayer(redis, ttl=0.05).push(scope, turn(), idempotency_key="job", idempotency_ttl=1000)
    keys = scope_keys(redis.prefix, scope)
    await until(lambda: _absent(redis, keys.turns))
    assert await scopes(redis, "acme") == ((), None)
    # The first write of another scope in the same partition cleans the index.
    await fill(redis, *sharing_a_partition(scope, 1))
    assert await redis.call("test", "ZSCORE", keys.shared.scopes, keys.path) is not None
    await purge_tenant(redis, "acme")
    assert await redis.call("test", "EXISTS", keys.idem) == 0


POOL = [*sharing_a_partition(ACME.child("c", "1"), 25), *(ACME.child("c", str(number)) for number in range(15))]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    scores=st.dictionaries(st.sampled_from(range(len(POOL))), st.integers(1, 4), max_size=len(POOL)),
    dead=st.sets(st.sampled_from(range(len(POOL))), max_size=10),
    limit=st.integers(1, 9),
)
async def test_pages_miss_none_and_double_none(one_redis, scores, dead, limit):
    redis, tenant = one_redis, uuid.uuid4().hex
    commands = []
    for number, score in scores.items():
        path = POOL[number].scope_path
        keys = scope_keys(redis.prefix, TenantScope(tenant_id=tenant))
        base = f"{redis.prefix}:{{{partition_of(path):04d}}}:{tenant}:{encode_path(path)}"
        shared = tenant_keys(redis.prefix, tenant, partition_of(path))
        assert keys.shared.scopes.endswith(":scopes")
        commands.append(("ZADD", shared.scopes, 4_000_000_000_000 + score, encode_path(path)))
        if number not in dead:
            commands.append(("RPUSH", f"{base}:turns", "row"))
    await redis.call_many("test", commands)
    found, pages = await everything(redis, tenant, limit)
    alive = {number: score for number, score in scores.items() if number not in dead}
    order = sorted(alive, key=lambda number: (alive[number], encode_path(POOL[number].scope_path)), reverse=True)
    assert [entry.scope.scope_path for entry in found] == [POOL[number].scope_path for number in order]
    assert pages == max(1, -(-len(alive) // limit))


async def test_a_page_that_is_none_is_refused(one_redis):
    for limit in (0, -1, 10_001, True, "5"):
        with pytest.raises(InvalidInput, match="limit"):
            await scopes(one_redis, "acme", limit=limit)
    for before in ("", "nonsense", "MTIz", "é", "YWJj ZGVm"):
        with pytest.raises(InvalidInput, match="before"):
            await scopes(one_redis, "acme", before=before)


# --- totals ---


async def test_totals_count_without_reading(redis):
    mine = [ACME.child("c", str(number)) for number in range(3)]
    await fill(redis, *mine, turns=3)
    node = MemoryNode(layer=MemoryLayer.SEMANTIC, tenant_id="acme", label="fact")
    await StreamGraphStore(redis).add_node(mine[0], node)
    await fill(redis, TenantScope.root("org", "acme2"), turns=9)
    steps = []
    found = await totals(redis, "acme", progress=lambda *step: steps.append(step))
    assert (found.scopes, found.turns) == (3, 9)
    assert found.nodes == {"semantic": 1, "episodic": 0, "procedural": 0, "prospective": 0, "working": 9}
    assert steps[-1] == (3, 3)
    assert (await totals(redis, "nobody")).scopes == 0


# --- purging a scope ---


async def test_a_purge_leaves_tombstones_and_operation_ids_that_expire(redis):
    async with connect(redis.url, prefix=redis.prefix, deadline=0.4, feed=50) as short:
        scope, other = ACME.child("c", "1"), ACME.child("c", "2")
        await fill(short, scope, other, turns=4)
        graph = StreamGraphStore(short)
        node = MemoryNode(layer=MemoryLayer.EPISODIC, tenant_id="acme", label="fact")
        added = await graph.add_node(scope, node)
        await graph.update_node(scope, added.id, {"importance": 9.0})
        keys = scope_keys(short.prefix, scope)
        await short.call_many("test", [("RPUSH", keys.staged, "x"), ("HSET", keys.meta, "a", "b")])
        done = await purge(short, scope, closed_for=1.0)
        assert (done.scopes, done.feed_entries) == (1, 6)
        left = await keys_of(short, f"{glob(keys.base)}:*")
        assert kinds(left) == {"ops"}
        with pytest.raises(ScopeClosed, match="reopen"):
            await fill(short, scope)
        with pytest.raises(ScopeClosed):
            await graph.add_node(scope, node)
        await fill(short, other)
        assert len(await layer_of(short).get_context(other)) == 2
        await until(lambda: _gone(short, f"{glob(keys.base)}:*"))
        await until(lambda: _absent(short, keys.shared.closed))
        await fill(short, scope)
        assert [entry.content for entry in await layer_of(short).get_context(scope)] == ["turn 0"]


def glob(key):
    return re.sub(r"([*?\[\]\\])", r"\\\1", key)


async def _gone(redis, pattern):
    return not await keys_of(redis, pattern)


async def test_a_purge_erases_the_scope_from_the_feed_and_tells_of_it(valkey, prefix):
    async with connect(valkey.url, prefix=prefix, feed=5000) as redis:
        scope = ACME.child("c", "1")
        neighbour = sharing_a_partition(scope, 1)[0]
        layer = WorkingLayer(redis)
        for number in range(300):
            await layer.push(scope, turn_of(scope, f"secret {number}"))
            if number % 3 == 0:
                await layer.push(neighbour, turn_of(neighbour, "kept"))
        keys = scope_keys(prefix, scope)
        # A dead letter holds the entry's fields too.
        await redis.call(
            "test", "XADD", keys.shared.dead, "*", "error", "E", "k", "push", "p", keys.path, "r", "secret"
        )
        assert (await purge(redis, scope)).feed_entries == 301
        entries = await redis.call("test", "XRANGE", keys.shared.feed, "-", "+")
        fields = [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in entries]
        path = keys.path.encode()
        assert [one[b"k"] for one in fields if one[b"p"] == path] == [b"purge"]
        assert len(fields) == 101
        assert not [flat for _, flat in entries if any(value.startswith(b"secret") for value in flat)]
        assert await redis.call("test", "XLEN", keys.shared.dead) == 0
    # Who purges need not know of the feed.
    async with connect(valkey.url, prefix=prefix) as redis:
        await purge(redis, scope)
        assert await redis.call("test", "XLEN", keys.shared.feed) == 102
        await purge(redis, ACME.child("c", "2"))


async def test_one_step_of_erasing_a_feed_is_bounded(one_redis):
    store, stream = TenantStore(one_redis), f"{one_redis.prefix}:{{0001}}:t:feed"
    big = "x" * 100_000
    await one_redis.call_many("test", [("XADD", stream, "*", "k", "push", "p", "a/b", "r", big) for _ in range(40)])
    await one_redis.call_many("test", [("XADD", stream, "*", "k", "push", "p", "a/b", "r", "x") for _ in range(1000)])
    first, steps = "-", []
    while first:
        reply = await one_redis.run("erase", script("erase"), [stream], ["a/b", 0, first, "+"])
        first = reply[0].decode()
        steps.append(reply[1])
    # 800 kB are the most that one step reads: three pages of eight until 256 KiB are passed.
    assert max(steps[:5]) == 8
    assert max(steps) <= 256
    assert sum(steps) == 1040
    assert await store.ends([stream]) == {}


async def test_a_retried_purge_erases_nothing_that_was_written_since(redis, scope):
    store, keys = TenantStore(redis), scope_keys(redis.prefix, scope)
    await fill(redis, scope)
    names, args = store._call_of(keys, keys.everything, [1000])
    assert (await redis.run("purge", script("purge"), names, args))[0] == 0
    await reopen(redis, scope)
    await fill(redis, scope)
    state, receipt = await redis.run("purge", script("purge"), names, args)
    assert (state, receipt.split()[0]) == (1, b"3")
    assert len(await layer_of(redis).get_context(scope)) == 1


async def test_a_retried_closing_closes_nothing_that_was_opened_since(redis, scope):
    shared, operation = scope_keys(redis.prefix, scope).shared, [b"0123456789abcdef", 10_000]
    names = [shared.ops, shared.ops_old, shared.closed]
    close = (names, [*operation, "tenant", 60_000])
    assert (await redis.run("close", script("close"), *close))[0] == 0
    assert await reopen_tenant(redis, "acme")
    assert (await redis.run("close", script("close"), *close))[0] == 1
    await fill(redis, scope)


async def test_reopening_says_whether_it_was_closed(redis, scope):
    assert not await reopen(redis, scope)
    await purge(redis, scope)
    assert await reopen(redis, scope)
    assert not await reopen(redis, scope)
    await purge(redis, scope, closed_for=0.001)
    await asyncio.sleep(0.01)
    assert not await reopen(redis, scope)
    await fill(redis, scope)


async def test_the_longer_closure_stays(one_redis, scope):
    await purge(one_redis, scope, closed_for=1000)
    await purge(one_redis, scope, closed_for=0.001)
    await asyncio.sleep(0.01)
    with pytest.raises(ScopeClosed):
        await fill(one_redis, scope)
    closed = scope_keys(one_redis.prefix, scope).shared.closed
    assert 900_000 < await one_redis.call("test", "PTTL", closed) <= 1_000_000


async def test_expired_tombstones_do_not_pile_up(one_redis, scope):
    many = sharing_a_partition(scope, 300)
    closed = scope_keys(one_redis.prefix, scope).shared.closed
    await purge(one_redis, scope, closed_for=1000)
    for one in many:
        await purge(one_redis, one, closed_for=0.001)
    assert await one_redis.call("test", "HLEN", closed) < 50
    with pytest.raises(ScopeClosed):
        await fill(one_redis, scope)


async def test_a_closure_must_be_a_time(one_redis, scope):
    for wrong in (0, -1, float("nan"), float("inf"), True, "60", 1e12):
        with pytest.raises(InvalidInput, match="closed_for"):
            await purge(one_redis, scope, closed_for=wrong)
        with pytest.raises(InvalidInput, match="closed_for"):
            await purge_tenant(one_redis, "acme", closed_for=wrong)


# --- purging a tree ---


async def test_a_tree_is_erased_and_closed_and_its_lookalikes_are_not(redis):
    async with connect(redis.url, prefix=redis.prefix, feed=50) as fed:
        top = ACME.child("brand", "w")
        below = [top, *(top.child("c", str(number)) for number in range(20)), top.child("c", "1").child("t", "9")]
        beside = [
            ACME,
            ACME.child("brand", "ww"),
            ACME.child("brand", "w/c"),
            ACME.child("brand", "w").child("c2", "1"),
        ]
        beside = [*beside[:3], TenantScope.root("org", "acme2").child("brand", "w")]
        await fill(fed, *below, *beside)
        other = TenantScope.root("x", "other").child("brand", "w")
        await fill(fed, other)
        steps = []
        done = await purge_tree(fed, top, progress=lambda *step: steps.append(step))
        assert (done.scopes, done.feed_entries) == (len(below), len(below))
        assert steps[-1] == (len(below) + 3, len(below) + 3)
        for scope in (*below, top.child("c", "new")):
            assert await layer_of(fed).get_context(scope) == []
            with pytest.raises(ScopeClosed):
                await fill(fed, scope)
        for scope in (*beside, other):
            assert len(await layer_of(fed).get_context(scope)) == 1
            await layer_of(fed).push(scope, turn_of(scope))
        assert not await reopen(fed, top)
        assert await reopen_tree(fed, top)
        assert not await reopen_tree(fed, top)
        await fill(fed, *below)


async def test_half_a_level_cannot_be_the_top_of_a_tree(one_redis):
    class Odd:
        tenant_id = "acme"
        scope_path = "org\x1facme\x1fhalf"

    with pytest.raises(InvalidInput, match="half a level"):
        await purge_tree(one_redis, Odd())
    await fill(one_redis, ACME)
    layer = WorkingLayer(one_redis)
    await layer.push(Odd(), turn_of(ACME))
    (found,) = [entry.scope for entry in (await scopes(one_redis, "acme")).entries if entry.scope != ACME]
    assert (found.tenant_id, found.scope_path) == ("acme", Odd.scope_path)
    assert (await purge_tree(one_redis, ACME)).scopes == 2
    with pytest.raises(ScopeClosed):
        await layer.push(Odd(), turn_of(ACME))


# --- purging a tenant ---

LOOKALIKES = ("acme2", "acm", "ACME", "acme:c", "acme%", "*", "acme\x00", "{0001}:acme")


async def test_a_tenant_is_erased_while_its_writers_go_on_and_nobody_else_loses_anything(redis):
    """Short lives, so that the test sees the end of them."""
    closed_for = 6.0
    async with connect(redis.url, prefix=redis.prefix, deadline=1.0, feed=20) as short:
        mine = [ACME.child("c", str(number)) for number in range(150)]
        await fill(short, *mine, turns=2)
        others = [TenantScope.root("org", name).child("c", "1") for name in LOOKALIKES]
        await fill(short, *others, turns=2)
        relay = Relay(short, ListTarget(), idle=0.05)
        assert await relay.drain() == 2 * (len(mine) + len(others))
        theirs = {key: value for key, value in (await dump(short)).items() if "}:acme:" not in key}
        theirs = {key: value for key, value in theirs.items() if key.startswith(f"{redis.prefix}:{{")}
        theirs = {key: value for key, value in theirs.items() if not key.endswith((":tenants", ":ops", ":ops:old"))}
        theirs = {key: value for key, value in theirs.items() if "}:feeds@" not in key and "}:lease@" not in key}
        assert len(theirs) > 4 * len(others)
        refused, written = [0], [0]
        stop = asyncio.Event()

        async def keep_writing(number):
            layer = layer_of(short)
            for step in itertools.count(number):
                if stop.is_set():
                    return
                scope = ACME.child("c", str(step % 300))
                try:
                    await layer.push(scope, turn_of(scope), idempotency_key=uuid.uuid4().hex)
                    written[0] += 1
                except ScopeClosed:
                    refused[0] += 1

        async with asyncio.TaskGroup() as tasks:
            relaying = tasks.create_task(relay.run())
            for number in range(4):
                tasks.create_task(keep_writing(number * 70))
            await asyncio.sleep(0.1)
            steps = []
            done = await purge_tenant(short, "acme", closed_for=closed_for, progress=lambda *step: steps.append(step))
            await asyncio.sleep(0.1)
            left = await of_tenant(short, "acme")
            stop.set()
            assert not relaying.done()
            relay.stop()
        assert written[0]
        assert refused[0]
        assert done.scopes >= 150
        assert steps[-1][0] == steps[-1][1] >= 150
        assert steps == sorted(steps)
        assert kinds(left) == {"closed", "ops"}
        assert await scopes(short, "acme") == ((), None)
        sets = [key for key in await keys_of(short, f"{redis.prefix}:*") if key.endswith((":tenants", ":feeds@relay"))]
        assert {await short.call("test", "TYPE", key) for key in sets} == {b"set"}
        assert not any(await short.call_many("test", [("SISMEMBER", key, "acme") for key in sets]))
        now = await dump(short)
        assert {key: now.get(key) for key in theirs} == theirs
        # The tombstones and the operation ids expire: then nothing tells that the tenant ever was.
        await until(lambda: _gone(short, f"{redis.prefix}:{{*}}:acme:*"), seconds=30)
        now = await dump(short)
        assert {key: now.get(key) for key in theirs} == theirs


async def test_a_tenant_is_opened_again(one_redis, scope):
    await fill(one_redis, scope)
    await purge(one_redis, scope)
    await purge_tenant(one_redis, "acme")
    assert await reopen_tenant(one_redis, "acme")
    with pytest.raises(ScopeClosed):
        await fill(one_redis, scope)
    assert await reopen(one_redis, scope)
    await fill(one_redis, scope)


async def test_a_purge_that_failed_half_way_is_finished_by_the_next(one_redis):
    await fill(one_redis, *(ACME.child("c", str(number)) for number in range(200)))

    def stop(*_):
        raise KeyError

    with suppress(KeyError):
        await purge_tenant(one_redis, "acme", progress=stop)
    assert 0 < (await totals(one_redis, "acme")).scopes < 200
    await purge_tenant(one_redis, "acme")
    assert kinds(await of_tenant(one_redis, "acme")) == {"closed", "ops"}


async def test_a_large_index_is_walked_while_it_shrinks_and_grows(one_redis):
    """Over 128 members the server no longer gives an index in one piece."""
    redis, paths = one_redis, [f"s\x1f{number}" for number in range(600_000)]
    mine = [encode_path(path) for path in paths if partition_of(path) == 7]
    later = [mine.pop() for _ in range(50)]
    assert len(mine) > 500
    shared = tenant_keys(redis.prefix, "t", 7)
    await redis.call("test", "ZADD", shared.scopes, *itertools.chain(*((10**15, path) for path in mine)))
    await redis.call_many(
        "test", [("RPUSH", f"{shared.scopes.removesuffix('scopes')}{path}:turns", "x") for path in mine]
    )
    seen, rounds = [], 0
    async for found in TenantStore(redis).walk("t", range(1024)):
        seen += found
        rounds += 1
        await redis.call("test", "ZADD", shared.scopes, 10**15, later.pop())
        await redis.call("test", "ZREM", shared.scopes, *seen)
    assert rounds > 3
    assert len(set(seen)) == len(seen)
    assert set(mine) <= set(seen)
    await redis.call("test", "DEL", shared.scopes)
    await redis.call("test", "ZADD", shared.scopes, *itertools.chain(*((10**15, path) for path in mine)))
    assert (await totals(redis, "t")).turns == len(mine)
    assert (await purge_tenant(redis, "t")).scopes == len(mine)
    assert kinds(await of_tenant(redis, "t")) == {"closed", "ops"}


@pytest.mark.parametrize("action", ["lose", "drop"])
async def test_a_purge_goes_on_when_connections_break(valkey, prefix, action):
    scope = ACME.child("c", "1")
    async with connect(valkey.url, prefix=prefix, feed=20) as direct, Proxy(valkey.port) as proxy:
        await fill(direct, *(ACME.child("c", str(number)) for number in range(200)))
        async with connect(proxy.url, prefix=prefix, feed=20) as redis:
            for nth in (20, 1500, 1100, 2300):
                proxy.on(b"EVAL", action, nth=nth)
            done = await purge_tree(redis, ACME)
        # A scope whose call was answered twice is counted once.
        assert (done.scopes, done.keys) == (200, 600)
        assert kinds(await of_tenant(direct, "acme")) == {"closed", "ops", "feed", "seq"}
        feed = scope_keys(prefix, scope).shared.feed
        kept = [flat[3] for _, flat in await direct.call("test", "XRANGE", feed, "-", "+")]
        assert kept == [b"purge"] * len(kept)


async def test_who_may_not_erase_erases_nothing(server, prefix):
    async with connect(server.url, prefix=prefix) as redis, acl_users(server) as users:
        if (await redis.call("test", "INFO", "server")).decode().count("redis_version:6."):
            pytest.skip("the server cannot tell a script what its user may do")
        await fill(redis, ACME)
        url = await users.make(f"~{prefix}:*", "+@all", "-unlink")
        async with connect(url, prefix=prefix) as limited:
            with pytest.raises(AccessDenied, match="nothing was written"):
                await purge(limited, ACME)
        assert kinds(await of_tenant(redis, "acme")) >= {"turns", "working"}
        await fill(redis, ACME)


def test_every_key_of_a_scope_is_its_own():
    keys = scope_keys("p", ACME)
    assert len(set(keys.everything)) == len(keys.everything) == 27
    assert set(keys.content) < set(keys.everything)
    assert all(key.startswith(f"{keys.base}:") for key in keys.everything)
    assert {keys.type_of(key) for key in keys.everything} == {"list", "hash", "stream", "zset", "string"}
    assert keys.type_of(keys.beside(keys.turns)) == "list"
    assert keys.type_of(keys.beside(keys.edits("working"))) == "hash"


async def commands_run(redis):
    text = (await redis.call("test", "INFO", "commandstats")).decode()
    found = dict(re.findall(r"^cmdstat_([^:|]+)[^:]*:calls=(\d+)", text, re.MULTILINE))
    return sum(
        int(calls) for name, calls in found.items() if name not in ("eval", "evalsha", "info", "hello", "client")
    )


async def test_a_purge_does_the_same_work_whatever_the_scope_holds():
    with own_server() as server:
        async with connect(server.url) as redis:
            small, large = ACME.child("c", "small"), ACME.child("c", "large")
            await fill(redis, small)
            keys = scope_keys(redis.prefix, large)
            await fill(redis, large)
            rows = ["x" * 200] * 1000
            await redis.call_many("test", [("RPUSH", keys.turns, *rows)] * 100)
            await redis.call_many("test", [("XADD", keys.graph("working"), "*", "r", "x" * 200)] * 20_000)
            work = []
            for scope in (small, large):
                before = await commands_run(redis)
                await purge(redis, scope)
                work.append(await commands_run(redis) - before)
            assert work[0] == work[1]


async def test_purging_ten_thousand_conversations_never_holds_the_server_up(record_property):
    """On a server of its own. A busy machine may pause it: a handful of slow calls is that, a pattern is not."""
    with own_server("--slowlog-log-slower-than", "1000", "--slowlog-max-len", "10000") as server:
        async with connect(server.url, deadline=60, feed=10) as redis:
            layer = WorkingLayer(redis, 2, StreamGraphStore(redis))
            gate = asyncio.Semaphore(40)

            async def push(number):
                scope = ACME.child("c", str(number))
                async with gate:
                    await layer.push(scope, turn_of(scope), idempotency_key="job")

            await asyncio.gather(*(push(number) for number in range(10_000)))
            await redis.call("test", "SLOWLOG", "RESET")
            await redis.call("test", "CONFIG", "RESETSTAT")
            started = asyncio.get_running_loop().time()
            steps = []
            done = await purge_tenant(redis, "acme", progress=lambda *step: steps.append(step))
            seconds = asyncio.get_running_loop().time() - started
            slow = [entry[2] for entry in await redis.call("test", "SLOWLOG", "GET", -1)]
            stats = (await redis.call("test", "INFO", "commandstats")).decode()
            mean = re.search(r"cmdstat_evalsha:calls=(\d+),usec=\d+,usec_per_call=([\d.]+)", stats)
            figures = f"{seconds:.2f} s; {mean[1]} calls of {mean[2]} us; over 1 ms: {sorted(slow)[-5:]} us"
            record_property("purge", figures)
            print(figures)  # noqa: T201 - a figure to be read
            assert done.scopes == 10_000
            assert len(steps) > 100
            assert steps[-1] == (10_000, 10_000)
            assert float(mean[2]) < 500
            # Here even a loop of 100 us is paused for 4 to 8 ms now and then, when four processes share two cores.
            assert len([one for one in slow if one > 5000]) <= int(mean[1]) / 1000
            assert kinds(await of_tenant(redis, "acme")) == {"closed", "ops"}
