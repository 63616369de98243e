"""Pushes that are made at once travel together, and each caller sees what it would have seen alone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import uuid
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterator
from signal import SIGCONT, SIGSTOP
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from own_server import PASSWORD, own_server, with_password
from proxy import Proxy
from redis.asyncio import Redis
from seen import texts
from topologies import FAST, Topology, cluster, until
from writes import load_scripts

from symfonic_redis import (
    AccessDenied,
    ConfigurationError,
    Deployment,
    KeyConflict,
    MemoryEntry,
    MemoryUnavailable,
    NotReplicated,
    ScopeClosed,
    StreamGraphStore,
    SymfonicRedisError,
    TenantScope,
    WorkingLayer,
    connect,
    purge,
)
from symfonic_redis.coalesce import SCOPES, TURNS
from symfonic_redis.keys import scope_keys

ORG = TenantScope.root("org", "acme")
A, B, C, D, E = MANY = [ORG.child("conversation", name) for name in "abcde"]

PATIENT: dict[str, Any] = {"attempt_timeout": 60, "deadline": 120}
"""No call is given up while a test holds it."""

LATE = 20
"""Seconds by which a busy machine may be late."""


def said(content: str, **metadata: str) -> MemoryEntry:
    return MemoryEntry(tenant_id="acme", content=content, metadata={"speaker": "user", "turn_id": content, **metadata})


async def gone_round() -> None:
    """Let what was started come as far as it can without an answer."""
    for _ in range(5):
        await asyncio.sleep(0)


async def started(*calls: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(call) for call in calls]
    await gone_round()
    return tasks


async def outcomes(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    async with asyncio.timeout(3 * LATE):
        return await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def behind(proxy: Proxy, layer: WorkingLayer, scope: TenantScope) -> AsyncIterator[asyncio.Task[Any]]:
    """A push of `first` that is on its way until the block ends: what the block pushes to its scope waits behind it."""
    held = proxy.on(b"EVALSHA", "hold")
    (first,) = await started(layer.push(scope, said("first")))
    await held.reached.wait()
    try:
        yield first
        await gone_round()
    finally:
        held.release()


class Line(NamedTuple):
    proxy: Proxy
    redis: Deployment


@pytest.fixture
async def line(server, prefix) -> AsyncIterator[Line]:
    """A deployment behind a proxy, on each backend in turn."""
    await load_scripts(server.url)
    async with Proxy(server.port) as proxy, connect(proxy.url, prefix=prefix, **PATIENT) as deployment:
        yield Line(proxy, deployment)


@pytest.fixture
async def complaints() -> AsyncIterator[list[dict[str, Any]]]:
    """What the event loop was told of that nobody awaited: tasks and futures that failed or were dropped."""
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    yield found
    assert not found


# --- how many calls ----------------------------------------------------------------------------


async def test_what_is_pushed_while_another_push_is_on_its_way_is_one_call(line):
    graph = StreamGraphStore(line.redis)
    layer = WorkingLayer(line.redis, 100, graph)
    async with behind(line.proxy, layer, A) as first:
        riders = await started(*(layer.push(A, said(f"turn {number}")) for number in range(TURNS)))
    receipts = [await first, *await outcomes(riders)]
    assert line.proxy.counted()["EVALSHA"] == 2
    order = ["first", *(f"turn {number}" for number in range(TURNS))]
    assert texts(await layer.get_context(A)) == order
    assert [receipt.window_length for receipt in receipts] == list(range(1, TURNS + 2))
    assert [(node.label, node.id) for node in await graph.query_nodes(A)] == [
        (text, receipt.node_id) for text, receipt in zip(order, receipts, strict=True)
    ]


async def test_a_push_alone_and_one_after_the_other_leave_at_once(line):
    layer = WorkingLayer(line.redis, 100)
    for number in range(5):
        assert (await layer.push(A, said(str(number)))).window_length == number + 1
    assert line.proxy.counted()["EVALSHA"] == 5
    assert not layer._pushes._queues


async def test_many_scopes_travel_in_a_batch_over_one_connection(line, monkeypatch):
    batches: list[int] = []
    run_each = line.redis.run_each

    async def counted(operation, script, calls, **options):
        batches.append(len(calls))
        return await run_each(operation, script, calls, **options)

    monkeypatch.setattr(line.redis, "run_each", counted)
    layer = WorkingLayer(line.redis)
    scopes = [ORG.child("conversation", f"c{number}") for number in range(80)]
    await outcomes(await started(*(layer.push(scope, said("a turn")) for scope in scopes)))
    assert batches == [1, SCOPES, SCOPES, 79 - 2 * SCOPES]
    assert line.proxy.counted()["EVALSHA"] == 80
    assert line.proxy.counted()["HELLO"] == 1  # one connection
    assert [texts(await layer.get_context(scope)) for scope in scopes] == [["a turn"]] * 80


async def test_without_coalescing_every_push_is_a_call(server, prefix):
    await load_scripts(server.url)
    async with Proxy(server.port) as proxy, connect(proxy.url, prefix=prefix, coalesce=False, **PATIENT) as deployment:
        layer = WorkingLayer(deployment, 100)
        held = proxy.on(b"EVALSHA", "hold")
        tasks = await started(*(layer.push(A, said(str(number))) for number in range(20)))
        await held.reached.wait()
        others = tasks.copy()
        # They do not wait for the one that is held: each has a connection of its own.
        while len(others) > 1:
            done, _ = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED, timeout=LATE)
            assert done
            others = [task for task in others if task not in done]
        held.release()
        assert sorted(receipt.window_length for receipt in await outcomes(tasks)) == list(range(1, 21))
        assert proxy.counted()["EVALSHA"] == 20


@pytest.mark.parametrize("value", [None, 1, 0, "yes", "False"])
def test_coalescing_is_on_or_off(value):
    with pytest.raises(ConfigurationError, match="coalesce must be True or False"):
        connect("redis://localhost", coalesce=value)


# --- what each caller is told ------------------------------------------------------------------


class Job(NamedTuple):
    """One call of `push_many`."""

    turns: int
    key: str | None
    durability: str | None
    name: str  # in the metadata

    def call(self, layer: WorkingLayer, scope: TenantScope, number: int) -> Coroutine[Any, Any, Any]:
        entries = [said(text, name=self.name) for text in self.texts(number)]
        return layer.push_many(scope, entries, durability=self.durability, idempotency_key=self.key)

    def texts(self, number: int) -> list[str]:
        return [f"{number}.{turn}" for turn in range(self.turns)]


JOBS = st.builds(
    Job,
    turns=st.integers(1, 5),
    key=st.sampled_from([None, None, None, "job-1", "job-2"]),
    durability=st.sampled_from([None, None, "durable", "transient"]),
    name=st.sampled_from(["", "x"]),
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    jobs=st.lists(JOBS, min_size=1, max_size=12),
    window=st.integers(1, 7),
    evicted=st.sampled_from([0, 1, 4, 50]),
    cap=st.sampled_from(["no mirror", None, 0, 2, 6, 1000]),
)
async def test_receipts_and_memory_are_those_of_one_push_after_the_other(server, jobs, window, evicted, cap):
    prefix = f"t{uuid.uuid4().hex[:12]}"
    async with (
        Proxy(server.port) as proxy,
        connect(proxy.url, prefix=prefix, **PATIENT) as together,
        connect(server.url, prefix=prefix, coalesce=False) as apart,
    ):
        layers = []
        for deployment in (together, apart):
            graph = None if cap == "no mirror" else StreamGraphStore(deployment)
            retention = None if cap == "no mirror" else cap
            layers.append(
                WorkingLayer(deployment, window, graph, evicted_retention=evicted, working_graph_retention=retention)
            )
        await layers[1].push(B, said("first"))
        one_by_one = [await job.call(layers[1], B, number) for number, job in enumerate(jobs)]
        await layers[0].push(C, said("the server knows the script"))
        async with behind(proxy, layers[0], A) as first:
            riders = await started(*(job.call(layers[0], A, number) for number, job in enumerate(jobs)))
        await first
        at_once = await outcomes(riders)

        def told(receipts):
            return [(len(receipt.node_ids), *receipt[1:]) for receipt in receipts]

        assert told(at_once) == told(one_by_one)
        for scope, receipts in ((A, at_once), (B, one_by_one)):
            labels = {node.id: node.label for node in await StreamGraphStore(apart).query_nodes(scope)}
            for number, (job, receipt) in enumerate(zip(jobs, receipts, strict=True)):
                kept = job.texts(number)[job.turns - len(receipt.node_ids) :] if receipt.node_ids else []
                assert {labels.get(name, text) for name, text in zip(receipt.node_ids, kept, strict=True)} <= set(kept)
                assert all(labels.get(name, text) == text for name, text in zip(receipt.node_ids, kept, strict=True))
            assert len({name for receipt in receipts for name in receipt.node_ids}) == sum(
                len(receipt.node_ids) for receipt in receipts
            )
        left = []
        for scope in (A, B):
            rows = await WorkingLayer(apart, 1000).get_context(scope)  # the evicted ones too
            nodes = await StreamGraphStore(apart).query_nodes(scope)
            left.append(
                (
                    [(row.content, row.metadata) for row in rows],
                    [(node.label, node.properties, node.importance) for node in nodes],
                )
            )
        assert left[0] == left[1]


async def test_what_one_caller_meets_is_its_own(redis):
    layer = WorkingLayer(redis, graph_store=StreamGraphStore(redis))
    await layer.push(E, said("the server knows the script"))
    taken = scope_keys(redis.prefix, B).turns
    await redis.call("test", "SET", taken, "of somebody else")
    await purge(redis, C, closed_for=600)
    _, *results = await outcomes(
        await started(*(layer.push(scope, said(scope.scope_path)) for scope in (E, A, B, B, C, C, D)))
    )
    good, *bad, fine = results
    assert (good.window_length, fine.window_length) == (1, 1)
    assert [type(error) for error in bad] == [KeyConflict, KeyConflict, ScopeClosed, ScopeClosed]
    assert all(taken in str(error) for error in bad[:2])
    assert len({id(error) for error in bad}) == 4
    assert len({id(error.__traceback__) for error in bad}) == 4
    assert await redis.call("test", "GET", taken) == b"of somebody else"
    assert texts(await layer.get_context(C)) == []


async def test_the_others_do_not_wait_until_a_wrong_key_is_named(line):
    layer = WorkingLayer(line.redis)
    await layer.push(E, said("the server knows the script"))
    await line.redis.call("test", "SET", scope_keys(line.redis.prefix, A).turns, "of somebody else")
    held = line.proxy.on(b"TYPE", "hold")
    _, wrong, right = await started(*(layer.push(scope, said("a turn")) for scope in (E, A, B)))
    await held.reached.wait()
    async with asyncio.timeout(LATE):
        assert (await right).window_length == 1
    held.release()
    with pytest.raises(KeyConflict, match="remove that key"):
        await wrong


async def test_a_user_without_the_right_to_one_tenant_stores_what_is_of_another(valkey, prefix):
    theirs = TenantScope.root("org", "other")
    async with Redis.from_url(valkey.url) as admin:
        rules = ("+@all", f"~{prefix}:config", f"~{prefix}:*:tenants", f"~{prefix}:*:acme:*")
        await admin.execute_command("ACL", "SETUSER", prefix, "on", f">{PASSWORD}", *rules)
        try:
            async with connect(with_password(valkey.url, prefix), prefix=prefix) as deployment:
                layer = WorkingLayer(deployment)
                entry = MemoryEntry(tenant_id="other", content="x", metadata={})
                results = await outcomes(
                    await started(
                        *(layer.push(scope, said("x")) for scope in (E, A, B)),
                        *(layer.push(theirs, entry) for _ in range(2)),
                        *(layer.push(scope, said("y")) for scope in (B, C)),
                    )
                )
                assert [getattr(result, "window_length", type(result)) for result in results] == [
                    *(1, 1, 1),
                    *(AccessDenied, AccessDenied),
                    *(2, 1),
                ]
        finally:
            await admin.acl_deluser(prefix)


# --- replies that are lost, connections that die -------------------------------------------------


@pytest.mark.parametrize("named", [False, True])
async def test_a_batch_whose_reply_is_lost_is_stored_once(line, named):
    graph = StreamGraphStore(line.redis)
    layer = WorkingLayer(line.redis, 100, graph)
    async with behind(line.proxy, layer, A) as first:
        line.proxy.on(b"EVALSHA", "lose", times=2)
        riders = await started(
            *(layer.push(A, said(str(number)), idempotency_key=f"j{number}" if named else None) for number in range(9))
        )
    receipts = [await first, *await outcomes(riders)]
    assert not any(receipt.duplicate for receipt in receipts)
    assert [receipt.window_length for receipt in receipts] == list(range(1, 11))
    assert texts(await layer.get_context(A)) == ["first", *map(str, range(9))]
    assert [node.id for node in await graph.query_nodes(A)] == [receipt.node_id for receipt in receipts]


async def test_a_batch_that_the_server_does_not_know_the_script_of_stays_in_its_order(line, server):
    layer = WorkingLayer(line.redis, 100)
    async with behind(line.proxy, layer, A) as first:
        keys = [None, None, "j1", "j2", None]
        riders = await started(
            *(layer.push(A, said(str(number)), idempotency_key=key) for number, key in enumerate(keys))
        )
        held = line.proxy.on(b"EVALSHA", "hold")
    await first
    await held.reached.wait()
    async with Redis.from_url(server.url) as admin:
        await admin.script_flush()
    held.release()
    assert [receipt.window_length for receipt in await outcomes(riders)] == [2, 3, 4, 5, 6]
    assert texts(await layer.get_context(A)) == ["first", *map(str, range(5))]
    assert (line.proxy.counted()["EVALSHA"], line.proxy.counted()["EVAL"]) == (5, 4)


@pytest.mark.parametrize("named", [False, True], ids=["nameless", "named"])
@pytest.mark.parametrize("fault", ["replies lost", "connections killed"])
async def test_in_a_storm_nothing_is_lost_doubled_or_out_of_order(line, server, fault, named):
    chance = random.Random(11)
    graph = StreamGraphStore(line.redis)
    layer = WorkingLayer(line.redis, graph_store=graph)
    sent: dict[str, list[tuple[TenantScope, str]]] = {f"{task}:": [] for task in range(64)}
    ids: dict[str, str | None] = {}
    if fault == "replies lost":
        line.proxy.chance = lambda _: chance.choice(("drop", "lose")) if chance.random() < 0.02 else None

    async def work(task: str) -> None:
        for number in range(8):
            scope, content = chance.choice(MANY), f"{task}{number}"
            sent[task].append((scope, content))
            receipt = await layer.push(scope, said(content), idempotency_key=content if named else None)
            assert not receipt.duplicate
            ids[content] = receipt.node_id

    over = asyncio.Event()

    async def kill() -> int:
        killed = 0
        async with Redis.from_url(server.url) as admin:
            while not over.is_set():
                await asyncio.sleep(0.005 * chance.random())
                for client in await admin.client_list(_type="normal"):
                    if client["cmd"] in {"evalsha", "eval"}:
                        killed += await admin.client_kill_filter(_id=client["id"])
        return killed

    tasks = await started(*map(work, sent))
    killer = asyncio.create_task(kill()) if fault == "connections killed" else None
    async with asyncio.timeout(PATIENT["deadline"]):
        await asyncio.gather(*tasks)
    line.proxy.chance = lambda _: None
    over.set()
    assert killer is None or await killer
    assert len(ids) == 64 * 8
    for scope in MANY:
        nodes = await graph.query_nodes(scope)
        stored = [node.label for node in nodes]
        assert {node.label: node.id for node in nodes} == {label: ids[label] for label in stored}
        assert len(set(stored)) == len(stored)
        for task, turns in sent.items():
            assert [one for one in stored if one.startswith(task)] == [text for where, text in turns if where == scope]
        assert texts(await layer.get_context(scope)) == stored[-10:]


# --- callers that go away -----------------------------------------------------------------------


async def test_a_rider_that_is_cancelled_in_the_queue_is_not_stored_and_delays_nobody(line, complaints):
    layer = WorkingLayer(line.redis, 100)
    async with behind(line.proxy, layer, A) as first:
        riders = await started(*(layer.push(A, said(str(number))) for number in range(6)))
        for number in (0, 3, 5):
            riders[number].cancel()
        await asyncio.wait([riders[0], riders[3], riders[5]])
    await first
    results = await outcomes(riders)
    assert [getattr(result, "window_length", None) for result in results] == [None, 2, 3, None, 4, None]
    assert texts(await layer.get_context(A)) == ["first", "1", "2", "4"]
    assert not layer._pushes._queues


async def test_when_all_riders_are_cancelled_nothing_is_sent(line, complaints):
    layer = WorkingLayer(line.redis, 100)
    async with behind(line.proxy, layer, A) as first:
        riders = await started(*(layer.push(A, said(str(number))) for number in range(6)))
        for rider in riders:
            rider.cancel()
    await first
    await outcomes(riders)
    assert (await layer.push(A, said("after"))).window_length == 2
    assert line.proxy.counted()["EVALSHA"] == 2


async def test_those_behind_a_first_push_that_is_cancelled_are_served(line, complaints):
    layer = WorkingLayer(line.redis, 100)
    async with behind(line.proxy, layer, A) as first:
        riders = await started(*(layer.push(A, said(str(number))) for number in range(6)))
        first.cancel()
        await asyncio.wait([first])
    assert first.cancelled()
    # It had left before it was cancelled.
    assert [receipt.window_length for receipt in await outcomes(riders)] == [2, 3, 4, 5, 6, 7]
    assert texts(await layer.get_context(A)) == ["first", *map(str, range(6))]


async def test_a_rider_that_is_cancelled_in_flight_leaves_the_others_their_receipts(line, complaints):
    layer = WorkingLayer(line.redis, 100, StreamGraphStore(line.redis))
    async with behind(line.proxy, layer, A):
        held = line.proxy.on(b"EVALSHA", "hold")
        riders = await started(*(layer.push(A, said(str(number))) for number in range(6)))
    await held.reached.wait()
    for number in (0, 3, 5):
        riders[number].cancel()
    (later,) = await started(layer.push(A, said("later")))
    held.release()
    results = await outcomes([*riders, later])
    assert [getattr(result, "window_length", None) for result in results] == [None, 3, 4, None, 6, None, 8]
    assert texts(await layer.get_context(A)) == ["first", *map(str, range(6)), "later"]


async def test_callers_cancelled_at_random_leave_everybody_else_alone(line, complaints):
    chance = random.Random(5)
    graph = StreamGraphStore(line.redis)
    layer = WorkingLayer(line.redis, graph_store=graph)
    for round_ in range(30):
        calls = {f"{round_}.{number}": chance.choice(MANY) for number in range(30)}
        tasks = {text: asyncio.create_task(layer.push(scope, said(text))) for text, scope in calls.items()}
        for task in tasks.values():
            if chance.random() < 0.3:
                for _ in range(chance.randrange(3)):
                    await asyncio.sleep(chance.choice((0, 0, 0.0005)))
                task.cancel()
        await outcomes(list(tasks.values()))
        stored = {node.label: node.id for scope in MANY for node in await graph.query_nodes(scope)}
        for text, task in tasks.items():
            assert task.cancelled() or stored[text] == task.result().node_id
    assert not layer._pushes._queues
    assert not layer._pushes._batches


def cancel_everything() -> None:
    """What a program's end does: batches too are cancelled, also those that have not begun."""
    for task in asyncio.all_tasks():
        if task.get_coro().__qualname__ in {"WorkingLayer.push", "Coalescer._send"}:
            task.cancel()


