"""What goes over the wire, counted by a proxy in between and by the server itself: one round trip a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from own_server import calls
from proxy import Proxy
from redis.asyncio import Connection, Redis
from writes import load_scripts

from symfonic_redis import MemoryLayer, MemoryNode, StreamGraphStore, WorkingLayer, connect
from symfonic_redis.wire import pack

MESSAGES = [{"role": "user", "content": "saved"}]


class Line:
    """A deployment behind a counting proxy, and what the server says about the scripts it ran."""

    def __init__(self, deployment, proxy: Proxy, admin: Redis) -> None:
        self.deployment = deployment
        self.proxy = proxy
        self.admin = admin

    async def costs(self, call) -> tuple[dict[str, int], int]:
        """Await the call: the requests it sent, by command, and how many EVALSHAs the server ran meanwhile."""
        self.proxy.requests.clear()
        before = await calls(self.admin, "evalsha")
        await call
        return dict(self.proxy.counted()), await calls(self.admin, "evalsha") - before


@pytest.fixture
async def line(server, prefix) -> AsyncIterator[Line]:
    await load_scripts(server.url)
    async with (
        Proxy(server.port) as proxy,
        connect(proxy.url, prefix=prefix) as deployment,
        Redis.from_url(server.url) as admin,
    ):
        yield Line(deployment, proxy, admin)


@pytest.fixture
async def graph(line, scope, turn) -> StreamGraphStore:
    """The mirror, with three turns in it; the connection is open, so no handshake is counted."""
    graph = StreamGraphStore(line.deployment)
    await WorkingLayer(line.deployment, graph_store=graph).push_many(scope, [turn(), turn(), turn()])
    return graph


PUSHES: dict[str, Callable] = {
    "plain": lambda layer, scope, turn: layer.push(scope, turn()),
    "with a mirror": lambda layer, scope, turn: layer.push(scope, turn()),
    "with a bounded mirror": lambda layer, scope, turn: layer.push(scope, turn()),
    "with a ttl": lambda layer, scope, turn: layer.push(scope, turn()),
    "with an idempotency key": lambda layer, scope, turn: layer.push(scope, turn(), idempotency_key="job"),
    "with a durability": lambda layer, scope, turn: layer.push(scope, turn(), durability="transient"),
    "of the legacy name": lambda layer, scope, turn: layer.write(scope, turn()),
    "of a hundred": lambda layer, scope, turn: layer.push_many(scope, [turn() for _ in range(100)]),
    "of ten thousand": lambda layer, scope, turn: layer.push_many(scope, [turn("x")] * 10_000),
}


@pytest.mark.parametrize("kind", list(PUSHES))
async def test_a_push_is_one_round_trip(line, graph, scope, turn, kind):
    store = None if kind == "plain" else graph
    layer = WorkingLayer(
        line.deployment,
        graph_store=store,
        ttl=60 if kind == "with a ttl" else None,
        working_graph_retention=2 if kind == "with a bounded mirror" else None,
    )
    await PUSHES[kind](layer, scope.child("other", "first"), turn)  # makes the connection of large ones
    assert await line.costs(PUSHES[kind](layer, scope, turn)) == ({"EVALSHA": 1}, 1)


async def test_a_redelivered_push_is_one_round_trip(line, graph, scope, turn):
    layer = WorkingLayer(line.deployment, graph_store=graph)
    await layer.push(scope, turn(), idempotency_key="job")
    assert await line.costs(layer.push(scope, turn(), idempotency_key="job")) == ({"EVALSHA": 1}, 1)


async def test_a_push_of_nothing_only_asks_for_the_length(line, graph, scope):
    assert await line.costs(WorkingLayer(line.deployment).push_many(scope, [])) == ({"LLEN": 1}, 0)


async def test_a_read_is_one_round_trip(line, graph, scope):
    layer = WorkingLayer(line.deployment, graph_store=graph)
    assert await line.costs(layer.get_context(scope)) == ({"LRANGE": 1}, 0)
    assert await line.costs(layer.retrieve(scope, "query")) == ({"LRANGE": 1}, 0)


async def test_clearing_and_rehydrating_are_one_round_trip(line, graph, scope):
    layer = WorkingLayer(line.deployment, graph_store=graph)
    assert await line.costs(layer.rehydrate_from_messages(scope, MESSAGES)) == ({"EVALSHA": 1}, 1)
    assert await line.costs(layer.clear(scope)) == ({"EVALSHA": 1}, 1)
    assert await line.costs(layer.rehydrate_from_messages(scope, MESSAGES)) == ({"EVALSHA": 1}, 1)
    assert await line.costs(layer.rehydrate_from_messages(scope, [])) == ({}, 0)


async def test_what_needs_no_server_does_not_call_it(line, graph, scope, turn):
    layer = WorkingLayer(line.deployment, graph_store=graph, stm_summary_mode="extractive")
    assert await line.costs(layer.link(scope, "a", "b", "follows")) == ({}, 0)
    assert await line.costs(layer.summarize(scope, [turn()])) == ({}, 0)
    assert await line.costs(layer.delete(scope, "unknown")) == ({}, 0)
    assert await line.costs(WorkingLayer(line.deployment).delete(scope, "unknown")) == ({}, 0)
    assert await line.costs(graph.get_node(scope, "unknown")) == ({}, 0)


async def test_the_mirrors_own_calls_are_one_round_trip(line, graph, scope):
    node = MemoryNode(layer=MemoryLayer.SEMANTIC, tenant_id=scope.tenant_id, label="fact")
    (first, second, *_) = await graph.query_nodes(scope, "working")
    await graph.delete_node(scope, second.id)  # the server knows the script from here on
    assert await line.costs(graph.add_node(scope, node)) == ({"EVALSHA": 1}, 1)
    assert await line.costs(graph.get_node(scope, first.id)) == ({"EVALSHA": 1}, 1)
    assert await line.costs(graph.count(scope)) == ({"XLEN": 1}, 0)
    assert await line.costs(graph.query_nodes(scope, "working")) == ({"EVALSHA": 1}, 1)
    assert await line.costs(graph.delete_node(scope, first.id)) == ({"EVALSHA": 1}, 1)
    assert await line.costs(WorkingLayer(line.deployment, graph_store=graph).delete(scope, first.id)) == (
        {"EVALSHA": 1},
        1,
    )


async def test_a_node_query_reads_a_page_of_five_hundred_at_a_time(line, graph, scope, turn):
    await WorkingLayer(line.deployment, graph_store=graph).push_many(scope, [turn("x")] * 998)
    assert await graph.count(scope) == 1001
    assert await line.costs(graph.query_nodes(scope, "working")) == ({"EVALSHA": 3}, 3)
    assert await line.costs(graph.query_nodes(scope, "working", limit=10)) == ({"EVALSHA": 1}, 1)


async def test_the_first_write_after_script_flush_takes_two_and_the_next_one_again(line, graph, scope, turn):
    layer = WorkingLayer(line.deployment, graph_store=graph)
    await line.admin.script_flush()
    assert (await line.costs(layer.push(scope, turn())))[0] == {"EVALSHA": 1, "EVAL": 1}
    assert await line.costs(layer.push(scope, turn())) == ({"EVALSHA": 1}, 1)


async def test_opening_costs_one_get_and_one_info(line, graph, prefix):
    async def opens() -> None:
        async with connect(line.proxy.url, prefix=prefix):
            pass

    requests, scripts = await line.costs(opens())
    # The driver's own handshake of a connection.
    handshake = {name: requests.pop(name) for name in ("HELLO", "CLIENT", "SELECT") if name in requests}
    assert (requests, scripts) == ({"GET": 1, "INFO": 1}, 0)
    assert handshake.get("HELLO", 1) == 1


async def test_three_hundred_calls_at_once_share_one_connection(server, prefix, scope, turn):
    async with Proxy(server.port) as proxy, connect(proxy.url, prefix=prefix) as deployment:
        graph = StreamGraphStore(deployment)
        layer = WorkingLayer(deployment, graph_store=graph)
        await asyncio.gather(*(layer.push(scope, turn()) for _ in range(300)))
        windows = await asyncio.gather(*(layer.get_context(scope) for _ in range(300)))
        assert {len(window) for window in windows} == {10}
        assert await graph.count(scope) == 300
        # The first alone, then what came meanwhile, at most 32 turns at a time.
        assert proxy.counted()["EVALSHA"] == 11
        assert proxy.counted()["LRANGE"] == 300
        async with Redis.from_url(server.url) as admin:
            assert len(await admin.client_list(_type="normal")) == 2


async def test_three_hundred_calls_at_once_share_ten_connections(server, prefix, scope, turn):
    options = {"max_connections": 10, "coalesce": False}
    async with Proxy(server.port) as proxy, connect(proxy.url, prefix=prefix, **options) as deployment:
        graph = StreamGraphStore(deployment)
        layer = WorkingLayer(deployment, graph_store=graph)
        await asyncio.gather(*(layer.push(scope, turn()) for _ in range(300)))
        windows = await asyncio.gather(*(layer.get_context(scope) for _ in range(300)))
        assert {len(window) for window in windows} == {10}
        assert await graph.count(scope) == 300
        # Nothing was refused and nothing was sent twice.
        assert proxy.counted()["EVALSHA"] in {300, 300 + proxy.counted()["EVAL"]}
        assert proxy.counted()["LRANGE"] == 300
        async with Redis.from_url(server.url) as admin:
            assert len(await admin.client_list(_type="normal")) <= 11


@given(st.lists(st.lists(st.one_of(st.text(), st.binary(), st.integers()), max_size=5), min_size=1, max_size=4))
def test_commands_are_packed_as_the_driver_packs_them(commands):
    commands = [["SET", *words] for words in commands]  # the driver splits a name at its spaces
    ours = pack(commands)
    assert ours == b"".join(Connection().pack_commands(commands))
