"""Bytes and texts that nobody wrote: each reader answers, or raises an error of ours.

`HYPOTHESIS_PROFILE=long` tries over 100,000 of them.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from hostile import IDS, PATHS, scope_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from symfonic_redis import (
    CodecError,
    ConfigurationError,
    InvalidInput,
    MemoryEntry,
    MemoryLayer,
    MemoryNode,
    MemoryRecord,
    SymfonicRedisError,
    TenantScope,
    WorkingLayer,
    connect,
    parse_scope,
    purge_tenant,
    purge_tree,
    relay_status,
    scopes,
    totals,
)
from symfonic_redis.archive_lines import _sum, read_lines
from symfonic_redis.changes import decode_change
from symfonic_redis.codec import decode, encode
from symfonic_redis.cursors import Position, decode_cursor, encode_cursor
from symfonic_redis.keys import (
    decode_id,
    decode_path,
    encode_id,
    encode_path,
    feeds_key,
    relays_key,
    scope_keys,
    tenants_key,
)
from symfonic_redis.nodes import address_of, decode_node, encode_node, turn_extra
from symfonic_redis.pending import decode_record, encode_record
from symfonic_redis.rows import decode_entry, encode_entry
from symfonic_redis.scope import format_scope
from symfonic_redis.sealing import PLAIN
from symfonic_redis.tenancy import _read
from symfonic_redis.transcripts import read_transcripts

SCOPE = TenantScope.root("org", "acme").child("conversation", "c-1")
KEYS = scope_keys("swm", SCOPE)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
VALUES = [None, 1, 2**70, 1.5, "é\ud800", b"\x00", (1, [2, {"a": ()}]), NOW, UUID(int=7), Decimal("1.1"), {3: "x"}]
ENTRY = MemoryEntry.turn(SCOPE, speaker="user", turn_id="t1", content="hello", metadata={"values": VALUES[:3]})
NODE = MemoryNode(layer=MemoryLayer.SEMANTIC, tenant_id="acme", label="fact", properties={"a": 1, "content": "c"})
RECORDS = [MemoryRecord(scope=SCOPE, content="hello", layer=layer) for layer in ("working", "profile", "procedural")]

ROWS = [encode_entry(ENTRY, limit=1 << 20, seal=PLAIN)]
NODES = [encode_node(NODE, limit=1 << 20, seal=PLAIN)[1], turn_extra({"at": NOW}, "durable", seal=PLAIN)]
STAGED = [encode_record(record, "acme", limit=1 << 20, seal=PLAIN) for record in RECORDS]
WRITTEN = [*map(encode, VALUES), encode([*VALUES]), *ROWS, *NODES, *STAGED]


@st.composite
def mutated(draw, written: list[bytes]) -> bytes:
    """What was written once, with bytes replaced, put in, doubled or left away; or bytes of no origin."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from([b"", b"\x01", b"\x01\x94", b"1 working x 9\n"])) + draw(st.binary(max_size=40))
    data = bytearray(draw(st.sampled_from(written)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 4)):
            case 0:
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case 1:
                data[at:at] = draw(st.binary(max_size=4))
            case 2:
                del data[at : at + draw(st.integers(1, 8))]
            case 3:
                data[at:at] = data[max(0, at - 8) : at]
            case 4:
                # Heads of msgpack: long texts, arrays, maps, extensions.
                data[at : at + 1] = draw(
                    st.sampled_from([b"\xdd\xff\xff\xff\xff", b"\xc9\x00\x00\x00\x01", b"\xd4\x02", b"\xc1"])
                )
    return bytes(data)


# --- bytes ---


@given(mutated(WRITTEN))
def test_bytes_decode_or_are_damaged(data):
    try:
        value = decode(data)
    except CodecError:
        return
    try:
        again = encode(value)
    except InvalidInput:  # read, and not to be written: nested too deep, or a time that has no text of its own
        return
    assert repr(decode(again)) == repr(value)


@given(mutated([*ROWS, *WRITTEN]))
def test_a_row_is_an_entry_or_damaged(data):
    try:
        entry = decode_entry(data, "acme", seal=PLAIN)
    except CodecError:
        return
    assert entry.tenant_id == "acme"
    assert isinstance(entry.content, str)


@given(mutated(STAGED))
def test_a_staged_record_is_one_or_damaged(data):
    try:
        record = decode_record(data, KEYS, SCOPE, seal=PLAIN)
    except CodecError:
        return
    assert record.scope is SCOPE


FIELDS = st.dictionaries(
    st.sampled_from([b"r", b"n", b"x"]) | st.binary(max_size=3), mutated([*ROWS, *NODES]), min_size=1, max_size=3
)
EDITS = st.dictionaries(
    st.sampled_from(["at", "p:mood", "p:durability", "a:label", "a:importance", "a:layer", "a:content", "p:%ff", "z"]),
    mutated([encode("x"), encode(5.0), encode("durable"), b"1700000000000"]),
    max_size=3,
)
STREAM_IDS = st.sampled_from(["1700000000000-0", "0-1", "18446744073709551615-18446744073709551615"])


