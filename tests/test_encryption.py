"""Encryption at rest on real servers: what a server and its files never see, and what is read under which keys."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from keyspace import keys_of
from own_server import own_server, until
from proxy import Proxy
from seen import texts
from targets import ListTarget
from test_scripts import REPEATABLE, RUNNABLE
from writes import SCRIPT, WRITES, Worker, begin, load_scripts, turn_of

from symfonic_redis import (
    CodecError,
    Deployment,
    InvalidInput,
    Keyring,
    KeyringMismatch,
    MemoryEntry,
    MemoryLayer,
    MemoryNode,
    MemoryRecord,
    RedisEvictedSource,
    RedisMemoryLifecycle,
    RedisMemoryWriter,
    Relay,
    SharedSummaryCache,
    STMSummaryRequest,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    WorkingMemorySummaryService,
    WriteRequest,
    connect,
    export,
    import_,
    purge,
    purge_tenant,
    reopen,
    telemetry,
    watch,
)
from symfonic_redis.keys import scope_keys

NEW, OLD = b"n" * 32, b"o" * 32
RING = Keyring({"2026-11": NEW}, current="2026-11")
BEFORE = Keyring({"2026-05": OLD}, current="2026-05")
BOTH = Keyring({"2026-11": NEW, "2026-05": OLD}, current="2026-11")
BEHIND = Keyring({"2026-11": NEW, "2026-05": OLD}, current="2026-05")
FACTS = MemoryLayer.SEMANTIC


@pytest.fixture
def deployed(valkey, prefix):
    """Deployments of one prefix, each with its own keys."""
    return lambda ring, **options: connect(valkey.url, prefix=prefix, encryption=ring, **options)


def marked(scope: TenantScope) -> MemoryEntry:
    """A turn whose node shows what its row cannot give back: its mirror has an extra."""
    metadata = {"speaker": "user", "turn_id": "m", "kind": FACTS}
    return MemoryEntry(tenant_id=scope.tenant_id, content="marked", metadata=metadata)


def fact(scope: TenantScope, label: str, **properties: object) -> MemoryNode:
    return MemoryNode(layer=FACTS, tenant_id=scope.tenant_id, label=label, properties=properties)


# --- what the server sees ---

SECRET = "quetzal"
SCOPE = TenantScope.root("org", "acme").child("conversation", "c-1")
ELSEWHERE = TenantScope.root("org", "other").child("conversation", "c-2")

# They erase, close and reopen, and are given no content; they go out in batches.
BARREN = {"close", "drop", "purge", "reopen"}


async def _values(redis: Deployment, key: str) -> Any:
    """All that a key holds, by its type."""
    commands: dict[bytes, tuple[str | int, ...]] = {
        b"string": ("GET", key),
        b"list": ("LRANGE", key, 0, -1),
        b"hash": ("HGETALL", key),
        b"set": ("SMEMBERS", key),
        b"zset": ("ZRANGE", key, 0, -1, "WITHSCORES"),
        b"stream": ("XRANGE", key, "-", "+"),
    }
    return await redis.call("test", *commands[await redis.call("test", "TYPE", key)])


def _flat(value: Any) -> bytes:
    if isinstance(value, list):
        return b"\n".join(map(_flat, value))
    if isinstance(value, dict):
        return b"\n".join(_flat(part) for pair in value.items() for part in pair)
    return value if isinstance(value, bytes) else str(value).encode()


class _Server:
    """Looks, between the writes, at all that the server holds; in the end at its files."""

    def __init__(self, redis: Deployment) -> None:
        self._redis = redis
        self.seen = b""
        self.kinds: set[str] = set()

    async def look(self) -> None:
        for key in await keys_of(self._redis):
            self.kinds.add(key.rpartition(":")[2])
            self.seen += key.encode() + b"\n" + _flat(await _values(self._redis, key)) + b"\n"
        self.seen += _flat(await self._redis.call("test", "SLOWLOG", "GET", -1))


def _turn(scope: TenantScope, number: int = 0) -> MemoryEntry:
    return MemoryEntry(
        id=f"{SECRET}-id-{number}",
        tenant_id=scope.tenant_id,
        content=f"{SECRET} content. {SECRET} again.",
        node_id=f"{SECRET}-node",
        # The bytes and the Enum make the mirror keep an extra.
        metadata={"speaker": SECRET, "turn_id": SECRET, SECRET: {SECRET: [SECRET]}, "kind": FACTS, "more": b"\0"},
    )


class _Model:
    def get_chat_model(self, config):
        return self

    async def ainvoke(self, prompt):
        assert SECRET in str(prompt)
        return f"{SECRET} summary"


class _Failing:
    async def add_node(self, scope, node):
        raise ValueError(SECRET)


async def _write_everything(redis: Deployment) -> _Server:
    """Every write of the public API, with the secret wherever a caller may put one, and a look after each."""
    server = _Server(redis)
    graph = StreamGraphStore(redis)
    layer = WorkingLayer(redis, 2, graph)
    for number in range(4):
        await layer.push(SCOPE, _turn(SCOPE, number), durability="durable", idempotency_key=f"{SECRET} {number}")
    await layer.push_many(SCOPE, [_turn(SCOPE, 5), _turn(SCOPE, 6)])
    await layer.write(SCOPE, _turn(SCOPE, 7))
    node = await graph.add_node(SCOPE, fact(SCOPE, f"{SECRET} label", **{SECRET: SECRET}))
    changes = {"label": f"{SECRET} changed", "properties": {f"{SECRET}2": SECRET}, f"{SECRET}3": [SECRET]}
    for _ in range(2):
        changed = await graph.update_node(SCOPE, node.id, changes)
    assert (changed.label, changed.properties) == (
        f"{SECRET} changed",
        {SECRET: SECRET, f"{SECRET}2": SECRET, f"{SECRET}3": [SECRET]},
    )
    assert [one.id for one in await graph.query_nodes(SCOPE, label_prefix=SECRET, filters={SECRET: SECRET})] == [
        node.id
    ]
    await server.look()
    service = WorkingMemorySummaryService(
        RedisEvictedSource(layer), mode="llm", model_provider=_Model(), cache=SharedSummaryCache(redis, name=SECRET)
    )
    assert SECRET in (await service.summarize(STMSummaryRequest(SCOPE))).text
    await server.look()
    archive = [line async for line in export(redis, SCOPE)]
    writer, lifecycle = RedisMemoryWriter(layer), RedisMemoryLifecycle(layer)
    records = (
        MemoryRecord.turn(SCOPE, speaker=SECRET, turn_id=SECRET, content=SECRET, id=f"{SECRET}-turn"),
        MemoryRecord(scope=SCOPE, content=SECRET, layer="profile", metadata={SECRET: SECRET}, id=f"{SECRET}-fact"),
    )
    await writer.write(WriteRequest(SCOPE, records, f"{SECRET} job"))
    await server.look()
    assert await writer.staged(SCOPE) == records
    assert (await lifecycle.flush(SCOPE)).committed == tuple(record.id for record in records)
    await server.look()
    relay = Relay(redis, _Failing(), attempts=2, first_pause=0.01)
    for _ in range(3):
        await relay.drain()
        await asyncio.sleep(0.05)
    await server.look()
    await graph.delete_node(SCOPE, node.id)
    await layer.clear(SCOPE)
    messages = [SimpleNamespace(type="human", content=SECRET, id=SECRET), {"role": "assistant", "content": SECRET}]
    assert await layer.rehydrate_from_messages(SCOPE, messages) == 2
    await server.look()
    await import_(redis, ELSEWHERE, archive)
    await server.look()
    assert len(await layer.get_context(ELSEWHERE)) == 2
    await purge(redis, SCOPE)
    await reopen(redis, SCOPE)
    await purge_tenant(redis, "other")
    await server.look()
    return server


def _files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def _seen_with(ring: Keyring | None, monkeypatch, tmp_path: Path) -> tuple[bytes, bytes]:
    """All that a server, and its append-only file, held while everything was written."""
    ran: set[str] = set()
    run_each = Deployment.run_each

    def noted(self, name, script, *more, **options):
        ran.add(script.name)
        return run_each(self, name, script, *more, **options)

    monkeypatch.setattr(Deployment, "run_each", noted)
    arguments = ("--appendonly", "yes", "--appendfsync", "always", "--slowlog-log-slower-than", "0")
    with own_server(*arguments, "--slowlog-max-len", "10000", directory=str(tmp_path)) as server:
        async with connect(server.url, feed=1000, encryption=ring) as redis:
            seen = await _write_everything(redis)
        files = _files(tmp_path)
    # Whatever write comes new has to be among these.
    assert set(RUNNABLE) - REPEATABLE <= ran | BARREN, "a write was not tried"
    assert {"turns", "working", "edits", "staged", "summary", "feed", "dead", "ops"} <= seen.kinds
    return seen.seen, files


def _forms(secret: str) -> list[bytes]:
    """A text as it is, and as it would stand within base64, at each of three offsets."""
    plain = secret.encode()
    shifted = [base64.b64encode(b"\0" * shift + plain)[4 if shift else 0 : -4] for shift in range(3)]
    return [plain, plain.hex().encode(), *shifted]


async def test_neither_the_server_nor_its_file_ever_holds_what_was_written(monkeypatch, tmp_path):
    for seen in await _seen_with(RING, monkeypatch, tmp_path):
        assert b"2026-11" in seen
        for form in _forms(SECRET):
            assert form not in seen, form


async def test_without_a_ring_the_same_look_finds_it(monkeypatch, tmp_path):
    for seen in await _seen_with(None, monkeypatch, tmp_path):
        assert seen.count(SECRET.encode()) > 100


# --- a row opens in its own place only ---


async def test_a_row_that_was_copied_to_another_place_does_not_open(deployed, scope, turn, caplog):
    other = scope.child("part", "a")
    stranger = TenantScope.root("org", "stranger").child("conversation", "c-123")
    async with deployed(RING) as redis:
        graph = StreamGraphStore(redis)
        layer = WorkingLayer(redis, graph_store=graph)
        await layer.push(scope, turn())
        await graph.add_node(scope, fact(scope, "fact"))
        keys = scope_keys(redis.prefix, scope)
        (row,) = await redis.call("test", "LRANGE", keys.turns, 0, -1)
        ((_, (_, mirrored)),) = await redis.call("test", "XRANGE", keys.graph("working"), "-", "+")
        ((_, (_, node)),) = await redis.call("test", "XRANGE", keys.graph("semantic"), "-", "+")
        assert mirrored == row
        for target in (other, stranger):
            theirs = scope_keys(redis.prefix, target)
            await redis.call("test", "RPUSH", theirs.turns, row)
            await redis.call("test", "XADD", theirs.graph("working"), "*", "r", row)
            await redis.call("test", "XADD", theirs.graph("semantic"), "*", "n", node)
            assert await layer.get_context(target) == []
            assert await graph.query_nodes(target) == []
        for name, value in (("r", row), ("n", node)):
            await redis.call("test", "XADD", keys.graph("episodic"), "*", name, value)
        for name, value in (("r", node), ("n", row), ("n", node)):
            await redis.call("test", "XADD", keys.graph("working"), "*", name, value)
        await redis.call("test", "RPUSH", keys.turns, node)
        assert texts(await layer.get_context(scope)) == ["turn 1"]
        # In one millisecond, either may come first.
        assert sorted(found.label for found in await graph.query_nodes(scope)) == ["fact", "turn 1"]
        with pytest.raises(CodecError, match="from another place"):
            await WorkingLayer(redis, strict=True).get_context(other)
    assert all("turn 1" not in record.getMessage() for record in caplog.records)


async def test_a_change_that_was_copied_to_another_node_or_name_does_not_open(deployed, scope):
    async with deployed(RING) as redis:
        graph = StreamGraphStore(redis)
        first = await graph.add_node(scope, fact(scope, "first"))
        second = await graph.add_node(scope, fact(scope, "second"))
        for one in (first, second):
            await graph.update_node(scope, one.id, {"label": f"{one.label} changed", "grade": one.label})
        key = scope_keys(redis.prefix, scope).edits("semantic")
        at, other = (one.id.partition(".")[0] for one in (first, second))
        names = (await redis.call("test", "HGET", key, at)).decode().split()
        others = (await redis.call("test", "HGET", key, other)).decode().split()
        assert not set(names) & set(others)
        value = await redis.call("test", "HGET", key, f"{at} {names[0]}")
        await redis.call("test", "HSET", key, f"{other} {others[0]}", value)
        assert await graph.get_node(scope, second.id) is None
        await redis.call("test", "HSET", key, f"{at} {names[1]}", value)
        assert await graph.get_node(scope, first.id) is None


async def test_a_plain_change_of_a_sealed_node_is_refused(deployed, scope):
    async with deployed(RING) as redis, deployed(None) as plain:
        graph = StreamGraphStore(redis)
        node = await graph.add_node(scope, fact(scope, "fact"))
        with pytest.raises(KeyringMismatch):  # written, and not read back: it has no keys
            await StreamGraphStore(plain).update_node(scope, node.id, {"grade": 1})
        assert await graph.get_node(scope, node.id) is None
        with pytest.raises(KeyringMismatch, match="accept_plain"):
            await StreamGraphStore(redis, strict=True).get_node(scope, node.id)


# --- keys ---


async def test_rows_of_every_key_of_the_ring_are_read_and_new_ones_take_the_current_one(deployed, scope, turn):
    async with deployed(BEFORE) as redis:
        graph = StreamGraphStore(redis)
        await WorkingLayer(redis, graph_store=graph).push(scope, turn())
        node = await graph.add_node(scope, fact(scope, "fact", grade=1))
        await graph.update_node(scope, node.id, {"grade": 2, "label": "old"})
    async with deployed(BOTH) as redis:
        graph = StreamGraphStore(redis)
        layer = WorkingLayer(redis, graph_store=graph, strict=True)
        await layer.push(scope, turn())
        rows = await redis.call("test", "LRANGE", scope_keys(redis.prefix, scope).turns, 0, -1)
        assert [b"2026-11" in row for row in rows] == [True, False]
        assert texts(await layer.get_context(scope)) == ["turn 1", "turn 2"]
        assert len(await graph.query_nodes(scope, "working")) == 2
        found = await graph.get_node(scope, node.id)
        assert (found.label, found.properties) == ("old", {"grade": 2})


async def test_while_keys_rotate_the_last_change_of_a_property_is_what_is_read(deployed, scope):
    # A name has another token under each key: which of two values counts is a matter of their order.
    async with deployed(BOTH) as ahead, deployed(BEHIND) as behind:
        graphs = StreamGraphStore(ahead), StreamGraphStore(behind)
        node = await graphs[0].add_node(scope, fact(scope, "fact"))
        for number, turns in enumerate((0, 1, 0, 0, 1, 1, 0)):
            changed = await graphs[turns].update_node(scope, node.id, {"grade": number, "label": f"fact {number}"})
            for graph in graphs:
                found = await graph.get_node(scope, node.id)
                assert (
                    (found.properties, found.label)
                    == ({"grade": number}, f"fact {number}")
                    == (
                        changed.properties,
                        changed.label,
                    )
                )


async def test_a_row_whose_key_is_missing_is_skipped_told_once_or_raised(deployed, scope, turn, caplog, monkeypatch):
    counted = []
    async with deployed(BEFORE) as redis:
        await WorkingLayer(redis).push(scope, turn())
    async with deployed(RING) as redis:
        monkeypatch.setattr(telemetry.rows_damaged, "add", lambda number, attributes: counted.append(number))
        layer = WorkingLayer(redis)
        await layer.push(scope, turn())
        for _ in range(2):
            assert texts(await layer.get_context(scope)) == ["turn 2"]
        with pytest.raises(KeyringMismatch, match=r"^row 1 of .*'2026-05'.*Keyring"):
            await WorkingLayer(redis, strict=True).get_context(scope)
    assert len(counted) == 3
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "'2026-05'" in record.getMessage()


async def test_another_key_under_the_same_id_is_damage(deployed, scope, turn):
    async with deployed(RING) as redis:
        await WorkingLayer(redis).push(scope, turn())
    async with deployed(Keyring({"2026-11": OLD}, current="2026-11")) as redis:
        assert await WorkingLayer(redis).get_context(scope) == []
        with pytest.raises(CodecError, match="'2026-11' was another"):
            await WorkingLayer(redis, strict=True).get_context(scope)


async def test_a_worker_without_keys_says_which_one_is_missing_and_what_to_pass(deployed, scope, turn):
    async with deployed(RING, feed=10) as redis:
        layer = WorkingLayer(redis, graph_store=StreamGraphStore(redis))
        await layer.push(scope, turn())
        await RedisMemoryWriter(redis).write(WriteRequest(scope, (MemoryRecord(scope=scope, content="x"),)))
    async with deployed(None, feed=10) as redis:
        graph = StreamGraphStore(redis)
        layer = WorkingLayer(redis, graph_store=graph)
        calls = {
            "window": layer.get_context(scope),
            "evicted": RedisEvictedSource(layer).read(scope),
            "nodes": graph.query_nodes(scope),
            "staged": RedisMemoryWriter(redis).staged(scope),
            "feed": anext(watch(redis, scope, after="0")),
            "relay": Relay(redis, ListTarget()).drain(),
            "export": _lines(redis, scope),
        }
        for call in calls.values():
            with pytest.raises(KeyringMismatch, match=r"'2026-11'.*encryption=Keyring"):
                await call


async def test_a_plain_row_is_read_only_where_it_is_expected(deployed, scope, turn):
    async with deployed(None) as redis:
        graph = StreamGraphStore(redis)
        await WorkingLayer(redis, graph_store=graph).push(scope, turn())
        node = await graph.add_node(scope, fact(scope, "fact"))
        await graph.update_node(scope, node.id, {"label": "changed", "grade": 1})
    async with deployed(RING) as redis:
        graph = StreamGraphStore(redis)
        layer = WorkingLayer(redis, graph_store=graph)
        await layer.push(scope, turn())
        assert texts(await layer.get_context(scope)) == ["turn 2"]
        assert [found.label for found in await graph.query_nodes(scope)] == ["turn 2"]
        with pytest.raises(KeyringMismatch, match="accept_plain"):
            await WorkingLayer(redis, strict=True).get_context(scope)
        # An archive would launder it.
        with pytest.raises(KeyringMismatch, match="accept_plain"):
            await _lines(redis, scope)
    async with deployed(Keyring({"2026-11": NEW}, current="2026-11", accept_plain=True)) as redis:
        graph = StreamGraphStore(redis)
        assert texts(await WorkingLayer(redis).get_context(scope)) == ["turn 1", "turn 2"]
        changed = await graph.update_node(scope, node.id, {"grade": 2})
        assert (changed.label, changed.properties["grade"]) == ("changed", 2)


async def test_encryption_is_turned_on_without_a_gap(deployed, scope, turn):
    # First every worker can read sealed rows, then one after the other writes them.
    reading = Keyring({"2026-11": NEW}, current=None, accept_plain=True)
    writing = Keyring({"2026-11": NEW}, current="2026-11", accept_plain=True)
    async with deployed(None) as none, deployed(reading) as first, deployed(writing) as second:
        for worker in (none, first):
            await WorkingLayer(worker).push(scope, turn())
        assert texts(await WorkingLayer(none, strict=True).get_context(scope)) == ["turn 1", "turn 2"]
        for worker in (second, first):
            await WorkingLayer(worker).push(scope, turn())
        for worker in (first, second):
            found = texts(await WorkingLayer(worker, strict=True).get_context(scope))
            assert found == ["turn 1", "turn 2", "turn 3", "turn 4"]


# --- everything else as before ---


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_whose_reply_was_lost_is_sent_again_byte_by_byte(valkey, prefix, scope, name):
    case = WRITES[name]
    await load_scripts(valkey.url)
    async with Proxy(valkey.port) as proxy, connect(proxy.url, prefix=prefix, encryption=RING) as redis:
        worker = Worker(redis)
        await begin(worker, scope, case)
        before = len(proxy.requests)
        lost = proxy.on(SCRIPT, "lose", times=2)
        assert await case.run(worker, scope) == case.answer
        assert lost.reached.is_set()
        sent = [request for request in proxy.requests[before:] if request[0].upper() == SCRIPT]
        assert sent[0] == sent[1] == sent[2]
        assert await worker.everything(scope) == case.leaves


async def test_the_sealed_row_is_held_against_the_limit(deployed, scope):
    async with deployed(RING) as sealed, deployed(None) as plain:
        layer = WorkingLayer(sealed)
        await layer.push(scope, turn_of(scope, "x"))
        (row,) = await sealed.call("test", "LRANGE", scope_keys(sealed.prefix, scope).turns, 0, -1)
        sealed.max_row_bytes = plain.max_row_bytes = len(row) - 1
        await WorkingLayer(plain).push(scope.child("part", "a"), turn_of(scope, "x"))
        with pytest.raises(InvalidInput, match=f"{len(row)} bytes"):
            await layer.push(scope, turn_of(scope, "x"))


async def test_an_archive_is_plain_and_is_sealed_where_it_goes(deployed, scope, turn):
    target = TenantScope.root("org", "other").child("conversation", "c")
    async with deployed(BOTH) as redis:
        graph = StreamGraphStore(redis)
        layer = WorkingLayer(redis, graph_store=graph, strict=True)
        await layer.push_many(scope, [turn(), marked(scope)], durability="durable")
        node = await graph.add_node(scope, fact(scope, "fact", grade=1))
        await graph.update_node(scope, node.id, {"grade": 2, "label": "changed"})
        keys = scope_keys(redis.prefix, scope)
        row = await redis.call("test", "LINDEX", keys.turns, 0)
        await redis.call("test", "RPUSH", keys.turns, row[:-1])
        broken = await graph.add_node(scope, fact(scope, "broken"))
        await graph.update_node(scope, broken.id, {"grade": 3})
        at = broken.id.partition(".")[0]
        name = (await redis.call("test", "HGET", keys.edits("semantic"), at)).decode()
        await redis.call("test", "HSET", keys.edits("semantic"), f"{at} {name}", row)
        lines = await _lines(redis, scope)
        damaged = [number for number, line in enumerate(lines) if "damaged" in json.loads(line)]
        assert damaged == [1, 5]
        assert [json.loads(line).get("content") for line in lines[2:4]] == ["turn 1", "marked"]
        assert await import_(redis, target, lines) == (3, 4)
        keys = scope_keys(redis.prefix, target)
        rows = await redis.call("test", "LRANGE", keys.turns, 0, -1)
        assert all(b"2026-11" in one for one in rows)
        assert texts(await WorkingLayer(redis).get_context(target)) == ["turn 1", "marked"]
        before, after = [await graph.query_nodes(one) for one in (scope, target)]
        assert [(one.label, one.properties) for one in after] == [(one.label, one.properties) for one in before]
        # Out and in again gives the same turns and changes; whole nodes are the target's now.
        again = await _lines(redis, target)
        assert again[1:4] + again[6:] == lines[1:4] + lines[6:]
        assert [json.loads(line)["edits"] for line in again[4:6]] == [json.loads(line)["edits"] for line in lines[4:6]]


async def test_an_import_holds_the_sealed_row_against_the_limit(deployed, scope, turn):
    async with deployed(RING) as redis:
        await WorkingLayer(redis).push(scope, turn())
        (row,) = await redis.call("test", "LRANGE", scope_keys(redis.prefix, scope).turns, 0, -1)
        lines = await _lines(redis, scope)
        redis.max_row_bytes = len(row) - 1
        with pytest.raises(InvalidInput, match="over the limit"):
            await import_(redis, scope.child("part", "a"), lines)
        redis.max_row_bytes = len(row)
        assert await import_(redis, scope.child("part", "a"), lines) == (1, 0)


async def test_a_plain_archive_of_another_deployment_comes_in_sealed_and_goes_out_plain(deployed, scope, turn):
    target = scope.child("part", "a")
    async with deployed(None) as plain, deployed(RING) as sealed:
        graph = StreamGraphStore(plain)
        await WorkingLayer(plain, graph_store=graph).push(scope, turn())
        node = await graph.add_node(scope, fact(scope, "fact"))
        await graph.update_node(scope, node.id, {"label": "changed", "grade": 3})
        lines = await _lines(plain, scope)
        await import_(sealed, target, lines)
        assert (await _lines(sealed, target))[1:] == lines[1:]
        assert {found.label for found in await StreamGraphStore(sealed).query_nodes(target)} == {"turn 1", "changed"}


async def test_an_archive_never_lacks_a_row_because_a_key_was_missing(deployed, scope, turn):
    async with deployed(BEFORE) as redis:
        graph = StreamGraphStore(redis)
        await WorkingLayer(redis).push(scope, turn())
        await graph.add_node(scope.child("part", "a"), fact(scope, "fact"))
    async with deployed(RING) as redis:
        for one in (scope, scope.child("part", "a")):
            with pytest.raises(KeyringMismatch, match="2026-05"):
                await _lines(redis, one)


async def test_a_worker_without_keys_may_publish_what_it_cannot_read(deployed, scope, caplog):
    record = MemoryRecord(scope=scope, content="a fact", layer="semantic", id="r 1", metadata={"a": 1})
    async with deployed(RING) as redis, deployed(None) as keyless:
        await RedisMemoryWriter(redis).write(WriteRequest(scope, (record,)))
        receipt = await RedisMemoryLifecycle(WorkingLayer(keyless)).flush(scope)
        assert len(receipt.committed) == 1
        assert "r 1" not in receipt.committed[0]
        (node,) = await StreamGraphStore(redis).query_nodes(scope)
        assert (node.label, node.properties["record_id"], node.id) == ("a fact", "r 1", receipt.node_ids[0])
    assert "2026-11" in caplog.text


async def test_a_watch_tells_turns_nodes_and_changes(deployed, scope, turn):
    async with deployed(RING, feed=100) as redis:
        graph = StreamGraphStore(redis)
        await WorkingLayer(redis, graph_store=graph).push(scope, marked(scope), durability="durable")
        node = await graph.add_node(scope, fact(scope, "fact"))
        await graph.update_node(scope, node.id, {"label": "changed", "grade": 1})
        changes = watch(redis, scope, after="0")
        pushed, added, updated = [await anext(changes) for _ in range(3)]
        assert (pushed.entry.content, pushed.node.properties["durability"]) == ("marked", "durable")
        assert added.node.label == "fact"
        assert updated.updates == {"label": "changed", "properties": {"grade": 1}}
        await changes.aclose()


async def test_a_relay_copies_what_it_could_not_open_once_it_has_the_key(deployed, scope, caplog):
    async with deployed(BEFORE, feed=100) as redis:
        await StreamGraphStore(redis).add_node(scope, fact(scope, "fact", turn_id="t9"))
    target = ListTarget()
    async with deployed(RING, feed=100) as redis:
        await Relay(redis, target, first_pause=0.01).drain()
    assert "2026-05" in caplog.text
    assert not target.calls

    async def copied() -> bool:
        await relay.drain()
        return bool(target.calls)

    async with deployed(BOTH, feed=100) as redis:
        relay = Relay(redis, target)
        await until(copied)
    assert target.turns == ["t9"]


async def test_a_fleet_shares_its_summary_under_either_key(deployed, scope):
    async with deployed(BOTH) as redis:
        layer = WorkingLayer(redis, 1)
        for number in range(3):
            await layer.push(scope, MemoryEntry.turn(scope, speaker="user", turn_id=f"{number}", content=SECRET))

        def service() -> WorkingMemorySummaryService:
            return WorkingMemorySummaryService(
                RedisEvictedSource(layer), mode="llm", model_provider=_Model(), cache=SharedSummaryCache(redis)
            )

        first = await service().summarize(STMSummaryRequest(scope))
        second = await service().summarize(STMSummaryRequest(scope))
        assert first == second
        assert not first.degraded
        key = scope_keys(redis.prefix, scope).summary
        kept = _flat(await redis.call("test", "HGETALL", key))
        assert first.revision.encode() not in kept


async def _lines(redis: Deployment, scope: TenantScope) -> list[str]:
    return [line async for line in export(redis, scope)]
