"""What only a cluster does: slots on the move, redirections, nodes that are announced in many ways, a user's client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from own_server import everything_said
from own_server import until as eventually
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, TryAgainError
from seen import texts
from topologies import PASSWORD, Topology, cluster, raw, tls_cluster

from symfonic_redis import (
    ConfigurationError,
    MemoryEntry,
    MemoryUnavailable,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    connect,
    latest_cursor,
    totals,
    watch,
)
from symfonic_redis.cluster import Cluster
from symfonic_redis.keys import partition_of, scope_keys
from symfonic_redis.wire import exchange_all

ORG = TenantScope.root("org", "acme")
MANY = [ORG.child("conversation", f"c{number}") for number in range(40)]


def said(scope, number) -> MemoryEntry:
    return MemoryEntry.turn(scope, speaker="user", turn_id=f"t{number}", content=f"turn {number}")


def slot_of(scope) -> int:
    return key_slot(f"{partition_of(scope.scope_path):04d}".encode())


@pytest.fixture(scope="module")
def shards() -> Iterator[Topology]:
    """Two masters of this module's own: their slots are moved to and fro."""
    made = cluster(2, 0)
    yield made
    made.stop()


class Move:
    """A slot on its way from the node that serves it to the other one."""

    def __init__(self, topology: Topology, slot: int) -> None:
        self.slot = slot
        clients = [topology.admin(server) for server in topology.servers]
        ranges = raw(clients[0], "CLUSTER", "SLOTS")
        port = next(node[1] for first, last, node, *_ in ranges if first <= slot <= last)
        self.source, self.target = sorted(clients, key=lambda client: client.get_connection_kwargs()["port"] != port)
        self.ids = [client.execute_command("CLUSTER", "MYID") for client in (self.source, self.target)]
        self.port = self.target.get_connection_kwargs()["port"]

    def begin(self) -> None:
        raw(self.target, "CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.ids[0])
        raw(self.source, "CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.ids[1])

    def carry(self, most: int = 100_000) -> int:
        """Move keys; return how many."""
        keys = raw(self.source, "CLUSTER", "GETKEYSINSLOT", self.slot, most)
        for key in keys:
            raw(self.source, "MIGRATE", "127.0.0.1", self.port, key, 0, 5000)
        return len(keys)

    async def carry_slowly(self, most: int) -> None:
        """Move all keys, so many at a time, and let others go on in between."""
        left = True
        while left:
            left = self.carry(most) > 0
            await asyncio.sleep(0)

    def end(self) -> None:
        for client in (self.target, self.source):
            raw(client, "CLUSTER", "SETSLOT", self.slot, "NODE", self.ids[1])

    def close(self) -> None:
        self.source.close()
        self.target.close()


@pytest.fixture
def move(shards) -> Iterator:
    with contextlib.ExitStack() as stack:

        def make(slot: int) -> Move:
            made = Move(shards, slot)
            stack.callback(made.close)
            return made

        yield make


async def test_a_slot_that_has_moved_is_followed(shards, move, prefix, scope):
    async with connect(shards.url, prefix=prefix) as deployment:
        layer = WorkingLayer(deployment)
        await layer.push(scope, said(scope, 1))
        for number in range(2, 5):
            moved = move(slot_of(scope))
            moved.begin()
            moved.carry()
            moved.end()
            assert (await layer.push(scope, said(scope, number))).window_length == number
        assert texts(await layer.get_context(scope)) == ["turn 1", "turn 2", "turn 3", "turn 4"]


async def test_what_is_on_its_way_is_read_where_it_is_and_written_when_it_has_arrived(shards, move, prefix, scope):
    async with connect(shards.url, prefix=prefix, deadline=30) as deployment:
        graph = StreamGraphStore(deployment)
        layer = WorkingLayer(deployment, graph_store=graph)
        await layer.push(scope, said(scope, 1))
        moved = move(slot_of(scope))
        moved.begin()
        assert texts(await layer.get_context(scope)) == ["turn 1"]
        assert moved.carry() > 3
        # Nothing is left at the source: it says ASK, and only a connection that has said ASKING is let in.
        assert texts(await layer.get_context(scope)) == ["turn 1"]
        assert await graph.count(scope) == 1
        write = asyncio.create_task(layer.push(scope, said(scope, 2)))
        await asyncio.sleep(0.2)
        # Some of its keys are on neither node: TRYAGAIN.
        assert not write.done()
        moved.carry()
        moved.end()
        assert (await write).window_length == 2
        assert texts(await layer.get_context(scope)) == ["turn 1", "turn 2"]


async def test_reads_of_one_feed_stay_in_order_while_it_moves(shards, move, prefix, scope):
    async with connect(shards.url, prefix=prefix, feed=1000, deadline=30) as deployment:
        layer = WorkingLayer(deployment)
        cursor = await latest_cursor(deployment, scope)
        done = asyncio.Event()
        kinds: list[str] = []

        async def follow() -> None:
            async for change in watch(deployment, scope, after=cursor):
                kinds.append(change.kind)
                if len(kinds) == 60:
                    break

        async def write() -> None:
            for number in range(60):
                await layer.push(scope, said(scope, number))
            done.set()

        async def carry() -> None:
            while not done.is_set():
                moved = move(slot_of(scope))
                moved.begin()
                await asyncio.sleep(0.01)
                await moved.carry_slowly(1)
                moved.end()
                await asyncio.sleep(0.02)

        async with asyncio.timeout(60):
            await asyncio.gather(follow(), write(), carry())
        # A counter that was read after the stream would tell of changes that were missed.
        assert kinds == ["push"] * 60


async def _under_load(layer: WorkingLayer, number_of_turns: int, change) -> None:
    """Write to many scopes while `change` goes on; then every turn is there, once and in order."""
    changing = asyncio.create_task(change())

    async def talk(scope) -> None:
        number = 0
        while number < number_of_turns or not changing.done():
            await layer.push(scope, said(scope, number))
            number += 1
            wrote[scope] = number

    wrote: dict = {}
    await asyncio.gather(*map(talk, MANY))
    await changing
    for scope in MANY:
        nodes = await StreamGraphStore(layer.deployment).query_nodes(scope)
        assert [node.label for node in nodes] == [f"turn {number}" for number in range(wrote[scope])]


async def test_slots_are_moved_key_by_key_under_load(shards, move, prefix):
    async with connect(shards.url, prefix=prefix, deadline=60) as deployment:
        layer = WorkingLayer(deployment, graph_store=StreamGraphStore(deployment))

        async def change() -> None:
            for slot in sorted({slot_of(scope) for scope in MANY}):
                moved = move(slot)
                moved.begin()
                await moved.carry_slowly(2)
                moved.end()

        await _under_load(layer, 10, change)


async def _has_arrived(move, moved: Move) -> bool:
    return move(moved.slot).ids[0] == moved.ids[1]


async def test_slots_are_moved_at_once_under_load(shards, move, prefix):
    async with connect(shards.url, prefix=prefix, deadline=60) as deployment:
        layer = WorkingLayer(deployment, graph_store=StreamGraphStore(deployment))

        async def change() -> None:
            for scope in MANY[:5]:
                moved = move(slot_of(scope))
                slots = ("SLOTSRANGE", moved.slot, moved.slot)
                raw(moved.source, "CLUSTER", "MIGRATESLOTS", *slots, "NODE", moved.ids[1])
                await eventually(lambda moved=moved: _has_arrived(move, moved))

        await _under_load(layer, 10, change)


ANNOUNCED = {
    "an address": {"cluster-preferred-endpoint-type": "ip"},
    "nothing": {"cluster-preferred-endpoint-type": "unknown-endpoint"},
    "a host name": {"cluster-preferred-endpoint-type": "hostname", "cluster-announce-hostname": "localhost"},
    "a host name that is not set": {"cluster-preferred-endpoint-type": "hostname"},
}


@pytest.mark.parametrize("settings", ANNOUNCED.values(), ids=list(ANNOUNCED))
async def test_nodes_are_found_however_they_are_announced(shards, move, prefix, scope, settings):
    kept = {"cluster-preferred-endpoint-type": "ip", "cluster-announce-hostname": ""}
    configure(shards, settings)
    try:
        async with connect(shards.url, prefix=prefix) as deployment:
            layer = WorkingLayer(deployment)
            await asyncio.gather(*(layer.push(scope, said(scope, 1)) for scope in MANY))
            moved = move(slot_of(scope))  # and a redirection
            moved.begin()
            moved.carry()
            moved.end()
            await layer.push(scope, said(scope, 1))
            assert (await totals(deployment, "acme")).turns == 41
    finally:
        configure(shards, kept)


def configure(topology: Topology, settings: dict[str, str]) -> None:
    for server in topology.servers:
        with topology.admin(server) as admin:
            for name, value in settings.items():
                admin.config_set(name, value)


async def test_nodes_are_found_by_ipv6(prefix):
    made = cluster(3, 0, host="::1", options=lambda: ("--bind", "127.0.0.1", "::1"))
    try:
        async with connect(made.url, prefix=prefix) as deployment:
            layer = WorkingLayer(deployment)
            await asyncio.gather(*(layer.push(scope, said(scope, 1)) for scope in MANY))
            assert (await totals(deployment, "acme")).turns == 40
            assert "[::1]:" in deployment.endpoint
    finally:
        made.stop()


async def test_a_cluster_that_talks_in_tls(prefix):
    made = tls_cluster()
    try:
        async with connect(made.url, prefix=prefix) as deployment:
            layer = WorkingLayer(deployment)
            await asyncio.gather(*(layer.push(scope, said(scope, 1)) for scope in MANY))
            assert (await totals(deployment, "acme")).turns == 40
    finally:
        made.stop()


@pytest.mark.parametrize("options", [{}, {"protocol": 3}, {"protocol": 2, "decode_responses": True}])
async def test_a_users_client_of_a_cluster_is_taken_and_never_closed(shards, prefix, options):
    nodes = [ClusterNode("127.0.0.1", server.port) for server in shards.servers[:1]]
    async with RedisCluster(startup_nodes=nodes, **options) as client:
        async with connect(client, prefix=prefix) as deployment:
            layer = WorkingLayer(deployment)
            async with asyncio.timeout(60):
                await asyncio.gather(*(layer.push(MANY[n % 40], said(MANY[n % 40], n)) for n in range(300)))
            assert (await totals(deployment, "acme")).turns == 300
            with pytest.raises(ConfigurationError, match="no URL"):
                _ = deployment.url
        assert await client.set(f"{prefix}:mine", "x")


async def test_a_users_client_of_a_cluster_is_opened_by_connect(shards):
    nodes = [ClusterNode("127.0.0.1", server.port) for server in shards.servers[:1]]
    async with RedisCluster(startup_nodes=nodes) as client:
        with pytest.raises(ConfigurationError, match=r"connect\(\)"):
            WorkingLayer(client)


async def test_one_kind_of_url_for_the_other_kind_of_server_is_named(shards, valkey, prefix):
    # Not if the key of the configuration happens to be on this very node.
    elsewhere = next(name for n in range(99) if key_slot(f"{(name := f'{prefix}{n}')}:config".encode()) > 8191)
    at_first = shards.servers[0].port
    with pytest.raises(ConfigurationError, match=r"redis\+cluster://"):
        async with connect(f"redis://127.0.0.1:{at_first}", prefix=elsewhere):
            pass
    with pytest.raises(ConfigurationError, match="no cluster"):
        async with connect(f"redis+cluster://127.0.0.1:{valkey.port}", prefix=prefix):
            pass


async def test_a_seed_that_is_gone_is_passed_over(shards, prefix, scope):
    seeds = shards.url.removeprefix("redis+cluster://")
    async with connect(f"redis+cluster://127.0.0.1:1,{seeds}", prefix=prefix) as deployment:
        await WorkingLayer(deployment).push(scope, said(scope, 1))


async def test_no_seed_that_answers_is_unavailable():
    with pytest.raises(MemoryUnavailable, match=r"127\.0\.0\.1:1"):
        async with connect("redis+cluster://127.0.0.1:1,127.0.0.1:2", deadline=0.5):
            pass


async def test_every_call_of_a_scope_is_of_one_slot(shards, prefix, scope):
    # The server says CROSSSLOT otherwise; here without a server, and for every script, see test_routing.
    keys = scope_keys(prefix, scope)
    assert {key_slot(key.encode()) for key in keys.everything} == {slot_of(scope)}


BAD = [
    "redis+cluster://",
    "redis+cluster:///",
    f"redis+cluster://:{PASSWORD}@",
    f"redis+cluster://:{PASSWORD}@one:port",
    f"redis+cluster://:{PASSWORD}@one:99999",
    f"redis+cluster://:{PASSWORD}@one,,two",
    f"redis+cluster://:{PASSWORD}@one/name",
    f"redis+cluster://:{PASSWORD}@one?ssl_nothing=1",
    f"redis+cluster://:{PASSWORD}@one?db=1",
    f"redis+cluster://:{PASSWORD}@one#two",
    f"redis+sentinel://:{PASSWORD}@one",
    f"redis+sentinel://:{PASSWORD}@one/",
    f"redis+sentinel://:{PASSWORD}@one/name/zero",
    f"redis+sentinel://:{PASSWORD}@one/name/0/more",
    f"redis+sentinel://:{PASSWORD}@one:0/name",
    f"redis+sentinel://:{PASSWORD}@[::1/name",
]


@pytest.mark.parametrize("url", BAD)
def test_a_url_that_cannot_be_used_is_refused_without_being_quoted(url):
    with pytest.raises(ConfigurationError) as caught:
        connect(url)
    assert PASSWORD not in everything_said(caught.value)
    assert "://" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        (f"redis+cluster://user:{PASSWORD}@one:7000,two", "one:7000,two:6379"),
        (f"redis+cluster://user:{PASSWORD}@one/", "one:6379"),
        (f"rediss+cluster://user:{PASSWORD}@[::1]:7000,two/0", "[::1]:7000,two:6379"),
        (f"redis+sentinel://user:{PASSWORD}@one,two:7000/name", "name behind one:26379,two:7000"),
        (f"rediss+sentinel://one/name/3?sentinel_username=u&sentinel_password={PASSWORD}", "name behind one:26379"),
    ],
)
def test_a_url_of_many_servers_is_read(url, endpoint):
    deployment = connect(url)
    assert deployment.endpoint == endpoint
    assert deployment.url == url
    assert PASSWORD not in repr(deployment)