@given(FIELDS, EDITS, STREAM_IDS, st.sampled_from([layer.value for layer in MemoryLayer]))
def test_an_entry_of_a_mirror_is_a_node_or_damaged(fields, edits, at, layer):
    try:
        node = decode_node(KEYS, layer, at, fields, edits, seal=PLAIN)
    except CodecError:
        return
    assert address_of(node.id, KEYS) == (layer, at)


CHANGES = st.dictionaries(
    st.sampled_from([b"s", b"k", b"p", b"l", b"i", b"n", b"m", b"r", b"x", b"p:mood", b"a:label", b"p:%ff"])
    | st.binary(max_size=2),
    st.sampled_from(
        [
            *(
                b"1",
                b"",
                b"-",
                b"x",
                b"9" * 5000,
                b"push",
                b"node",
                b"update",
                b"clear",
                b"purge",
                b"flush",
                b"working",
            ),
            *(b"semantic", b"1-1", b"-1-1", b"org/acme", b"org", b"%ff/%ff", b"/", b"\xff", KEYS.path.encode()),
        ]
    )
    | mutated([*ROWS, *NODES]),
    max_size=8,
)


@given(CHANGES, st.sampled_from(["1-1", "99999999999999999999-0", "1700000000000-5"]))
def test_an_entry_of_a_feed_is_a_change_or_damaged(fields, at):
    try:
        change = decode_change("swm", "acme", 7, at, fields, ring=None)
    except CodecError:
        return
    assert change.tenant == "acme"


# --- keys ---


@given(IDS, PATHS)
def test_keys_say_what_they_were_made_of(name, path):
    assert decode_id(encode_id(name)) == name
    scope = scope_of(path)
    assert decode_path(encode_path(scope.scope_path)) == scope.scope_path
    assert parse_scope(format_scope(scope)).scope_path == scope.scope_path
    keys = scope_keys("swm", scope)
    assert all(key.isascii() for key in keys.everything)
    assert len({*keys.everything, keys.ops, keys.ops_old}) == len(keys.everything) + 2


# --- texts ---

TEXTS = st.text(max_size=30) | st.text(st.sampled_from('=/%:@[]?#&.-+ 09afAF\x00\ud800é*{}"\\'), max_size=30)


def _is_ours(call: Callable[[], object], *errors: type[Exception]) -> None:
    with contextlib.suppress(*errors):
        call()


@given(TEXTS)
def test_a_scope_of_the_command_line_is_one_or_refused(text):
    _is_ours(lambda: parse_scope(text), InvalidInput)


@given(TEXTS | st.binary(max_size=20).map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_a_place_in_a_listing_is_one_or_refused(text):
    _is_ours(lambda: _read(text), InvalidInput)


SCHEMES = st.sampled_from(
    ["redis://", "rediss://", "unix://", "embedded://", "fake://", "redis+cluster://", "http://", ""]
)
OPTIONS = st.sampled_from(
    [
        "",
        "?db=x",
        "?port=1",
        "?port=99999",
        "?socket_timeout=x",
        "?max_connections=-1",
        "?unknown=1",
        "?=&",
    ]
)


@given(SCHEMES, TEXTS, OPTIONS)
def test_a_url_is_taken_or_refused_without_being_quoted(scheme, text, options):
    secret = "open-sesame"
    for url in (f"{scheme}{text}{options}", f"{scheme}user:{secret}@{text}{options}"):
        said = ""
        try:
            connect(url)
        except ConfigurationError as error:
            said = f"{error}{error.__cause__}{None if error.__suppress_context__ else error.__context__}"
        assert secret not in said


NUMBERS = st.integers(-3, 3) | st.integers(-(1 << 70), 1 << 70) | st.none() | st.booleans() | st.text(max_size=2)


@given(
    st.lists(NUMBERS, max_size=10).map(lambda numbers: base64.urlsafe_b64encode(encode(numbers)).decode())
    | mutated([encode_cursor(7, {3: Position("5-1", 2), 9: Position("1-0", -1)}).encode()]).map(
        lambda data: data.decode("latin-1")
    )
    | TEXTS
)
def test_a_cursor_is_one_or_refused(text):
    try:
        positions = decode_cursor(text, 7)
    except InvalidInput:
        return
    assert decode_cursor(encode_cursor(7, positions), 7) == {
        partition: place for partition, place in positions.items() if place != ("0-0", 0)
    }


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["user", "assistant"]),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(
            st.sampled_from(["conversation_id", "messages", "role", "content", "type", "text"]) | st.text(max_size=3),
            below,
            max_size=4,
        )
    ),
    max_leaves=12,
)
LINES = st.lists(
    JSON.map(json.dumps).map(str.encode)
    | st.binary(max_size=30)
    | st.sampled_from([b"[" * 20_000, b"{}", b"", b"\xef\xbb\xbf{}", b"1" * 5000, b'"\\ud800"'])
    | st.builds(
        lambda id_, messages: json.dumps({"conversation_id": id_, "messages": messages}).encode(), JSON, st.lists(JSON)
    ),
    max_size=4,
).map(b"\n".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LINES)
def test_a_file_of_transcripts_is_read_or_its_lines_are_told(tmp_path, lines):
    path = tmp_path / "transcripts.jsonl"
    path.write_bytes(lines)
    conversations, broken = read_transcripts(path)
    assert len(conversations) + len(broken) <= lines.count(b"\n") + 1
    assert all(turn.content.strip() for conversation in conversations for turn in conversation.turns)


