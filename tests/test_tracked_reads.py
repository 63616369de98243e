"""Tracked reads on real servers: no round trip while nothing changed, and never a window that did."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time

import pytest
from acl_users import acl_users
from exported import exported
from fakeredis import FakeAsyncRedis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operations import TENANTS, TREES, WRITES, Worker, do
from own_server import own_server, until
from proxy import Proxy
from redis._parsers import _AsyncRESP3Parser
from redis.asyncio import Redis
from test_acl import Rules, denials, scope_of
from tracked import connected, heard, said, texts, tracker_of

from symfonic_redis import (
    AccessDenied,
    CodecError,
    ConfigurationError,
    KeyConflict,
    Keyring,
    LegacyConversationSource,
    MemoryEntry,
    StandbyLayer,
    TenantScope,
    WorkingLayer,
    acl_rules,
    connect,
)
from symfonic_redis.keys import scope_keys
from symfonic_redis.listening import STALENESS
from symfonic_redis.tracker import Tracker


@pytest.fixture
async def pair(server, prefix):
    """A layer that tracks, another worker's that does not, and a client of the server."""
    async with (
        connect(server.url, prefix=prefix, track_windows=True) as here,
        connect(server.url, prefix=prefix) as there,
        Redis.from_url(server.url) as client,
    ):
        yield WorkingLayer(here), WorkingLayer(there), client


async def warm(layer: WorkingLayer, scope) -> list[str]:
    """Read a window; after it, the window is kept."""
    found = texts(await layer.get_context(scope))
    assert tracker_of(layer.deployment).find(scope_keys(layer.deployment.prefix, scope).turns, 1) is not None
    return found


# --- what it costs ---


async def test_a_window_that_is_kept_costs_nothing_on_the_wire(server, prefix, scope):
    async with Proxy(server.port) as proxy, connect(proxy.url, prefix=prefix, track_windows=True) as redis:
        layer = WorkingLayer(redis)
        await layer.push(scope, said(scope, "a"))
        proxy.requests.clear()
        await warm(layer, scope)
        assert {name: n for name, n in proxy.counted().items() if name != "PING"} == {"LRANGE": 1, "PTTL": 1}
        proxy.requests.clear()
        for _ in range(50):
            assert texts(await layer.get_context(scope)) == ["a"]
            assert texts(await layer.retrieve(scope, "")) == ["a"]
            assert [turn.text for turn in await LegacyConversationSource(layer).recent(scope, 3)] == ["a"]
        assert set(proxy.counted()) <= {"PING"}


async def test_reads_at_once_share_one_connection_and_each_gets_its_own(pair, scope):
    layer, other, client = pair
    scopes = [scope.child("part", str(number)) for number in range(300)]
    for one in scopes:
        await other.push(one, said(one, one.scope_path))
    before = len(await client.client_list())
    found = await asyncio.gather(*(layer.get_context(one) for one in scopes for _ in range(2)))
    assert len(await client.client_list()) == before
    assert [texts(entries) for entries in found] == [[one.scope_path] for one in scopes for _ in range(2)]
    assert len(tracker_of(layer.deployment).windows) == len(scopes)


async def test_many_windows_are_asked_for_where_they_are_not_kept(server, prefix, scope):
    async with Proxy(server.port) as proxy, connect(proxy.url, prefix=prefix, track_windows=True) as redis:
        layer = WorkingLayer(redis)
        scopes = [scope.child("part", str(number)) for number in range(20)]
        for number, one in enumerate(scopes):
            await layer.push_many(one, [said(one, f"{number}.{turn}") for turn in range(number % 3)])
        expected = [[f"{number}.{turn}" for turn in range(number % 3)] for number in range(20)]
        for one in scopes[::2]:
            await warm(layer, one)
        proxy.requests.clear()
        assert [texts(found) for found in await layer.get_contexts([*scopes, scopes[0]])] == [*expected, expected[0]]
        assert proxy.counted()["LRANGE"] == 10
        proxy.requests.clear()
        found = await layer.get_contexts(scopes)
        assert [texts(entries) for entries in found] == expected
        assert set(proxy.counted()) <= {"PING"}
        found[2][0].metadata["mine"] = found[2][0].content = "changed"  # mine alone
        assert [texts(entries) for entries in await layer.get_contexts(scopes)] == expected


