"""How long the server recognises a write: at least as long as its caller may repeat it, and not for ever."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest
from proxy import Proxy
from writes import SCRIPT, WRITES, Case, Worker, begin, load_scripts, turn_of

from symfonic_redis import Deployment, MemoryLayer, MemoryNode, connect
from symfonic_redis.keys import scope_keys


@pytest.fixture
async def one_proxy(valkey) -> AsyncIterator[Proxy]:
    await load_scripts(valkey.url)
    async with Proxy(valkey.port) as proxy:
        yield proxy


@pytest.fixture(params=list(WRITES))
def case(request) -> Case:
    return WRITES[request.param]


async def _rotate(deployment: Deployment, scope) -> None:
    """Make the current generation of operation ids older than it may get; the next write begins another."""
    await deployment.call("age", "HSET", scope_keys(deployment.prefix, scope).ops, "born", "1000")


@pytest.mark.parametrize("name", ["push", "clear"])
async def test_a_write_is_recognised_after_hundreds_of_others(one_proxy, valkey, prefix, scope, name):
    case = WRITES[name]
    async with connect(one_proxy.url, prefix=prefix) as deployment, connect(valkey.url, prefix=prefix) as direct:
        worker, other = Worker(deployment), Worker(direct)
        await begin(worker, scope, case)
        retry = one_proxy.on(SCRIPT, "hold", nth=2)
        one_proxy.on(SCRIPT, "lose")
        write = asyncio.create_task(case.run(worker, scope))
        await retry.reached.wait()
        await asyncio.gather(*(other.layer.push(scope, turn_of(scope, f"z{number}")) for number in range(400)))
        retry.release()
        assert await write == case.answer
        assert await other.graph.count(scope) == len(case.leaves[1]) + 400


async def test_a_write_is_recognised_after_its_generation_of_ids_has_passed(one_proxy, valkey, prefix, scope, case):
    async with connect(one_proxy.url, prefix=prefix) as deployment, connect(valkey.url, prefix=prefix) as direct:
        worker, other = Worker(deployment), Worker(direct)
        await begin(worker, scope, case)
        retry = one_proxy.on(SCRIPT, "hold", nth=2)
        one_proxy.on(SCRIPT, "lose")
        write = asyncio.create_task(case.run(worker, scope))
        await retry.reached.wait()
        await _rotate(direct, scope)
        # Its own layer of the mirror: nothing that the case looks at changes.
        node = MemoryNode(layer=MemoryLayer.EPISODIC, tenant_id=scope.tenant_id, label="other")
        await other.graph.add_node(scope, node)
        assert await direct.call("exists", "EXISTS", scope_keys(prefix, scope).ops_old) == 1
        retry.release()
        assert await write == case.answer
        assert await other.everything(scope) == case.leaves


async def test_a_write_is_recognised_by_a_server_whose_clock_is_behind(one_proxy, valkey, prefix, scope):
    """After a failover `born` may lie in the new master's future. Ids of the older generation must outlive that."""
    case = WRITES["push"]
    async with connect(one_proxy.url, prefix=prefix) as deployment, connect(valkey.url, prefix=prefix) as direct:
        worker, other = Worker(deployment), Worker(direct)
        await begin(worker, scope, case)
        retry = one_proxy.on(SCRIPT, "hold", nth=2)
        one_proxy.on(SCRIPT, "lose")
        write = asyncio.create_task(case.run(worker, scope))
        await retry.reached.wait()
        await _rotate(direct, scope)
        await other.layer.push(scope, turn_of(scope, "y"))
        ops = scope_keys(prefix, scope).ops
        born = int(await direct.call("born", "HGET", ops, "born"))
        await direct.call("age", "HSET", ops, "born", born + 2000)
        await other.layer.push(scope, turn_of(scope, "z"))
        retry.release()
        assert await write == case.answer
        assert (await other.everything(scope))[1] == ["a", "b", "c", "d", "y", "z"]


async def test_a_worker_with_a_shorter_deadline_does_not_make_others_forget(one_proxy, valkey, prefix, scope):
    """Workers of two releases may differ in their deadline: the longer one's ids must be kept as long as it retries."""
    case = WRITES["push"]
    async with (
        connect(one_proxy.url, prefix=prefix, deadline=60) as deployment,
        connect(valkey.url, prefix=prefix, deadline=1) as hasty,
    ):
        worker, other = Worker(deployment), Worker(hasty)
        await begin(worker, scope, case)
        retry = one_proxy.on(SCRIPT, "hold", nth=2)
        one_proxy.on(SCRIPT, "lose")
        write = asyncio.create_task(case.run(worker, scope))
        await retry.reached.wait()
        for content in "yz":
            # Longer than the hasty worker itself needs a generation.
            await asyncio.sleep(2.1)
            await other.layer.push(scope, turn_of(scope, content))
        retry.release()
        assert await write == case.answer
        assert (await other.everything(scope))[1] == ["a", "b", "c", "d", "y", "z"]


async def test_operation_ids_are_gone_four_deadlines_after_the_last_write(valkey, prefix, scope):
    async with connect(valkey.url, prefix=prefix, deadline=0.5) as deployment:
        worker, keys = Worker(deployment), scope_keys(prefix, scope)
        loop = asyncio.get_running_loop()
        until = loop.time() + 30
        # Writes go on until the generation has changed by itself.
        for number in itertools.count():
            await worker.layer.push(scope, turn_of(scope, str(number)))
            if await deployment.call("exists", "EXISTS", keys.ops_old):
                break
            assert loop.time() < until
            await asyncio.sleep(0.05)
        for key in (keys.ops, keys.ops_old):
            left = await deployment.call("pttl", "PTTL", key)
            # -2: the older one may have just gone.
            assert left == -2 or 0 <= left <= 2000
        until = loop.time() + 30
        while await deployment.call("exists", "EXISTS", keys.ops, keys.ops_old):
            assert loop.time() < until
            await asyncio.sleep(0.05)
        assert await deployment.call("exists", "EXISTS", keys.turns) == 1


@pytest.mark.parametrize("keep", ["nan", "inf", "1e400", "-1", "0x10", "y", ""])
async def test_a_time_that_is_none_does_not_stop_a_write_in_its_end(redis, scope, keep):
    worker, ops = Worker(redis), scope_keys(redis.prefix, scope).ops
    for field in ("keep", "born"):
        await redis.call("test", "HSET", ops, field, keep)
        await worker.layer.push(scope, turn_of(scope, field))
        await worker.layer.push(scope, turn_of(scope, field))
        assert await redis.call("test", "PTTL", ops) <= 60_000
    assert (await worker.everything(scope))[1] == ["keep", "keep", "born", "born"]
