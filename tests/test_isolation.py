"""Isolation: whatever is done to one scope, another one reads the same, and no byte of its keys changes."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable

import pytest
from hostile import Duck, pairs
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from keyspace import keys_of
from operations import READS, TENANTS, TREES, WRITES, Worker, archive, do

from symfonic_redis import Deployment, InvalidInput, ScopeClosed, ScopeLike, TenantScope, connect, import_
from symfonic_redis.keys import ScopeKeys, encode_id, scope_keys, tenants_key
from symfonic_redis.rows import encode_entry
from symfonic_redis.sealing import PLAIN

OURS, THEIRS = "what-one-says", "what-the-other-says"
FILLED = ("push_many", "push_many", "push", "idempotent push", "stage", "add_node", "update_node", "summary")
Call = Callable[[Worker], Awaitable[object]]


async def state(redis: Deployment) -> dict[str, tuple[bytes, int]]:
    """Every key of the deployment: its value, serialised, and when it expires."""
    keys = sorted(await keys_of(redis, f"{redis.prefix}:*"))
    replies = await redis.call_many("test", [part for key in keys for part in (("DUMP", key), ("PEXPIRETIME", key))])
    return {key: (replies[2 * at], replies[2 * at + 1]) for at, key in enumerate(keys)}


async def seen(worker: Worker) -> dict[str, object]:
    """What every reading call returns."""
    return {name: await call(worker) for name, call in READS.items()}


def copied(scope: ScopeLike) -> list[ScopeLike]:
    """Where `_copy` goes: a scope below, which is none of the other's."""
    return [] if isinstance(scope, Duck) else [scope.child("copied-from-above", "x")]


async def _copy(worker: Worker) -> None:
    lines = await archive(worker)
    for target in copied(worker.scope):
        await do(Worker(worker.redis, target, OURS), "clear")
        with contextlib.suppress(ScopeClosed, InvalidInput):  # closed from above, or full of what is only staged
            await import_(worker.redis, target, lines)


def may_touch(key: str, keys: Iterable[ScopeKeys]) -> bool:
    """Whether a key belongs to one of these scopes, or to its tenant."""
    for one in keys:
        if key.startswith(f"{one.base}:") or key in (one.shared.closed, one.shared.scopes, one.shared.tenants):
            return True
        if key in (one.shared.feed, one.shared.feed_seq):
            return True
    return False


async def check(redis: Deployment, one: ScopeLike, other: ScopeLike, calls: Iterable[str | Call]) -> None:
    """Fill both scopes, make the calls on one, and compare what there is of the other."""
    ours, theirs = Worker(redis, one, OURS), Worker(redis, other, THEIRS)
    mine, its = scope_keys(redis.prefix, one), scope_keys(redis.prefix, other)
    for worker in (theirs, ours):
        for name in FILLED:
            await do(worker, name)
    before, read = await state(redis), await seen(theirs)
    names = {key for key in before if key.startswith(f"{its.base}:")}
    assert {key.rpartition(":")[2] for key in names} >= {
        "turns",
        "ops",
        "idem",
        "staged",
        "working",
        "edits",
        "summary",
    }
    wide = False
    for call in calls:
        wide = wide or call in TREES or call in TENANTS
        if isinstance(call, str):
            await do(ours, call)
        else:
            await call(ours)
    after, again = await state(redis), await seen(theirs)
    for key in names | {key for key in after if key.startswith(f"{its.base}:")}:
        assert after.get(key) == before.get(key), key
    assert again == read
    assert OURS not in repr(again)
    assert THEIRS not in repr(await seen(ours))
    if one.tenant_id != other.tenant_id:
        for key in (its.shared.closed, its.shared.scopes, its.shared.feed, its.shared.feed_seq, its.shared.ops):
            assert after.get(key) == before.get(key), key
    member = await redis.call("test", "SISMEMBER", tenants_key(redis.prefix, its.partition), encode_id(other.tenant_id))
    assert member == 1
    assert await redis.call("test", "ZSCORE", its.shared.scopes, its.path) is not None
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    if wide:
        # These write to all partitions of the tenant, and nowhere else.
        tenant = f":{encode_id(one.tenant_id)}:"
        sets = {scope_keys(redis.prefix, scope).shared.tenants for scope in (one, *copied(one))}
        assert all(key.partition("}")[2].startswith(tenant) or key in sets for key in changed)
    else:
        allowed = [mine, *(scope_keys(redis.prefix, scope) for scope in copied(one))]
        assert not {key for key in changed if not may_touch(key, allowed)}


def possible(one: ScopeLike, other: ScopeLike) -> list[str | Call]:
    """The calls on one that are not meant to reach the other."""
    inside = f"{other.scope_path}\x1f".startswith(f"{one.scope_path}\x1f")
    calls: list[str | Call] = [*WRITES, *WRITES, *WRITES, _copy]
    if one.tenant_id != other.tenant_id:
        return [*calls, *TREES, *TENANTS]
    return calls if inside else [*calls, *TREES]


async def cleaned(redis: Deployment) -> None:
    keys = sorted(await keys_of(redis, f"{redis.prefix}:*"))
    await redis.call_many("test", [("UNLINK", key) for key in keys])