class Node:
    """Stands for the connections to one node; `answers` holds, by command, what it says one after another."""

    idle = True

    def __init__(self, log: list[tuple[int, tuple]], port: int, answers: dict[str, list]) -> None:
        self._log, self._port, self._answers = log, port, answers

    async def exchange_each(self, commands, wait=None, until=None):
        self._log += [(self._port, tuple(command)) for command in commands]
        replies = [self._answers[command[0]].pop(0) for command in commands]
        return replies, self._answers["WAIT"].pop(0) if wait else 0

    async def close(self):
        pass


def two_nodes(first: dict[str, list], second: dict[str, list]) -> tuple[Cluster, list]:
    """A router over two nodes, of which the first has all slots; and what they were asked, with the map left out."""
    log: list = []
    slots = [[[0, 16383, [b"", 1, b"id"]]]] * 9
    nodes = {1: Node(log, 1, {**first, "CLUSTER": slots[:]}), 2: Node(log, 2, {**second, "CLUSTER": slots[:]})}
    return Cluster([("host", 1)], lambda address: nodes[address[1]]), log


def asked(log: list) -> list:
    return [(port, *command) for port, command in log if command[0] != "CLUSTER"]


async def test_what_was_asked_after_a_redirected_command_is_asked_after_it_again():
    # A feed's counter has moved to the other node, its stream has not: read before the counter, it may lack what the
    # counter already counts.
    router, log = two_nodes(
        {"GET": [AskError("1 :2")], "XRANGE": ["too early", "in time"], "LLEN": [3]}, {"ASKING": [b"OK"], "GET": [b"7"]}
    )
    replies, _ = await router.exchange_each([("GET", "{1}a"), ("XRANGE", "{1}b", "-", "+"), ("LLEN", "{2}c")])
    assert replies == [b"7", "in time", 3]
    (*_, moved, asking, counter, stream) = [None, *asked(log)]
    assert (asking, counter, stream) == ((2, "ASKING"), (2, "GET", "{1}a"), (1, "XRANGE", "{1}b", "-", "+"))
    assert moved == (1, "LLEN", "{2}c")


