"""Relays and purges at the same time: nothing comes back, no content stays, and no relay dies of it."""

from __future__ import annotations

import asyncio

import pytest
from keyspace import keys_of, kinds
from targets import ListTarget
from test_relay import mirrored, progress, quick, said, together, until

from symfonic_redis import ServerRefused, StreamGraphStore, TenantScope, connect, purge, purge_tenant, purge_tree
from symfonic_redis.books import Books
from symfonic_redis.erasure import TenantStore
from symfonic_redis.keys import encode_id, scope_keys


@pytest.fixture
async def fed(server, prefix):
    async with connect(server.url, prefix=prefix, feed=100) as deployment:
        yield deployment


async def lasting(redis, tenant):
    """What tells of a tenant and never expires: its keys, and the sets that hold its id."""
    found = set()
    for key in await keys_of(redis, f"{redis.prefix}:*"):
        if await redis.call("test", "PTTL", key) != -1:
            continue
        own = f"}}:{encode_id(tenant)}:" in key
        if not own and await redis.call("test", "TYPE", key) == b"set":
            own = bool(await redis.call("test", "SISMEMBER", key, encode_id(tenant)))
        if own:
            found.add(key)
    return found


async def held_batch(redis, scope, count=1):
    """A relay's lease and what it read, not noted yet."""
    await mirrored(redis).push_many(scope, [said(scope, number) for number in range(count)])
    books = Books(redis, "relay", "holder", 5.0)
    lease = await books.take(scope_keys(redis.prefix, scope).partition)
    return books, lease, (await books.read(lease, scope.tenant_id, 100)).entries


async def test_a_relay_survives_the_purge_of_a_tenant_in_the_middle_of_its_batch(fed, scope):
    purged, other = asyncio.Event(), TenantScope.root("org", "other")

    class Purging(ListTarget):
        async def add_node(self, scope, node):
            if not purged.is_set():
                await purge_tenant(fed, "acme")
                purged.set()
            return await super().add_node(scope, node)

    target = Purging()
    await mirrored(fed).push(scope, said(scope, 1))
    running = asyncio.create_task(quick(fed, target).run())
    relay = quick(fed, target)
    second = asyncio.create_task(relay.run())
    await purged.wait()
    await mirrored(fed).push(other, said(other, 2))

    async def copied():
        return "t2" in target.turns or running.done() or second.done()

    await until(copied)
    assert not running.done()
    assert not second.done()
    running.cancel()
    relay.stop()
    await second
    await quick(fed, target).drain()
    assert await lasting(fed, "acme") == set()


async def test_after_the_purge_of_a_tenant_nothing_of_a_relay_tells_of_it(fed, scope):
    other = TenantScope.root("org", "other")
    for whose in (scope, other, *together(scope, 2)):
        await mirrored(fed).push(whose, said(whose, 1))
    for name in ("relay", "archive"):
        await quick(fed, ListTarget(), name=name).drain()
    feeds = f"{fed.prefix}:{{{scope_keys(fed.prefix, scope).partition:04d}}}:feeds@archive"
    assert await fed.call("test", "SISMEMBER", feeds, "acme") == 1
    theirs = await lasting(fed, "other")
    await purge_tenant(fed, "acme")
    assert await lasting(fed, "acme") == set()
    assert await lasting(fed, "other") == theirs


async def test_what_a_relay_still_does_after_the_purge_brings_nothing_back(fed, scope):
    books, lease, entries = await held_batch(fed, scope, 3)
    await purge_tenant(fed, "acme")
    assert await books.ack(lease, "acme", [entries[0].id], None) == 0
    assert await books.ack(lease, "acme", [], 5.0) == 0
    assert not await books.fail(lease, "acme", entries[1].id, 1, 5.0, "Error")
    assert not await books.fail(lease, "acme", entries[2].id, 9, None, "Error")
    assert (await books.read(lease, "acme", 100)).entries == []
    assert await lasting(fed, "acme") == set()
    assert lease.held


async def test_a_scope_that_is_erased_with_its_tenant_tells_no_feed(fed, scope):
    """Whatever brought the feed back meanwhile."""
    await mirrored(fed).push(scope, said(scope, 1))
    keys, store = scope_keys(fed.prefix, scope), TenantStore(fed)
    await fed.call("test", "XGROUP", "CREATE", keys.shared.feed, "relay", "0")
    await store.purge([keys], None, published=False)
    assert await fed.call("test", "XLEN", keys.shared.feed) == 1
    await store.purge([keys], None)
    assert await fed.call("test", "XLEN", keys.shared.feed) == 2