async def test_windows_and_bytes_are_bounded(valkey, prefix, scope):
    async with connect(valkey.url, prefix=prefix, track_windows=5) as redis:
        layer = WorkingLayer(redis)
        for number in range(20):
            await layer.get_context(scope.child("part", str(number)))
        assert len(tracker_of(redis).windows) == 5
    async with connect(valkey.url, prefix=prefix, track_windows=True, track_bytes=10_000) as redis:
        layer = WorkingLayer(redis)
        await layer.push(scope, said(scope, "x" * 10_000))
        assert len((await layer.get_context(scope))[0].content) == 10_000
        assert len(tracker_of(redis).windows) == 0
        await layer.get_context(scope.child("part", "small"))
        assert len(tracker_of(redis).windows) == 1


# --- what it guarantees ---


async def test_a_worker_reads_its_own_writes_at_once(pair, scope):
    layer, other, _ = pair
    for name in (*WRITES, *TREES, *WRITES, *TENANTS, *WRITES):
        worker = Worker(layer.deployment, scope)
        await warm(layer, scope)
        await do(worker, name)
        assert await layer.get_context(scope) == await other.get_context(scope), name
        await do(worker, "reopen")


async def test_another_workers_write_is_seen_when_the_server_has_said_so(pair, scope):
    layer, other, _ = pair
    for name in (*WRITES, *TREES, *WRITES, *TENANTS, *WRITES):
        worker = Worker(other.deployment, scope)
        await warm(layer, scope)
        await do(worker, name)
        await heard(layer.deployment)
        assert await layer.get_context(scope) == await other.get_context(scope), name
        await do(worker, "reopen")


@pytest.mark.parametrize(
    "command",
    ["LPUSH {} x", "LTRIM {} 1 -1", "UNLINK {}", "PEXPIRE {} 1", "RENAME {} {}:elsewhere", "SET {} x", "FLUSHALL"],
)
async def test_any_change_is_seen(prefix, scope, command):
    with own_server() as server:
        async with (
            connect(server.url, prefix=prefix, track_windows=True) as redis,
            Redis.from_url(server.url) as client,
        ):
            layer, key = WorkingLayer(redis), scope_keys(prefix, scope).turns
            await layer.push_many(scope, [said(scope, "a"), said(scope, "b")])
            assert await warm(layer, scope) == ["a", "b"]
            await client.execute_command(*command.format(key, key).split())
            await asyncio.sleep(0.01)
            await heard(redis)
            if command.startswith("SET"):
                with pytest.raises(KeyConflict, match="holds a string"):
                    await layer.get_context(scope)
            else:
                left = {"LPUSH": ["a", "b"], "LTRIM": ["a"]}.get(command.split()[0], [])
                assert texts(await layer.get_context(scope)) == left


async def test_a_window_ends_with_its_list_although_the_server_does_not_say_so(prefix, scope):
    with own_server("--enable-debug-command", "yes") as server:
        async with (
            connect(server.url, prefix=prefix, track_windows=True) as redis,
            Redis.from_url(server.url) as client,
        ):
            await client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
            layer = WorkingLayer(redis, ttl=3)
            await layer.push(scope, said(scope, "a"))
            assert await warm(layer, scope) == ["a"]
            await asyncio.sleep(3.01)
            assert await layer.get_context(scope) == []


async def test_a_reply_that_is_under_way_while_its_window_is_written_is_not_kept(valkey, prefix, scope):
    async with Proxy(valkey.port) as proxy, connect(proxy.url, prefix=prefix, track_windows=True) as redis:
        layer = WorkingLayer(redis)
        await layer.push(scope, said(scope, "a"))
        silent = proxy.silence(b"TRACKING")
        read = asyncio.create_task(layer.get_context(scope))
        await until_async(lambda: b"PTTL" in {request[0] for request in proxy.requests})
        await layer.push(scope, said(scope, "b"))
        silent.set()
        await read
        assert texts(await layer.get_context(scope)) == ["a", "b"]
        assert await warm(layer, scope) == ["a", "b"]


