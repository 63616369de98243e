"""Replicas: writes that must be on some of them, and reads that they may answer."""

from __future__ import annotations

import signal

import pytest
import redis as sync_redis
from own_server import own_server
from proxy import Proxy
from seen import texts
from servers import Server
from topologies import FAST, until
from writes import load_scripts

from symfonic_redis import (
    ConfigurationError,
    MemoryEntry,
    MemoryLayer,
    MemoryRecord,
    NotReplicated,
    RedisMemoryLifecycle,
    RedisMemoryWriter,
    ScopeClosed,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    WriteRequest,
    connect,
    purge_tenant,
    reopen_tenant,
)

ORG = TenantScope.root("org", "acme")
MANY = [ORG.child("conversation", f"c{number}") for number in range(12)]


@pytest.fixture(params=["valkey", "redis", "redis-6.2"])
def pair(request):
    """A master and its replica, in sync, and its link for one test to hold up."""
    fast = (*FAST, "--repl-timeout", "300")
    with own_server(*fast, kind=request.param) as master, own_server(*fast, kind=request.param) as replica:
        with sync_redis.Redis(port=replica.port) as admin:
            admin.replicaof("127.0.0.1", master.port)
            until(lambda: admin.info("replication")["master_link_status"] == "up")
        with sync_redis.Redis(port=master.port) as admin:
            # Its first acknowledgement comes within a second.
            until(lambda: admin.info("replication")["slave0"]["state"] == "online")
            admin.set("warm", "up")
            assert admin.wait(1, 10_000) == 1
        yield master, replica
        replica.signal(signal.SIGCONT)


async def test_a_write_waits_for_its_replicas(pair, prefix, scope, turn):
    master, replica = pair
    async with connect(master.url, prefix=prefix, min_replicas=1, attempt_timeout=20) as deployment:
        layer = WorkingLayer(deployment)
        assert (await layer.push(scope, turn())).window_length == 1
        async with connect(replica.url, prefix=prefix) as second:
            assert texts(await WorkingLayer(second).get_context(scope)) == ["turn 1"]
    async with connect(master.url, prefix=prefix, min_replicas=2, attempt_timeout=1) as deployment:
        with pytest.raises(NotReplicated, match="1 of the 2") as caught:
            await WorkingLayer(deployment).push(scope, turn())
        assert caught.value.replicas == 1


async def test_a_write_that_no_replica_has_is_stored_and_says_so(pair, prefix, scope, turn):
    master, replica = pair
    async with connect(master.url, prefix=prefix, min_replicas=1, attempt_timeout=1) as deployment:
        layer = WorkingLayer(deployment, graph_store=StreamGraphStore(deployment))
        await layer.push(scope, turn(), idempotency_key="job")
        replica.signal(signal.SIGSTOP)
        with pytest.raises(NotReplicated, match="stored on the master") as caught:
            await layer.push(scope, turn())
        assert caught.value.replicas == 0
        assert texts(await layer.get_context(scope)) == ["turn 1", "turn 2"]
        writer = RedisMemoryWriter(layer)
        with pytest.raises(NotReplicated):
            await writer.write(WriteRequest(scope, [MemoryRecord(scope=scope, content="x", layer="working")]))
        with pytest.raises(NotReplicated):
            await RedisMemoryLifecycle(layer).flush(scope)
        with pytest.raises(NotReplicated):
            await layer.clear(scope)
        replica.signal(signal.SIGCONT)
        assert (await layer.push(scope, turn())).window_length == 1


async def test_a_retry_tells_the_truth_about_what_an_attempt_before_wrote(pair, prefix, scope, turn):
    master, replica = pair
    await load_scripts(master.url)
    async with (
        Proxy(master.port) as proxy,
        connect(proxy.url, prefix=prefix, min_replicas=1, attempt_timeout=2) as deployment,
    ):
        layer = WorkingLayer(deployment)
        await layer.push(scope, turn())
        replica.signal(signal.SIGSTOP)
        # The attempt that answers wrote nothing of the turn itself, and is on another connection.
        lost = proxy.on(b"EVALSHA", "lose")
        with pytest.raises(NotReplicated):
            await layer.push(scope, turn())
        assert lost.reached.is_set()
        assert texts(await layer.get_context(scope)) == ["turn 1", "turn 2"]
        replica.signal(signal.SIGCONT)
        proxy.on(b"EVALSHA", "lose")
        assert (await layer.push(scope, turn())).window_length == 3