async def test_a_node_that_sent_a_write_on_does_not_say_how_many_replicas_have_it():
    # The first has no replica at all, and one that waits there is told so.
    router, _ = two_nodes({"EVALSHA": [MovedError("1 :2")], "WAIT": [0]}, {"EVALSHA": [[0, b"done"]], "WAIT": [2]})
    assert await router.exchange_each([("EVALSHA", "sha", 1, "{1}a")], ("WAIT", 1, 100)) == ([[0, b"done"]], 2)


async def test_of_two_nodes_the_lesser_number_of_replicas_counts():
    router, _ = two_nodes(
        {"EVALSHA": [MovedError("1 :2"), [0, b"here"]], "WAIT": [1]}, {"EVALSHA": [[0, b"there"]], "WAIT": [2]}
    )
    commands = [("EVALSHA", "sha", 1, "{1}a"), ("EVALSHA", "sha", 1, "{2}a")]
    assert await router.exchange_each(commands, ("WAIT", 1, 100)) == ([[0, b"there"], [0, b"here"]], 1)


async def test_redirections_without_end_are_given_up_for_this_attempt():
    router, _ = two_nodes({"GET": [MovedError("1 :2")] * 9}, {"GET": [MovedError("1 :1")] * 9})
    with pytest.raises(TryAgainError):
        await exchange_all(router, [("GET", "{1}a")])
