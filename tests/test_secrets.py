"""What was said, and to whom, stays out of everything that leaves the process: spans, metrics and logs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
from exported import Seen, exported
from proxy import Proxy
from redis.asyncio import Redis

from symfonic_redis import (
    KeyConflict,
    MemoryEntry,
    MemoryLayer,
    MemoryNode,
    MemoryUnavailable,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    connect,
)
from symfonic_redis.keys import scope_keys

SECRET = "quetzal"


@pytest.fixture
def seen() -> Iterator[Seen]:
    with exported() as seen:
        yield seen


def _loud(tag: str) -> TenantScope:
    return TenantScope.root("org", f"{SECRET}{tag}").child("conversation", f"{SECRET}{tag}-c")


def _secret_turn(scope: TenantScope) -> MemoryEntry:
    return MemoryEntry(
        id=f"{SECRET}-id",
        tenant_id=scope.tenant_id,
        content=f"{SECRET} content",
        node_id=f"{SECRET}-node",
        metadata={"speaker": SECRET, "turn_id": SECRET, SECRET: {SECRET: [SECRET]}},
    )


def _logged(caplog) -> str:
    """Every record, of every logger, as a handler would print it and with all that it carries."""
    said = logging.Formatter()
    return "\n".join(said.format(record) + json.dumps(vars(record), default=repr) for record in caplog.records)


async def test_nothing_that_was_said_is_ever_exported_or_logged(seen, valkey, prefix, caplog):
    caplog.set_level(logging.DEBUG)
    scope, damaged = _loud("1"), _loud("2")
    async with Redis.from_url(valkey.url) as admin:
        await admin.execute_command("ACL", "SETUSER", prefix, "on", f">{SECRET}", "~*", "+@all")
        async with Proxy(valkey.port) as proxy:
            url = proxy.url.replace("//", f"//{prefix}:{SECRET}@")
            async with connect(url, prefix=prefix, deadline=10) as deployment:
                graph = StreamGraphStore(deployment)
                layer = WorkingLayer(deployment, 2, graph, working_graph_retention=2)
                for _ in range(3):
                    proxy.on(b"EVALSHA", "lose")
                    receipt = await layer.push(scope, _secret_turn(scope), idempotency_key=SECRET)
                    await layer.push(scope, _secret_turn(scope))
                await graph.get_node(scope, receipt.node_id or SECRET)
                node = MemoryNode(layer=MemoryLayer.SEMANTIC, tenant_id=scope.tenant_id, label=SECRET)
                await graph.add_node(scope, node)
                await graph.query_nodes(scope, filters={SECRET: SECRET})
                with pytest.raises(ValueError, match="durability"):
                    await layer.push(scope, _secret_turn(scope), durability=SECRET)
                await layer.clear(scope)
                await admin.set(scope_keys(prefix, damaged).turns, SECRET)
                with pytest.raises(KeyConflict):
                    await layer.push(damaged, _secret_turn(damaged))
                proxy.refuse()
                deployment.deadline = 0.2
                with pytest.raises(MemoryUnavailable):
                    await layer.push(scope, _secret_turn(scope))
        await admin.execute_command("ACL", "DELUSER", prefix)
    assert {span.name for span in seen.spans()} >= {"push", "clear", "node_add", "query_nodes"}
    assert seen.total("symfonic.retries") >= 3
    assert SECRET not in seen.everything()
    assert prefix not in seen.everything()
    assert SECRET not in _logged(caplog)


class FailingStore:
    """A graph store of somebody else's, whose errors quote what they were given."""

    async def add_node(self, scope, node):
        raise ValueError(f"cannot store {node}")

    async def query_nodes(self, scope, **_):
        raise ValueError(f"cannot look in {scope}")

    async def delete_node(self, scope, node_id):
        raise ValueError(f"cannot delete {node_id}")


async def test_the_failure_of_another_graph_store_is_logged_without_what_it_quotes(one_redis, caplog):
    caplog.set_level(logging.DEBUG)
    scope = _loud("3")
    layer = WorkingLayer(one_redis, graph_store=FailingStore(), working_graph_retention=1)
    await layer.push(scope, _secret_turn(scope))
    await layer.delete(scope, SECRET)
    await layer.clear(scope)
    assert len([record for record in caplog.records if record.name == "symfonic_redis.foreign"]) == 4
    assert "ValueError" in _logged(caplog)
    assert SECRET not in _logged(caplog)


async def test_a_damaged_row_is_logged_by_its_place_and_never_by_what_it_holds(one_redis, valkey, scope, caplog):
    caplog.set_level(logging.DEBUG)
    key = scope_keys(one_redis.prefix, scope).turns
    async with Redis.from_url(valkey.url) as admin:
        await admin.rpush(key, b"\x01" + SECRET.encode(), SECRET, b"\x01\x91" + bytes([0xA7]) + SECRET.encode())
    layer = WorkingLayer(one_redis)
    assert await layer.get_context(scope) == []
    assert await layer.get_context(scope) == []
    (record,) = [record for record in caplog.records if record.name.startswith("symfonic_redis")]
    assert key in record.getMessage()
    assert SECRET not in logging.Formatter().format(record)
