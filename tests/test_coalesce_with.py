"""Pushes that travel together, with everything else: long rows, each topology, layers of many kinds, telemetry."""

from __future__ import annotations

import asyncio
import random
from signal import SIGCONT, SIGSTOP
from typing import Any

from exported import exported
from opentelemetry.trace import StatusCode
from own_server import calls, own_server
from proxy import Proxy
from redis.asyncio import Redis
from seen import texts
from writes import load_scripts

from symfonic_redis import (
    KeyConflict,
    MemoryEntry,
    ScopeClosed,
    StandbyLayer,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    connect,
    purge,
)
from symfonic_redis.keys import scope_keys
from symfonic_redis.wire import LARGE

ORG = TenantScope.root("org", "acme")
A, B, C, D, E = MANY = [ORG.child("conversation", name) for name in "abcde"]

LATE = 60
"""Seconds by which a busy machine may be late."""


def said(content: str) -> MemoryEntry:
    return MemoryEntry(tenant_id="acme", content=content, metadata={"speaker": "user", "turn_id": content[:20]})


async def all_of(*coroutines: Any) -> list[Any]:
    async with asyncio.timeout(LATE):
        return await asyncio.gather(*coroutines, return_exceptions=True)


async def test_long_rows_and_short_ones_stay_in_their_order(redis):
    chance = random.Random(3)
    layer = WorkingLayer(redis, 200)
    sent: dict[TenantScope, list[str]] = {scope: [] for scope in MANY}
    for _ in range(4):
        pushes = []
        for number in range(60):
            scope = chance.choice(MANY)
            # Some are too long for the connection that is shared, some fill a batch, most are short.
            content = f"{number}:" + "x" * chance.choice((0, 0, 0, 0, 60_000, LARGE + 10))
            sent[scope].append(content)
            pushes.append(layer.push(scope, said(content)))
        receipts = await all_of(*pushes)
        assert not [receipt for receipt in receipts if isinstance(receipt, BaseException)]
    for scope in MANY:
        assert texts(await layer.get_context(scope)) == sent[scope][-200:]


async def test_on_each_topology_pushes_at_once_keep_their_order(anywhere):
    layer = WorkingLayer(anywhere, 100, StreamGraphStore(anywhere))
    for round_ in range(2):
        receipts = await all_of(*(layer.push(scope, said(f"{round_}.{n}")) for n in range(20) for scope in MANY))
        assert [receipt.window_length for receipt in receipts] == [round_ * 20 + n + 1 for n in range(20) for _ in MANY]
    for scope in MANY:
        assert texts(await layer.get_context(scope)) == [f"{round_}.{n}" for round_ in range(2) for n in range(20)]
    (owned, *_) = [receipt.node_id for receipt in receipts]
    assert (await StreamGraphStore(anywhere).get_node(A, owned)).label == "1.0"


async def test_over_a_unix_socket(tmp_path, prefix):
    path = tmp_path / "s"
    with own_server("--unixsocket", str(path)):
        async with connect(f"unix://{path}", prefix=prefix) as deployment:
            layer = WorkingLayer(deployment, 100)
            await all_of(*(layer.push(A, said(str(number))) for number in range(50)))
            assert texts(await layer.get_context(A)) == [str(number) for number in range(50)]
            assert deployment._wire._channel.usable


async def test_a_clients_own_connections_are_not_kept(valkey, prefix):
    await load_scripts(valkey.url)
    async with Proxy(valkey.port) as proxy, Redis.from_url(proxy.url, max_connections=3) as client:
        deployment = connect(client, prefix=prefix)
        layer = WorkingLayer(deployment, 100)
        await all_of(*(layer.push(A, said(str(number))) for number in range(50)))
        assert texts(await layer.get_context(A)) == [str(number) for number in range(50)]
        assert deployment._wire._channel is None
        assert not client.connection_pool._in_use_connections
        # Pushes still travel together.
        assert proxy.counted()["EVALSHA"] == 3
        await deployment.aclose()
        assert await client.ping()


async def test_a_layer_for_each_request_shares_the_connection(server, prefix):
    await load_scripts(server.url)
    async with connect(server.url, prefix=prefix) as deployment:

        async def request(number: int) -> None:
            layer = WorkingLayer(deployment, 1000)
            for part in range(3):
                await layer.push(A, said(f"{number}.{part}"))

        assert set(await all_of(*map(request, range(100)))) == {None}
        stored = texts(await WorkingLayer(deployment, 1000).get_context(A))
        assert len(stored) == len(set(stored)) == 300
        for number in range(100):
            assert [one for one in stored if one.startswith(f"{number}.")] == [f"{number}.{part}" for part in range(3)]


async def test_one_process_may_have_one_loop_after_the_other(valkey, prefix):
    async def program(name: str) -> list[str]:
        async with connect(valkey.url, prefix=prefix) as deployment:
            layer = WorkingLayer(deployment, 100)
            await all_of(*(layer.push(A, said(f"{name}{number}")) for number in range(20)))
            return texts(await layer.get_context(A))

    await asyncio.to_thread(asyncio.run, program("first "))
    window = await asyncio.to_thread(asyncio.run, program("second "))
    assert window == [f"{name} {number}" for name in ("first", "second") for number in range(20)]