async def until_async(happens) -> None:
    async def asked() -> bool:
        return bool(happens())

    await until(asked)


async def test_a_write_that_fails_leaves_no_window(valkey, prefix, scope):
    async with (
        Proxy(valkey.port) as proxy,
        connect(proxy.url, prefix=prefix, track_windows=True) as redis,
        connect(valkey.url, prefix=prefix) as other,
    ):
        layer, key = WorkingLayer(redis), scope_keys(prefix, scope).turns
        await layer.push(scope, said(scope, "a"))
        await warm(layer, scope)
        held = proxy.on(b"EVALSHA", "hold")
        push = asyncio.create_task(layer.push(scope, said(scope, "b")))
        await held.reached.wait()
        assert tracker_of(redis).find(key, 1) is None
        await warm(layer, scope)
        push.cancel()
        await asyncio.wait([push])
        assert tracker_of(redis).find(key, 1) is None
        held.release()
        await held.reply
        await heard(redis)
        assert (
            texts(await layer.get_context(scope)) == texts(await WorkingLayer(other).get_context(scope)) == ["a", "b"]
        )


async def test_a_write_that_is_sent_again_drops_all_windows(valkey, prefix, scope):
    """Where the master is may be another place by now, of which a connection to the old one says nothing."""
    async with Proxy(valkey.port) as proxy, connect(proxy.url, prefix=prefix, track_windows=True) as redis:
        layer, other = WorkingLayer(redis), scope.child("part", "other")
        await warm(layer, other)
        proxy.on(b"EVALSHA", "drop")
        await layer.push(scope, said(scope, "a"))
        assert len(tracker_of(redis).windows) == 0
        await layer.get_context(other)
        await connected(redis)
        assert await warm(layer, scope) == ["a"]


async def test_what_a_caller_does_to_an_entry_stays_with_the_caller(pair, scope):
    layer, _, _ = pair
    turn = MemoryEntry.turn(scope, speaker="user", turn_id="t", content="a")
    turn.metadata["nested"] = {"list": [1, (2, [3])]}
    await layer.push_many(scope, [said(scope, "flat"), turn])
    expected = [entry.model_dump() for entry in await layer.get_context(scope)]
    for _ in range(4):
        found = await layer.get_context(scope)
        assert [entry.model_dump() for entry in found] == expected
        for entry in found:
            entry.content = "changed"
            entry.metadata["speaker"] = "changed"
            if "nested" in entry.metadata:
                entry.metadata["nested"]["list"][1][1].append(4)
        found.clear()


async def test_layers_of_different_width_share_what_is_wide_enough(pair, scope):
    layer, _, _ = pair
    narrow, wide = WorkingLayer(layer.deployment, 2), WorkingLayer(layer.deployment, 6)
    await wide.push_many(scope, [said(scope, str(number)) for number in range(6)])
    for _ in range(3):
        assert texts(await narrow.get_context(scope)) == ["4", "5"]
        assert texts(await wide.get_context(scope)) == list("012345")


async def test_a_flood_of_messages_without_a_reply_between_them_is_read(pair, scope):
    layer, _, client = pair
    scopes = [scope.child("part", str(number)) for number in range(3_000)]
    await asyncio.gather(*(layer.get_context(one) for one in scopes))
    assert len(tracker_of(layer.deployment).windows) == len(scopes)
    keys = [scope_keys(layer.deployment.prefix, one).turns for one in scopes]
    (listener,) = tracker_of(layer.deployment)._listeners.values()
    source = listener._source
    async with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.lpush(key, "x")
        await pipe.execute()
    await heard(layer.deployment)
    assert len(tracker_of(layer.deployment).windows) == 0
    assert listener._source is source  # and not because the connection was lost
    await client.unlink(*keys)


