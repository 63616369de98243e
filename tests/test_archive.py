"""Export and import: nothing is lost, nothing damaged comes in, and nothing comes in by halves."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
from datetime import UTC, datetime
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keyspace import dump, keys_of, kinds
from own_server import until

from symfonic_redis import (
    InvalidInput,
    MemoryEntry,
    MemoryLayer,
    MemoryNode,
    ScopeClosed,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    connect,
    export,
    import_,
    purge,
    purge_tenant,
    reopen,
    scopes,
)
from symfonic_redis.archive_lines import Row, read_lines
from symfonic_redis.archive_store import ArchiveStore
from symfonic_redis.codec import decode, encode
from symfonic_redis.keys import scope_keys
from symfonic_redis.telemetry import rows_damaged

ELSEWHERE = TenantScope.root("org", "acme").child("conversation", "copy")
OTHERS = TenantScope.root("org", "globex").child("conversation", "copy")


async def lines_of(redis, scope):
    return [line async for line in export(redis, scope)]


async def remember(redis, scope, *, turns=8):
    """A scope with everything there is: evicted turns, nodes of three layers, edits, a deletion, damage, odd text."""
    graph = StreamGraphStore(redis)
    layer = WorkingLayer(redis, 3, graph, evicted_retention=3)
    metadata = {"n": 1 << 80, "when": datetime(2024, 5, 1, tzinfo=UTC), "id": uuid.UUID(int=7), "odd": "\ud800"}
    for number in range(turns):
        entry = MemoryEntry.turn(
            scope, speaker="user", turn_id=f"t{number}", content=f"turn {number} \U0001f600\ud800", metadata=metadata
        )
        await layer.push(scope, entry, durability="transient" if number % 2 else None, idempotency_key=f"job-{number}")
    nodes = [
        await graph.add_node(scope, MemoryNode(layer=name, tenant_id=scope.tenant_id, label=f"{name} {number}"))
        for name in (MemoryLayer.SEMANTIC, MemoryLayer.EPISODIC)
        for number in range(3)
    ]
    await graph.update_node(scope, nodes[0].id, {"importance": 9.0, "properties": {"a b\n:é": "x", "n": 1}})
    await graph.update_node(scope, (await graph.query_nodes(scope, "working"))[0].id, {"durability": "expired"})
    await graph.delete_node(scope, nodes[-1].id)
    return graph, layer


async def damage(redis, scope):
    keys = scope_keys(redis.prefix, scope)
    await redis.call("test", "RPUSH", keys.turns, b"\x01\xc1")
    await redis.call("test", "XADD", keys.graph("procedural"), "*", "r", b"\x07later", "unknown", "field")


async def state(redis, scope, graph, layer):
    return await layer.get_context(scope), await graph.query_nodes(scope)


async def test_out_and_in_again_without_a_loss(redis, scope):
    graph, layer = await remember(redis, scope)
    await damage(redis, scope)
    before, lines = await state(redis, scope, graph, layer), await lines_of(redis, scope)
    assert all(line.isascii() and "\n" not in line for line in lines)
    assert len(lines) == 1 + (3 + 3 + 1 + 1) + (8 + 3 + 2 + 1) + 1
    await purge(redis, scope)
    with pytest.raises(ScopeClosed):
        await import_(redis, scope, lines)
    await reopen(redis, scope)
    assert await import_(redis, scope, lines) == (8, 14)
    assert await state(redis, scope, graph, layer) == before
    assert await lines_of(redis, scope) == lines
    # The window goes on, and nodes can be changed and removed by the ids they had.
    entry = MemoryEntry.turn(scope, speaker="user", turn_id="next", content="next")
    await layer.push(scope, entry)
    assert (await layer.get_context(scope))[-1] == entry
    for node in before[1]:
        await graph.delete_node(scope, node.id)
    assert [node.label for node in await graph.query_nodes(scope)] == ["next"]
    edits = await redis.call_many(
        "test", [("EXISTS", scope_keys(redis.prefix, scope).edits(name)) for name in MemoryLayer]
    )
    assert not any(edits)


async def test_people_can_read_it(one_redis, scope, turn):
    await WorkingLayer(one_redis, graph_store=StreamGraphStore(one_redis)).push(scope, turn("Where is it?"))
    header, said, node, end = map(json.loads, await lines_of(one_redis, scope))
    assert (header["archive"], header["version"], header["tenant"]) == ("symfonic-redis", 1, "acme")
    assert header["path"] == ["org", "acme", "conversation", "c-123"]
    assert (said["turn"], said["speaker"], said["content"]) == (1, "user", "Where is it?")
    assert (node["layer"], node["label"]) == ("working", "Where is it?")
    assert end == {"end": True, "turns": 1, "nodes": 1}


async def test_an_empty_scope_comes_out_and_in(one_redis, scope):
    lines = await lines_of(one_redis, scope)
    assert len(lines) == 2
    assert await import_(one_redis, scope, lines) == (0, 0)
    assert await scopes(one_redis, "acme") == ((), None)


async def test_a_copy_elsewhere_is_a_scope_of_its_own(redis, scope):
    graph, layer = await remember(redis, scope)
    await import_(redis, ELSEWHERE, await lines_of(redis, scope))
    here, there = await state(redis, scope, graph, layer), await state(redis, ELSEWHERE, graph, layer)
    assert here[0] == there[0]
    assert [node.model_dump(exclude={"id"}) for node in here[1]] == [
        node.model_dump(exclude={"id"}) for node in there[1]
    ]
    assert not {node.id for node in here[1]} & {node.id for node in there[1]}
    entries = (await scopes(redis, "acme")).entries
    assert {entry.scope for entry in entries} == {scope, ELSEWHERE}


async def test_what_comes_from_another_tenant_becomes_this_ones(redis, scope):
    graph, layer = await remember(redis, scope)
    await import_(redis, OTHERS, await lines_of(redis, scope))
    entries, nodes = await state(redis, OTHERS, graph, layer)
    assert {one.tenant_id for one in (*entries, *nodes)} == {"globex"}
    assert len(nodes) == 13
    assert b"acme" not in b"".join((await dump(redis, f"{redis.prefix}:*:globex:*")).values())
    assert (await graph.query_nodes(scope))[0].tenant_id == "acme"


async def test_the_importers_own_lives_apply(one_redis, scope):
    await remember(one_redis, scope)
    async with connect(one_redis.url, prefix=one_redis.prefix) as redis:
        layer = WorkingLayer(redis, 3, StreamGraphStore(redis, ttl=500), evicted_retention=3, ttl=100)
        await layer.push(scope, MemoryEntry.turn(scope, speaker="user", turn_id="x", content="x"))
    lines = await lines_of(one_redis, scope)
    noted = json.loads(lines[0])["ttl_ms"]
    assert 90_000 < noted["turns"] <= 100_000
    assert 490_000 < noted["graph:working"] <= 500_000
    await import_(one_redis, ELSEWHERE, lines, ttl=7, mirror_ttl=70)
    await import_(one_redis, OTHERS, lines)
    keys, others = (scope_keys(one_redis.prefix, one) for one in (ELSEWHERE, OTHERS))
    assert 5000 < await one_redis.call("test", "PTTL", keys.turns) <= 7000
    for name in (keys.graph("working"), keys.edits("working"), keys.graph("semantic")):
        assert 60_000 < await one_redis.call("test", "PTTL", name) <= 70_000
    for name in (others.turns, others.graph("working"), others.edits("working")):
        assert await one_redis.call("test", "PTTL", name) == -1


async def test_a_scope_that_is_not_empty_is_refused(redis, scope):
    graph, layer = await remember(redis, scope)
    lines = await lines_of(redis, scope)
    keys = scope_keys(redis.prefix, ELSEWHERE)
    fills = {
        keys.turns: ("RPUSH", keys.turns, "x"),
        keys.staged: ("RPUSH", keys.staged, "x"),
        keys.graph("procedural"): ("XADD", keys.graph("procedural"), "*", "r", "x"),
    }
    for name, command in fills.items():
        await redis.call("test", *command)
        with pytest.raises(InvalidInput, match="not empty"):
            await import_(redis, ELSEWHERE, lines)
        assert await redis.call("test", "EXISTS", *keys.everything) == 1
        await redis.call("test", "DEL", name)
    with pytest.raises(InvalidInput, match="not empty"):
        await import_(redis, scope, lines)
    # A scope that was cleared is empty, though its streams stand on.
    await layer.clear(scope)
    for node in await graph.query_nodes(scope):
        await graph.delete_node(scope, node.id)
    assert await import_(redis, scope, lines) == (7, 13)
    assert await lines_of(redis, scope) == lines


async def test_a_long_mirror_goes_in_pieces(redis, scope):
    graph = StreamGraphStore(redis)
    keys = scope_keys(redis.prefix, scope)
    payload = encode({"tenant_id": "acme", "label": "fact"})
    await redis.call_many("test", [("XADD", keys.graph("semantic"), "*", "n", payload) for _ in range(2000)])
    await graph.add_node(scope, MemoryNode(layer="episodic", tenant_id="acme", label="x" * 700_000))
    await WorkingLayer(redis).push_many(
        scope, [MemoryEntry.turn(scope, speaker="u", turn_id=f"{n}", content="x" * 30_000) for n in range(61)]
    )
    lines = await lines_of(redis, scope)
    # Whatever a file, a socket or a list gives.
    await import_(redis, ELSEWHERE, (line for line in lines))
    await import_(redis, OTHERS, _slowly(lines))
    assert (await lines_of(redis, ELSEWHERE))[1:] == lines[1:]
    assert await graph.count(OTHERS, "semantic") == 2000


async def _slowly(lines):
    for line in lines:
        yield f"{line}\r\n"


# --- damage ---


def changed(line, **values):
    return json.dumps({**json.loads(line), **values})


def signed(line, **values):
    """A forged line whose checksum is right."""
    record = {**json.loads(line), **values}
    names = ("turn", "row") if "turn" in record else ("node", "layer", "fields", "edits")
    text = json.dumps([record[name] for name in names], separators=(",", ":"))
    return json.dumps({**record, "crc32": crc32(text.encode())})


def b64(data):
    return base64.b64encode(data).decode()


MOST = (1 << 64) - 1
AHEAD = int(time.time() * 1000) + 2 * 86_400_000
"""A time that no server's clock says while the tests run."""


