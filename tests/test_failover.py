"""Masters that die under writes: every call succeeds within its deadline, nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from own_server import until as eventually
from redis.asyncio.sentinel import Sentinel
from seen import texts
from topologies import NAME, Topology, cluster, raw, sentinel, tls_sentinel, until

from symfonic_redis import (
    Deployment,
    MemoryEntry,
    NotReplicated,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    connect,
    health,
)

ORG = TenantScope.root("org", "acme")
MANY = [ORG.child("conversation", f"c{number}") for number in range(24)]


def said(scope, number) -> MemoryEntry:
    return MemoryEntry.turn(scope, speaker="user", turn_id=f"t{number}", content=f"turn {number}")


async def under_writes(deployment: Deployment, disturb: Callable[[], None], recovered: Callable[[], bool]) -> int:
    """Write to many scopes, disturb, and write on until all is well; then each turn is there once, in order.

    Returns how many writes were told that too few replicas had them: they are stored all the same.
    """
    graph = StreamGraphStore(deployment)
    layer = WorkingLayer(deployment, graph_store=graph)
    wrote = dict.fromkeys(MANY, 0)
    told = 0
    over = asyncio.Event()

    async def talk(scope) -> None:
        nonlocal told
        while not over.is_set():
            try:
                receipt = await layer.push(scope, said(scope, wrote[scope]))
                assert not receipt.duplicate
            except NotReplicated:
                told += 1
            wrote[scope] += 1

    async def more_than(before: dict) -> bool:
        return all(wrote[scope] >= before[scope] + 5 for scope in MANY)

    async def conduct() -> None:
        await eventually(lambda: more_than(dict.fromkeys(MANY, 0)))
        disturb()
        await eventually(lambda: asyncio.to_thread(recovered), seconds=60)
        before = dict(wrote)
        await eventually(lambda: more_than(before), seconds=60)
        over.set()

    await asyncio.gather(conduct(), *map(talk, MANY))
    for scope in MANY:
        nodes = await graph.query_nodes(scope)
        assert [node.label for node in nodes] == [f"turn {number}" for number in range(wrote[scope])]
    return told


def is_master(topology: Topology, *numbers: int) -> bool:
    """Whether one of these servers has become a master with a replica in sync."""
    for number in numbers:
        with topology.admin(topology.servers[number]) as admin:
            info = admin.info("replication")
            if info["role"] == "master" and any(
                isinstance(value, dict) and value.get("state") == "online" for value in info.values()
            ):
                return True
    return False


async def test_a_master_of_a_cluster_is_killed_under_writes(prefix):
    made = cluster(3, 2)
    try:
        # The first master's replicas are the fourth and the seventh.
        async with connect(made.url, prefix=prefix, min_replicas=1, deadline=30, attempt_timeout=2) as deployment:
            await under_writes(deployment, made.servers[0].kill, lambda: is_master(made, 3, 6))
            state = await health(deployment)
        assert (state.masters, state.role) == (3, "master")
    finally:
        made.stop()


async def test_a_master_behind_sentinels_is_killed_under_writes(prefix):
    made = sentinel(2)
    try:
        async with connect(made.url, prefix=prefix, min_replicas=1, deadline=30, attempt_timeout=2) as deployment:
            await under_writes(deployment, made.servers[0].kill, lambda: is_master(made, 1, 2))
    finally:
        made.stop()


async def test_a_master_behind_sentinels_is_demoted_under_writes(prefix):
    made = sentinel(2)
    try:
        with made.admin(made.others[0]) as admin:
            async with connect(made.url, prefix=prefix, min_replicas=1, deadline=30) as deployment:
                await under_writes(
                    deployment,
                    lambda: raw(admin, "SENTINEL", "FAILOVER", NAME),
                    lambda: is_master(made, 1, 2) and not is_master(made, 0),
                )
    finally:
        made.stop()


async def test_a_cluster_hands_a_master_over_and_the_new_one_lacks_the_scripts(prefix, scope):
    made = cluster(3, 1)
    try:
        async with connect(made.url, prefix=prefix) as deployment:
            layer = WorkingLayer(deployment)
            for number, replica in enumerate(made.servers[3:], 1):
                for one in MANY:
                    assert (await layer.push(one, said(one, number))).window_length == number
                with made.admin(replica) as admin:
                    assert admin.info("memory")["number_of_cached_scripts"] == 0
                    raw(admin, "CLUSTER", "FAILOVER")
                    until(lambda admin=admin: admin.info("replication")["role"] == "master")
            for one in MANY:
                assert texts(await layer.get_context(one)) == ["turn 1", "turn 2", "turn 3"]
    finally:
        made.stop()


async def test_a_replica_that_dies_leaves_reads_to_the_master(prefix):
    for made in (cluster(3, 1), sentinel(1)):
        try:
            async with connect(made.url, prefix=prefix, read_from="replica", min_replicas=1) as deployment:
                layer = WorkingLayer(deployment)
                for scope in MANY:
                    await layer.push(scope, said(scope, 1))
                for server in made.servers[-len(made.servers) // 2 :]:
                    server.kill()
                for scope in MANY:
                    assert texts(await layer.get_context(scope)) == ["turn 1"]
        finally:
            made.stop()


async def test_there_may_be_no_master_yet(prefix, scope):
    made = sentinel(1)
    try:
        made.servers[0].kill()
        async with connect(made.url, prefix=prefix, deadline=30) as deployment:
            assert (await WorkingLayer(deployment).push(scope, said(scope, 1))).window_length == 1
    finally:
        made.stop()


async def test_sentinels_that_are_gone_are_passed_over_and_not_forgotten(prefix, scope):
    made = sentinel(1)
    try:
        async with connect(made.url, prefix=prefix, deadline=30) as deployment:
            layer = WorkingLayer(deployment, 100)
            first, second, third = made.others
            first.kill()
            second.kill()
            made.close_idle()
            # All at once: the driver's own list of sentinels would lose the first.
            await asyncio.gather(*(layer.push(scope, said(scope, number)) for number in range(100)))
            first.start()
            third.kill()
            made.close_idle()
            assert len(await layer.get_context(scope)) == 100
    finally:
        made.stop()


async def test_sentinels_may_want_a_password_of_their_own(prefix, scope):
    made = sentinel(1)
    try:
        for server in made.others:
            with made.admin(server) as admin:
                raw(admin, "ACL", "SETUSER", "asker", "on", ">open-sesame", "+@all")
                raw(admin, "ACL", "SETUSER", "default", "off")
        async with connect(f"{made.url}/3?sentinel_username=asker&sentinel_password=open-sesame", prefix=prefix) as one:
            await WorkingLayer(one).push(scope, said(scope, 1))
            assert one.attributes["db.namespace"] == "3"
    finally:
        made.stop()


async def test_sentinels_and_what_they_watch_in_tls(prefix, scope):
    made = tls_sentinel()
    try:
        async with connect(made.url, prefix=prefix) as deployment:
            assert (await WorkingLayer(deployment).push(scope, said(scope, 1))).window_length == 1
    finally:
        made.stop()


async def test_a_users_client_from_a_sentinel_is_taken_and_never_closed(topologies, prefix):
    topology = topologies("sentinel")
    asker = Sentinel([("127.0.0.1", server.port) for server in topology.others])
    async with asker, asker.master_for(NAME) as client:
        async with connect(client, prefix=prefix) as deployment:
            layer = WorkingLayer(deployment, 300)
            await asyncio.gather(*(layer.push(MANY[n % 24], said(MANY[n % 24], n)) for n in range(300)))
            assert (await health(deployment)).topology == "sentinel"
            assert deployment.endpoint.startswith(f"{NAME} behind 127.0.0.1:")
        assert await client.set(f"{prefix}:mine", "x")