async def test_a_job_that_is_delivered_again_waits_for_what_is_there(pair, prefix, scope, turn):
    master, replica = pair
    options = {"prefix": prefix, "min_replicas": 1, "attempt_timeout": 1}
    async with connect(master.url, **options) as deployment:
        await WorkingLayer(deployment).push(scope, turn())
        replica.signal(signal.SIGSTOP)
        with pytest.raises(NotReplicated):
            await WorkingLayer(deployment).push(scope, turn(), idempotency_key="job")
    # Another worker, whose connection has written nothing.
    async with connect(master.url, **options) as other:
        with pytest.raises(NotReplicated):
            await WorkingLayer(other).push(scope, turn(), idempotency_key="job")
        replica.signal(signal.SIGCONT)
        assert (await WorkingLayer(other).push(scope, turn(), idempotency_key="job")).duplicate


async def test_what_is_refused_is_no_write_that_is_stored(pair, prefix, scope, turn):
    master, replica = pair
    async with connect(master.url, prefix=prefix, min_replicas=1, attempt_timeout=1) as deployment:
        await WorkingLayer(deployment).push(scope, turn())
        await purge_tenant(deployment, "acme")
        replica.signal(signal.SIGSTOP)
        with pytest.raises(ScopeClosed):
            await WorkingLayer(deployment).push(scope, turn())


async def test_batches_wait_too(pair, prefix):
    master, replica = pair
    async with connect(master.url, prefix=prefix, min_replicas=1, attempt_timeout=2) as deployment:
        assert (await purge_tenant(deployment, "nobody")).scopes == 0
        replica.signal(signal.SIGSTOP)
        with pytest.raises(NotReplicated):
            await reopen_tenant(deployment, "nobody")


@pytest.mark.parametrize("option", [{"min_replicas": 1}, {"read_from": "replica"}])
def test_a_fake_server_has_no_replicas(option):
    with pytest.raises(ConfigurationError, match="no replicas"):
        connect("fake://", **option)


@pytest.mark.parametrize("url", ["redis://localhost", "rediss://localhost", "unix:///run/redis.sock"])
def test_one_server_has_no_replicas_to_be_found(url):
    with pytest.raises(ConfigurationError, match="read_from"):
        connect(url, read_from="replica")


@pytest.mark.parametrize("option", [{"min_replicas": -1}, {"min_replicas": 1.5}, {"read_from": "nearest"}])
def test_an_option_out_of_range_is_refused(option):
    with pytest.raises(ConfigurationError, match="correct it"):
        connect("redis://localhost", **option)


def calls(topology, servers: list[Server], command: str) -> int:
    """How often servers ran a command."""
    count = 0
    for server in servers:
        with topology.admin(server) as admin:
            count += admin.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]
    return count


@pytest.mark.parametrize("name", ["sentinel", "cluster"])
async def test_reads_go_to_replicas_and_writes_do_not(topologies, name, prefix):
    topology = topologies(name)
    masters = 3 if name == "cluster" else 1
    async with connect(topology.url, prefix=prefix, read_from="replica", min_replicas=1) as deployment:
        graph = StreamGraphStore(deployment)
        layer = WorkingLayer(deployment, graph_store=graph)
        for scope in MANY:
            await layer.push(scope, MemoryEntry.turn(scope, speaker="user", turn_id="t", content="x"))
        before = [calls(topology, part, "lrange") for part in (topology.servers[:masters], topology.servers[masters:])]
        for scope in MANY:
            # A replica that has received a write need not have applied it; that it acknowledged says it has.
            assert texts(await layer.get_context(scope)) == ["x"]
            assert [node.label for node in await graph.query_nodes(scope, MemoryLayer.WORKING)] == ["x"]
            assert await graph.count(scope) == 1
        assert [texts(window) for window in await layer.get_contexts(MANY)] == [["x"]] * len(MANY)
        after = [calls(topology, part, "lrange") for part in (topology.servers[:masters], topology.servers[masters:])]
        assert (after[0] - before[0], after[1] - before[1]) == (0, 2 * len(MANY))
