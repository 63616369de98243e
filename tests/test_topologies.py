"""The same on every topology: one server, behind sentinels, a cluster, with TLS, as a user with few rights."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from seen import texts
from targets import ListTarget
from topologies import PASSWORD

from symfonic_redis import (
    ConfigurationError,
    MemoryEntry,
    MemoryLayer,
    MemoryNode,
    MemoryRecord,
    MemoryUnavailable,
    RedisEvictedSource,
    RedisMemoryLifecycle,
    RedisMemoryWriter,
    Relay,
    ScopeClosed,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    WriteRequest,
    connect,
    export,
    health,
    import_,
    latest_cursor,
    purge,
    purge_tenant,
    purge_tree,
    relay_status,
    reopen_tenant,
    scopes,
    totals,
    watch,
)
from symfonic_redis.keys import partition_of
from symfonic_redis.routing import slot_of

ORG = TenantScope.root("org", "acme")
MANY = [ORG.child("conversation", f"c{number}") for number in range(40)]


def said(scope, number) -> MemoryEntry:
    return MemoryEntry.turn(scope, speaker="user", turn_id=f"t{number}", content=f"turn {number}")


def mirrored(deployment, *values, **options) -> WorkingLayer:
    return WorkingLayer(deployment, *values, graph_store=StreamGraphStore(deployment), **options)


async def everywhere(layer: WorkingLayer, turns: int = 1) -> None:
    """Some turns in scopes that no single node of a cluster has."""
    await asyncio.gather(*(layer.push_many(scope, [said(scope, n) for n in range(turns)]) for scope in MANY))


def test_the_scopes_are_of_all_nodes():
    slots = [slot_of(("GET", f"{{{partition_of(scope.scope_path):04d}}}")) or 0 for scope in MANY]
    assert len({slot * 3 // 16384 for slot in slots}) == 3


async def test_turns_are_pushed_and_read_in_order(anywhere, scope, turn):
    layer = mirrored(anywhere, 3, evicted_retention=5, ttl=60)
    receipt = await layer.push(scope, turn())
    assert receipt[1:] == (1, 0, False, False)
    receipt = await layer.push_many(scope, [turn() for _ in range(4)])
    assert receipt[1:] == (3, 2, False, False)
    assert texts(await layer.get_context(scope)) == ["turn 3", "turn 4", "turn 5"]
    assert texts(await RedisEvictedSource(layer).evicted(scope)) == ["turn 1", "turn 2"]
    nodes = await StreamGraphStore(anywhere).query_nodes(scope, MemoryLayer.WORKING)
    assert [node.label for node in nodes] == [f"turn {n}" for n in range(1, 6)]
    assert [node.id for node in nodes][1:] == list(receipt.node_ids)
    await layer.clear(scope)
    assert await layer.get_context(scope) == []
    assert await StreamGraphStore(anywhere).query_nodes(scope) == []


async def test_a_job_that_is_delivered_again_is_stored_once(anywhere, scope, turn):
    layer = mirrored(anywhere)
    assert not (await layer.push(scope, turn(), idempotency_key="job")).duplicate
    assert (await layer.push(scope, turn(), idempotency_key="job")).duplicate
    assert texts(await layer.get_context(scope)) == ["turn 1"]


async def test_nodes_are_added_changed_and_deleted(anywhere, scope):
    graph = StreamGraphStore(anywhere)
    node = MemoryNode(layer=MemoryLayer.SEMANTIC, tenant_id=scope.tenant_id, label="fact")
    added = await graph.add_node(scope, node)
    changed = await graph.update_node(scope, added.id, {"label": "changed", "importance": 7})
    assert (changed.label, changed.importance) == ("changed", 7)
    assert (await graph.get_node(scope, added.id)).label == "changed"
    assert await graph.count(scope, MemoryLayer.SEMANTIC) == 1
    await graph.delete_node(scope, added.id)
    assert await graph.get_node(scope, added.id) is None


async def test_a_tenant_is_listed_counted_and_erased_on_every_node(anywhere):
    layer = mirrored(anywhere)
    await everywhere(layer, 2)
    page = await scopes(anywhere, "acme", limit=100)
    assert {entry.scope.scope_path for entry in page.entries} == {scope.scope_path for scope in MANY}
    found = await totals(anywhere, "acme")
    assert (found.scopes, found.turns, found.nodes["working"]) == (40, 80, 80)
    assert (await purge(anywhere, MANY[0])).scopes == 1
    assert (await purge_tree(anywhere, MANY[1])).scopes == 1
    assert (await purge_tenant(anywhere, "acme")).scopes == 38
    assert (await totals(anywhere, "acme")).scopes == 0
    for scope in MANY[:5]:
        with pytest.raises(ScopeClosed):
            await layer.push(scope, said(scope, 1))
    assert await reopen_tenant(anywhere, "acme")
    await layer.push(MANY[7], said(MANY[7], 1))


async def test_a_tenant_is_watched_on_every_node(anywhere):
    layer = WorkingLayer(anywhere)
    cursor = await latest_cursor(anywhere, "acme")
    await everywhere(layer, 3)
    seen: dict[str, list[str]] = {}
    async with asyncio.timeout(30):
        async for change in watch(anywhere, "acme", after=cursor, poll=0.02):
            assert change.kind == "push"
            seen.setdefault(change.scope.scope_path, []).append(change.entry.content)
            if sum(map(len, seen.values())) == 120:
                break
    assert seen == {scope.scope_path: ["turn 0", "turn 1", "turn 2"] for scope in MANY}


async def test_a_scope_is_watched_as_it_changes(anywhere, scope, turn):
    layer = WorkingLayer(anywhere)
    changes = watch(anywhere, scope, after=await latest_cursor(anywhere, scope))
    async with asyncio.timeout(30):
        waiting = asyncio.create_task(anext(changes))
        await asyncio.sleep(0.05)
        await layer.push(scope, turn())
        assert (await waiting).entry.content == "turn 1"
    await changes.aclose()


async def test_a_relay_copies_from_every_node(anywhere):
    await everywhere(mirrored(anywhere), 2)
    target = ListTarget()
    async with asyncio.timeout(60):
        assert await Relay(anywhere, target).drain() == 80
    assert Counter(path for path, _ in target.calls) == dict.fromkeys((scope.scope_path for scope in MANY), 2)
    status = await relay_status(anywhere)
    assert (status.lag, status.tenants[0].handled) == (0, 80)


async def test_staged_records_are_published_once(anywhere, scope):
    layer = mirrored(anywhere)
    records = [MemoryRecord(scope=scope, content=f"of {name}", layer=name) for name in ("working", "semantic")]
    await RedisMemoryWriter(layer).write(WriteRequest(scope, records))
    assert await layer.get_context(scope) == []
    assert len((await RedisMemoryLifecycle(layer).flush(scope)).committed) == 2
    assert len((await RedisMemoryLifecycle(layer).flush(scope)).committed) == 0
    assert texts(await layer.get_context(scope)) == ["of working"]


async def test_a_transcript_is_replayed_once(anywhere, scope):
    layer = WorkingLayer(anywhere)
    messages = [{"role": "user", "content": f"turn {number}"} for number in range(3)]
    assert sum(await asyncio.gather(*(layer.rehydrate_from_messages(scope, messages) for _ in range(4)))) == 3
    assert texts(await layer.get_context(scope)) == ["turn 0", "turn 1", "turn 2"]


async def test_a_scope_goes_into_an_archive_and_out_of_it(anywhere, scope, turn):
    layer = mirrored(anywhere)
    await layer.push_many(scope, [turn() for _ in range(5)])
    lines = [line async for line in export(anywhere, scope)]
    copy = ORG.child("conversation", "copy")
    assert await import_(anywhere, copy, lines) == (5, 5)
    assert texts(await layer.get_context(copy)) == texts(await layer.get_context(scope))


async def test_scripts_that_are_lost_meanwhile_cost_no_error(anywhere, topology):
    layer = mirrored(anywhere)
    for number in range(5):
        topology.flush_scripts()
        await asyncio.gather(*(layer.push(scope, said(scope, number)) for scope in MANY[:10]))
        topology.flush_scripts()
        assert (await totals(anywhere, "acme")).turns == 10 * (number + 1)
    topology.flush_scripts()
    assert (await purge_tenant(anywhere, "acme")).scopes == 10


async def test_a_script_that_one_server_alone_has_lost_is_sent_to_it_alone(anywhere, topology):
    await everywhere(mirrored(anywhere), 2)
    await purge_tenant(anywhere, "nobody")
    with topology.admin(topology.servers[0]) as admin:
        admin.script_flush()
    # Of many calls in one go: those that another node has run already are not run again.
    assert (await purge_tenant(anywhere, "acme"))[:2] == (40, 80)


async def test_three_hundred_calls_at_a_time_all_succeed(anywhere):
    layer = WorkingLayer(anywhere, 300)
    async with asyncio.timeout(60):
        receipts = await asyncio.gather(
            *(layer.push(MANY[number % 40], said(MANY[number % 40], number)) for number in range(300))
        )
    assert not any(receipt.duplicate for receipt in receipts)
    windows = await asyncio.gather(*(layer.get_context(MANY[number % 40]) for number in range(300)))
    assert Counter(texts(windows[0])) == Counter(f"turn {number}" for number in range(0, 300, 40))
    assert sum(map(len, windows[:40])) == 300


async def test_connections_that_were_closed_while_idle_cost_no_error(anywhere, topology):
    layer = WorkingLayer(anywhere)
    for number in range(1, 4):
        await asyncio.gather(*(layer.push(scope, said(scope, number)) for scope in MANY))
        topology.close_idle()
        windows = await asyncio.gather(*(layer.get_context(scope) for scope in MANY))
        assert [len(window) for window in windows] == [number] * 40
        topology.close_idle()


async def test_health_says_what_it_is(request, anywhere, topology):
    state = await health(anywhere)
    name = request.node.callspec.params["topology"]
    assert state.topology == (name if name in {"cluster", "sentinel"} else "standalone")
    assert (state.role, state.masters) == ("master", 3 if name == "cluster" else 1)
    assert state.fsync == ("unknown" if name == "acl" else "everysec")
    assert state.replicas == {"cluster": 3, "sentinel": 1}.get(name, 0)
    assert PASSWORD not in repr(state)


@pytest.mark.parametrize("name", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
@pytest.mark.parametrize("scheme", ["rediss://host", "rediss+cluster://host", "rediss+sentinel://host/name"])
def test_a_file_that_is_not_there_is_named_at_once(scheme, name):
    with pytest.raises(ConfigurationError, match=name):
        connect(f"{scheme}?{name}=/nowhere/file.pem")


@pytest.mark.parametrize("name", ["tls", "mtls"])
async def test_a_certificate_of_another_name_is_not_trusted(topologies, name):
    url = topologies(name).url.replace("//localhost", "//127.0.0.1")
    with pytest.raises(ConfigurationError, match="certificate"):
        async with connect(url, deadline=20):
            pass


async def test_a_client_without_a_certificate_is_let_in_nowhere(topologies, prefix):
    url, _, _ = topologies("mtls").url.partition("&ssl_certfile")
    with pytest.raises(MemoryUnavailable):
        async with connect(url, prefix=prefix, deadline=0.5):
            pass