# --- what stands on top, or beside ---------------------------------------------------------------


async def test_on_standby_what_was_pushed_at_once_is_stored_once_and_in_order(prefix):
    with own_server() as server:
        async with connect(server.url, prefix=prefix, deadline=1, attempt_timeout=0.3) as deployment:
            layer = StandbyLayer(deployment, 100)
            await all_of(*(layer.push(A, said(f"before {number}")) for number in range(10)))
            await layer.get_context(A)
            server.signal(SIGSTOP)
            receipts = await all_of(*(layer.push(A, said(f"away {number}")) for number in range(20)))
            assert all(receipt.queued for receipt in receipts)
            assert texts(await layer.get_context(A))[10:] == [f"away {number}" for number in range(20)]
            server.signal(SIGCONT)
            async with asyncio.timeout(LATE):
                while layer.queued or layer.away:  # noqa: ASYNC110 - it has no event to wait for
                    await asyncio.sleep(0.05)
            await all_of(*(layer.push(A, said(f"after {number}")) for number in range(10)))
            assert texts(await layer.get_context(A)) == [
                *(f"before {number}" for number in range(10)),
                *(f"away {number}" for number in range(20)),
                *(f"after {number}" for number in range(10)),
            ]
            await layer.aclose(0)


class Graph:
    """A graph store of somebody else's."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []

    async def add_node(self, scope: Any, node: Any) -> Any:
        await asyncio.sleep(0)
        self.nodes.append((scope.scope_path, node.label))
        return node

    async def query_nodes(self, scope: Any, layer: Any = None) -> list[Any]:
        return []

    async def delete_node(self, scope: Any, node_id: str) -> None:
        return None


async def test_a_graph_store_of_somebody_elses_gets_each_turn_once(redis):
    graph = Graph()
    layer = WorkingLayer(redis, 100, graph)
    receipts = await all_of(
        *(
            layer.push(scope, said(f"{n}"), idempotency_key="job" if n > 17 else None)
            for n in range(20)
            for scope in MANY
        )
    )
    assert sorted(graph.nodes) == sorted((scope.scope_path, f"{n}") for n in range(19) for scope in MANY)
    assert [len(receipt.node_ids) for receipt in receipts] == [1] * 95 + [0] * 5
    assert len({name for receipt in receipts for name in receipt.node_ids}) == 95


async def test_each_push_is_a_span_of_its_own_with_its_own_error(valkey, prefix):
    with exported() as seen:
        async with connect(valkey.url, prefix=prefix) as deployment:
            layer = WorkingLayer(deployment, 3)
            await layer.push(E, said("first"))
            await deployment.call("test", "SET", scope_keys(prefix, B).turns, "of somebody else")
            await purge(deployment, C, closed_for=600)
            before = len([span for span in seen.spans() if span.name == "push"])
            results = await all_of(*(layer.push(scope, said("x")) for scope in (E, A, A, B, C, D, A, A)))
            assert [type(result) for result in results if isinstance(result, BaseException)] == [
                *(KeyConflict, ScopeClosed),
            ]
            spans = [span for span in seen.spans() if span.name == "push"][before:]
            assert len(spans) == 8
            errors = [span.attributes.get("error.type") for span in spans]
            assert sorted(filter(None, errors)) == ["KeyConflict", "ScopeClosed"]
            assert [span.status.status_code is StatusCode.ERROR for span in spans] == [bool(error) for error in errors]
            pushed = [point.value for point in seen.points("symfonic.turns.pushed")]
            evicted = [point.value for point in seen.points("symfonic.turns.evicted")]
            assert (sum(pushed), sum(evicted)) == (7, 1)


async def test_a_span_lasts_as_long_as_its_caller_waited(valkey, prefix):
    await load_scripts(valkey.url)
    with exported() as seen:
        async with Proxy(valkey.port) as proxy, connect(proxy.url, prefix=prefix, attempt_timeout=60) as deployment:
            layer = WorkingLayer(deployment)
            held = proxy.on(b"EVALSHA", "hold")
            tasks = [asyncio.create_task(layer.push(A, said(str(number)))) for number in range(5)]
            await held.reached.wait()
            await asyncio.sleep(0.2)
            held.release()
            await all_of(*tasks)
            spans = [span for span in seen.spans() if span.name == "push"]
            assert len(spans) == 5
            assert all(span.end_time - span.start_time >= 0.19e9 for span in spans)


async def test_the_server_runs_as_many_scripts_as_there_are_scopes(valkey, prefix):
    await load_scripts(valkey.url)
    async with connect(valkey.url, prefix=prefix) as deployment, Redis.from_url(valkey.url) as admin:
        layer = WorkingLayer(deployment, 1000)
        before = await calls(admin, "evalsha")
        await all_of(*(layer.push(scope, said(f"{n}")) for n in range(50) for scope in MANY))
        # The first alone, then of each scope two: fifty are more than go at once.
        assert await calls(admin, "evalsha") - before == 11
