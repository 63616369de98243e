"""One summary for the fleet: one model call for a revision, nobody waits, and nothing erased comes back."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest
from acl_users import acl_users
from exported import exported
from own_server import until
from proxy import Proxy
from redis.asyncio import Redis
from seen import keys_of
from servers import free_port

from symfonic_redis import (
    ConfigurationError,
    KeyConflict,
    MemoryEntry,
    RedisEvictedSource,
    ScopeClosed,
    SharedSummaryCache,
    STMSummaryRequest,
    STMSummaryResult,
    TenantScope,
    WorkingLayer,
    WorkingMemorySummaryService,
    connect,
    purge,
    reopen,
    scopes,
)
from symfonic_redis.keys import scope_keys
from symfonic_redis.scripts import script

NOBODY_WAITS = "another worker writes this summary now; this is extractive"
BEFORE = "another worker writes this summary now; this is the one before"


class Model:
    """A chat model that counts its calls. It answers when `gate` is set, as it is from the beginning."""

    def __init__(self, answer: object = None) -> None:
        self.calls = 0
        self.answer = answer
        self.gate = asyncio.Event()
        self.gate.set()
        self.started = asyncio.Event()

    def get_chat_model(self, config):
        return self

    async def ainvoke(self, prompt):
        self.calls += 1
        call = self.calls
        self.started.set()
        await self.gate.wait()
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer or f"- summary {call}"


class Turns:
    """An evicted source in the process: the test decides what was evicted."""

    def __init__(self, *contents: str) -> None:
        self.turns: list[SimpleNamespace] = []
        self.add(*contents)

    def add(self, *contents: str) -> None:
        for content in contents:
            self.turns.append(SimpleNamespace(id=f"e{len(self.turns)}", content=content, metadata={"speaker": "user"}))

    async def evicted(self, scope):
        return list(self.turns)


def service(redis, source, model, *, timeout: float = 10, **options) -> WorkingMemorySummaryService:
    cache = SharedSummaryCache(redis, **options)
    return WorkingMemorySummaryService(source, mode="llm", model_provider=model, model_timeout=timeout, cache=cache)


async def push(layer: WorkingLayer, scope, *contents: str) -> None:
    await layer.push_many(
        scope, [MemoryEntry.turn(scope, speaker="user", turn_id=content, content=content) for content in contents]
    )


async def remember(redis, scope, **options) -> None:
    """Give a scope turns of its own: nothing is kept of one that has none."""
    await push(WorkingLayer(redis, 1, **options), scope, "A turn.")


async def test_twenty_workers_that_ask_at_once_cost_one_model_call(server, prefix, scope):
    model = Model()
    model.gate.clear()
    workers = [connect(server.url, prefix=prefix) for _ in range(20)]
    layers = [WorkingLayer(worker, 2) for worker in workers]
    await push(layers[0], scope, "One.", "Two.", "Three.")
    services = [
        service(worker, RedisEvictedSource(layer), model) for worker, layer in zip(workers, layers, strict=True)
    ]
    asked = [asyncio.create_task(one.summarize(STMSummaryRequest(scope))) for one in services]
    # Nineteen come back while the model has not answered yet.
    await until(lambda: _count(asked, 19))
    assert model.calls == 1
    waiting = [task.result() for task in asked if task.done()]
    assert {(result.text, result.degraded, result.reason) for result in waiting} == {("- One.", True, NOBODY_WAITS)}
    model.gate.set()
    results = await asyncio.gather(*asked)
    (written,) = [result for result in results if not result.degraded]
    assert written.text == "- summary 1"
    assert {result.revision for result in results} == {written.revision}
    # From here on all of them have it.
    again = await asyncio.gather(*(one.summarize(STMSummaryRequest(scope)) for one in services))
    assert set(again) == {written}
    assert model.calls == 1
    await push(layers[3], scope, "Four.")
    results = await asyncio.gather(*(one.summarize(STMSummaryRequest(scope)) for one in services))
    assert model.calls == 2
    assert {result.text for result in results} <= {"- summary 1", "- summary 2"}
    for worker in workers:
        await worker.aclose()


async def _count(tasks: list[asyncio.Task], least: int) -> bool:
    return sum(task.done() for task in tasks) >= least


async def test_who_does_not_write_uses_the_summary_before(redis, scope):
    await remember(redis, scope)
    model, source = Model(), Turns("One.")
    mine, other = service(redis, source, model), service(redis, source, model)
    assert (await mine.summarize(STMSummaryRequest(scope))).text == "- summary 1"
    source.add("Two.")
    model.gate.clear()
    model.started.clear()
    writing = asyncio.create_task(mine.summarize(STMSummaryRequest(scope)))
    await model.started.wait()
    result = await other.summarize(STMSummaryRequest(scope))
    assert (result.text, result.degraded, result.reason) == ("- summary 1", True, BEFORE)
    model.gate.set()
    written = await writing
    assert written.text == "- summary 2"
    assert result.revision == written.revision
    assert await other.summarize(STMSummaryRequest(scope)) == written


async def test_a_summary_of_other_turns_is_not_one_before(redis, scope):
    await remember(redis, scope)
    model = Model()
    await service(redis, Turns("One."), model).summarize(STMSummaryRequest(scope))
    model.gate.clear()
    model.started.clear()
    # Such as after an import: the last turn that the summary covers is not among these.
    source = Turns()
    source.turns = [SimpleNamespace(id="x", content="Other.", metadata={})]
    writing = asyncio.create_task(service(redis, source, model).summarize(STMSummaryRequest(scope)))
    await model.started.wait()
    result = await service(redis, source, model).summarize(STMSummaryRequest(scope))
    assert (result.text, result.reason) == ("- Other.", NOBODY_WAITS)
    model.gate.set()
    await writing


async def test_a_crashed_holder_frees_the_lease_by_its_expiry(redis, scope):
    await remember(redis, scope)
    model, source = Model(), Turns("One.")
    model.gate.clear()
    brief = service(redis, source, model, timeout=0.2, lease=0.4)
    holder = asyncio.create_task(brief.summarize(STMSummaryRequest(scope)))
    await model.started.wait()
    holder.cancel()  # to the server that is what a crash is: nobody comes back
    with pytest.raises(asyncio.CancelledError):
        await holder
    model.gate.set()

    async def written() -> bool:
        return (await brief.summarize(STMSummaryRequest(scope))).text == "- summary 2"

    await until(written)
    assert model.calls == 2


async def test_a_model_that_fails_is_asked_once_in_a_lease(redis, scope):
    await remember(redis, scope)
    model, source = Model(ValueError("x")), Turns("One.")
    first = await service(redis, source, model).summarize(STMSummaryRequest(scope))
    assert first.reason == "the model failed (ValueError); this is extractive"
    for _ in range(5):
        result = await service(redis, source, model).summarize(STMSummaryRequest(scope))
        assert (result.text, result.reason) == ("- One.", NOBODY_WAITS)
    assert model.calls == 1


async def test_a_holder_that_comes_too_late_keeps_nothing(redis, scope):
    await remember(redis, scope)
    cache, brief = SharedSummaryCache(redis), SharedSummaryCache(redis, lease=0.01)
    slow = await brief.claim(scope, "r1", ["a"], max_chars=100)
    assert slow.token is not None

    async def claimed() -> bool:
        found.append(await cache.claim(scope, "r1", ["a"], max_chars=100))
        return found[-1].token is not None

    found = []
    await until(claimed)
    assert not await brief.keep(scope, "r1", ["a"], "late", token=slow.token, max_chars=100)
    assert await cache.keep(scope, "r1", ["a"], "in time", token=found[-1].token, max_chars=100)
    assert (await cache.claim(scope, "r1", ["a"], max_chars=100)).text == "in time"


async def test_a_holder_is_in_time_as_long_as_no_other_took_the_lease(redis, scope):
    await remember(redis, scope)
    cache, brief = SharedSummaryCache(redis), SharedSummaryCache(redis, lease=0.05)
    claim = await cache.claim(scope, "r1", ["a"], max_chars=100)
    # From here on the hash outlives a lease.
    assert await cache.keep(scope, "r1", ["a"], "text", token=claim.token, max_chars=100)
    claim = await brief.claim(scope, "r2", ["a", "b"], max_chars=100)
    await asyncio.sleep(0.1)
    assert await brief.keep(scope, "r2", ["a", "b"], "more", token=claim.token, max_chars=100)


async def test_summaries_of_another_length_or_name_are_kept_apart(redis, scope):
    await remember(redis, scope)
    cache = SharedSummaryCache(redis)
    claim = await cache.claim(scope, "r", ["a"], max_chars=100)
    await cache.keep(scope, "r", ["a"], "short", token=claim.token, max_chars=100)
    assert (await cache.claim(scope, "r", ["a"], max_chars=200)).token is not None
    assert (await SharedSummaryCache(redis, name="b").claim(scope, "r", ["a"], max_chars=100)).token is not None
    assert (await SharedSummaryCache(redis).claim(scope, "r", ["a"], max_chars=100)).text == "short"
    await remember(redis, scope.child("part", "1"))
    assert (await cache.claim(scope.child("part", "1"), "r", ["a"], max_chars=100)).token is not None


# --- nothing erased comes back ---


async def test_a_clear_takes_the_summary_along(redis, scope):
    model = Model()
    layer = WorkingLayer(redis, 1)
    await push(layer, scope, "One.", "Two.")
    one = service(redis, RedisEvictedSource(layer), model)
    assert (await one.summarize(STMSummaryRequest(scope))).text == "- summary 1"
    await layer.clear(scope)
    assert await one.summarize(STMSummaryRequest(scope)) == STMSummaryResult()
    assert await redis.call("test", "EXISTS", scope_keys(redis.prefix, scope).summary) == 0


@pytest.mark.parametrize("how", ["clear", "purge"])
async def test_a_summary_that_was_being_written_is_not_kept_after_an_erasure(redis, scope, how):
    model = Model()
    model.gate.clear()
    layer = WorkingLayer(redis, 1)
    await push(layer, scope, "One.", "Two.")
    writing = asyncio.create_task(service(redis, RedisEvictedSource(layer), model).summarize(STMSummaryRequest(scope)))
    await model.started.wait()
    await (layer.clear(scope) if how == "clear" else purge(redis, scope))
    model.gate.set()
    assert (await writing).text == "- summary 1"
    assert await redis.call("test", "EXISTS", scope_keys(redis.prefix, scope).summary) == 0


async def test_a_purge_erases_the_summary_and_a_closed_scope_gets_none(redis, scope):
    await remember(redis, scope)
    model, source = Model(), Turns("One.")
    one = service(redis, source, model)
    await one.summarize(STMSummaryRequest(scope))
    assert (await purge(redis, scope)).keys == 2
    left = await keys_of(redis)
    assert {key.rpartition(b":")[2] for key in left} <= {b"closed", b"ops", b"old"}
    result = await one.summarize(STMSummaryRequest(scope))
    assert (result.text, result.reason) == (
        "- One.",
        "the shared summary could not be read (ScopeClosed); this is extractive",
    )
    with pytest.raises(ScopeClosed):
        await SharedSummaryCache(redis).claim(scope, "r", [], max_chars=100)
    await reopen(redis, scope)
    await remember(redis, scope)
    assert (await one.summarize(STMSummaryRequest(scope))).text == "- summary 2"


# --- nothing forgotten lives on ---


async def life(redis, key: str) -> int:
    """How many ms a key lives, -1 for ever, -2 when it is not there."""
    return await redis.call("test", "PTTL", key)


async def test_a_summary_goes_with_its_turns(redis, scope):
    layer = WorkingLayer(redis, 1, ttl=0.3)
    await push(layer, scope, "One.", "Two.")
    one = service(redis, RedisEvictedSource(layer), Model())
    assert (await one.summarize(STMSummaryRequest(scope))).text
    keys = scope_keys(redis.prefix, scope)

    async def gone() -> bool:
        return not await redis.call("test", "EXISTS", keys.turns)

    await until(gone)
    await asyncio.sleep(0.01)  # the two times were set a moment apart
    assert await redis.call("test", "EXISTS", keys.summary) == 0
    assert not (await scopes(redis, scope.tenant_id)).entries


@pytest.mark.parametrize("step", ["claimed", "kept", "found"])
async def test_at_no_step_does_a_summary_outlive_its_turns(redis, scope, step):
    await remember(redis, scope, ttl=3600)
    cache = SharedSummaryCache(redis, ttl=7200, lease=5000)
    keys = scope_keys(redis.prefix, scope)
    claim = await cache.claim(scope, "r", ["a"], max_chars=100)
    if step != "claimed":
        await cache.keep(scope, "r", ["a"], "text", token=claim.token, max_chars=100)
    if step == "found":
        # Another worker's ttl is shorter: the turns go earlier than they would have gone.
        await remember(redis, scope, ttl=60)
        assert (await cache.claim(scope, "r", ["a"], max_chars=100)).text == "text"
        assert await life(redis, keys.summary) <= 60_000
    # Asked for in this order: the turns have lost as much or more when they are looked at.
    summary, turns = await redis.call_many("test", [["PTTL", keys.summary], ["PTTL", keys.turns]])
    assert 0 < summary <= turns + 1_000


async def test_a_conversation_that_lives_on_keeps_its_summary(redis, scope):
    await remember(redis, scope, ttl=3600)
    cache, keys = SharedSummaryCache(redis, ttl=1000), scope_keys(redis.prefix, scope)
    claim = await cache.claim(scope, "r", ["a"], max_chars=100)
    await cache.keep(scope, "r", ["a"], "text", token=claim.token, max_chars=100)
    # Found in the first half of its life it stays as it is; in the second that begins anew.
    for left, least, most in ((900_000, 500_000, 900_000), (400_000, 500_000, 1_000_000)):
        await redis.call("test", "PEXPIRE", keys.summary, left)
        assert (await cache.claim(scope, "r", ["a"], max_chars=100)).text == "text"
        assert least < await life(redis, keys.summary) <= most
    # Where the turns stay for ever, its own ttl is what ends it.
    await remember(redis, scope)
    await redis.call("test", "PEXPIRE", keys.summary, 100_000)
    assert (await cache.claim(scope, "r", ["a"], max_chars=100)).text == "text"
    assert 500_000 < await life(redis, keys.summary) <= 1_000_000


async def test_a_shorter_ttl_of_one_worker_takes_nothing_from_another(redis, scope):
    await remember(redis, scope)
    long, short = SharedSummaryCache(redis, ttl=1000), SharedSummaryCache(redis, ttl=10, lease=5)
    claim = await long.claim(scope, "r", ["a"], max_chars=100)
    await long.keep(scope, "r", ["a"], "text", token=claim.token, max_chars=100)
    assert (await short.claim(scope, "r", ["a"], max_chars=100)).text == "text"
    assert (await short.claim(scope, "r2", ["a", "b"], max_chars=100)).token is not None
    assert await life(redis, scope_keys(redis.prefix, scope).summary) > 500_000


async def test_without_turns_no_model_is_asked_and_nothing_is_kept(redis, scope):
    model = Model()
    # They expired since they were read, or were never here.
    result = await service(redis, Turns("One."), model).summarize(STMSummaryRequest(scope))
    assert (result.text, result.reason) == (
        "- One.",
        "the scope's turns are not on the cache's server; this is extractive",
    )
    assert (model.calls, await keys_of(redis)) == (0, set())


async def test_turns_that_expire_while_a_summary_is_written_take_the_right_along(redis, scope):
    await remember(redis, scope)
    cache, keys = SharedSummaryCache(redis), scope_keys(redis.prefix, scope)
    claim = await cache.claim(scope, "r", ["a"], max_chars=100)
    await redis.call("test", "DEL", keys.turns)
    assert not await cache.keep(scope, "r", ["a"], "text", token=claim.token, max_chars=100)
    assert b"text" not in b"".join(await redis.call("test", "HVALS", keys.summary))


async def test_every_key_has_its_time(redis, scope):
    await remember(redis, scope, ttl=3600)
    cache = SharedSummaryCache(redis, ttl=100, lease=5)
    key = scope_keys(redis.prefix, scope).summary
    claim = await cache.claim(scope, "r", ["a"], max_chars=100)
    assert 0 < await life(redis, key) <= 5_000
    await cache.keep(scope, "r", ["a"], "text", token=claim.token, max_chars=100)
    assert 5_000 < await life(redis, key) <= 100_000
    await cache.claim(scope, "r2", ["a"], max_chars=100)
    assert await life(redis, key) > 5_000
    for name in await keys_of(redis):
        assert await redis.call("test", "PTTL", name) > 0


async def test_a_user_who_may_not_write_gets_the_extractive_text_and_writes_nothing(valkey, prefix, scope):
    async with connect(valkey.url, prefix=prefix) as redis, acl_users(valkey) as users:
        url = await users.make(f"~{prefix}:*", "+@all", "-pexpire")
        async with connect(url, prefix=prefix) as limited:
            model = Model()
            await remember(redis, scope)
            before = await keys_of(redis)
            result = await service(limited, Turns("One."), model).summarize(STMSummaryRequest(scope))
        assert result.reason == "the shared summary could not be read (AccessDenied); this is extractive"
        assert (model.calls, await keys_of(redis)) == (0, before)


# --- on the wire ---


async def test_a_kept_summary_costs_one_round_trip_more_than_none(server, prefix, scope):
    async with Redis.from_url(server.url) as admin:
        for name in ("summary_claim", "summary_keep"):
            await admin.script_load(script(name).text)
    async with Proxy(server.port) as proxy, connect(proxy.url, prefix=prefix) as deployment:
        await remember(deployment, scope)
        one = service(deployment, Turns("One."), Model())
        proxy.requests.clear()
        await one.summarize(STMSummaryRequest(scope))
        assert dict(proxy.counted()) == {"EVALSHA": 2}
        proxy.requests.clear()
        await one.summarize(STMSummaryRequest(scope))
        assert dict(proxy.counted()) == {"EVALSHA": 1}
        # A lost reply neither loses the right nor gives it to two.
        source = Turns("Two.")
        model = Model()
        proxy.on(b"EVALSHA", "lose", times=2)
        assert (await service(deployment, source, model).summarize(STMSummaryRequest(scope))).text == "- summary 1"
        assert (await service(deployment, source, model).summarize(STMSummaryRequest(scope))).text == "- summary 1"
        assert model.calls == 1


async def test_on_a_bad_line_a_revision_still_costs_one_model_call(valkey, prefix, scope):
    chance = random.Random(7)
    model, source = Model(), Turns("One.")
    async with Proxy(valkey.port) as proxy, connect(proxy.url, prefix=prefix, deadline=30) as deployment:
        await remember(deployment, scope)
        services = [service(deployment, source, model) for _ in range(5)]
        await services[0].summarize(STMSummaryRequest(scope))
        proxy.chance = lambda arguments: (
            chance.choice([None, None, "drop", "lose"]) if arguments[0] == b"EVALSHA" else None
        )
        for number in range(10):
            source.add(f"Turn {number}.")
            await asyncio.gather(*(one.summarize(STMSummaryRequest(scope)) for one in services))
    assert model.calls == 11


async def test_without_a_server_no_worker_runs_to_the_model(scope):
    model = Model()
    deployment = connect(f"redis://127.0.0.1:{free_port()}/0", deadline=0.2)
    result = await service(deployment, Turns("One."), model).summarize(STMSummaryRequest(scope))
    assert result.reason == "the shared summary could not be read (MemoryUnavailable); this is extractive"
    assert model.calls == 0
    await deployment.aclose()


async def test_a_summary_that_cannot_be_kept_is_still_this_turns_summary(server, prefix, scope):
    async with Proxy(server.port) as proxy, connect(proxy.url, prefix=prefix, deadline=0.5) as deployment:
        await remember(deployment, scope)
        model = Model()
        model.gate.clear()
        writing = asyncio.create_task(service(deployment, Turns("One."), model).summarize(STMSummaryRequest(scope)))
        await model.started.wait()
        proxy.refuse()
        model.gate.set()
        result = await writing
        assert (result.text, result.degraded) == ("- summary 1", False)


async def test_a_key_of_another_type_is_named_and_left_alone(redis, scope):
    await remember(redis, scope)
    key = scope_keys(redis.prefix, scope).summary
    await redis.call("test", "SET", key, "x")
    with pytest.raises(KeyConflict, match="summary holds a string where a hash belongs"):
        await SharedSummaryCache(redis).claim(scope, "r", [], max_chars=100)
    result = await service(redis, Turns("One."), Model()).summarize(STMSummaryRequest(scope))
    assert (result.text, result.degraded) == ("- One.", True)
    assert await redis.call("test", "GET", key) == b"x"


UNREADABLE = [b"", b"\x01broken", b"\x02x", b"\x01\x93\x01\x02\x03"]


async def damage(redis, scope, row: bytes) -> None:
    """Replace the row of the scope's one summary."""
    key = scope_keys(redis.prefix, scope).summary
    (field,) = [name for name in await redis.call("test", "HKEYS", key) if name.endswith(b":row")]
    await redis.call("test", "HSET", key, field, row)


