"""The codec: what goes in comes out equal, or is refused before anything is written."""

from __future__ import annotations

import collections
import enum
import math
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from symfonic_redis import InvalidInput, MemoryEntry, MemoryLayer, MemoryNode
from symfonic_redis.codec import decode, encode, pack, unpack
from symfonic_redis.rows import decode_entry, encode_entry
from symfonic_redis.sealing import PLAIN

LIMIT = 1 << 20

OFFSETS = st.integers(-86_399, 86_399).map(lambda seconds: timezone(timedelta(seconds=seconds)))
TEXT = st.text(st.characters())  # lone surrogates too
INTS = st.integers() | st.integers(-(2**70), 2**70) | st.integers(0, 4).map(lambda n: (1 << 64) - 2 + n)
KEYS = st.one_of(
    TEXT, INTS, st.booleans(), st.binary(), st.none(), st.uuids(), st.floats(allow_nan=False), st.tuples(TEXT, INTS)
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    INTS,
    st.floats(allow_nan=False),
    TEXT,
    st.binary(),
    st.uuids(),
    st.decimals(allow_nan=False),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC) | OFFSETS),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
    max_leaves=12,
)
ENTRIES = st.builds(
    MemoryEntry,
    id=TEXT | st.uuids().map(str) | st.uuids().map(lambda one: str(one).upper()),
    tenant_id=st.just("acme"),
    layer=st.sampled_from(MemoryLayer),
    content=TEXT,
    node_id=st.none() | TEXT,
    score=st.none() | st.floats(allow_nan=False),
    metadata=st.dictionaries(TEXT, VALUES, max_size=4),
    importance=st.floats(1, 10),
    created_at=st.datetimes(timezones=st.just(UTC) | OFFSETS) | st.datetimes(),
)


def typed(value: object) -> object:
    """The value with the type of each part beside it: 1, True and 1.0 are equal and must not be mixed up."""
    if isinstance(value, list | tuple):
        return type(value), [typed(item) for item in value]
    if isinstance(value, dict):
        return dict, [(typed(key), typed(item)) for key, item in value.items()]
    if isinstance(value, datetime):
        return datetime, value, value.utcoffset()
    if isinstance(value, float | Decimal):
        return type(value), repr(value)  # -0.0 and 1.0 == 1.00 too
    return type(value), value


def entry_of(**values: object) -> MemoryEntry:
    return MemoryEntry(**{"tenant_id": "acme", "content": "Where is my order?", **values})


def there_and_back(entry: object) -> MemoryEntry:
    return decode_entry(encode_entry(entry, limit=LIMIT, seal=PLAIN), "acme", seal=PLAIN)


# --- what can be stored ---


@given(VALUES)
def test_a_value_comes_out_equal_and_of_the_same_type(value):
    assert typed(decode(encode(value))) == typed(value)


@given(ENTRIES)
def test_an_entry_comes_out_equal(entry):
    found = there_and_back(entry)
    assert found == entry
    assert typed(found.metadata) == typed(entry.metadata)
    assert type(found.layer) is MemoryLayer


@given(st.integers(0, 40).map(lambda n: 1 << (8 * n)), st.integers(-2, 2))
def test_integers_of_any_size(power, step):
    for value in (power + step, -power - step):
        assert unpack(pack(value)) == value
        assert unpack(pack({value: [value, (value,)]})) == {value: [value, (value,)]}


@pytest.mark.parametrize("value", [math.inf, -math.inf, -0.0, 5e-324, Decimal("Infinity"), Decimal("-0.00")], ids=str)
def test_floats_and_decimals_at_the_edge(value):
    assert repr(unpack(pack(value))) == repr(value)


def test_not_a_number_stays_none():
    assert math.isnan(unpack(pack(math.nan)))
    assert unpack(pack(Decimal("NaN"))).is_qnan()
    assert unpack(pack(Decimal("sNaN12"))).is_snan()


class Plain(enum.Enum):
    TEXT = "text"
    NUMBER = 7
    LIST = [1, "two"]  # noqa: RUF012 - the value of a member
    NOTHING = None
    TUPLE = (1, 2)
    BIG = 1 << 70
    MOMENT = datetime(2024, 1, 2, 3, tzinfo=UTC)
    ID = uuid.UUID(int=7)
    AMOUNT = Decimal("1.10")


class Text(enum.StrEnum):
    ONE = "one"


class Number(enum.IntEnum):
    ONE = 1
    BIG = 1 << 70


class Outer(enum.Enum):
    INNER = Plain.TEXT


@pytest.mark.parametrize("member", [*Plain, *Text, *Number], ids=str)
def test_a_member_of_an_enum_is_stored_by_its_value(member):
    assert typed(unpack(pack([member, {"a": member}]))) == typed([member.value, {"a": member.value}])


def test_an_enum_of_enums_is_stored_by_the_innermost_value():
    assert unpack(pack(Outer.INNER)) == "text"


@pytest.mark.parametrize(
    "moment",
    [
        datetime.min,  # noqa: DTZ901 - naive on purpose
        datetime.max,  # noqa: DTZ901 - the same
        datetime(2024, 2, 29, 23, 59, 59, 999_999),  # noqa: DTZ001 - the same
        datetime(2024, 1, 1, tzinfo=UTC),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-5, minutes=-30))),
        datetime(1890, 1, 1, tzinfo=timezone(timedelta(minutes=9, seconds=21))),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(seconds=-1, microseconds=-1))),
        datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Paris")),
        datetime(1890, 1, 1, tzinfo=ZoneInfo("Europe/Paris")),
    ],
    ids=repr,
)
def test_a_moment_comes_out_equal(moment):
    found = unpack(pack(moment))
    assert found == moment
    assert found.utcoffset() == moment.utcoffset()


