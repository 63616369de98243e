"""Spans and metrics: what they say about each call."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from exported import Seen, exported
from opentelemetry import context, trace
from opentelemetry.trace import SpanKind, StatusCode
from proxy import Proxy
from redis.asyncio import Redis
from servers import free_port
from writes import load_scripts

from symfonic_redis import (
    KeyConflict,
    MemoryLayer,
    MemoryNode,
    MemoryUnavailable,
    StreamGraphStore,
    WorkingLayer,
    connect,
    telemetry,
)
from symfonic_redis.keys import scope_keys

# Sets the providers as an application does, once for its process; prints the names of what was exported.
APPLICATION = """
import asyncio, sys
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from symfonic_redis import WorkingLayer, TenantScope, connect

async def main():
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([reader]))
    async with connect(sys.argv[1], prefix=sys.argv[2]) as redis:
        await WorkingLayer(redis).get_context(TenantScope.root("org", "acme"))
    print([span.name for span in spans.get_finished_spans()], "db.client.operation.duration" in str(
        reader.get_metrics_data().to_json()))

asyncio.run(main())
"""


@pytest.fixture
def seen() -> Iterator[Seen]:
    with exported() as seen:
        yield seen


async def test_every_call_is_a_client_span_that_says_where_it_went(seen, valkey, prefix, scope, turn):
    async with connect(f"{valkey.url[:-2]}/3", prefix=prefix) as deployment:
        graph = StreamGraphStore(deployment)
        layer = WorkingLayer(deployment, graph_store=graph)
        receipt = await layer.push(scope, turn())
        await layer.push_many(scope, [turn(), turn()])
        await layer.get_context(scope)
        await layer.clear(scope)
        await layer.rehydrate_from_messages(scope, [{"role": "user", "content": "x"}])
        await graph.add_node(scope, MemoryNode(layer=MemoryLayer.SEMANTIC, tenant_id="acme", label="fact"))
        await graph.get_node(scope, receipt.node_id)
        await graph.query_nodes(scope, "working")
        await graph.delete_node(scope, receipt.node_id)
        await graph.count(scope)
    names = [span.name for span in seen.spans()]
    assert names == [
        *("push", "push", "get_context", "clear", "rehydrate"),
        *("node_add", "get_node", "query_nodes", "node_delete", "count"),
    ]
    for span in seen.spans():
        assert span.kind is SpanKind.CLIENT
        assert span.status.status_code is StatusCode.UNSET
        assert dict(span.attributes) == {
            "db.system.name": "redis",
            "db.operation.name": span.name,
            "db.namespace": "3",
            "server.address": "127.0.0.1",
            "server.port": valkey.port,
        }
        assert seen.count("db.client.operation.duration", db_operation_name=span.name) == names.count(span.name)


async def test_a_unix_socket_has_an_address_and_no_port(seen, scope):
    async with connect("embedded://") as deployment:
        await WorkingLayer(deployment).get_context(scope)
        path = deployment.url.removeprefix("unix://")
    (span,) = seen.spans()
    assert span.attributes["server.address"] == path
    assert "server.port" not in span.attributes


async def test_a_span_is_the_child_of_the_callers(seen, one_redis, scope):
    with seen.traces.get_tracer("app").start_as_current_span("request") as request:
        await WorkingLayer(one_redis).get_context(scope)
        assert trace.get_current_span() is request
    (span,) = seen.spans("get_context")
    assert span.parent.span_id == request.get_span_context().span_id
    assert span.context.trace_id == request.get_span_context().trace_id


async def test_a_failed_call_is_an_error_by_its_type(seen, valkey, one_redis, scope, turn):
    down = WorkingLayer(connect(f"redis://127.0.0.1:{free_port()}", deadline=0.2))
    with pytest.raises(MemoryUnavailable):
        await down.get_context(scope)
    async with Redis.from_url(valkey.url) as admin:
        await admin.set(scope_keys(one_redis.prefix, scope).turns, "not a list")
    with pytest.raises(KeyConflict):
        await WorkingLayer(one_redis).push(scope, turn())
    for name, kind in (("get_context", "MemoryUnavailable"), ("push", "KeyConflict")):
        (span,) = seen.spans(name)
        assert span.attributes["error.type"] == kind
        assert span.status.status_code is StatusCode.ERROR
        assert span.events == ()
        assert not span.status.description
        assert seen.count("db.client.operation.duration", db_operation_name=name, error_type=kind) == 1
    # The attributes of the deployment are shared by its calls: one that failed leaves nothing in them.
    await WorkingLayer(one_redis).clear(scope.child("thread", "another"))
    assert "error.type" not in seen.spans("clear")[0].attributes


async def test_a_cancelled_call_ends_its_span(seen, valkey, prefix, scope):
    async with Proxy(valkey.port) as proxy, connect(proxy.url, prefix=prefix) as deployment:
        held = proxy.on(b"LRANGE", "hold")
        call = asyncio.create_task(WorkingLayer(deployment).get_context(scope))
        await held.reached.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        held.release()
    assert seen.spans("get_context")[0].attributes["error.type"] == "CancelledError"


async def test_the_instruments_count_turns_evictions_duplicates_and_lengths(seen, one_redis, scope, turn):
    layer = WorkingLayer(one_redis, 3, StreamGraphStore(one_redis), working_graph_retention=4)
    await layer.push(scope, turn(), idempotency_key="job")
    await layer.push_many(scope, [turn(), turn(), turn()])
    await layer.push(scope, turn(), idempotency_key="job")
    await layer.push(scope, turn())
    assert seen.total("symfonic.turns.pushed") == 5
    assert seen.total("symfonic.turns.evicted") == 2
    assert seen.total("symfonic.duplicates") == 1
    assert seen.total("symfonic.retries") == 0
    assert (seen.count("symfonic.window.length"), seen.total("symfonic.window.length")) == (3, 1 + 3 + 3)
    assert (seen.count("symfonic.mirror.length"), seen.total("symfonic.mirror.length")) == (3, 1 + 4 + 4)
    (point,) = seen.points("symfonic.turns.pushed")
    assert dict(point.attributes) == one_redis.attributes


async def test_a_retried_push_counts_its_turn_once_and_its_retries(seen, valkey, prefix, scope, turn):
    await load_scripts(valkey.url)
    async with Proxy(valkey.port) as proxy, connect(proxy.url, prefix=prefix) as deployment:
        layer = WorkingLayer(deployment, 1)
        await layer.push(scope, turn())
        proxy.on(b"EVALSHA", "drop")
        proxy.on(b"EVALSHA", "lose", nth=1, times=2)
        await layer.push(scope, turn())
    assert seen.total("symfonic.retries", db_operation_name="push") == 3
    # Its reply was lost, the turn was not: it is stored, nobody else stored it, and it pushed one out.
    assert seen.total("symfonic.turns.pushed") == 2
    assert seen.total("symfonic.turns.evicted") == 1
    assert seen.total("symfonic.duplicates") == 0


async def test_the_duration_holds_the_retries(seen, valkey, prefix, scope):
    async with Proxy(valkey.port) as proxy, connect(proxy.url, prefix=prefix) as deployment:
        proxy.on(b"LRANGE", "delay", seconds=0.3)
        await WorkingLayer(deployment).get_context(scope)
        proxy.on(b"LRANGE", "drop", times=5)
        await WorkingLayer(deployment).get_context(scope)
    first, _ = seen.spans("get_context")
    assert seen.total("symfonic.retries", db_operation_name="get_context") == 5
    assert first.end_time - first.start_time >= 300_000_000
    # One call, one span and one duration, however many attempts.
    assert seen.count("db.client.operation.duration", db_operation_name="get_context") == 2
    assert seen.total("db.client.operation.duration", db_operation_name="get_context") >= 0.3


async def test_damaged_rows_are_counted(seen, valkey, one_redis, scope, turn):
    layer = WorkingLayer(one_redis)
    await layer.push(scope, turn())
    async with Redis.from_url(valkey.url) as admin:
        await admin.lpush(scope_keys(one_redis.prefix, scope).turns, b"\x01damaged", b"\x7funknown")
    assert len(await layer.get_context(scope)) == 1
    assert seen.total("symfonic.rows.damaged") == 2


async def test_without_an_sdk_nothing_records_and_no_context_is_attached(one_redis, scope, turn, monkeypatch):
    attached = []
    monkeypatch.setattr(context, "attach", lambda *given: attached.append(given))
    monkeypatch.setattr(trace, "use_span", lambda *given, **_: attached.append(given))
    with telemetry.Operation("look", one_redis.attributes) as operation:
        assert not operation._span.is_recording()
    layer = WorkingLayer(one_redis, graph_store=StreamGraphStore(one_redis))
    await layer.push(scope, turn())
    assert len(await layer.get_context(scope)) == 1
    assert attached == []


def test_an_application_sets_the_providers_as_usual(valkey, prefix):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    run = subprocess.run(
        [sys.executable, "-c", APPLICATION, valkey.url, prefix],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stdout == "['get_context'] True\n"