async def test_a_feed_that_comes_back_during_the_purge_of_a_tenant_goes_too(fed, scope):
    """A purge of one scope, whose call was under way when the tenant's feeds were dropped."""
    await mirrored(fed).push(scope, said(scope, 1))

    original = TenantStore.purge

    async def beside(self, scopes, milliseconds, *, published=True):
        if not published:
            await original(self, [scope_keys(fed.prefix, scope)], 1000)
        return await original(self, scopes, milliseconds, published=published)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TenantStore, "purge", beside)
        await purge_tenant(fed, "acme")
    left = await keys_of(fed, f"{fed.prefix}:*:acme:*")
    assert kinds(left) == {"closed", "ops"}


async def test_a_feed_that_the_server_refuses_to_serve_does_not_end_the_relay(fed, scope, caplog):
    other = TenantScope.root("org", "other")
    await mirrored(fed).push(scope, said(scope, 1))
    shared = scope_keys(fed.prefix, scope).shared
    await fed.call_many("test", [("DEL", shared.feed), ("SET", shared.feed, "a secret")])
    target = ListTarget()
    relay = quick(fed, target)
    running = asyncio.create_task(relay.run())

    async def left():
        return running.done() or "KeyConflict, 2 in a row" in caplog.text

    await until(left)
    await mirrored(fed).push(other, said(other, 2))

    async def copied():
        return running.done() or "t2" in target.turns

    await until(copied)
    assert not running.done()
    assert "secret" not in caplog.text
    await fed.call("test", "DEL", shared.feed)
    (beside,) = together(scope, 1)
    await mirrored(fed).push(beside, said(beside, 3))

    async def served():
        return running.done() or "t3" in target.turns

    await until(served)
    relay.stop()
    await running


async def test_a_feed_that_was_refused_is_left_alone_for_a_while(fed, scope):
    await mirrored(fed).push(scope, said(scope, 1))
    shared = scope_keys(fed.prefix, scope).shared
    await fed.call_many("test", [("DEL", shared.feed), ("SET", shared.feed, "x")])
    relay, reads = quick(fed, ListTarget(), first_pause=60.0, longest_pause=60.0), []
    read = relay._books.read

    async def counted(*args):
        reads.append(args)
        return await read(*args)

    relay._books.read = counted
    for _ in range(3):
        assert await relay.drain() == 0
    assert len(reads) == 1


async def test_a_dead_letter_of_the_largest_change_is_whole(fed, scope):
    """An update of 1,000 names."""
    graph = StreamGraphStore(fed)
    await mirrored(fed).push(scope, said(scope, 1))
    (node,) = await graph.query_nodes(scope)
    await graph.update_node(scope, node.id, {f"name {number}": number for number in range(1000)})

    class Refusing(ListTarget):
        async def update_node(self, scope, node_id, changes):
            raise ConnectionResetError

    relay = quick(fed, Refusing(), attempts=1)

    async def settled():
        await relay.drain()
        return (await progress(fed)).lag == 0

    await until(settled)
    shared = scope_keys(fed.prefix, scope).shared
    ((_, letter),) = await fed.call("test", "XRANGE", shared.dead, "-", "+")
    (_, original) = (await fed.call("test", "XRANGE", shared.feed, "-", "+"))[-1]
    assert len(original) > 2000
    assert letter[8:] == original


async def test_a_change_whose_dead_letter_cannot_be_written_stays_unfinished(fed, scope):
    """More fields than a script can pass on: no write of ours makes such an entry."""
    await mirrored(fed).push(scope, said(scope, 1))
    shared = scope_keys(fed.prefix, scope).shared
    number = await fed.call("test", "INCR", shared.feed_seq)
    fields = ["s", number, "k", "push", *(str(at) for at in range(10_000))]
    at = (await fed.call("test", "XADD", shared.feed, "*", *fields)).decode()
    books, lease, entries = await held_batch(fed, scope)
    assert at in {entry.id for entry in entries}
    with pytest.raises(ServerRefused):
        await books.fail(lease, "acme", at, 9, None, "Error")
    assert await fed.call("test", "EXISTS", shared.dead) == 0
    assert (await fed.call("test", "XPENDING", shared.feed, "relay"))[0] == 3
    assert at in {entry.id for entry in (await books.read(lease, "acme", 100)).entries}


@pytest.mark.parametrize("erase", [purge, purge_tree, purge_tenant])
async def test_what_a_relay_moves_during_a_purge_is_no_dead_letter_afterwards(fed, scope, erase, monkeypatch):
    """The relay gives a change up after the purge began, and before the feed is erased."""
    books, lease, entries = await held_batch(fed, scope, 2)
    shared = scope_keys(fed.prefix, scope).shared
    assert await books.fail(lease, "acme", entries[0].id, 9, None, "Error")
    original, moved = TenantStore.purge, []

    async def beside(self, *args, **options):
        moved.append(await books.fail(lease, "acme", entries[1].id, 9, None, "Error"))
        return await original(self, *args, **options)

    monkeypatch.setattr(TenantStore, "purge", beside)
    await erase(fed, scope.tenant_id if erase is purge_tenant else scope)
    assert moved == [erase is not purge_tenant]
    assert await fed.call("test", "XLEN", shared.dead) == 0
