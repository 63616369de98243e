"""Exactly once among many: redelivered jobs, cancelled callers, connections that die, all of it at random."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest
from proxy import Proxy
from redis.asyncio import Redis

from symfonic_redis import MemoryEntry, StreamGraphStore, TenantScope, WorkingLayer, connect

ORG = TenantScope.root("org", "acme")


def _turn(content: str) -> MemoryEntry:
    return MemoryEntry.turn(ORG, speaker="user", turn_id=content, content=content)


def _faults(share: float, seed: int):
    """Lose this share of the requests or of their replies; both in equal parts."""
    chance = random.Random(seed)

    def choose(_):
        if chance.random() >= share:
            return None
        return chance.choice(("drop", "lose"))

    return choose


TOGETHER = pytest.mark.parametrize("coalesce", [True, False], ids=["together", "each alone"])
"""Calls that share a connection and a script call, and calls that have one each."""


@pytest.fixture
async def proxy(valkey) -> AsyncIterator[Proxy]:
    async with Proxy(valkey.port) as proxy:
        yield proxy


async def test_a_redelivered_job_is_stored_once_though_replies_are_lost(proxy, valkey, prefix, scope):
    async with connect(proxy.url, prefix=prefix) as shaky, connect(valkey.url, prefix=prefix) as direct:
        layer = WorkingLayer(shaky, graph_store=StreamGraphStore(shaky))
        first = await layer.push(scope, _turn("warm"), idempotency_key="job-0")
        assert not first.duplicate
        proxy.on(b"EVALSHA", "lose", times=2)
        # The retry of one call gets that call's receipt. It is no duplicate: nobody else had stored the turn.
        receipt = await layer.push(scope, _turn("once"), idempotency_key="job-1")
        assert receipt[1:] == (2, 0, False, False)
        assert receipt.node_id is not None
        proxy.on(b"EVALSHA", "lose")
        again = await layer.push(scope, _turn("once"), idempotency_key="job-1")
        assert again == ((), 2, 0, True, False)
        assert (await WorkingLayer(direct).push(scope, _turn("once"), idempotency_key="job-1")).duplicate
        assert [entry.content for entry in await layer.get_context(scope)] == ["warm", "once"]


async def test_of_twenty_deliveries_to_two_workers_one_is_stored(proxy, prefix, scope):
    proxy.chance = _faults(0.05, seed=1)
    async with (
        connect(proxy.url, prefix=prefix, deadline=60) as one,
        connect(proxy.url, prefix=prefix, deadline=60) as two,
    ):
        workers = [WorkingLayer(one), WorkingLayer(two)]
        receipts = await asyncio.gather(
            *(
                workers[number % 2].push(scope, _turn(f"delivery {number}"), idempotency_key="job")
                for number in range(20)
            )
        )
        assert sum(not receipt.duplicate for receipt in receipts) == 1
        assert all(receipt[1:3] == (1, 0) for receipt in receipts)
        (entry,) = await workers[0].get_context(scope)
        stored = next(number for number, receipt in enumerate(receipts) if not receipt.duplicate)
        assert entry.content == f"delivery {stored}"


async def test_a_connection_that_the_server_closed_while_idle_costs_no_error(redis, server, scope, turn):
    layer = WorkingLayer(redis)
    await asyncio.gather(*(layer.push(scope, turn()) for _ in range(5)))
    async with Redis.from_url(server.url) as admin:
        for number in range(6, 9):
            await admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert (await layer.push(scope, turn())).window_length == number
            await admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert len(await layer.get_context(scope)) == number


@TOGETHER
async def test_a_cancelled_push_leaves_everybody_elses_replies_alone(valkey, prefix, coalesce):
    chance = random.Random(7)
    scopes = [ORG.child("conversation", f"c{number}") for number in range(3)]
    options = {"max_connections": 3, "attempt_timeout": 30, "deadline": 60, "coalesce": coalesce}
    async with connect(valkey.url, prefix=prefix, **options) as deployment:
        graph = StreamGraphStore(deployment)
        layer = WorkingLayer(deployment, 1, graph)
        # Read all along, and never written again: a reply that goes astray shows at once.
        for scope in scopes:
            await layer.push(scope, _turn(f"of {scope.scope_path}"))

        async def read(scope) -> None:
            assert [entry.content for entry in await layer.get_context(scope)] == [f"of {scope.scope_path}"]

        victim = ORG.child("conversation", "victim")
        finished = set()

        async def push(number: int) -> None:
            await layer.push(victim, _turn(f"v{number}"))
            finished.add(f"v{number}")

        for number in range(200):
            reads = [asyncio.create_task(read(scope)) for scope in scopes]
            write = asyncio.create_task(push(number))
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(chance.choice((0, 0, 0.0002)))
            write.cancel()
            async with asyncio.timeout(20):
                await asyncio.gather(*reads)
                with contextlib.suppress(asyncio.CancelledError):
                    await write
        async with asyncio.timeout(20):
            await asyncio.gather(*(read(scope) for scope in scopes for _ in range(10)))
        # All are back: three calls at once must not wait for one that was never returned.
        assert not deployment._wire._pool._in_use_connections
        stored = [node.label for node in await graph.query_nodes(victim)]
        assert len(stored) == len(set(stored))
        assert finished <= set(stored)
        assert 0 < len(finished) < 200


@TOGETHER
async def test_cancelling_a_call_twice_does_not_lose_its_connection(proxy, prefix, scope, coalesce):
    options = {"max_connections": 1, "attempt_timeout": 30, "coalesce": coalesce}
    async with connect(proxy.url, prefix=prefix, **options) as deployment:
        layer = WorkingLayer(deployment)
        for _ in range(20):
            held = proxy.on(b"LRANGE", "hold")
            call = asyncio.create_task(layer.get_context(scope))
            await held.reached.wait()
            call.cancel()
            # The first cancellation gives the connection back. A second one, as from a closing task group, may come
            # in the middle of that.
            await asyncio.sleep(0)
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await call
            held.release()
        async with asyncio.timeout(10):
            assert await layer.get_context(scope) == []


async def test_a_cancelled_waiter_passes_its_turn_on(proxy, prefix, scope):
    options = {"max_connections": 1, "attempt_timeout": 30, "deadline": 60, "coalesce": False}
    async with connect(proxy.url, prefix=prefix, **options) as deployment:
        layer = WorkingLayer(deployment)
        held = proxy.on(b"LRANGE", "hold")
        first = asyncio.create_task(layer.get_context(scope))
        await held.reached.wait()
        second = asyncio.create_task(layer.get_context(scope))
        third = asyncio.create_task(layer.get_context(scope))
        for _ in range(10):
            await asyncio.sleep(0)  # both wait for the connection now
        pool = deployment._wire._pool
        release = pool.release

        async def release_and_cancel(connection) -> None:
            # The second has just been woken and has not run yet: the worst moment to cancel it.
            await release(connection)
            pool.release = release
            second.cancel()

        pool.release = release_and_cancel
        held.release()
        async with asyncio.timeout(10):
            assert await first == []
            assert await third == []
        with contextlib.suppress(asyncio.CancelledError):
            await second


@TOGETHER
async def test_at_random_every_turn_is_stored_once_and_in_order(proxy, prefix, coalesce):
    chance = random.Random(3)
    scopes = [ORG.child("conversation", f"c{number}") for number in range(5)]
    options = {"deadline": 100, "attempt_timeout": 20, "coalesce": coalesce}
    async with connect(proxy.url, prefix=prefix, **options) as deployment:
        graph = StreamGraphStore(deployment)
        layer = WorkingLayer(deployment, graph_store=graph)
        sent: dict[int, list[tuple[int, str]]] = {task: [] for task in range(8)}
        ids: dict[str, str] = {}
        faults: list[str | None] = []
        choose = _faults(0.05, seed=2)
        proxy.chance = lambda command: faults.append(choose(command)) or faults[-1]

        async def work(task: int) -> None:
            for number in range(200):
                place, content = chance.randrange(5), f"{task}:{number}"
                sent[task].append((place, content))
                receipt = await layer.push(scopes[place], _turn(content))
                assert not receipt.duplicate
                ids[content] = receipt.node_id

        await asyncio.gather(*map(work, range(8)))
        proxy.chance = lambda _: None
        # Some were sent again; of those that travelled together several by one command.
        assert coalesce or proxy.counted()["EVALSHA"] > 1640
        assert coalesce is False or faults.count("lose") > 10
        for place, scope in enumerate(scopes):
            nodes = await graph.query_nodes(scope)
            stored = [node.label for node in nodes]
            assert {node.label: node.id for node in nodes} == {label: ids[label] for label in stored}
            for task, turns in sent.items():
                assert [one for one in stored if one.startswith(f"{task}:")] == [c for p, c in turns if p == place]
            assert [entry.content for entry in await layer.get_context(scope)] == stored[-10:]