def edited(lines, changes, *, at=b"1700000000000", **values):
    """The archive with forged changes of its last node."""
    edits = {name: b64(encode(value)) for name, value in changes.items()}
    edits |= {} if at is None else {"at": b64(at)}
    return [*lines[:-2], signed(lines[-2], edits=edits, **values), lines[-1]]


TURN, WORKING, SEMANTIC = 1, 8, 9  # where lines stand in `SAMPLE`

WRONG = {
    "no header": lambda lines: lines[1:],
    "not JSON": lambda lines: [*lines[:2], lines[2][:-1], *lines[3:]],
    "no object": lambda lines: [*lines[:2], "[]", *lines[3:]],
    "another kind of line": lambda lines: [*lines[:2], '{"x": 1}', *lines[3:]],
    "nested": lambda lines: [*lines[:2], "[" * 100_000, *lines[3:]],
    "bytes": lambda lines: [lines[0].encode(), *lines[1:]],
    "another format": lambda lines: [changed(lines[0], archive="other"), *lines[1:]],
    "a newer version": lambda lines: [changed(lines[0], version=2), *lines[1:]],
    "a turn less": lambda lines: [*lines[:2], *lines[3:]],
    "a turn twice": lambda lines: [*lines[:2], *lines[1:]],
    "turns swapped": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "another row": lambda lines: [lines[0], changed(lines[1], row=json.loads(lines[2])["row"]), *lines[2:]],
    "no row": lambda lines: [lines[0], changed(lines[1], row=None), *lines[2:]],
    "no base64": lambda lines: [lines[0], signed(lines[1], row="é"), *lines[2:]],
    "a damaged row": lambda lines: [lines[0], signed(lines[1], row=b64(b"\x01\xc1")), *lines[2:]],
    "a row of a later version": lambda lines: [lines[0], signed(lines[1], row=b64(b"\x02")), *lines[2:]],
    "false damage": lambda lines: [lines[0], changed(lines[1], damaged=True), *lines[2:]],
    "a turn after a node": lambda lines: [*lines[:1], lines[-2], *lines[1:-2], lines[-1]],
    "a node less": lambda lines: [*lines[:-3], *lines[-2:]],
    "a node twice": lambda lines: [*lines[:-1], lines[-2], lines[-1]],
    "another layer": lambda lines: [*lines[:-2], signed(lines[-2], layer="other"), lines[-1]],
    "no layer": lambda lines: [*lines[:-2], signed(lines[-2], layer=[]), lines[-1]],
    "no id": lambda lines: [*lines[:-2], signed(lines[-2], node="0-0"), lines[-1]],
    "an id too large": lambda lines: [*lines[:-2], signed(lines[-2], node=f"{1 << 64}-0"), lines[-1]],
    "an odd id": lambda lines: [*lines[:-2], signed(lines[-2], node="٣-٣"), lines[-1]],
    "no fields": lambda lines: [*lines[:-2], signed(lines[-2], fields={}), lines[-1]],
    "fields of nothing": lambda lines: [*lines[:-2], signed(lines[-2], fields=7), lines[-1]],
    "a field's odd name": lambda lines: [*lines[:-2], signed(lines[-2], fields={"\ud800": ""}), lines[-1]],
    "an edit that forges another": lambda lines: [*lines[:-2], signed(lines[-2], edits={"p:x a:y": ""}), lines[-1]],
    "an edit of another kind": lambda lines: [*lines[:-2], signed(lines[-2], edits={"id": ""}), lines[-1]],
    "a damaged edit": lambda lines: [*lines[:-2], signed(lines[-2], edits={"p:x": b64(b"\x01\xc1")}), lines[-1]],
    "a node of the future": lambda lines: [*lines[:-2], signed(lines[-2], node=f"{AHEAD}-0"), lines[-1]],
    "the greatest id": lambda lines: [*lines[:-2], signed(lines[-2], node=f"{MOST}-{MOST}"), lines[-1]],
    "a damaged node of the future": lambda lines: [
        *lines[:-2],
        signed(lines[-2], node=f"{AHEAD}-0", fields={"r": b64(b"\x01\xc1")}, damaged=True),
        lines[-1],
    ],
    "a node's id twice": lambda lines: [*lines[:-2], signed(lines[-2], node=json.loads(lines[-3])["node"]), lines[-1]],
    "another id": lambda lines: edited(lines, {"a:id": "x"}),
    "a change of layer": lambda lines: edited(lines, {"a:layer": "working"}),
    "another tenant": lambda lines: edited(lines, {"a:tenant_id": "victim"}),
    "another birth": lambda lines: edited(lines, {"a:created_at": datetime.now(UTC)}),
    "all properties": lambda lines: edited(lines, {"a:properties": {}}),
    "an unknown attribute": lambda lines: edited(lines, {"a:decode": 1}),
    "a fixed attribute of damage": lambda lines: edited(
        lines, {"a:tenant_id": "victim"}, fields={"r": b64(b"\x01\xc1")}, damaged=True
    ),
    "a property under another name": lambda lines: edited(lines, {"p:%78": 1}),
    "a property of no name": lambda lines: edited(lines, {"p:%ff": 1}),
    "a change without a time": lambda lines: edited(lines, {"a:label": "x"}, at=None),
    "a change at no time": lambda lines: edited(lines, {"a:label": "x"}, at=b"-1"),
    "a change after all time": lambda lines: edited(lines, {"a:label": "x"}, at=b"9" * 5000),
    "a change of the future": lambda lines: edited(lines, {"a:label": "x"}, at=b"%d" % AHEAD),
    "too many changes": lambda lines: edited(lines, {f"p:{number}": 1 for number in range(1001)}),
    "a label that is none": lambda lines: edited(lines, {"a:label": 5}),
    "no importance": lambda lines: edited(lines, {"a:importance": 11.0}),
    "no durability": lambda lines: edited(lines, {"p:durability": "sometimes"}),
    "no end": lambda lines: lines[:-1],
    "another count": lambda lines: [*lines[:-1], changed(lines[-1], turns=1)],
    "more after the end": lambda lines: [*lines, lines[-1]],
    "nothing": lambda lines: [],
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_damaged_archive_is_refused_with_its_line_before_anything_is_written(one_redis, scope, what):
    await remember(one_redis, scope)
    lines = await lines_of(one_redis, scope)
    ours = f"{one_redis.prefix}:*"  # what other tests left may expire meanwhile
    before = await keys_of(one_redis, ours)
    with pytest.raises(InvalidInput, match=r"line \d+.*nothing was imported") as refusal:
        await import_(one_redis, ELSEWHERE, WRONG[what](lines))
    assert await keys_of(one_redis, ours) == before
    assert "turn 1" not in str(refusal.value).replace("turn 1 is missing", "")
    assert refusal.value.__cause__ is None


async def test_the_line_is_the_one(one_redis, scope):
    await remember(one_redis, scope)
    lines = await lines_of(one_redis, scope)
    with pytest.raises(InvalidInput, match="line 5 of the archive is damaged"):
        await import_(one_redis, ELSEWHERE, ["", *lines[:3], changed(lines[3], crc32=0), *lines[4:]])


async def test_what_the_longest_lived_of_nodes_holds_comes_in(one_redis, scope):
    graph = StreamGraphStore(one_redis)
    node = await graph.add_node(scope, MemoryNode(layer="semantic", tenant_id="acme", label="fact"))
    changes = {"label": "x", "importance": 2.0, "access_count": 7, "embedding": [0.5], "durability": "expired"}
    await graph.update_node(scope, node.id, {**changes, "updated_at": datetime(2020, 1, 1, tzinfo=UTC), "": "no name"})
    await graph.update_node(scope, node.id, {f"name {number}": number for number in range(993)})
    lines = await lines_of(one_redis, scope)
    await import_(one_redis, ELSEWHERE, lines)
    assert (await lines_of(one_redis, ELSEWHERE))[1:] == lines[1:]
    (found,) = await graph.query_nodes(ELSEWHERE)
    assert (found.label, found.properties[""], len(found.properties)) == ("x", "no name", 995)


async def test_a_clock_that_is_a_little_ahead_is_no_damage(one_redis, scope):
    await remember(one_redis, scope)
    lines = await lines_of(one_redis, scope)
    soon = f"{AHEAD - 2 * 86_400_000 + 3_600_000}-0"
    await import_(one_redis, ELSEWHERE, [*lines[:-2], signed(lines[-2], node=soon), lines[-1]])


@pytest.mark.parametrize(
    "edits",
    [
        {"a:label": encode(5), "at": b"1"},
        {"a:label": encode("x")},
        {"a:label": encode("x"), "at": b"soon"},
        {"a:tenant_id": encode("victim"), "at": b"1"},
        {"a:decode": encode("x"), "at": b"1"},
        {"a:importance": encode(99.0), "at": b"1"},
        {"a:updated_at": encode("soon"), "at": b"1"},
        {"a:embedding": encode({"x": 1}), "at": b"1"},
        {"p:durability": encode("sometimes"), "at": b"1"},
    ],
)
async def test_a_damaged_change_is_a_damaged_node(one_redis, scope, monkeypatch, edits):
    counted = []
    monkeypatch.setattr(rows_damaged, "add", lambda number, attributes: counted.append(number))
    graph, keys = StreamGraphStore(one_redis), scope_keys(one_redis.prefix, scope)
    for label in ("one", "other"):
        node = await graph.add_node(scope, MemoryNode(layer="semantic", tenant_id="acme", label=label))
    at = node.id.partition(".")[0]
    names = " ".join(name for name in edits if name != "at")
    for name, value in {at: names, **{f"{at} {name}": value for name, value in edits.items()}}.items():
        await one_redis.call("test", "HSET", keys.edits("semantic"), name, value)
    assert [found.label for found in await graph.query_nodes(scope, label_prefix="o")] == ["one"]
    assert await graph.get_node(scope, node.id) is None
    assert sum(counted) == 2


async def test_a_row_over_the_limit_is_refused(one_redis, scope, turn):
    await WorkingLayer(one_redis).push(scope, turn("x" * 2000))
    lines = await lines_of(one_redis, scope)
    async with connect(one_redis.url, prefix=one_redis.prefix, max_row_bytes=1000) as redis:
        with pytest.raises(InvalidInput, match=r"line 2 .*over the limit of 1000"):
            await import_(redis, ELSEWHERE, lines)


async def test_a_node_cannot_be_smuggled_to_another_tenant(one_redis, scope):
    graph = StreamGraphStore(one_redis)
    await graph.add_node(scope, MemoryNode(layer="semantic", tenant_id="acme", label="fact"))
    header, node, end = await lines_of(one_redis, scope)
    fields = json.loads(node)["fields"]
    forged = b64(encode({**decode(base64.b64decode(fields["n"])), "tenant_id": "victim"}))
    await import_(one_redis, ELSEWHERE, [header, signed(node, fields={"n": forged}), end])
    assert [found.tenant_id for found in await graph.query_nodes(ELSEWHERE)] == ["acme"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
async def test_whatever_befalls_a_line_it_is_refused_or_means_the_same(one_redis, data):
    redis = one_redis
    scope = TenantScope.root("org", "acme").child("conversation", "mutated")
    if not await redis.call("test", "EXISTS", scope_keys(redis.prefix, scope).turns):
        await remember(redis, scope)
    lines, keys = await lines_of(redis, scope), scope_keys(redis.prefix, scope)
    number = data.draw(st.integers(0, len(lines) - 1))
    line = lines[number]
    at = data.draw(st.integers(0, len(line) - 1))
    new = data.draw(st.characters(codec="ascii"))
    mutated = [*lines[:number], line[:at] + new + line[at + 1 :], *lines[number + 1 :]]
    whole = list(read_lines(lines, keys, limit=1 << 20))
    try:
        found = list(read_lines(mutated, keys, limit=1 << 20))
    except InvalidInput:
        return
    assert found == whole


# --- together, and half-way ---


async def test_of_two_imports_at_once_one_comes_in_whole(redis, scope):
    await remember(redis, scope)
    lines = await lines_of(redis, scope)
    for number in range(5):
        target = scope.child("copy", str(number))
        results = await asyncio.gather(*(import_(redis, target, lines) for _ in range(3)), return_exceptions=True)
        assert sum(not isinstance(result, BaseException) for result in results) == 1
        assert {type(result) for result in results if isinstance(result, BaseException)} == {InvalidInput}
        assert (await lines_of(redis, target))[1:] == lines[1:]
        assert not await keys_of(redis, f"{redis.prefix}:*:import*")


async def test_a_writer_that_comes_first_keeps_what_it_wrote(one_redis, scope):
    await remember(one_redis, scope)
    lines, keys = await lines_of(one_redis, scope), scope_keys(one_redis.prefix, ELSEWHERE)
    store, layer = ArchiveStore(one_redis), WorkingLayer(one_redis)
    await store.begin(keys, "mine")
    await store.add(
        keys, "mine", [record for record in read_lines(lines, keys, limit=1 << 20) if isinstance(record, Row)]
    )
    assert await layer.get_context(ELSEWHERE) == []
    entry = MemoryEntry.turn(ELSEWHERE, speaker="user", turn_id="t", content="first")
    await layer.push(ELSEWHERE, entry)
    with pytest.raises(InvalidInput, match="not empty"):
        await store.commit(keys, "mine", 7, 0, None, None)
    assert await layer.get_context(ELSEWHERE) == [entry]


async def test_an_import_that_stopped_half_way_shows_nothing_and_is_in_nobodys_way(redis, scope):
    await remember(redis, scope)
    lines, keys = await lines_of(redis, scope), scope_keys(redis.prefix, ELSEWHERE)
    store = ArchiveStore(redis)
    records = list(read_lines(lines, keys, limit=1 << 20))
    rows = [record for record in records if isinstance(record, Row)]
    await store.begin(keys, "old")
    await store.add(keys, "old", rows[:3])
    left = await keys_of(redis, f"{redis.prefix}:*copy:import*")
    assert len(left) == 2
    for name in left:
        assert 0 < await redis.call("test", "PTTL", name) <= 3_601_000
    assert [entry.scope for entry in (await scopes(redis, "acme")).entries] == [scope]
    # A purge takes what is there of it, and the import cannot go on.
    await purge(redis, ELSEWHERE)
    assert kinds(await keys_of(redis, f"{redis.prefix}:*copy:*")) == {"ops"}
    with pytest.raises(ScopeClosed):
        await store.add(keys, "old", rows[3:])
    await reopen(redis, ELSEWHERE)
    with pytest.raises(InvalidInput, match="another import"):
        await store.add(keys, "old", rows[3:])
    # So does the next import.
    await store.begin(keys, "old")
    await store.add(keys, "old", rows[:3])
    assert await import_(redis, ELSEWHERE, lines) == (6 + 1, 13)
    for step in (store.add(keys, "old", rows[3:]), store.commit(keys, "old", 7, 0, None, None)):
        with pytest.raises(InvalidInput, match="another import"):
            await step
    assert (await lines_of(redis, ELSEWHERE))[1:] == lines[1:]


async def test_a_tenants_purge_finds_an_import_that_stopped(one_redis):
    keys = scope_keys(one_redis.prefix, ELSEWHERE)
    store = ArchiveStore(one_redis)
    await store.begin(keys, "old")
    await store.add(keys, "old", [Row(b"row")])
    await purge_tenant(one_redis, "acme")
    assert kinds(await keys_of(one_redis, f"{one_redis.prefix}:{{*}}:acme:*")) == {"closed", "ops"}


async def test_a_place_that_expired_is_not_committed(one_redis):
    keys = scope_keys(one_redis.prefix, ELSEWHERE)
    store = ArchiveStore(one_redis)
    await store.begin(keys, "mine")
    await store.add(keys, "mine", [Row(b"row")])
    await one_redis.call("test", "PEXPIRE", keys.beside(keys.turns), 1)
    await until(lambda: _absent(one_redis, keys.beside(keys.turns)))
    with pytest.raises(InvalidInput, match="nothing was imported"):
        await store.commit(keys, "mine", 1, 0, None, None)


async def _absent(redis, key):
    return not await redis.call("test", "EXISTS", key)


async def test_each_step_happens_once(redis, scope):
    sent = []
    run = redis.run

    async def twice(operation, one, names, args):
        first = await run(operation, one, names, args)
        sent.append(one.name)
        again = await run(operation, one, names, args)
        assert (first[0], again) == (0, [1, first[1]])
        return again

    await remember(redis, scope)
    lines = await lines_of(redis, scope)
    redis.run = twice
    try:
        assert await import_(redis, ELSEWHERE, lines) == (7, 13)
    finally:
        del redis.run
    assert (await lines_of(redis, ELSEWHERE))[1:] == lines[1:]
    assert {"import_begin", "import_rows", "import_nodes", "import_commit"} == set(sent)


async def test_the_feed_tells_of_an_import(valkey, prefix, scope):
    async with connect(valkey.url, prefix=prefix, feed=100) as redis:
        await remember(redis, scope)
        await import_(redis, ELSEWHERE, await lines_of(redis, scope))
        feed = scope_keys(prefix, ELSEWHERE).shared.feed
        ((_, flat),) = await redis.call("test", "XRANGE", feed, "-", "+")
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        assert (fields[b"k"], fields[b"n"]) == (b"import", b"7")
