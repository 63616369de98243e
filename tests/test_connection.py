"""A deployment: what it checks when it opens, how it opens and closes, and what it says about the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from acl_users import Users, acl_users
from own_server import PASSWORD, everything_said, own_server, until
from proxy import Proxy
from redis.asyncio import Redis

from symfonic_redis import (
    ConfigurationError,
    KeyConflict,
    MemoryRecord,
    MemoryUnavailable,
    RedisMemoryLifecycle,
    RedisMemoryWriter,
    StreamGraphStore,
    WorkingLayer,
    WriteRequest,
    connect,
    health,
)
from symfonic_redis.keys import config_key

# What a worker's user needs: to connect and read; to write, by scripts and within them.
READS = ("+ping", "+get", "+info", "+lrange", "+llen", "+xrange", "+xlen", "+xdel", "+type")
SCRIPTS = ("+evalsha", "+eval", "+time", "+hmget", "+hget", "+hset", "+rename", "+pexpire", "+persist", "+pexpireat")
WRITES = ("+lpush", "+ltrim", "+unlink", "+xadd", "+xtrim", "+zscore", "+zadd", "+zrangebyscore", "+zrem", "+zrevrange")
STAGES = ("+rpush", "+lrem", "+exists")
INDEX = ("+zcard", "+pttl", "+sadd", "+scard", "+hlen", "+hkeys", "+hdel", "+incr", "+xinfo", "+xpending", "+xrevrange")


@pytest.fixture
async def users(server) -> AsyncIterator[Users]:
    async with acl_users(server) as users:
        yield users


async def test_the_first_to_connect_writes_the_configuration_and_the_next_agree(server, prefix):
    async with Redis.from_url(server.url) as admin:
        assert await admin.get(config_key(prefix)) is None
        async with connect(server.url, prefix=prefix):
            pass
        written = await admin.get(config_key(prefix))
        assert json.loads(written) == {"schema": 1, "partitions": 1024}
        async with connect(server.url, prefix=prefix):
            pass
        assert await admin.get(config_key(prefix)) == written


async def test_twenty_workers_that_start_at_once_on_a_new_prefix_agree(valkey, prefix):
    deployments = [connect(valkey.url, prefix=prefix) for _ in range(20)]
    await asyncio.gather(*(deployment.open() for deployment in deployments))
    await asyncio.gather(*(deployment.aclose() for deployment in deployments))


@pytest.mark.parametrize(
    "stored",
    [
        b'{"schema": 2, "partitions": 1024}',
        b'{"schema": 1, "partitions": 256}',
        b'{"schema": 1}',
        b"{}",
        b"null",
        b"garbage",
        b"\xff\x00",
        b"",
    ],
)
async def test_a_configuration_that_differs_is_refused_and_left_as_it_is(valkey, prefix, scope, turn, stored):
    async with Redis.from_url(valkey.url) as admin:
        await admin.set(config_key(prefix), stored)
        with pytest.raises(ConfigurationError, match=prefix):
            async with connect(valkey.url, prefix=prefix):
                pass
        # Not even a layer that opens by itself writes.
        layer = WorkingLayer(connect(valkey.url, prefix=prefix))
        with pytest.raises(ConfigurationError, match=prefix):
            await layer.push(scope, turn())
        await layer.deployment.aclose()
        assert [key async for key in admin.scan_iter(f"{prefix}*")] == [config_key(prefix).encode()]
        assert await admin.get(config_key(prefix)) == stored


async def test_a_configuration_key_of_another_type_is_refused(valkey, prefix):
    async with Redis.from_url(valkey.url) as admin:
        await admin.rpush(config_key(prefix), "x")
        with pytest.raises(KeyConflict):
            async with connect(valkey.url, prefix=prefix):
                pass


async def test_a_user_who_may_not_write_the_configuration_is_told_to_run_init(server, prefix, users):
    url = await users.make(f"~{prefix}:*", *READS)
    with pytest.raises(ConfigurationError, match="symfonic-redis init") as caught:
        async with connect(url, prefix=prefix):
            pass
    assert PASSWORD not in everything_said(caught.value)


async def test_after_init_a_user_with_only_the_needed_commands_can_do_everything(redis, scope, turn, users):
    # The fixture `redis` is the admin who has written the configuration.
    url = await users.make(f"~{redis.prefix}:*", *READS, *SCRIPTS, *WRITES, *STAGES, *INDEX)
    async with connect(url, prefix=redis.prefix, deadline=5) as deployment:
        graph = StreamGraphStore(deployment, ttl=60)
        layer = WorkingLayer(deployment, 2, graph, ttl=60, working_graph_retention=2)
        lasting = WorkingLayer(deployment, 2, StreamGraphStore(deployment))
        for _ in range(3):
            await layer.push(scope, turn(), idempotency_key=f"job {turn().content}", idempotency_ttl=0.001)
        await lasting.push(scope, turn())
        (_, node) = await graph.query_nodes(scope, "working", limit=2)
        assert (await graph.add_node(scope, node)).label == node.label
        await layer.delete(scope, node.id)
        assert await graph.count(scope) == 3
        await layer.clear(scope)
        records = [MemoryRecord(scope=scope, content="x", layer=name) for name in ("working", "semantic")]
        await RedisMemoryWriter(layer).write(WriteRequest(scope, records))
        await layer.clear(scope)
        assert len((await RedisMemoryLifecycle(layer).flush(scope)).committed) == 1
        assert await layer.rehydrate_from_messages(scope, [{"role": "user", "content": "x"}]) == 1
        assert len(await layer.get_context(scope)) == 1
        assert (await health(deployment)).role == "master"


async def test_a_user_without_info_connects_and_is_told_what_is_unknown(redis, scope, turn, users):
    url = await users.make(f"~{redis.prefix}:*", "+@all", "-info")
    async with connect(url, prefix=redis.prefix) as deployment:
        await WorkingLayer(deployment).push(scope, turn())
        state = await health(deployment)
    assert (state.role, state.version, state.aof) == ("unknown", "unknown", "unknown")
    assert any("INFO" in line for line in state.advice)


class OldServer:
    """Answers as an old server does; before 6.0 there was no HELLO."""

    def __init__(self, version: str) -> None:
        self._answers = {
            b"GET": b'$33\r\n{"schema": 1, "partitions": 1024}\r\n',
            b"INFO": b"$%d\r\nredis_version:%s\r\n" % (14 + len(version), version.encode()),
            b"AUTH": b"+OK\r\n",
        }
        if version.startswith("6"):
            self._answers[b"HELLO"] = b"%2\r\n$5\r\nproto\r\n:3\r\n$6\r\nserver\r\n$5\r\nredis\r\n"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError, OSError):
            while head := await reader.readline():
                words = []
                for _ in range(int(head[1:])):
                    size = await reader.readline()
                    words.append((await reader.readexactly(int(size[1:]) + 2))[:-2])
                unknown = b"-ERR unknown command `%s`, with args beginning with: \r\n" % words[0]
                writer.write(self._answers.get(words[0].upper(), unknown))
        writer.close()


@pytest.mark.parametrize("version", ["6.0.16", "5.0.14", "4.0.9"])
@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_server_that_is_too_old_is_refused_by_name(version, protocol):
    listener = await asyncio.start_server(OldServer(version).serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    # One that knows no HELLO lets the driver get no further, so it cannot be asked for its version.
    named = version if protocol == 2 or version.startswith("6") else f"127.0.0.1:{port}"
    try:
        with pytest.raises(ConfigurationError, match=rf"{named}.*older than 6\.2"):
            async with connect(f"redis://127.0.0.1:{port}?protocol={protocol}", deadline=5):
                pass
    finally:
        listener.close()
        await asyncio.sleep(0)


async def test_a_deployment_that_was_not_entered_opens_at_its_first_call_and_only_once(valkey, prefix, scope, turn):
    async with Proxy(valkey.port) as proxy:
        deployment = connect(proxy.url, prefix=prefix)
        layer = WorkingLayer(deployment)
        assert proxy.requests == []
        await asyncio.gather(*(layer.push(scope, turn()) for _ in range(20)))
        # One check of the configuration, which was new, and one of the version.
        counted = proxy.counted()
        assert (counted["GET"], counted["SET"], counted["INFO"]) == (2, 1, 1)
        await deployment.aclose()


async def test_a_closed_deployment_refuses_calls_and_stays_closed(valkey, prefix, scope, turn):
    async with connect(valkey.url, prefix=prefix) as deployment:
        layer = WorkingLayer(deployment)
        await layer.push(scope, turn())
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="closed"):
            await layer.push(scope, turn())
    with pytest.raises(ConfigurationError, match="closed"):
        async with deployment:
            pass
    await deployment.aclose()


async def test_a_call_that_is_under_way_when_the_deployment_closes_leaves_no_connection(valkey, prefix, scope, turn):
    async with Proxy(valkey.port) as proxy:
        deployment = connect(proxy.url, prefix=prefix)
        await deployment.open()
        held = proxy.on(b"LRANGE", "hold")
        call = asyncio.create_task(WorkingLayer(deployment).get_context(scope))
        await held.reached.wait()
        await deployment.aclose()
        held.release()
        with contextlib.suppress(ConfigurationError, MemoryUnavailable):
            await call
        pool = deployment._wire._pool
        left = [connection for connection in pool._available_connections if connection.is_connected]
        # Or it would trouble the tests that follow.
        await pool.disconnect()
        assert left == []


async def test_health_says_what_the_server_is(redis, server):
    state = await health(redis)
    async with Redis.from_url(server.url) as admin:
        info = await admin.info("server")
    assert state.version == info.get("valkey_version", info["redis_version"])
    assert state.server == ("valkey" if "valkey_version" in info else "redis")
    assert (state.endpoint, state.topology) == (f"127.0.0.1:{server.port}", "standalone")
    assert (state.role, state.replicas, state.aof) == ("master", 0, "off")
    assert state.latency_ms > 0
    assert state.eviction_policy == "noeviction"
    (advice,) = state.advice
    assert "append-only file on" in advice


async def test_health_advises_on_eviction_and_on_replicas(prefix):
    policy = ("--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb")
    fast = ("--repl-diskless-sync-delay", "0")
    with (
        own_server("--appendonly", "yes", "--appendfsync", "always", *policy, *fast) as master,
        own_server(*fast) as replica,
    ):
        async with connect(master.url, prefix=prefix) as deployment, Redis.from_url(replica.url) as admin:
            await admin.replicaof("127.0.0.1", master.port)

            async def is_in_sync() -> bool:
                return (await admin.info("replication"))["master_link_status"] == "up"

            await until(is_in_sync)
            state = await health(deployment)
            assert (state.aof, state.replicas, state.maxmemory) == ("on", 1, 100 << 20)
            assert [line for line in state.advice if "allkeys-lru" in line] == state.advice
            async with connect(replica.url, prefix=prefix) as second:
                state = await health(second)
            assert state.role == "slave"
            assert any("replica" in line for line in state.advice)


@pytest.mark.parametrize(("fsync", "loses"), [("always", None), ("everysec", "the last second"), ("no", "not written")])
async def test_health_says_what_a_failing_machine_would_lose(prefix, fsync, loses):
    with own_server("--appendonly", "yes", "--appendfsync", fsync) as server:
        async with connect(server.url, prefix=prefix) as deployment:
            state = await health(deployment)
    assert (state.aof, state.fsync) == ("on", fsync)
    assert [line for line in state.advice if "appendfsync" in line and (loses or "") in line] == state.advice
    assert bool(state.advice) == (loses is not None)


async def test_health_of_a_server_that_is_down_is_unavailable():
    with own_server() as server:
        deployment = connect(server.url, deadline=0.5)
        await deployment.open()
        server.kill()
        with pytest.raises(MemoryUnavailable):
            await health(deployment)
        await deployment.aclose()
