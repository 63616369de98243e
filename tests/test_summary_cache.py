"""One summary for the fleet: one model call for a revision, nobody waits, and nothing erased comes back."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest
from acl_users import acl_users
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
    purge_tenant,
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
    model, source = Model(ValueError("x")), Turns("One.")
    first = await service(redis, source, model).summarize(STMSummaryRequest(scope))
    assert first.reason == "the model failed (ValueError); this is extractive"
    for _ in range(5):
        result = await service(redis, source, model).summarize(STMSummaryRequest(scope))
        assert (result.text, result.reason) == ("- One.", NOBODY_WAITS)
    assert model.calls == 1


async def test_a_holder_that_comes_too_late_keeps_nothing(redis, scope):
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
    cache, brief = SharedSummaryCache(redis), SharedSummaryCache(redis, lease=0.05)
    claim = await cache.claim(scope, "r1", ["a"], max_chars=100)
    # From here on the hash outlives a lease.
    assert await cache.keep(scope, "r1", ["a"], "text", token=claim.token, max_chars=100)
    claim = await brief.claim(scope, "r2", ["a", "b"], max_chars=100)
    await asyncio.sleep(0.1)
    assert await brief.keep(scope, "r2", ["a", "b"], "more", token=claim.token, max_chars=100)


async def test_summaries_of_another_length_or_name_are_kept_apart(redis, scope):
    cache = SharedSummaryCache(redis)
    claim = await cache.claim(scope, "r", ["a"], max_chars=100)
    await cache.keep(scope, "r", ["a"], "short", token=claim.token, max_chars=100)
    assert (await cache.claim(scope, "r", ["a"], max_chars=200)).token is not None
    assert (await SharedSummaryCache(redis, name="b").claim(scope, "r", ["a"], max_chars=100)).token is not None
    assert (await SharedSummaryCache(redis).claim(scope, "r", ["a"], max_chars=100)).text == "short"
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
    model, source = Model(), Turns("One.")
    one = service(redis, source, model)
    await one.summarize(STMSummaryRequest(scope))
    assert (await purge(redis, scope)).keys == 1
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
    assert (await one.summarize(STMSummaryRequest(scope))).text == "- summary 2"


async def test_a_purge_of_the_tenant_finds_a_summary_that_outlived_its_turns(one_redis, scope):
    layer = WorkingLayer(one_redis, 1, ttl=0.2)
    await push(layer, scope, "One.", "Two.")
    await service(one_redis, RedisEvictedSource(layer), Model()).summarize(STMSummaryRequest(scope))

    async def gone() -> bool:
        return not await layer.get_context(scope)

    await until(gone)
    key = scope_keys(one_redis.prefix, scope).summary
    assert await one_redis.call("test", "EXISTS", key) == 1
    # A summary alone makes no conversation, but it keeps the index from forgetting the scope.
    assert not (await scopes(one_redis, scope.tenant_id)).entries
    await purge_tenant(one_redis, scope.tenant_id)
    assert await one_redis.call("test", "EXISTS", key) == 0


async def test_every_key_has_its_time(redis, scope):
    cache = SharedSummaryCache(redis, ttl=100, lease=5)
    key = scope_keys(redis.prefix, scope).summary
    claim = await cache.claim(scope, "r", ["a"], max_chars=100)
    assert 0 < await redis.call("test", "PTTL", key) <= 5_000
    await cache.keep(scope, "r", ["a"], "text", token=claim.token, max_chars=100)
    assert 5_000 < await redis.call("test", "PTTL", key) <= 100_000
    await cache.claim(scope, "r2", ["a"], max_chars=100)
    assert await redis.call("test", "PTTL", key) > 5_000
    for name in await keys_of(redis):
        assert await redis.call("test", "PTTL", name) > 0


async def test_a_user_who_may_not_write_gets_the_extractive_text_and_writes_nothing(valkey, prefix, scope):
    async with connect(valkey.url, prefix=prefix) as redis, acl_users(valkey) as users:
        url = await users.make(f"~{prefix}:*", "+@all", "-pexpire")
        async with connect(url, prefix=prefix) as limited:
            model = Model()
            result = await service(limited, Turns("One."), model).summarize(STMSummaryRequest(scope))
        assert result.reason == "the shared summary could not be read (AccessDenied); this is extractive"
        assert (model.calls, await keys_of(redis)) == (0, set())


# --- on the wire ---


async def test_a_kept_summary_costs_one_round_trip_more_than_none(server, prefix, scope):
    async with Redis.from_url(server.url) as admin:
        for name in ("summary_claim", "summary_keep"):
            await admin.script_load(script(name).text)
    async with Proxy(server.port) as proxy, connect(proxy.url, prefix=prefix) as deployment:
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
        model = Model()
        model.gate.clear()
        writing = asyncio.create_task(service(deployment, Turns("One."), model).summarize(STMSummaryRequest(scope)))
        await model.started.wait()
        proxy.refuse()
        model.gate.set()
        result = await writing
        assert (result.text, result.degraded) == ("- summary 1", False)


async def test_a_key_of_another_type_is_named_and_left_alone(redis, scope):
    key = scope_keys(redis.prefix, scope).summary
    await redis.call("test", "SET", key, "x")
    with pytest.raises(KeyConflict, match="summary holds a string where a hash belongs"):
        await SharedSummaryCache(redis).claim(scope, "r", [], max_chars=100)
    result = await service(redis, Turns("One."), Model()).summarize(STMSummaryRequest(scope))
    assert (result.text, result.degraded) == ("- One.", True)
    assert await redis.call("test", "GET", key) == b"x"


@pytest.mark.parametrize("row", [b"", b"\x01broken", b"\x02x", b"\x01\x93\x01\x02\x03"])
async def test_a_damaged_summary_is_none(one_redis, scope, row):
    cache = SharedSummaryCache(one_redis)
    claim = await cache.claim(scope, "r", ["a"], max_chars=1000)
    await cache.keep(scope, "r", ["a"], "text", token=claim.token, max_chars=1000)
    key = scope_keys(one_redis.prefix, scope).summary
    (field,) = [name for name in await one_redis.call("test", "HKEYS", key) if name.endswith(b":row")]
    await one_redis.call("test", "HSET", key, field, row)
    assert (await cache.claim(scope, "r", ["a"], max_chars=1000)).text is None
    after = await cache.claim(scope, "r2", ["a", "b"], max_chars=1000)
    assert (after.text, after.previous) == (None, None)
    assert after.token is not None


@pytest.mark.parametrize("options", [{"ttl": 0}, {"ttl": None}, {"lease": -1}, {"lease": None}, {"ttl": "5"}])
def test_a_time_out_of_range_is_refused(options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        SharedSummaryCache(connect("fake://"), **options)


async def test_a_scope_of_its_own_for_each(one_redis):
    model = Model()
    one = service(one_redis, Turns("One."), model)
    chats = [TenantScope.root("org", "acme").child("chat", str(number)) for number in range(3)]
    results = [await one.summarize(STMSummaryRequest(chat)) for chat in chats]
    assert [result.text for result in results] == ["- summary 1", "- summary 2", "- summary 3"]
