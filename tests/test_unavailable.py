"""What a caller sees when the server is down, hangs, or changes its state; and how soon."""

from __future__ import annotations

import asyncio
import contextlib
import time
from signal import SIGCONT, SIGSTOP

import pytest
from own_server import PASSWORD, everything_said, own_server, until, with_password
from redis.asyncio import Redis
from servers import BINARIES, free_port

from symfonic_redis import MemoryUnavailable, StreamGraphStore, WorkingLayer, connect

SOON = 5.0  # seconds; a deadline of half a second on a busy machine


async def test_a_server_that_is_down_is_reported_within_the_deadline(scope, turn):
    port = free_port()
    layer = WorkingLayer(connect(with_password(f"redis://127.0.0.1:{port}/0"), deadline=0.5))
    for call in (layer.get_context(scope), layer.push(scope, turn()), layer.clear(scope)):
        started = time.monotonic()
        with pytest.raises(MemoryUnavailable, match=rf"within 0\.5 s: 127\.0\.0\.1:{port} ") as caught:
            await call
        assert time.monotonic() - started < SOON
        assert PASSWORD not in everything_said(caught.value)
    assert PASSWORD not in repr(layer.deployment)


async def test_entering_a_deployment_of_a_server_that_is_down_is_reported_too():
    deployment = connect(with_password(f"redis://127.0.0.1:{free_port()}/0"), deadline=0.5)
    with pytest.raises(MemoryUnavailable) as caught:
        async with deployment:
            pass
    assert PASSWORD not in everything_said(caught.value)


async def test_twenty_first_calls_to_a_server_that_is_down_do_not_wait_for_each_other(scope):
    layer = WorkingLayer(connect(f"redis://127.0.0.1:{free_port()}/0", deadline=0.5))
    started = time.monotonic()
    errors = await asyncio.gather(*(layer.get_context(scope) for _ in range(20)), return_exceptions=True)
    assert {type(error) for error in errors} == {MemoryUnavailable}
    assert time.monotonic() - started < SOON


async def test_a_host_name_that_does_not_resolve_is_reported(scope):
    layer = WorkingLayer(connect(with_password("redis://no-such-host.invalid:6379/0"), deadline=0.5))
    with pytest.raises(MemoryUnavailable, match=r"no-such-host\.invalid:6379") as caught:
        await layer.get_context(scope)
    assert PASSWORD not in everything_said(caught.value)


async def test_a_socket_that_is_not_there_is_reported_by_its_path(tmp_path, scope):
    layer = WorkingLayer(connect(f"unix://{tmp_path}/none.sock", deadline=0.5))
    with pytest.raises(MemoryUnavailable, match=r"none\.sock"):
        await layer.get_context(scope)


async def test_a_server_that_hangs_is_reported_within_the_deadline(scope, turn):
    with own_server("--requirepass", PASSWORD) as server:
        async with connect(with_password(server.url), deadline=0.5) as deployment:
            layer = WorkingLayer(deployment)
            await layer.push(scope, turn())
            server.signal(SIGSTOP)
            for call in (layer.push(scope, turn()), layer.get_context(scope)):
                started = time.monotonic()
                with pytest.raises(MemoryUnavailable, match=f"127.0.0.1:{server.port}") as caught:
                    await call
                assert time.monotonic() - started < SOON
                assert PASSWORD not in everything_said(caught.value)


async def test_a_server_that_wakes_within_the_deadline_answers_the_waiting_calls(scope, turn):
    with own_server() as server:
        async with connect(server.url, deadline=60, attempt_timeout=0.3) as deployment:
            layer = WorkingLayer(deployment, graph_store=StreamGraphStore(deployment))
            await layer.push(scope, turn())
            server.signal(SIGSTOP)
            push, read = asyncio.create_task(layer.push(scope, turn())), asyncio.create_task(layer.get_context(scope))
            # Longer than an attempt: the server wakes to a queue of attempts, all of one push.
            await asyncio.sleep(1)
            assert not push.done()
            server.signal(SIGCONT)
            assert (await push).window_length == 2
            assert 1 <= len(await read) <= 2
            assert [entry.content for entry in await layer.get_context(scope)] == ["turn 1", "turn 2"]