# --- rows ---


async def test_a_damaged_row_is_found_by_each_read(pair, scope, caplog):
    layer, _, client = pair
    strict = WorkingLayer(layer.deployment, strict=True)
    await layer.push(scope, said(scope, "a"))
    await client.lpush(scope_keys(layer.deployment.prefix, scope).turns, b"\xff")
    await heard(layer.deployment)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert await warm(layer, scope) == ["a"]
            with pytest.raises(CodecError, match="row 0"):
                await strict.get_context(scope)
    assert caplog.text.count("cannot be read") == 1


async def test_sealed_rows_stay_sealed(valkey, prefix, scope):
    ring = Keyring({"k": bytes(32)}, current="k")
    async with connect(valkey.url, prefix=prefix, track_windows=True, encryption=ring) as redis:
        layer, key = WorkingLayer(redis), scope_keys(prefix, scope).turns
        await layer.push(scope, said(scope, "a secret"))
        for _ in range(3):
            assert await warm(layer, scope) == ["a secret"]
        kept = tracker_of(redis).find(key, 1)
        assert kept.drafts is None
        assert b"secret" not in b"".join(kept.rows)


# --- connections ---


async def test_a_connection_that_is_killed_takes_its_windows_along_and_comes_back(pair, scope):
    layer, other, client = pair
    for number in range(3):
        await warm(layer, scope)
        for one in await client.client_list():
            if "t" in one["flags"]:
                await client.client_kill_filter(_id=one["id"])
        await until_async(lambda: not len(tracker_of(layer.deployment).windows))
        await other.push(scope, said(scope, str(number)))
        assert texts(await layer.get_context(scope)) == [str(n) for n in range(number + 1)]
        await connected(layer.deployment)
        assert len(await warm(layer, scope)) == number + 1


async def test_reads_go_on_while_the_server_restarts(prefix, scope):
    with own_server("--appendonly", "yes") as server:
        async with connect(server.url, prefix=prefix, track_windows=True, deadline=60) as redis:
            layer = WorkingLayer(redis)
            await layer.push(scope, said(scope, "a"))
            await warm(layer, scope)
            server.kill()
            reading = asyncio.create_task(layer.get_context(scope))
            await asyncio.to_thread(server.start)
            assert texts(await reading) == ["a"]
            await connected(redis)
            assert await warm(layer, scope) == ["a"]


async def test_a_connection_that_falls_silent_is_trusted_for_a_while_only(valkey, prefix, scope):
    async with (
        Proxy(valkey.port) as proxy,
        connect(proxy.url, prefix=prefix, track_windows=True) as redis,
        connect(valkey.url, prefix=prefix) as there,
    ):
        layer = WorkingLayer(redis)
        await warm(layer, scope)
        proxy.silence(b"TRACKING")
        silent = time.monotonic()
        await WorkingLayer(there).push(scope, said(scope, "new"))
        seen = []
        while not seen:
            asked = time.monotonic()
            seen = await layer.get_context(scope)
            # Whatever the machine does meanwhile: what is served later is not from before.
            assert seen or asked < silent + STALENESS
            await asyncio.sleep(0.005)
        await layer.get_context(scope)
        await connected(redis)
        assert await warm(layer, scope) == ["new"]


async def test_a_read_that_hangs_is_made_again_elsewhere(valkey, prefix, scope):
    async with Proxy(valkey.port) as proxy, connect(proxy.url, prefix=prefix, track_windows=True) as redis:
        proxy.silence(b"TRACKING")
        redis.attempt_timeout = 0.2
        layer = WorkingLayer(redis)
        await layer.push(scope, said(scope, "a"))
        proxy.requests.clear()
        assert texts(await layer.get_context(scope)) == ["a"]
        assert proxy.counted()["PTTL"] <= 1  # as no plain read asks