def test_an_offset_below_a_second_is_refused_or_comes_out_equal():
    # Python itself reads such an offset as UTC.
    moment = datetime(2024, 1, 1, tzinfo=timezone(timedelta(microseconds=1)))
    try:
        row = pack(moment)
    except InvalidInput:
        return
    assert unpack(row) == moment


@pytest.mark.parametrize("fold", [0, 1])
def test_the_hour_that_happens_twice_is_the_same_instant(fold):
    # Python calls a moment in that hour unequal to any in another zone, so the instant is what can be kept.
    moment = datetime(2024, 10, 27, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Paris"))
    found = unpack(pack(moment))
    assert found.astimezone(UTC) == moment.astimezone(UTC)
    assert found.utcoffset() == moment.utcoffset()


def test_an_entry_of_another_package_is_stored_by_its_attributes():
    thing = SimpleNamespace(
        id="7", content="hello", created_at=datetime.now(UTC), metadata={"a": 1}, importance=3, tenant_id="acme"
    )
    found = there_and_back(thing)
    assert (found.id, found.content, found.metadata, found.importance) == ("7", "hello", {"a": 1}, 3)
    assert found.layer is MemoryLayer.WORKING


def test_an_entry_of_the_reference_package_is_stored():
    reason = "the reference package symfonic-core is not installed"
    models = pytest.importorskip("symfonic.memory.models.entry", reason=reason)
    types = pytest.importorskip("symfonic.memory.types", reason=reason)
    entry = models.MemoryEntry(
        layer=types.MemoryLayer.EPISODIC, tenant_id="acme", content="é", metadata={"speaker": "user"}, score=0.5
    )
    assert there_and_back(entry).model_dump(mode="json") == entry.model_dump(mode="json")


def test_the_row_of_a_turn_is_small():
    entry = entry_of(content="x" * 300, metadata={"speaker": "assistant", "turn_id": uuid.uuid4().hex[:12]})
    assert len(encode_entry(entry, limit=LIMIT, seal=PLAIN)) <= 300 + 110


# --- what is refused ---

NAMED = collections.namedtuple("Named", "one")  # noqa: PYI024 - a type that must be refused

REFUSED = {
    "set": {1},
    "frozenset": frozenset({1}),
    "object": object(),
    "generator": (n for n in (1, 2)),
    "range": range(3),
    "date": date(2024, 1, 1),
    "time": time(1),
    "timedelta": timedelta(1),
    "complex": 1j,
    "class": int,
    "function": len,
    "str subclass": type("Name", (str,), {})("x"),
    "int subclass": type("Count", (int,), {})(1),
    "float subclass": type("float64", (float,), {})(1.0),
    "bytes subclass": type("Blob", (bytes,), {})(b"x"),
    "list subclass": type("Array", (list,), {})([1]),
    "dict subclass": collections.OrderedDict(a=1),
    "namedtuple": NAMED(1),
    "bytearray": bytearray(b"x"),
    "memoryview": memoryview(b"x"),
    "model": MemoryNode(layer=MemoryLayer.WORKING, tenant_id="acme", label="x"),
    "msgpack extension": msgpack.ExtType(42, b"x"),
    "msgpack extension of ours": msgpack.ExtType(1, b"\x07"),
    "msgpack timestamp": msgpack.Timestamp(1),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_what_would_not_come_out_equal_is_refused(value):
    for holder in (value, [value], {"a": value}, (value,)):
        with pytest.raises(InvalidInput):
            pack(holder)
    with pytest.raises(InvalidInput):
        encode_entry(entry_of(metadata={"a": value}), limit=LIMIT, seal=PLAIN)


def test_what_holds_itself_is_refused():
    ring: list[object] = []
    ring.append(ring)
    loop: dict[str, object] = {}
    loop["self"] = [loop]
    through: list[object] = []
    through.append((through,))
    for value in (ring, loop, through):
        with pytest.raises(InvalidInput):
            pack(value)


@pytest.mark.parametrize("name", ["id", "content", "created_at", "metadata", "importance", "score", "node_id", "layer"])
def test_an_entry_with_a_wrong_or_missing_attribute_is_refused(name):
    thing = SimpleNamespace(**{key: getattr(entry_of(), key) for key in MemoryEntry.model_fields})
    setattr(thing, name, object())
    with pytest.raises(InvalidInput, match="pass a MemoryEntry"):
        encode_entry(thing, limit=LIMIT, seal=PLAIN)
    delattr(thing, name)
    if name in ("id", "content", "created_at", "metadata", "importance"):
        with pytest.raises(InvalidInput, match=name):
            encode_entry(thing, limit=LIMIT, seal=PLAIN)
    else:
        assert there_and_back(thing)


def test_a_refusal_does_not_quote_the_content():
    for entry in (entry_of(content="secret" * 300), entry_of(metadata={"a": {"secret"}})):
        with pytest.raises(InvalidInput) as refused:
            encode_entry(entry, limit=1000, seal=PLAIN)
        assert "secret" not in str(refused.value)


def test_the_limit_is_the_longest_row_that_is_taken():
    entry = entry_of()
    size = len(encode_entry(entry, limit=LIMIT, seal=PLAIN))
    assert len(encode_entry(entry, limit=size, seal=PLAIN)) == size
    with pytest.raises(InvalidInput, match=rf"{size} bytes, over the limit of {size - 1}"):
        encode_entry(entry, limit=size - 1, seal=PLAIN)