async def test_riders_of_a_batch_that_is_cancelled_do_not_wait_for_ever(line, complaints):
    layer = WorkingLayer(line.redis)
    async with behind(line.proxy, layer, A):
        riders = await started(*(layer.push(scope, said("x")) for scope in (B, C, D)))
        for task in layer._pushes._batches:
            task.cancel()
        assert all(isinstance(result, asyncio.CancelledError) for result in await outcomes(riders))
    assert (await layer.push(E, said("y"))).window_length == 1
    await asyncio.sleep(0)
    assert not layer._pushes._queues


@pytest.mark.parametrize("rounds", range(7))
async def test_whenever_everything_is_cancelled_nobody_waits_for_it_afterwards(one_redis, rounds, complaints):
    layer = WorkingLayer(one_redis)
    tasks = [asyncio.create_task(layer.push(MANY[number % 5], said("x"))) for number in range(20)]
    for _ in range(rounds):
        await asyncio.sleep(0)
    cancel_everything()
    await outcomes(tasks)
    assert not any(isinstance(result, Exception) for result in await outcomes(tasks))
    assert len(await outcomes(await started(*(layer.push(scope, said("y")) for scope in MANY)))) == 5
    assert {texts(await layer.get_context(scope))[-1] for scope in MANY} == {"y"}


