"""Rows that are damaged, hostile or deep: the answer is an entry or an error of ours, never a crash."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symfonic_redis import CodecError, InvalidInput, MemoryEntry, MemoryLayer
from symfonic_redis.codec import VERSION, encode, pack
from symfonic_redis.rows import decode_entry, encode_entry
from symfonic_redis.sealing import PLAIN

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 1 << 20


def entry_of(**values: object) -> MemoryEntry:
    return MemoryEntry(**{"tenant_id": "acme", "content": "Where is my order?", **values})


def nested(kind: type, depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = {"a": value} if kind is dict else kind([value])
    return value


def survives(code: str) -> str:
    """Run code in a process of its own, because a crash of the interpreter would end the tests; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {[str(ROOT), str(ROOT / 'tests')]!r}\n{code}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr[-500:]}"
    return done.stdout.strip()


FULL = entry_of(
    id="a",
    metadata={"a": [1, (2, 1 << 70), b"x"], "b": {7: datetime(2024, 1, 2, tzinfo=UTC)}, "c": [Decimal("1.5")]},
    importance=7.5,
    layer=MemoryLayer.SEMANTIC,
    score=0.5,
    node_id="n",
)
ROW = encode_entry(FULL, limit=LIMIT, seal=PLAIN)


@pytest.mark.parametrize("id_", ["x", "0f0e0d0c-0b0a-4908-8706-050403020100", "0F0E0D0C-0B0A-4908-8706-050403020100"])
def test_a_read_entry_is_a_pydantic_model_like_any_other(id_):
    made = entry_of(id=id_, content="a", metadata={"speaker": "u", "list": [1]})
    read = decode_entry(encode_entry(made, limit=1000, seal=PLAIN), made.tenant_id, seal=PLAIN)
    constructed = MemoryEntry.model_construct(**made.model_dump())
    for other in (made, constructed, read.model_copy(deep=True), pickle.loads(pickle.dumps(read))):  # noqa: S301 - our own
        assert read == other
        assert read.model_dump() == other.model_dump()
        assert repr(read) == repr(other)
    assert read.model_fields_set == constructed.model_fields_set == set(MemoryEntry.model_fields)
    read.content = "b"
    read.metadata["more"] = 1
    assert read != made
    assert MemoryEntry.model_validate(read.model_dump()) == read


def reads_or_refuses(row: bytes) -> None:
    try:
        found = decode_entry(row, "acme", seal=PLAIN)
    except CodecError:
        return
    assert isinstance(found, MemoryEntry)
    assert isinstance(found.metadata, dict)
    repr(found)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_entry_or_an_error_of_ours(data):
    reads_or_refuses(data)
    reads_or_refuses(VERSION + data)
    reads_or_refuses(ROW[:2] + data)


def test_any_single_changed_byte_is_an_entry_or_an_error_of_ours():
    for at in range(len(ROW)):
        for value in range(256):
            reads_or_refuses(ROW[:at] + bytes([value]) + ROW[at + 1 :])


def test_any_truncated_or_extended_row_is_an_error_of_ours():
    for length in range(len(ROW)):
        with pytest.raises(CodecError):
            decode_entry(ROW[:length], "acme", seal=PLAIN)
    for tail in (b"\x00", b"\xc1", ROW):
        with pytest.raises(CodecError):
            decode_entry(ROW + tail, "acme", seal=PLAIN)


def test_a_header_that_claims_four_gigabytes_is_an_error_of_ours():
    for code in (0xC6, 0xC9, 0xDB, 0xDD, 0xDF):  # bin, ext, str, array, map, each with a length of 32 bits
        for ahead in (b"", b"\x94", b"\x94\xa1a\xa1b\xc0\x81\xa1c"):
            with pytest.raises(CodecError):
                decode_entry(VERSION + ahead + bytes([code]) + b"\xff" * 5, "acme", seal=PLAIN)
    million = VERSION + b"\xdd\x00\x0f\xff\xff" * 200_000  # arrays in arrays, each of a million items
    with pytest.raises(CodecError):
        decode_entry(million, "acme", seal=PLAIN)


