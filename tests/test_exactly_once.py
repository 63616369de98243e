"""Every write happens once, whatever the network does to its request and its reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from proxy import Proxy
from redis.asyncio import Redis
from writes import SCRIPT, WINDOW, WRITES, Case, Worker, begin, load_scripts, turn_of

from symfonic_redis import connect


@pytest.fixture
async def proxy(server) -> AsyncIterator[Proxy]:
    await load_scripts(server.url)
    async with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
async def one_proxy(valkey) -> AsyncIterator[Proxy]:
    await load_scripts(valkey.url)
    async with Proxy(valkey.port) as proxy:
        yield proxy


@pytest.fixture(params=list(WRITES))
def case(request) -> Case:
    return WRITES[request.param]


async def test_a_request_that_never_arrived_is_sent_again(proxy, prefix, scope, case):
    async with connect(proxy.url, prefix=prefix) as deployment:
        worker = Worker(deployment)
        await begin(worker, scope, case)
        lost = proxy.on(SCRIPT, "drop")
        assert await case.run(worker, scope) == case.answer
        assert lost.reached.is_set()
        assert await worker.everything(scope) == case.leaves


async def test_a_lost_reply_is_given_again_and_the_write_is_not_repeated(proxy, prefix, scope, case):
    async with connect(proxy.url, prefix=prefix) as deployment:
        worker = Worker(deployment)
        await begin(worker, scope, case)
        # Three in a row: the second and third attempt get the receipt too, and theirs are lost as well.
        lost = proxy.on(SCRIPT, "lose", times=3)
        before = proxy.counted()["EVALSHA"]
        assert await case.run(worker, scope) == case.answer
        assert lost.reached.is_set()
        # Reading the nodes back is a script too.
        assert proxy.counted()["EVALSHA"] >= before + 4
        assert await worker.everything(scope) == case.leaves


async def test_a_late_first_attempt_changes_nothing_after_its_own_retry(one_proxy, prefix, scope, case):
    async with connect(one_proxy.url, prefix=prefix, attempt_timeout=0.3) as deployment:
        worker = Worker(deployment)
        await begin(worker, scope, case)
        late = one_proxy.on(SCRIPT, "hold")
        assert await case.run(worker, scope) == case.answer
        assert await worker.everything(scope) == case.leaves
        late.release()
        # It was answered, with the receipt of its own retry.
        assert (await late.reply).startswith(b"*2\r\n:1\r\n")
        assert await worker.everything(scope) == case.leaves


async def test_another_workers_turn_between_attempt_and_retry_stays(one_proxy, valkey, prefix, scope, case):
    async with connect(one_proxy.url, prefix=prefix) as deployment, connect(valkey.url, prefix=prefix) as direct:
        worker, other = Worker(deployment), Worker(direct)
        await begin(worker, scope, case)
        retry = one_proxy.on(SCRIPT, "hold", nth=2)
        one_proxy.on(SCRIPT, "lose")
        write = asyncio.create_task(case.run(worker, scope))
        await retry.reached.wait()
        await other.layer.push(scope, turn_of(scope, "z"))
        retry.release()
        assert await write == case.answer
        window, labels, rows = await other.everything(scope)
        assert window == [*case.leaves[0], "z"][-WINDOW:]
        assert sorted(labels) == sorted([*case.leaves[1], "z"])
        assert rows == case.leaves[2] + 1


async def test_script_flush_between_and_during_writes_costs_no_error(redis, prefix, server, scope):
    worker = Worker(redis)
    async with Redis.from_url(server.url) as admin:
        done = asyncio.Event()

        async def flush() -> None:
            while not done.is_set():
                await admin.script_flush()
                await asyncio.sleep(0)

        flushing = asyncio.create_task(flush())
        try:
            for number in range(100):
                await worker.layer.push(scope, turn_of(scope, str(number)))
        finally:
            done.set()
            await flushing
    assert [node.label for node in await worker.graph.query_nodes(scope)] == [str(number) for number in range(100)]
    assert (await worker.everything(scope))[0] == ["97", "98", "99"]


async def test_a_script_flush_between_attempt_and_retry_does_not_repeat_the_write(proxy, server, prefix, scope, case):
    async with connect(proxy.url, prefix=prefix) as deployment, Redis.from_url(server.url) as admin:
        worker = Worker(deployment)
        await begin(worker, scope, case)
        retry = proxy.on(SCRIPT, "hold", nth=2)
        proxy.on(SCRIPT, "lose")
        write = asyncio.create_task(case.run(worker, scope))
        await retry.reached.wait()
        await admin.script_flush()
        retry.release()
        assert await write == case.answer
        assert await worker.everything(scope) == case.leaves