async def test_a_server_that_crashes_and_comes_back_within_the_deadline_costs_no_error(scope, turn):
    with own_server("--appendonly", "yes", "--appendfsync", "always") as server:
        async with connect(server.url, deadline=60) as deployment:
            layer = WorkingLayer(deployment)
            await layer.push(scope, turn())
            server.kill()
            push = asyncio.create_task(layer.push(scope, turn()))
            await asyncio.sleep(0.2)
            assert not push.done()
            await asyncio.to_thread(server.start)
            # The scripts went with the process; the data did not.
            assert (await push).window_length == 2


async def test_a_call_waits_while_the_server_loads_its_data(scope, turn):
    with own_server("--appendonly", "yes") as server:
        async with connect(server.url, deadline=60) as deployment:
            layer = WorkingLayer(deployment)
            await layer.push(scope, turn())
            async with Redis.from_url(server.url) as client, client.pipeline(transaction=False) as pipe:
                for number in range(6000):
                    pipe.set(f"filler:{number}", number)
                await pipe.execute()
            server.kill()
            server._arguments += ("--key-load-delay", "500")  # microseconds: it loads for three seconds
            starting = asyncio.create_task(asyncio.to_thread(server.start))

            async def is_loading() -> bool:
                with contextlib.suppress(OSError):
                    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                    writer.write(b"GET x\r\n")
                    answer = await reader.readline()
                    writer.close()
                    await writer.wait_closed()
                    return answer.startswith(b"-LOADING")
                return False

            await until(is_loading)
            push = asyncio.create_task(layer.push(scope, turn()))
            assert await is_loading()
            assert not push.done()
            assert (await push).window_length == 2
            await starting


@pytest.mark.parametrize("kind", list(BINARIES))
async def test_a_write_to_a_replica_waits_until_it_is_promoted(scope, turn, kind):
    fast = ("--repl-diskless-sync-delay", "0")
    with own_server(*fast, kind=kind) as master, own_server(*fast, kind=kind) as replica:
        async with connect(master.url) as first:
            await WorkingLayer(first).push(scope, turn())
        async with Redis.from_url(replica.url) as admin:
            await admin.replicaof("127.0.0.1", master.port)

            async def is_in_sync() -> bool:
                return (await admin.info("replication"))["master_link_status"] == "up"

            await until(is_in_sync)
            async with connect(replica.url, deadline=60) as second:
                layer = WorkingLayer(second, graph_store=StreamGraphStore(second))
                # It reads, but takes no writes.
                assert [entry.content for entry in await layer.get_context(scope)] == ["turn 1"]
                push = asyncio.create_task(layer.push(scope, turn()))
                await asyncio.sleep(0.3)
                assert not push.done()
                await admin.execute_command("REPLICAOF", "NO", "ONE")
                assert (await push).window_length == 2


async def test_a_write_to_a_replica_that_stays_one_says_so_at_the_deadline(scope, turn):
    with own_server() as server:
        async with connect(server.url, deadline=0.5) as deployment, Redis.from_url(server.url) as admin:
            layer = WorkingLayer(deployment)
            await layer.push(scope, turn())
            await admin.replicaof("127.0.0.1", free_port())
            with pytest.raises(MemoryUnavailable, match="READONLY"):
                await layer.push(scope, turn())


async def test_a_server_with_no_connection_left_is_asked_again(scope, turn):
    with own_server("--maxclients", "4") as server:
        deployment = connect(server.url, deadline=60)
        layer = WorkingLayer(deployment)
        async with contextlib.AsyncExitStack() as crowd:
            async with connect(server.url) as other:
                await WorkingLayer(other).push(scope, turn())
            for _ in range(4):
                client = await crowd.enter_async_context(Redis.from_url(server.url, max_connections=1))
                await client.ping()
            push = asyncio.create_task(layer.push(scope, turn()))
            await asyncio.sleep(0.3)
            assert not push.done()
        assert (await push).window_length == 2
        await deployment.aclose()