async def test_callers_that_give_up_do_no_harm(pair, scope):
    layer, other, _ = pair
    await other.push(scope, said(scope, "a"))
    for _ in range(20):
        reads = [asyncio.create_task(layer.get_context(scope.child("part", str(n)))) for n in range(20)]
        await asyncio.sleep(0)
        for read in reads[::2]:
            read.cancel()
        done = await asyncio.gather(*reads, layer.get_context(scope), return_exceptions=True)
        assert texts(done[-1]) == ["a"]
        assert all(found == [] for found in done[1:-1:2])
    assert not tracker_of(layer.deployment).windows._loads


async def test_connecting_is_tried_again(valkey, prefix, scope):
    async with Proxy(valkey.port) as proxy:
        proxy.on(b"TRACKING", "drop")
        proxy.on(b"TRACKING", "hold")
        async with connect(proxy.url, prefix=prefix, track_windows=True, attempt_timeout=0.3) as redis:
            layer = WorkingLayer(redis)
            for number in range(2):
                await warm(layer, scope)
                tracker_of(redis)._doubt()
                await layer.push(scope, said(scope, str(number)))
                await layer.get_context(scope)
                await connected(redis)
            assert await warm(layer, scope) == ["0", "1"]


async def test_an_embedded_server_tracks_too(prefix, scope):
    async with connect("embedded://", prefix=prefix, track_windows=True) as redis:
        layer = WorkingLayer(redis)
        await layer.push(scope, said(scope, "a"))
        assert await warm(layer, scope) == ["a"]


async def test_closing_ends_its_connection_and_tasks(server, prefix, scope):
    async with Redis.from_url(server.url) as client:
        before, tasks = {one["id"] for one in await client.client_list()}, asyncio.all_tasks()
        for _ in range(3):
            async with connect(server.url, prefix=prefix, track_windows=True) as redis:
                await WorkingLayer(redis).get_context(scope)
        assert asyncio.all_tasks() == tasks

        async def gone() -> bool:
            return {one["id"] for one in await client.client_list()} <= before

        await until(gone)
        layer = WorkingLayer(redis)
        with pytest.raises(ConfigurationError, match="closed"):
            await layer.get_context(scope)
    gc.collect()


async def test_closing_at_once_leaves_nothing(valkey, prefix):
    tasks = asyncio.all_tasks()
    for pause in range(12):
        redis = connect(valkey.url, prefix=prefix, track_windows=True)
        opening = asyncio.create_task(redis.open())
        for _ in range(pause * 3):
            await asyncio.sleep(0)
        await redis.aclose()
        with contextlib.suppress(ConfigurationError):
            await opening
    assert asyncio.all_tasks() == tasks
    gc.collect()


async def test_another_event_loop_is_refused_as_ever(valkey, prefix, scope):
    async with connect(valkey.url, prefix=prefix, track_windows=True) as redis:
        layer = WorkingLayer(redis)
        await warm(layer, scope)

        def elsewhere() -> None:
            with pytest.raises(ConfigurationError, match="event loop"):
                asyncio.run(layer.get_context(scope))

        await asyncio.to_thread(elsewhere)


@pytest.mark.parametrize(
    "flavour", [{"protocol": 2}, {"protocol": 3}, {"protocol": 3, "parser_class": _AsyncRESP3Parser}]
)
async def test_a_client_that_was_brought_may_be_of_any_kind(valkey, prefix, scope, flavour):
    async with Redis.from_url(valkey.url, decode_responses=True, **flavour) as client:
        async with connect(client, prefix=prefix, track_windows=True) as redis:
            layer = WorkingLayer(redis)
            await layer.push(scope, said(scope, "ä"))
            for number in range(3):
                assert await warm(layer, scope) == ["ä"] * (number + 1)
                row = await layer.deployment.call("test", "LINDEX", scope_keys(prefix, scope).turns, 0)
                await layer.deployment.call("test", "LPUSH", scope_keys(prefix, scope).turns, row)
                await heard(redis)
        assert await client.ping()


