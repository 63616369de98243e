"""Tracked reads on each topology, and where the master of a key becomes another one."""

from __future__ import annotations

import signal

import pytest
from own_server import until as until_async
from test_cluster import Move, slot_of
from topologies import NAME, cluster, raw, sentinel, until
from tracked import connected, heard, said, texts, tracker_of

from symfonic_redis import TenantScope, WorkingLayer, connect
from symfonic_redis.keys import scope_keys

ORG = TenantScope.root("org", "acme")
MANY = [ORG.child("conversation", f"c{number}") for number in range(12)]


async def all_kept(layer: WorkingLayer) -> bool:
    """Read all windows; whether they are kept now."""
    for scope in MANY:
        await layer.get_context(scope)
    return len(tracker_of(layer.deployment).windows) == len(MANY)


async def test_windows_are_kept_and_others_writes_are_seen(topology, prefix):
    async with (
        connect(topology.url, prefix=prefix, track_windows=True) as here,
        connect(topology.url, prefix=prefix) as there,
    ):
        layer, other = WorkingLayer(here), WorkingLayer(there)
        for number in range(3):
            await until_async(lambda: all_kept(layer))
            for scope in MANY[::2]:
                await other.push(scope, said(scope, f"theirs {number}"))
                await layer.push(scope, said(scope, f"ours {number}"))
                assert texts(await layer.get_context(scope)) == texts(await other.get_context(scope))
            await heard(here)
            for scope in MANY:
                assert texts(await layer.get_context(scope)) == texts(await other.get_context(scope))
        masters = 3 if here.topology == "cluster" else 1
        assert len(tracker_of(here)._listeners) == masters


async def test_connections_that_servers_close_come_back(topology, prefix):
    async with (
        connect(topology.url, prefix=prefix, track_windows=True) as here,
        connect(topology.url, prefix=prefix) as there,
    ):
        layer, other = WorkingLayer(here), WorkingLayer(there)
        await until_async(lambda: all_kept(layer))
        topology.close_idle()

        async def dropped() -> bool:
            return not len(tracker_of(here).windows)

        await until_async(dropped)
        for scope in MANY:
            await other.push(scope, said(scope, "new"))
            assert texts(await layer.get_context(scope)) == ["new"]
        await connected(here)
        await until_async(lambda: all_kept(layer))


@pytest.mark.parametrize("filled", [True, False])
async def test_a_slot_that_moves_takes_its_windows_along(prefix, filled):
    """Also those of lists that are not there: nothing is moved of them, so no key is changed."""
    made = cluster(2, 0)
    try:
        async with (
            connect(made.url, prefix=prefix, track_windows=True) as here,
            connect(made.url, prefix=prefix) as there,
        ):
            layer, other = WorkingLayer(here), WorkingLayer(there)
            if filled:
                for scope in MANY:
                    await layer.push(scope, said(scope, "a"))
            await until_async(lambda: all_kept(layer))
            move = Move(made, slot_of(MANY[0]))
            move.begin()
            move.carry()
            move.end()
            move.close()
            await other.push(MANY[0], said(MANY[0], "b"))

            async def seen() -> bool:
                return texts(await layer.get_context(MANY[0]))[-1:] == ["b"]

            await until_async(seen)
            await until_async(lambda: all_kept(layer))
            await other.push(MANY[0], said(MANY[0], "c"))
            await heard(here)
            assert texts(await layer.get_context(MANY[0])) == ["a", "b", "c"][not filled :]
    finally:
        made.stop()


async def test_a_master_that_hands_over_and_stays_is_not_asked_any_more(prefix):
    made = cluster(2, 1)
    try:
        async with (
            connect(made.url, prefix=prefix, track_windows=True) as here,
            connect(made.url, prefix=prefix) as there,
        ):
            layer, other = WorkingLayer(here), WorkingLayer(there)
            await until_async(lambda: all_kept(layer))
            for replica in made.servers[2:]:
                with made.admin(replica) as admin:
                    raw(admin, "CLUSTER", "FAILOVER")
                    until(lambda admin=admin: admin.info("replication")["role"] == "master")
            for scope in MANY:
                await other.push(scope, said(scope, "a"))

            async def seen() -> bool:
                return all([texts(await layer.get_context(scope)) == ["a"] for scope in MANY])

            await until_async(seen)
            await until_async(lambda: all_kept(layer))
            for scope in MANY:
                await other.push(scope, said(scope, "b"))
            await heard(here)
            assert [texts(await layer.get_context(scope)) for scope in MANY] == [["a", "b"]] * len(MANY)
    finally:
        made.stop()


@pytest.mark.parametrize("how", ["killed", "frozen", "demoted"])
async def test_a_master_behind_sentinels_becomes_another_one(prefix, how):
    made = sentinel(1)
    old, new = made.servers
    try:
        async with (
            connect(made.url, prefix=prefix, track_windows=True, deadline=60, attempt_timeout=1) as here,
            connect(made.url, prefix=prefix, deadline=60, attempt_timeout=1) as there,
        ):
            layer, other = WorkingLayer(here), WorkingLayer(there)
            assert await all_kept(layer)
            if how == "demoted":
                with made.admin(made.others[0]) as admin:
                    raw(admin, "SENTINEL", "FAILOVER", NAME)
            else:
                old.signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            with made.admin(new) as admin:
                until(lambda: admin.info("replication")["role"] == "master")
            # Its own write finds the new master, and what it reads then is the new master's.
            await layer.push(MANY[0], said(MANY[0], "ours"))
            assert texts(await layer.get_context(MANY[0])) == ["ours"]
            await other.push(MANY[1], said(MANY[1], "theirs"))
            if how == "frozen":
                old.signal(signal.SIGCONT)
            assert texts(await layer.get_context(MANY[0])) == ["ours"]

            async def seen() -> bool:
                return texts(await layer.get_context(MANY[1])) == ["theirs"]

            await until_async(seen)
            await until_async(lambda: all_kept(layer))
            await other.push(MANY[1], said(MANY[1], "more"))
            await heard(here)
            assert texts(await layer.get_context(MANY[1])) == ["theirs", "more"]
            assert scope_keys(prefix, MANY[1]).turns in tracker_of(here).windows._kept
    finally:
        made.stop()