@pytest.mark.parametrize("row", UNREADABLE)
async def test_a_damaged_summary_is_written_anew_by_one_worker(one_redis, scope, row, caplog):
    await remember(one_redis, scope)
    model, source = Model(), Turns("One.")
    with exported() as seen:
        workers = [service(one_redis, source, model) for _ in range(8)]
        await workers[0].summarize(STMSummaryRequest(scope))
        await damage(one_redis, scope, row)
        model.gate.clear()
        asked = [asyncio.create_task(one.summarize(STMSummaryRequest(scope))) for one in workers]
        await until(lambda: _count(asked, 7))
        model.gate.set()
        results = await asyncio.gather(*asked)
        # Each worker that met it counts it and says so once; an empty one is none.
        assert (seen.total("symfonic.rows.damaged") >= 8) == bool(row)
    assert model.calls == 2
    assert sorted(result.degraded for result in results) == [False] + [True] * 7
    told = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
    assert len(told) == (8 if row else 0)
    again = [await one.summarize(STMSummaryRequest(scope)) for one in workers]
    assert {(result.text, result.degraded) for result in again} == {("- summary 2", False)}
    assert model.calls == 2


async def test_a_damaged_summary_that_was_mended_meanwhile_is_used(one_redis, scope, monkeypatch):
    await remember(one_redis, scope)
    one, other = SharedSummaryCache(one_redis), SharedSummaryCache(one_redis)
    claim = await one.claim(scope, "r", ["a"], max_chars=100)
    await one.keep(scope, "r", ["a"], "text", token=claim.token, max_chars=100)
    await damage(one_redis, scope, b"\x02x")
    claims, ask = [], one._store.claim

    async def overtaken(*args, **options):
        if claims:  # between the look at the damaged row and the question for the right
            claim = await other.claim(scope, "r", ["a"], max_chars=100)
            await other.keep(scope, "r", ["a"], "mended", token=claim.token, max_chars=100)
        claims.append(options)
        return await ask(*args, **options)

    monkeypatch.setattr(one._store, "claim", overtaken)
    assert (await one.claim(scope, "r", ["a"], max_chars=100)).text == "mended"
    assert len(claims) == 2