@pytest.mark.parametrize("depth", [100, 1_000, 20_000])
def test_a_row_that_nests_is_an_entry_or_an_error_of_ours(depth):
    code = f"""
import msgpack
from test_codec_reading import VERSION, reads_or_refuses
tuples, lists = b"\\x01", b"\\x91" * {depth} + b"\\x01"
for _ in range({depth}):
    tuples = msgpack.packb(msgpack.ExtType(2, b"\\x91" + tuples))
for value in (lists, tuples):
    reads_or_refuses(VERSION + value)
    reads_or_refuses(VERSION + b"\\x94\\xa1a\\xa1b\\xc0\\x81\\xa1c" + value)
print("alive")
"""
    assert survives(code) == "alive"


@pytest.mark.parametrize("version", [0, 2, 0x7F, 0xFF])
def test_an_unknown_version_is_named(version):
    with pytest.raises(CodecError, match=rf"version {version}\b.*upgrade"):
        decode_entry(bytes([version]) + ROW[1:], "acme", seal=PLAIN)
    with pytest.raises(CodecError, match="version none"):
        decode_entry(b"", "acme", seal=PLAIN)


@pytest.mark.parametrize(
    "fields",
    [
        "text",
        {},
        [],
        ["a", "b", datetime.now(UTC)],
        ["a", "b", datetime.now(UTC), {}, 5.0, "working", None, None, "more"],
        [1, "b", datetime.now(UTC), {}],
        ["a", b"b", datetime.now(UTC), {}],
        ["a", "b", "2024-01-01", {}],
        ["a", "b", datetime.now(UTC), []],
        ["a", "b", datetime.now(UTC), {}, "5"],
        ["a", "b", datetime.now(UTC), {}, 5.0, "unknown"],
        ["a", "b", datetime.now(UTC), {}, 5.0, "working", "x"],
        ["a", "b", datetime.now(UTC), {}, 5.0, "working", None, 7],
    ],
    ids=repr,
)
def test_a_row_that_is_no_entry_is_an_error_of_ours(fields):
    with pytest.raises(CodecError):
        decode_entry(encode(fields), "acme", seal=PLAIN)


def test_random_damage_to_real_rows_is_an_entry_or_an_error_of_ours():
    chance = random.Random(7)
    for _ in range(20_000):
        row = bytearray(ROW)
        for _ in range(chance.randint(1, 6)):
            row[chance.randrange(len(row))] = chance.randrange(256)
        reads_or_refuses(bytes(row))


# --- depth ---


@pytest.mark.parametrize("kind", [list, dict, tuple])
@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_what_nests_thousands_deep_is_refused(kind, depth):
    with pytest.raises(InvalidInput):
        pack(nested(kind, depth))


@pytest.mark.parametrize("kind", ["list", "dict", "tuple"])
def test_whatever_is_accepted_can_be_read_back(kind):
    # From every depth of the caller's own stack: the reader may be deeper in its calls than the writer was.
    code = f"""
from test_codec_reading import PLAIN, InvalidInput, decode_entry, encode_entry, entry_of, nested
def deep(levels, call):
    return call() if not levels else deep(levels - 1, call)
for depth in [*range(1, 400, 9), *range(400, 1100, 23), *range(1010, 1030)]:
    try:
        row = encode_entry(entry_of(metadata={{"a": nested({kind}, depth)}}), limit=1 << 20, seal=PLAIN)
    except InvalidInput:
        continue
    deep(300, lambda: decode_entry(row, "acme", seal=PLAIN))
print("all read")
"""
    assert survives(code) == "all read"


def test_a_thread_with_a_small_stack_reads_what_the_main_thread_wrote():
    # A worker may read in a thread; macOS gives one 512 KiB, musl 128 KiB.
    code = """
import threading
from test_codec_reading import PLAIN, decode_entry, encode_entry, entry_of, nested
entry = entry_of(metadata={"a": nested(tuple, 10)})
row = encode_entry(entry, limit=1 << 20, seal=PLAIN)
threading.stack_size(256 * 1024)
found = []
reader = threading.Thread(target=lambda: found.append(decode_entry(row, "acme", seal=PLAIN)))
reader.start()
reader.join()
print(found == [entry])
"""
    assert survives(code) == "True"
