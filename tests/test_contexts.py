"""`get_contexts`: the windows of many scopes, each as `get_context` has it, in one round trip."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
from signal import SIGCONT, SIGSTOP

import pytest
from acl_users import acl_users
from exported import exported
from own_server import calls, own_server, until
from proxy import Proxy
from redis.asyncio import Redis
from seen import texts
from servers import free_port
from topologies import cluster

from symfonic_redis import (
    AccessDenied,
    CodecError,
    InvalidInput,
    KeyConflict,
    Keyring,
    KeyringMismatch,
    MemoryEntry,
    MemoryUnavailable,
    StandbyLayer,
    TenantScope,
    WorkingLayer,
    connect,
)
from symfonic_redis.keys import scope_keys
from symfonic_redis.windows import MAX_ROWS, MAX_WINDOWS, at_once, read_windows

ORG = TenantScope.root("org", "acme")
MANY = [ORG.child("conversation", f"c{number}") for number in range(40)]


def said(scope, number) -> MemoryEntry:
    return MemoryEntry.turn(scope, speaker="user", turn_id=f"t{number}", content=f"{scope.scope_path} {number}")


async def fill(layer, scopes=MANY) -> None:
    """Windows of all lengths from none to more than the layer has."""
    for turns, scope in enumerate(scopes):
        await layer.push_many(scope, [said(scope, number) for number in range(turns % 13)])


async def one_by_one(layer, scopes) -> list[list[MemoryEntry]]:
    return [await layer.get_context(scope) for scope in scopes]


async def reads(client) -> int:
    """How often the server took something from a connection; asking is one itself."""
    return (await client.info("stats"))["total_reads_processed"]


async def test_each_window_is_what_get_context_returns_in_the_order_asked(redis):
    layer = WorkingLayer(redis)
    family = [ORG, ORG.child("conversation", "c1").child("part", "a"), TenantScope.root("org", "globex")]
    await fill(layer, [*MANY, *family])
    asked = [*MANY, *family, *family, ORG.child("conversation", "nobody")]
    random.Random(1).shuffle(asked)
    found = await layer.get_contexts(asked)
    assert found == await one_by_one(layer, asked)
    assert {len(window) for window in found} == set(range(11))
    # Those of one scope that is asked for twice are the caller's own.
    twice = await layer.get_contexts([MANY[5], MANY[5]])
    twice[0][0].content = "changed"
    assert twice[1] == await layer.get_context(MANY[5])
    assert await layer.get_contexts(scope for scope in MANY) == await one_by_one(layer, MANY)


async def test_they_are_the_same_everywhere(anywhere):
    layer = WorkingLayer(anywhere, 5)
    await fill(layer)
    assert await layer.get_contexts(reversed(MANY)) == await one_by_one(layer, MANY[::-1])


async def test_a_fake_server_has_them_too(prefix):
    async with connect("fake://", prefix=prefix) as redis:
        layer = WorkingLayer(redis)
        await fill(layer)
        assert await layer.get_contexts(MANY) == await one_by_one(layer, MANY)


# --- round trips ---


async def test_all_are_asked_for_before_any_is_answered(server, prefix):
    async with (
        Proxy(server.port) as proxy,
        connect(proxy.url, prefix=prefix) as redis,
        Redis.from_url(server.url) as admin,
    ):
        layer = WorkingLayer(redis)
        await fill(layer)
        before = await calls(admin, "lrange")
        proxy.requests.clear()
        server.signal(SIGSTOP)
        try:
            read = asyncio.create_task(layer.get_contexts(MANY))

            async def all_there() -> bool:
                return proxy.counted() == {"LRANGE": len(MANY)}

            await until(all_there)
        finally:
            server.signal(SIGCONT)
        found = await read
        assert proxy.counted() == {"LRANGE": len(MANY)}
        assert await calls(admin, "lrange") - before == len(MANY)
        assert found == await one_by_one(layer, MANY)


async def test_a_server_takes_them_at_once(redis, server):
    layer = WorkingLayer(redis)
    await layer.get_contexts(MANY)  # connects
    async with Redis.from_url(server.url) as admin:
        before = await reads(admin)
        await layer.get_contexts(MANY)
        assert await reads(admin) - before == 1 + 1


async def test_each_node_of_a_cluster_is_asked_once(prefix):
    topology = cluster(2, 0)
    try:
        async with connect(topology.url, prefix=prefix) as redis, contextlib.AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(Redis(port=server.port)) for server in topology.servers]
            layer = WorkingLayer(redis)
            await fill(layer)
            found = await layer.get_contexts(MANY)
            ran = [await calls(node, "lrange") for node in nodes]
            before = [await reads(node) for node in nodes]
            assert await layer.get_contexts(MANY) == found
            assert [await reads(node) - then for node, then in zip(nodes, before, strict=True)] == [1 + 1] * 2
            each = [await calls(node, "lrange") - then for node, then in zip(nodes, ran, strict=True)]
            assert sum(each) == len(MANY)
            assert all(each)
            assert found == await one_by_one(layer, MANY)
    finally:
        topology.stop()


async def test_no_scopes_ask_nobody():
    nobody = connect(f"redis://127.0.0.1:{free_port()}", deadline=0.2)
    assert await WorkingLayer(nobody).get_contexts([]) == []
    assert await StandbyLayer(nobody).get_contexts(()) == []


def test_an_exchange_is_bounded_in_windows_and_in_rows():
    assert [at_once(length) for length in (1, 10, 100, 101, 1_000, 1_000_000)] == [1_000, 1_000, 1_000, 990, 100, 1]
    assert all(at_once(length) * length <= max(length, MAX_ROWS) for length in range(1, 200_000, 999))


async def test_more_windows_than_one_exchange_has_are_read_in_several(one_redis):
    layer = WorkingLayer(one_redis)
    await fill(layer)
    asked = (MANY * (2 * MAX_WINDOWS // len(MANY) + 1))[: 2 * MAX_WINDOWS + 1]
    expected = await one_by_one(layer, MANY)
    with exported() as seen:
        found = await layer.get_contexts(asked)
        assert [span.name for span in seen.spans()] == ["get_contexts"] * 3
    assert found == (expected * (len(asked) // len(MANY) + 1))[: len(asked)]


async def test_an_answer_that_is_lost_is_asked_for_again(server, prefix):
    async with Proxy(server.port) as proxy, connect(proxy.url, prefix=prefix) as redis:
        layer = WorkingLayer(redis)
        await fill(layer)
        lost = proxy.on(b"LRANGE", "lose", nth=7)
        found = await layer.get_contexts(MANY)
        assert lost.reached.is_set()
        assert found == await one_by_one(layer, MANY)


# --- what goes wrong ---


async def test_damaged_rows_are_skipped_counted_and_told_once(redis, caplog):
    layer = WorkingLayer(redis)
    await fill(layer)
    keys = [scope_keys(redis.prefix, MANY[number]).turns for number in (3, 9)]
    for key in keys:
        await redis.call("test", "LSET", key, 1, b"damaged")
    with caplog.at_level(logging.WARNING, "symfonic_redis"), exported() as seen:
        found = await layer.get_contexts(MANY)
        assert await layer.get_contexts(MANY) == found == await one_by_one(layer, MANY)
        assert seen.total("symfonic.rows.damaged") == 6
    assert [len(found[number]) for number in (2, 3, 4, 9)] == [2, 2, 4, 8]
    assert len(caplog.records) == 2
    for key, record in zip(keys, caplog.records, strict=True):
        assert f"row 1 of {key} " in record.getMessage()
    with pytest.raises(CodecError, match=rf"^row 1 of {re.escape(keys[1])} cannot be read"):
        await WorkingLayer(redis, strict=True).get_contexts(MANY[4:])


async def test_a_key_of_another_type_is_named_the_first_of_several(redis):
    layer = WorkingLayer(redis)
    await fill(layer)
    keys = [scope_keys(redis.prefix, MANY[number]).turns for number in (9, 21)]
    for key in keys:
        await redis.call("test", "DEL", key)
        await redis.call("test", "SET", key, "not ours")
    for asked, key in ((MANY, keys[0]), (MANY[::-1], keys[1])):
        with pytest.raises(KeyConflict, match=rf"{re.escape(key)} holds a string where a list belongs"):
            await layer.get_contexts(asked)
    # The connection is clean: what was asked for behind it has been read.
    assert await layer.get_contexts(MANY[10:20]) == await one_by_one(layer, MANY[10:20])


async def test_on_another_node_it_is_named_too(anywhere):
    layer = WorkingLayer(anywhere)
    for scope in MANY[:6]:
        key = scope_keys(anywhere.prefix, scope).turns
        await anywhere.call("test", "SET", key, "not ours")
        with pytest.raises(KeyConflict, match=re.escape(key)):
            await layer.get_contexts(MANY)
        await anywhere.call("test", "DEL", key)
    assert await layer.get_contexts(MANY) == [[]] * len(MANY)


@pytest.mark.parametrize("wrong", [None, "acme", 7], ids=str)
async def test_a_malformed_scope_is_refused_before_anything_is_sent(valkey, prefix, wrong):
    async with Proxy(valkey.port) as proxy, connect(proxy.url, prefix=prefix) as redis:
        proxy.requests.clear()
        with pytest.raises(InvalidInput):
            await WorkingLayer(redis).get_contexts([*MANY, wrong])
        assert proxy.requests == []


async def test_one_that_the_user_may_not_read_fails_all(redis, server):
    layer = WorkingLayer(redis)
    await fill(layer)
    async with acl_users(server) as users:
        mine = scope_keys(redis.prefix, MANY[3]).turns
        url = await users.make(f"~{redis.prefix}:config", f"~{mine}", "+@all")
        async with connect(url, prefix=redis.prefix) as narrow:
            own = WorkingLayer(narrow)
            assert await own.get_contexts([MANY[3]]) == await one_by_one(layer, [MANY[3]])
            with pytest.raises(AccessDenied, match="get_contexts was refused"):
                await own.get_contexts([MANY[3], MANY[4]])


async def test_a_server_that_is_away_is_named(scope):
    down = WorkingLayer(connect(f"redis://127.0.0.1:{free_port()}", deadline=0.2))
    with pytest.raises(MemoryUnavailable):
        await down.get_contexts([scope])


async def test_sealed_rows_open_each_under_its_own_scope(valkey, prefix):
    ring = Keyring({"a": b"k" * 32}, current="a")
    async with (
        connect(valkey.url, prefix=prefix, encryption=ring) as redis,
        connect(valkey.url, prefix=prefix) as without,
    ):
        layer = WorkingLayer(redis, strict=True)
        await fill(layer)
        assert await layer.get_contexts(MANY) == await one_by_one(layer, MANY)
        keys = [scope_keys(prefix, MANY[number]).turns for number in (2, 3)]
        (row, *_) = await redis.call("test", "LRANGE", keys[0], 0, -1)
        await redis.call("test", "RPUSH", keys[1], row)
        with pytest.raises(CodecError, match=rf"row 3 of {re.escape(keys[1])} .*from another place"):
            await layer.get_contexts(MANY)
        with pytest.raises(KeyringMismatch):
            await WorkingLayer(without).get_contexts(MANY)


async def test_a_call_is_a_span_of_its_own_name(one_redis):
    await one_redis.open()
    with exported() as seen:
        await WorkingLayer(one_redis).get_contexts(MANY)
        (span,) = seen.spans()
        assert span.name == span.attributes["db.operation.name"] == "get_contexts"
        assert seen.count("db.client.operation.duration", db_operation_name="get_contexts") == 1
        await one_redis.call("test", "SET", scope_keys(one_redis.prefix, MANY[1]).turns, "not ours")
        with pytest.raises(KeyConflict):
            await WorkingLayer(one_redis).get_contexts(MANY)
        assert seen.spans()[-1].attributes["error.type"] == "KeyConflict"


# --- while the server is away ---


@pytest.fixture
def mortal(tmp_path):
    with own_server("--appendonly", "yes", "--appendfsync", "always", directory=str(tmp_path)) as started:
        yield started


@contextlib.asynccontextmanager
async def standby(url, **options):
    async with connect(url, deadline=0.3, attempt_timeout=0.2) as deployment:
        layer = StandbyLayer(deployment, 4, **options)
        yield layer
        await layer.aclose(0)


async def test_what_was_read_is_served_while_the_server_is_away(mortal):
    async with standby(mortal.url) as layer:
        await fill(layer)
        found = await layer.get_contexts(MANY)
        mortal.kill()
        assert (await layer.push(MANY[2], said(MANY[2], 99))).queued
        with exported() as seen:
            again = await layer.get_contexts(MANY)
            assert seen.total("symfonic.windows.stale") == len(MANY)
        assert again == await one_by_one(layer, MANY)
        assert texts(again[2]) == [*texts(found[2]), f"{MANY[2].scope_path} 99"]
        assert [*again[:2], *again[3:]] == [*found[:2], *found[3:]]
        unread = ORG.child("conversation", "unread")
        key = scope_keys(layer.deployment.prefix, unread).turns
        with pytest.raises(MemoryUnavailable, match=re.escape(key)):
            await layer.get_contexts([*MANY, unread])
        assert layer.away


async def test_the_outage_may_begin_with_this_call(mortal):
    async with standby(mortal.url) as layer:
        await fill(layer)
        found = await one_by_one(layer, MANY)
        mortal.kill()
        assert await layer.get_contexts(MANY) == found
        assert layer.away


async def test_the_windows_that_are_remembered_are_those_that_were_asked_for_last(mortal):
    async with standby(mortal.url, max_windows=2) as layer:
        await fill(layer)
        a, b, c = MANY[1:4]
        found = await layer.get_contexts([a, b])
        # To remember c takes a's place, which a then takes back from b.
        (third, first) = await layer.get_contexts([c, a])
        mortal.kill()
        assert await layer.get_contexts([a, c]) == [first, third] == [found[0], third]
        with pytest.raises(MemoryUnavailable, match="has not read"):
            await layer.get_contexts([b])


async def test_a_push_that_is_newer_than_what_was_read_is_not_forgotten(mortal, monkeypatch):
    answered, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*values):
        rows = await read_windows(*values)
        answered.set()
        await go_on.wait()
        return rows

    async with standby(mortal.url) as layer:
        a, b = MANY[:2]
        for scope in (a, b):
            await layer.push(scope, said(scope, 1))
        await layer.get_contexts([a, b])
        monkeypatch.setattr("symfonic_redis.standby.read_windows", slow)
        read = asyncio.create_task(layer.get_contexts([b, a]))
        await answered.wait()
        await layer.push(a, said(a, 2))
        async with connect(mortal.url) as other:
            await WorkingLayer(other).push(b, said(b, 2))
        go_on.set()
        assert [len(window) for window in await read] == [1, 1]
        mortal.kill()
        # Of b what was read is all that this worker knows; of a it knows better.
        assert [len(window) for window in await layer.get_contexts([a, b])] == [2, 1]