@pytest.mark.parametrize("rounds", range(7))
def test_a_program_that_ends_with_pushes_under_way_ends_quietly(valkey, prefix, caplog, rounds):
    async def program() -> None:
        async with Proxy(valkey.port) as proxy, connect(proxy.url, prefix=prefix, **PATIENT) as deployment:
            layer = WorkingLayer(deployment)
            proxy.on(b"EVALSHA", "hold")
            running.extend(asyncio.create_task(layer.push(MANY[number % 5], said("x"))) for number in range(20))
            for _ in range(rounds):
                await asyncio.sleep(0)
            raise KeyError("the program ends")

    running: list[asyncio.Task[Any]] = []
    with pytest.raises(KeyError):
        asyncio.run(program())
    # Closing gave some of them their error, the end of the loop cancelled the others.
    assert all(task.cancelled() or isinstance(task.exception(), ConfigurationError) for task in running)
    gc.collect()
    assert not [record.getMessage() for record in caplog.records if record.name == "asyncio"]


def test_what_another_loop_left_behind_keeps_nobody_waiting(valkey, prefix):
    deployment = connect(valkey.url, prefix=prefix)
    layer = WorkingLayer(deployment)

    async def one() -> None:
        await layer.push(A, said("x"))
        await deployment.aclose()
        # It stopped in the middle of something, and never goes on.
        layer._pushes._queues[scope_keys(prefix, A).turns] = deque()

    async def another() -> None:
        async with asyncio.timeout(LATE):
            with pytest.raises(ConfigurationError, match="closed"):
                await layer.push(A, said("x"))

    asyncio.run(one())
    asyncio.run(another())