BASE64 = st.binary(max_size=8).map(lambda data: base64.b64encode(data).decode()) | st.sampled_from(
    [base64.b64encode(data).decode() for data in (*ROWS, *NODES)]
)


@st.composite
def archive_lines(draw) -> list[str]:
    """Lines whose checksums are right, and hardly anything else."""
    lines: list[object] = [{"archive": "symfonic-redis", "version": 1, "tenant": "acme", "path": ["org", "acme"]}]
    for number in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            turn, row = draw(st.just(number + 1) | JSON), draw(BASE64 | JSON)
            lines.append({"turn": turn, "row": row, "crc32": _sum(turn, row)})
        else:
            at = draw(STREAM_IDS | JSON)
            layer = draw(st.sampled_from(["working", "semantic"]) | JSON)
            names = st.sampled_from(["r", "n", "x", "at", "p:mood", "a:label", "\udcff", "\ud800"]) | st.text(
                max_size=3
            )
            fields = draw(st.dictionaries(names, BASE64, max_size=3) | JSON)
            edits = draw(st.dictionaries(names, BASE64, max_size=2) | JSON)
            lines.append(
                {"node": at, "layer": layer, "fields": fields, "edits": edits, "crc32": _sum(at, layer, fields, edits)}
            )
        if draw(st.booleans()) and isinstance(lines[-1], dict):
            lines[-1]["damaged"] = draw(st.just(True) | JSON)
    if draw(st.booleans()):
        lines.insert(draw(st.integers(0, len(lines))), draw(JSON))
    lines.append({"end": True, "turns": draw(st.integers(0, 3)), "nodes": draw(st.integers(0, 3))})
    return [*map(json.dumps, lines), *draw(st.lists(TEXTS, max_size=1))]


@given(archive_lines())
def test_an_archive_is_read_or_refused(lines):
    _is_ours(lambda: list(read_lines(lines, KEYS, limit=1 << 20, latest=1 << 45)), InvalidInput)


# --- what a server hands out ---

FOREIGN = [
    *(b"%ff", b"%", b"a/b", b"org/%ff", b"\xff", b"", b"@", b"%2f", b"a b", b"{0042}", b"*", b"a/b/c", b"%00"),
    b"x" * 5000,
]


async def test_names_that_something_else_wrote_into_an_index_stop_nobody(one_redis):
    """A tenant's user may write into the set of tenants: what it writes there must not stop the relay of all."""
    prefix, keys = one_redis.prefix, scope_keys(one_redis.prefix, SCOPE)
    await WorkingLayer(one_redis).push(SCOPE, ENTRY)
    sets = [tenants_key(prefix, keys.partition), relays_key(prefix, keys.partition)]
    sets.append(feeds_key(prefix, keys.partition, "relay"))
    await one_redis.call_many("test", [("SADD", key, *FOREIGN) for key in sets])
    for score in ("+inf", 1e300, 3e14, 1e14, 5, -5, "-inf"):
        members = [part for member in FOREIGN for part in (score, b"%s %d" % (member, hash(score)))]
        await one_redis.call("test", "ZADD", keys.shared.scopes, *members)
        await one_redis.call("test", "ZADD", keys.shared.scopes, score, b"%ff" + str(score).encode())
    await one_redis.call_many("test", [("ZADD", keys.shared.scopes, 1e14, member) for member in FOREIGN])
    assert (await relay_status(one_redis)).tenants == ()
    assert [entry.scope for entry in (await scopes(one_redis, "acme", limit=5)).entries] == [SCOPE]
    assert (await totals(one_redis, "acme")).scopes == 1
    assert (await purge_tree(one_redis, SCOPE, closed_for=0.001)).scopes == 1
    assert (await purge_tenant(one_redis, "acme", closed_for=0.001)).scopes == 0


def test_every_error_here_is_one_of_ours():
    for error in (CodecError, ConfigurationError, InvalidInput):
        assert issubclass(error, SymfonicRedisError)


@pytest.mark.parametrize("data", [b"\x01\xc1", b"", b"\x02"])
def test_the_checks_notice_damage(data):
    with pytest.raises(CodecError):
        decode(data)