async def test_a_layer_on_standby_serves_what_it_read(prefix, scope):
    with own_server() as server:
        async with connect(server.url, prefix=prefix, track_windows=True, deadline=2) as redis:
            layer = StandbyLayer(redis)
            await layer.push(scope, said(scope, "a"))
            for _ in range(3):
                assert texts(await layer.get_context(scope)) == ["a"]
            server.kill()
            await until_async(lambda: not len(tracker_of(redis).windows))
            assert texts(await layer.get_context(scope)) == ["a"]
            await layer.aclose(0)


# --- refusals ---


async def test_a_client_of_fakeredis_is_refused_when_it_is_used():
    client = FakeAsyncRedis()
    deployment = connect(client, track_windows=True)
    with pytest.raises(ConfigurationError, match="fakeredis"):
        await deployment.open()
    await deployment.aclose()
    await client.aclose()


async def test_what_cannot_be_tracked_is_refused(valkey, prefix):
    with pytest.raises(ConfigurationError, match="fake"):
        connect("fake://", track_windows=True)
    with pytest.raises(ConfigurationError, match="read_from"):
        connect("redis+cluster://localhost", track_windows=True, read_from="replica")
    for wrong in (-1, 1.5, "yes", None, 1 << 40):
        with pytest.raises(ConfigurationError, match="track_windows"):
            connect(valkey.url, track_windows=wrong)
    for wrong in (0, -1, True, None):
        with pytest.raises(ConfigurationError, match="track_bytes"):
            connect(valkey.url, track_bytes=wrong)
    for off in (False, 0):
        assert connect(valkey.url, track_windows=off).tracker is None
    assert isinstance(connect(valkey.url, track_windows=1).tracker, Tracker)


async def test_a_user_needs_the_right_to_track_and_no_other(server, prefix):
    async with connect(server.url, prefix=prefix), acl_users(server) as users:
        info = await users.admin.info("server")
        version = tuple(map(int, str(info["redis_version"]).split(".")[:2]))
        acls = Rules(users, version, prefix)
        url = await acls.user("acme")
        with pytest.raises(AccessDenied, match=r"CLIENT TRACKING.*tracking=True"):
            async with connect(url, prefix=prefix, track_windows=True):
                pass
        for tenant in ("acme", None):
            url = await acls.user(tenant, tracking=True)
            before = len(await denials(users))
            async with connect(url, prefix=prefix, track_windows=True) as redis:
                layer, scope = WorkingLayer(redis), scope_of("acme")
                await layer.push(scope, said(scope, "a"))
                assert (await warm(layer, scope))[-1] == "a"
            assert len(await denials(users)) == before


async def test_a_right_that_is_taken_away_costs_the_cache_and_nothing_else(valkey, prefix, scope, caplog):
    async with connect(valkey.url, prefix=prefix), acl_users(valkey) as users:
        url = await users.make(*acl_rules("acme", prefix=prefix, tracking=True, version=(7, 2)))
        async with connect(url, prefix=prefix, track_windows=True) as redis:
            layer = WorkingLayer(redis)
            await warm(layer, scope)
            await users.admin.execute_command("ACL", "SETUSER", users.names[-1], "-client|tracking")
            tracker_of(redis)._doubt()
            with caplog.at_level(logging.WARNING):

                async def told() -> bool:
                    await layer.push(scope, said(scope, "a"))
                    return (await layer.get_context(scope)) and "not tracked" in caplog.text

                await until(told)
            assert len(tracker_of(redis).windows) == 0


# --- telemetry ---


async def test_hits_misses_and_invalidations_are_counted_without_names(valkey, prefix):
    scope = TenantScope.root("org", "a-tenant-with-a-name").child("conversation", "a-named-conversation")
    with exported() as seen:
        async with (
            connect(valkey.url, prefix=prefix, track_windows=True) as here,
            connect(valkey.url, prefix=prefix) as there,
        ):
            layer = WorkingLayer(here)
            for _ in range(3):
                await layer.get_context(scope)
            await WorkingLayer(there).push(scope, said(scope, "a"))
            await heard(here)
            for _ in range(2):
                assert texts(await layer.get_context(scope)) == ["a"]
        counted = [seen.total(f"symfonic.windows.{what}") for what in ("hits", "misses", "invalidations")]
        assert counted == [3, 2, 1]
        assert len(seen.spans("get_context")) == 2  # what is kept is no call of the server
        assert "named" not in seen.everything()
        assert "with-a-name" not in seen.everything()