# --- a server that is away ----------------------------------------------------------------------


async def timed(call: Coroutine[Any, Any, Any], order: list[str], name: str) -> float:
    """Await a push that fails; return after how many seconds, and note in which order it failed."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with pytest.raises(MemoryUnavailable, match="is unavailable"):
        await call
    order.append(name)
    return loop.time() - begun


async def test_each_rider_is_told_when_its_own_time_is_over(prefix):
    with own_server() as server:
        async with connect(server.url, prefix=prefix, deadline=2, attempt_timeout=0.5) as deployment:
            layer = WorkingLayer(deployment)
            await layer.push(A, said("the server knows the script"))
            server.signal(SIGSTOP)
            order: list[str] = []
            tasks = []
            for number in range(8):
                for scope in (A, B):
                    tasks += await started(timed(layer.push(scope, said("x")), order, f"{number}"))
                await asyncio.sleep(0.3)
            for seconds in await outcomes(tasks):
                assert 1.9 < seconds < 2 + LATE
            assert order == sorted(order)
            server.signal(SIGCONT)


async def test_a_rider_that_finds_no_room_is_told_when_its_own_time_is_over(prefix):
    with own_server() as server:
        async with connect(server.url, prefix=prefix, deadline=3, attempt_timeout=1) as deployment:
            layer = WorkingLayer(deployment, 1000)
            await layer.push(A, said("the server knows the script"))
            server.signal(SIGSTOP)
            order: list[str] = []
            # A batch of two scopes, so that those who wait behind it board together.
            tasks = await started(*(timed(layer.push(scope, said("x")), order, "first") for scope in (E, A, B)))
            many = [said("x")] * 200
            tasks += await started(*(timed(layer.push_many(A, many), order, f"of A, {n}") for n in range(2)))
            await asyncio.sleep(2)
            tasks += await started(timed(layer.push(B, said("x")), order, "of B, later"))
            await outcomes(tasks)
            assert order == ["first"] * 3 + ["of A, 0", "of A, 1", "of B, later"]
            server.signal(SIGCONT)


async def test_who_came_late_is_served_when_the_server_is_back_in_time(prefix):
    with own_server() as server:
        async with connect(server.url, prefix=prefix, deadline=3, attempt_timeout=0.5) as deployment:
            layer = WorkingLayer(deployment)
            await layer.push(A, said("the server knows the script"))
            server.signal(SIGSTOP)
            (first, second) = await started(layer.push(A, said("lost 1")), layer.push(A, said("lost 2")))
            await asyncio.wait([first])
            (late,) = await started(layer.push(A, said("late")))
            await asyncio.wait([second])
            server.signal(SIGCONT)
            assert [type(result) for result in await outcomes([first, second])] == [MemoryUnavailable] * 2
            await late
            # What was sent and given up may be stored all the same; nothing is stored twice, and this came last.
            window = texts(await layer.get_context(A))
            assert len(window) == len(set(window))
            assert window[-1] == "late"


async def test_riders_of_a_deployment_that_is_closed_are_told(valkey, prefix, complaints):
    await load_scripts(valkey.url)
    async with Proxy(valkey.port) as proxy:
        deployment = await connect(proxy.url, prefix=prefix, **PATIENT).open()
        layer = WorkingLayer(deployment)
        held = proxy.on(b"EVALSHA", "hold")
        tasks = await started(*(layer.push(scope, said("x")) for scope in (A, A, A, B, B, C)))
        await held.reached.wait()
        async with asyncio.timeout(LATE):
            await deployment.aclose()
        for result in await outcomes(tasks):
            assert isinstance(result, SymfonicRedisError)
            assert "closed" in str(result)
        held.release()
        with pytest.raises(ConfigurationError, match="closed"):
            await layer.push(A, said("x"))


# --- a cluster ----------------------------------------------------------------------------------


@pytest.fixture
def shards() -> Iterator[Topology]:
    made = cluster(3, 0, options=lambda: ("--cluster-require-full-coverage", "no"))
    yield made
    made.stop()


async def test_a_node_that_is_away_keeps_only_its_own_scopes_waiting(shards, prefix):
    scopes = [ORG.child("conversation", f"c{number}") for number in range(30)]
    async with connect(shards.url, prefix=prefix, **PATIENT) as deployment:
        layer = WorkingLayer(deployment)
        await outcomes(await started(*(layer.push(scope, said("before")) for scope in scopes)))
        owners = deployment._wire._map.owners
        place = {scope: owners[_slot(scope)][1] for scope in scopes}
        away = shards.servers[0]
        theirs = [scope for scope in scopes if place[scope] == away.port]
        ours = [scope for scope in scopes if place[scope] != away.port]
        assert theirs
        assert len(set(place.values())) == 3
        away.signal(SIGSTOP)
        waiting: list[asyncio.Task[Any]] = []
        for number in range(3):
            # All at once, in an order in which those that wait and those that need not would share a batch.
            tasks = await started(*(layer.push(scope, said(f"prompt {number}")) for scope in scopes))
            async with asyncio.timeout(LATE):
                await asyncio.gather(*(task for task, scope in zip(tasks, scopes, strict=True) if scope in ours))
            waiting += [task for task, scope in zip(tasks, scopes, strict=True) if scope in theirs]
            assert not any(task.done() for task in waiting)
        away.signal(SIGCONT)
        assert not [result for result in await outcomes(waiting) if isinstance(result, BaseException)]
        for scope in scopes:
            assert texts(await layer.get_context(scope)) == ["before", "prompt 0", "prompt 1", "prompt 2"]


def _slot(scope: TenantScope) -> int:
    from redis.crc import key_slot  # noqa: PLC0415

    from symfonic_redis.keys import partition_of  # noqa: PLC0415

    return key_slot(f"{partition_of(scope.scope_path):04d}".encode())


# --- replicas -----------------------------------------------------------------------------------


@pytest.fixture
def pair():
    """A master and its replica, in sync."""
    with own_server(*FAST) as master, own_server(*FAST, "--replicaof", f"127.0.0.1 {master.port}") as replica:
        made = Topology(master.url, [master, replica])
        with made.admin(replica) as admin:
            until(lambda: admin.info("replication")["master_link_status"] == "up")
        with made.admin(master) as admin:
            until(lambda: admin.info("replication").get("slave0", {}).get("state") == "online")
            admin.set("warm", "up")
            assert admin.wait(1, 10_000) == 1
        yield master, replica
        replica.signal(SIGCONT)


async def test_a_batch_waits_for_its_replicas_once(pair, prefix):
    master, _ = pair
    await load_scripts(master.url)
    async with (
        Proxy(master.port) as proxy,
        connect(proxy.url, prefix=prefix, min_replicas=1, **PATIENT) as deployment,
    ):
        layer = WorkingLayer(deployment)
        before = proxy.counted()["WAIT"]  # when the deployment is opened
        async with behind(proxy, layer, A) as first:
            riders = await started(*(layer.push(A, said(str(number))) for number in range(9)))
        await first
        assert [receipt.window_length for receipt in await outcomes(riders)] == [*range(2, 11)]
        assert proxy.counted()["WAIT"] - before == 2
        assert proxy.counted()["EVALSHA"] == 2


async def test_who_wrote_and_only_who_wrote_is_told_that_no_replica_has_it(pair, prefix):
    master, replica = pair
    await load_scripts(master.url)
    async with connect(master.url, prefix=prefix, min_replicas=1, attempt_timeout=3, deadline=60) as deployment:
        layer = WorkingLayer(deployment)
        await layer.push(E, said("the server knows the script"))
        taken = scope_keys(prefix, C).turns
        await deployment.call("test", "SET", taken, "of somebody else")
        await purge(deployment, B, closed_for=600)
        replica.signal(SIGSTOP)
        results = await outcomes(
            await started(*(layer.push(scope, said(scope.scope_path)) for scope in (E, A, A, B, C, D)))
        )
        assert [type(result) for result in results] == [
            *(NotReplicated, NotReplicated, NotReplicated),
            *(ScopeClosed, KeyConflict, NotReplicated),
        ]
        assert len({id(result) for result in results}) == 6
        assert [result.replicas for result in results if isinstance(result, NotReplicated)] == [0] * 4
        assert texts(await layer.get_context(A)) == [A.scope_path] * 2