@pytest.mark.parametrize("row", UNREADABLE)
async def test_a_damaged_summary_is_not_one_before(one_redis, scope, row):
    await remember(one_redis, scope)
    cache = SharedSummaryCache(one_redis)
    claim = await cache.claim(scope, "r", ["a"], max_chars=1000)
    await cache.keep(scope, "r", ["a"], "text", token=claim.token, max_chars=1000)
    await damage(one_redis, scope, row)
    after = await cache.claim(scope, "r2", ["a", "b"], max_chars=1000)
    assert (after.text, after.previous) == (None, None)
    assert after.token is not None


@pytest.mark.parametrize(
    "options",
    [
        {"ttl": 0},
        {"ttl": None},
        {"lease": -1},
        {"lease": None},
        {"ttl": "x"},
        {"lease": [1]},
        {"name": 5},
        {"name": None},
    ],
)
def test_a_time_out_of_range_is_refused(options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        SharedSummaryCache(connect("fake://"), **options)


async def test_a_scope_of_its_own_for_each(one_redis):
    model = Model()
    one = service(one_redis, Turns("One."), model)
    chats = [TenantScope.root("org", "acme").child("chat", str(number)) for number in range(3)]
    for chat in chats:
        await remember(one_redis, chat)
    results = [await one.summarize(STMSummaryRequest(chat)) for chat in chats]
    assert [result.text for result in results] == ["- summary 1", "- summary 2", "- summary 3"]