@settings(
    max_examples=max(20, settings.default.max_examples // 20),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(pair=pairs(), data=st.data())
async def test_nothing_that_is_done_to_a_scope_shows_in_another(valkey, prefix, pair, data):
    one, other = pair
    calls = data.draw(st.lists(st.sampled_from(possible(one, other)), min_size=1, max_size=8))
    event("one tenant" if one.tenant_id == other.tenant_id else "two tenants")
    # A deadline so long that no operation id is forgotten while a test waits for a busy machine.
    async with connect(valkey.url, prefix=prefix, feed=10_000, deadline=600) as redis:
        try:
            await check(redis, one, other, calls)
        finally:
            await cleaned(redis)


CONVERSATION = TenantScope.root("org", "acme").child("conversation", "c-1")
NEIGHBOURS = {
    "one tenant": TenantScope.root("org", "acme").child("conversation", "c-10"),
    "below": CONVERSATION.child("part", "1"),
    "another tenant": TenantScope.root("org", "acme2").child("conversation", "c-1"),
    "the same path": Duck("globex", CONVERSATION.scope_path),
}


@pytest.mark.parametrize("other", NEIGHBOURS.values(), ids=NEIGHBOURS)
@pytest.mark.parametrize("server", ["valkey", "redis", "redis-8.2"], indirect=True)
async def test_every_call_stays_in_its_scope(server, prefix, other):
    async with connect(server.url, prefix=prefix, feed=10_000, deadline=600) as redis:
        await check(redis, CONVERSATION, other, dict.fromkeys(possible(CONVERSATION, other)))


ALIKE = [
    *(("é", "e\u0301"), ("a", "A"), ("a", "a\x00"), ("a", "a "), (":", "%3A"), ("a/b", "a%2Fb"), ("\ud800", "\udfff")),
    *(
        ("x" * 512, "x" * 511),
        ("*", "a"),
        ("a", "a\u200f"),
        ("ﬁ", "fi"),
        ("ß", "ss"),
        ("{0042}", "0042"),
        ("a:turns", "a"),
    ),
]


@pytest.mark.parametrize("level", ["tenant", "conversation", "tenant of one path"])
@pytest.mark.parametrize("names", ALIKE, ids=ascii)
async def test_ids_that_look_alike_stay_apart(valkey, prefix, names, level):
    one: ScopeLike
    other: ScopeLike
    if level == "tenant":
        one, other = (TenantScope.root("org", name) for name in names)
    elif level == "tenant of one path":  # one partition: only the name keeps their keys apart
        one, other = (Duck(name, CONVERSATION.scope_path) for name in names)
    else:
        one, other = (TenantScope.root("org", "acme").child("conversation", name) for name in names)
    async with connect(valkey.url, prefix=prefix, feed=10_000, deadline=600) as redis:
        await check(redis, one, other, list(WRITES))


# --- the check itself ---


def _forged(*command: object) -> Callable[[ScopeKeys], Call]:
    """A leak: a command on the other's keys, whose name is an attribute of `ScopeKeys` or of `TenantKeys`."""

    def made(keys: ScopeKeys) -> Call:
        name, key, *rest = command
        target = getattr(keys, str(key), None) or getattr(keys.shared, str(key))
        return lambda worker: worker.redis.call("test", name, target, *rest)

    return made


def _said(keys: ScopeKeys) -> Call:
    """A turn of one scope in the window of the other."""
    return lambda worker: worker.redis.call(
        "test", "LPUSH", keys.turns, encode_entry(worker.turn(), limit=1000, seal=PLAIN)
    )


def _mine(keys: ScopeKeys) -> Call:
    """A turn of the other scope in the window of one."""

    async def leak(worker: Worker) -> None:
        turn = Worker(worker.redis, worker.scope, THEIRS).turn()
        own = scope_keys(worker.redis.prefix, worker.scope)
        await worker.redis.call("test", "LPUSH", own.turns, encode_entry(turn, limit=1000, seal=PLAIN))

    return leak


def _beside(keys: ScopeKeys) -> Call:
    """A key of nobody's."""
    return lambda worker: worker.redis.call("test", "SET", f"{worker.redis.prefix}:forgotten", 1)


def _graph(keys: ScopeKeys) -> Call:
    return lambda worker: worker.redis.call("test", "XADD", keys.graph("working"), "*", "n", "x")


LEAKS = {
    "a turn": _said,
    "a turn of the other's": _mine,
    "a node": _graph,
    "a key of nobody's": _beside,
    "an expiry": _forged("PEXPIRE", "turns", 1_000_000),
    "a type": _forged("SET", "meta", 1),
    "a staged record": _forged("RPUSH", "staged", "x"),
    "an operation id": _forged("HSET", "ops", "id", "receipt"),
    "forgotten jobs": _forged("DEL", "idem"),
    "a lost window": _forged("DEL", "turns"),
    "a lost summary": _forged("DEL", "summary"),
    "a lost tenant": _forged("DEL", "tenants"),
    "a lost index": _forged("DEL", "scopes"),
    "a feed": _forged("XADD", "feed", "*", "s", 999, "k", "clear", "p", "x"),
    "a tombstone": _forged("HSET", "closed", "tenant", 1),
}


@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS)
async def test_a_forged_leak_is_noticed(valkey, prefix, leak):
    other = NEIGHBOURS["another tenant"]
    async with connect(valkey.url, prefix=prefix, feed=10_000, deadline=600) as redis:
        keys = scope_keys(prefix, other)
        with pytest.raises(AssertionError):
            await check(redis, CONVERSATION, other, ["push", leak(keys), "push"])


async def test_without_a_leak_nothing_is_noticed(valkey, prefix):
    async with connect(valkey.url, prefix=prefix, feed=10_000, deadline=600) as redis:
        await check(redis, CONVERSATION, NEIGHBOURS["another tenant"], ["push", "push"])
