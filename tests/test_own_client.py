"""A client that the user already has: taken as it is, used without its retry, never closed."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref

import pytest
from proxy import Proxy
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from writes import load_scripts

from symfonic_redis import ConfigurationError, StreamGraphStore, WorkingLayer, connect

FLAVOURS = list(itertools.product((False, True), (2, 3), (False, True)))


@pytest.mark.parametrize(("decode", "protocol", "legacy"), FLAVOURS)
async def test_a_client_of_any_flavour_works(valkey, prefix, scope, turn, decode, protocol, legacy):  # noqa: PLR0917 - fixtures and parameters, by name
    flavour = {"decode_responses": decode, "protocol": protocol, "legacy_responses": legacy}
    async with Redis.from_url(valkey.url, **flavour) as client:
        async with connect(client, prefix=prefix) as deployment:
            assert deployment.endpoint == f"127.0.0.1:{valkey.port}"
            graph = StreamGraphStore(deployment)
            layer = WorkingLayer(deployment, 2, graph, ttl=60)
            await layer.push(scope, turn("ä €"), idempotency_key="job")
            assert (await layer.push(scope, turn(), idempotency_key="job")).duplicate
            receipt = await layer.push_many(scope, [turn("two"), turn("three")])
            assert receipt[1:] == (2, 1, False, False)
            assert [entry.content for entry in await layer.get_context(scope)] == ["two", "three"]
            assert [node.label for node in await graph.query_nodes(scope)] == ["ä €", "two", "three"]
            assert (await graph.get_node(scope, receipt.node_ids[0])).label == "two"
            assert await graph.count(scope) == 3
            await layer.clear(scope)
        # What the user sees of the client is as before.
        assert await client.set("swm-flavour", "x", ex=60)
        assert await client.get("swm-flavour") == ("x" if decode else b"x")


async def test_layer_and_graph_store_take_a_client_directly_and_share_a_script(valkey, scope, turn):
    # Under the default prefix: a database of its own keeps it apart.
    async with Redis.from_url(valkey.url.replace("/0", "/5")) as client:
        layer = WorkingLayer(client, graph_store=StreamGraphStore(client))
        assert layer.deployment is StreamGraphStore(client).deployment
        receipt = await layer.push(scope, turn())
        assert receipt.node_id is not None  # mirrored by the push itself, not after it
        await client.flushdb()


async def test_a_client_is_never_closed(valkey, prefix, scope, turn):
    async with Redis.from_url(valkey.url, max_connections=1) as client:
        before = await client.client_id()
        async with connect(client, prefix=prefix) as deployment:
            await WorkingLayer(deployment).push(scope, turn())
        assert await client.client_id() == before
        with pytest.raises(ConfigurationError, match="closed"):
            await WorkingLayer(deployment).push(scope, turn())


async def test_the_clients_own_retry_is_not_used(valkey, prefix, scope, turn):
    await load_scripts(valkey.url)
    async with (
        Proxy(valkey.port) as proxy,
        # Alone, it would send a lost push eleven times and store it as often.
        Redis.from_url(proxy.url, retry=Retry(ConstantBackoff(0.01), 10)) as client,
        connect(client, prefix=prefix) as deployment,
    ):
        graph = StreamGraphStore(deployment)
        layer = WorkingLayer(deployment, graph_store=graph)
        proxy.on(b"EVALSHA", "lose", times=3)
        receipt = await layer.push(scope, turn("once"))
        assert (receipt.window_length, receipt.duplicate) == (1, False)
        assert proxy.counted()["EVALSHA"] == 4
        ids = {request[-9] for request in proxy.requests if request[0] == b"EVALSHA"}
        assert len(ids) == 1
        assert [node.label for node in await graph.query_nodes(scope)] == ["once"]


@pytest.mark.parametrize("waits", [True, False])
async def test_the_clients_own_limit_of_connections_is_respected(valkey, prefix, scope, turn, waits):
    if waits:
        pool = BlockingConnectionPool.from_url(valkey.url, max_connections=2, timeout=None)
        client = Redis.from_pool(pool)
    else:
        # This one raises when it has none left: the call tries again.
        client = Redis.from_url(valkey.url, max_connections=2)
        pool = client.connection_pool
    async with client, connect(client, prefix=prefix, deadline=60) as deployment:
        layer = WorkingLayer(deployment, 30)
        await asyncio.gather(*(layer.push(scope, turn()) for _ in range(30)))
        assert len(await layer.get_context(scope)) == 30
        assert len(pool._available_connections) <= 2
        async with Redis.from_url(valkey.url) as admin:
            assert len(await admin.client_list(_type="normal")) <= 3


async def test_a_deployment_of_a_client_has_no_url_for_others(valkey):
    async with Redis.from_url(valkey.url) as client:
        with pytest.raises(ConfigurationError, match="no URL"):
            _ = connect(client).url


async def test_a_client_that_its_owner_drops_is_not_kept_alive(valkey, scope):
    client = Redis.from_url(valkey.url.replace("/0", "/5"))
    layer = WorkingLayer(client)
    await layer.get_context(scope)
    await client.flushdb()
    await client.aclose()
    seen = weakref.ref(client)
    del client, layer
    gc.collect()
    assert seen() is None