# --- everything at once ---


class Turmoil:
    """A worker that tracks, another one, and a client, on a few conversations."""

    def __init__(self, layer: WorkingLayer, other: WorkingLayer, client: Redis) -> None:
        self.layer, self.other, self.client = layer, other, client
        self.prefix = layer.deployment.prefix
        self.scopes = [TenantScope.root("org", "acme").child("conversation", f"c{number}") for number in range(3)]
        self._number = 0

    def turn(self, scope) -> MemoryEntry:
        self._number += 1
        return said(scope, str(self._number))

    async def do(self, step: str, scope, *, alone: bool) -> None:
        await STEPS[step](self, scope, scope_keys(self.prefix, scope).turns)
        if step in ("push", "clear"):
            mine = texts(await self.layer.get_context(scope))
            # Its own write is seen at once, whatever the server has said by now.
            assert not alone or mine == texts(await self.other.get_context(scope))

    async def kill(self) -> None:
        """Close the connections that track."""
        for one in await self.client.client_list():
            if "t" in one["flags"]:
                await self.client.client_kill_filter(_id=one["id"])

    async def doubt(self) -> None:
        """As a write does that is sent again."""
        tracker_of(self.layer.deployment)._doubt()

    async def check(self) -> None:
        """Others' writes are seen when the server has said so."""
        await asyncio.sleep(0.005)  # what was to expire has
        await heard(self.layer.deployment)
        for scope in self.scopes:
            for _ in range(2):
                assert await self.layer.get_context(scope) == await self.other.get_context(scope)


STEPS = {
    "push": lambda one, scope, key: one.layer.push(scope, one.turn(scope)),
    "clear": lambda one, scope, key: one.layer.clear(scope),
    "their push": lambda one, scope, key: one.other.push(scope, one.turn(scope)),
    "their clear": lambda one, scope, key: one.other.clear(scope),
    "lpush": lambda one, scope, key: one.client.lpush(key, "no row of ours"),
    "unlink": lambda one, scope, key: one.client.unlink(key),
    "expire": lambda one, scope, key: one.client.pexpire(key, 1),
    "read": lambda one, scope, key: one.layer.get_context(scope),
    "pause": lambda one, scope, key: asyncio.sleep(0.002),
    "kill": lambda one, scope, key: one.kill(),
    "doubt": lambda one, scope, key: one.doubt(),
}
OFTEN = (*STEPS, "push", "their push", "read", "read")


@settings(
    max_examples=max(60, settings.default.max_examples // 4),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.tuples(st.sampled_from(OFTEN), st.integers(0, 2), st.booleans()), max_size=25))
async def test_whatever_happens_a_read_after_a_write_that_was_heard_of_is_right(valkey, prefix, steps):
    """Writes of this worker and of others, and connections that are killed: one after the other, or all at once."""
    async with (
        connect(valkey.url, prefix=prefix, track_windows=2) as here,
        connect(valkey.url, prefix=prefix) as there,
        Redis.from_url(valkey.url) as client,
    ):
        one = Turmoil(WorkingLayer(here, 3), WorkingLayer(there, 3), client)
        under_way: list[asyncio.Task] = []
        for step, which, together in steps:
            alone = not together and not under_way
            under_way.append(asyncio.create_task(one.do(step, one.scopes[which], alone=alone)))
            if together:
                await asyncio.sleep(0)
                continue
            await asyncio.gather(*under_way)
            under_way.clear()
            await one.check()
        await asyncio.gather(*under_way)
        await one.check()
        await client.unlink("none", *[name async for name in client.scan_iter(f"{prefix}:*", 1000)])
