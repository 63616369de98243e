"""Windows that are kept: which may be served, until when, and how much they take. No server."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symfonic_redis import MemoryEntry, TenantScope
from symfonic_redis.drafts import copy_of, draft_of
from symfonic_redis.rows import decode_entry, encode_entry
from symfonic_redis.sealing import PLAIN
from symfonic_redis.tracking import Source, Windows

MANY = 1 << 30
SCOPE = TenantScope.root("org", "acme")


@pytest.fixture
def source() -> Source:
    made = Source()
    made.trusted = inf
    return made


def keep(windows: Windows, source: Source, key: str, rows=(b"row",), *, length: int = 10, ttl: int = -1) -> None:
    windows.settle(windows.begin(source, key, length, 0), list(rows), ttl)


def test_a_window_is_served_while_its_source_is_trusted_and_its_list_lives(source):
    windows = Windows(10, MANY)
    keep(windows, source, "a")
    keep(windows, source, "b", ttl=5_000)
    assert windows.find("a", 10, 1).rows == [b"row"]
    assert windows.find("b", 10, 4.9)
    assert not windows.find("b", 10, 5)
    assert len(windows) == 1
    source.trusted = 7
    assert windows.find("a", 10, 6.9)
    assert not windows.find("a", 10, 7)
    source.trusted = 9  # it was heard again: all it had to say until then was said
    assert windows.find("a", 10, 8)


def test_a_window_serves_what_it_has(source):
    windows = Windows(10, MANY)
    keep(windows, source, "full", [b"3", b"2", b"1"], length=3)
    keep(windows, source, "short", [b"1"], length=3)
    assert windows.find("full", 2, 0)
    assert windows.find("full", 3, 0)
    assert not windows.find("full", 4, 0)
    assert windows.find("short", 99, 0)


def test_a_list_that_is_not_there_is_a_window_too(source):
    windows = Windows(10, MANY)
    keep(windows, source, "none", [], ttl=-2)
    assert windows.find("none", 10, 0).rows == []
    keep(windows, source, "gone meanwhile", [b"row"], ttl=-2)
    assert not windows.find("gone meanwhile", 10, 0)


@pytest.mark.parametrize("how", ["evict", "drop"])
def test_what_was_changed_while_it_was_read_is_not_kept(source, how):
    windows = Windows(10, MANY)
    first, second = windows.begin(source, "a", 10, 0), windows.begin(source, "a", 10, 0)
    if how == "evict":
        windows.evict(["b", "a"])
    else:
        windows.drop(source)
    windows.settle(first, [b"old"], -1)
    assert not windows.find("a", 10, 0)
    after = windows.begin(source, "a", 10, 0)
    windows.settle(second, [b"old"], -1)
    assert not windows.find("a", 10, 0)
    windows.settle(after, [b"new"], -1)
    assert windows.find("a", 10, 0).rows == [b"new"]


def test_a_source_that_is_dropped_takes_its_windows_along(source):
    windows, other = Windows(10, MANY), Source()
    other.trusted = inf
    keep(windows, source, "a")
    keep(windows, other, "b")
    windows.drop(source)
    assert not windows.find("a", 10, 0)
    assert windows.find("b", 10, 0)
    assert len(windows) == 1


def test_the_windows_read_longest_ago_go_first(source):
    windows = Windows(2, MANY)
    keep(windows, source, "a")
    keep(windows, source, "b")
    windows.find("a", 10, 0)
    keep(windows, source, "c")
    assert [key for key in "abc" if windows.find(key, 10, 0)] == ["a", "c"]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 5), st.sampled_from(["keep", "evict", "drop"]))))
def test_the_bounds_hold_and_the_bytes_are_those_of_what_is_kept(steps):
    source, most = Source(), 9_000
    windows = Windows(3, most)
    for key, rows, step in steps:
        if step == "keep":
            keep(windows, source, key, [b"x" * 100] * rows, length=5)
        elif step == "evict":
            windows.evict([key])
        else:
            windows.drop(source)
        assert len(windows) <= 3
        assert windows.bytes == sum(window.weight for window in windows._kept.values()) <= most
        assert not windows._loads


def test_a_window_over_all_bytes_is_not_kept_and_an_older_one_of_its_key_goes(source):
    windows = Windows(10, 9_000)
    keep(windows, source, "a")
    keep(windows, source, "b")
    keep(windows, source, "a", [b"x" * 10_000])
    assert not windows.find("a", 10, 0)
    assert windows.find("b", 10, 0)


# --- copies ---

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.datetimes() | st.uuids(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


def mutables(value) -> list[int]:
    """The identities of everything in a value that could be changed."""
    if isinstance(value, dict):
        return [id(value), *(found for part in value.values() for found in mutables(part))]
    if isinstance(value, list | tuple):
        inner = [found for part in value for found in mutables(part)]
        return [id(value), *inner] if isinstance(value, list) else inner
    return []


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_a_copy_equals_what_was_decoded_and_shares_nothing_that_can_be_changed(metadata):
    entry = MemoryEntry(tenant_id="acme", content="x", metadata=metadata)
    decoded = decode_entry(encode_entry(entry, limit=MANY, seal=PLAIN), "acme", seal=PLAIN)
    draft = draft_of(decoded)
    one, two = copy_of(draft), copy_of(draft)
    assert one == two == decoded
    assert one.__pydantic_fields_set__ == decoded.__pydantic_fields_set__
    assert one.model_dump() == decoded.model_dump()
    owned = [mutables(part.__dict__) for part in (decoded, one, two)]
    owned.append(mutables(draft.values))
    every = [found for part in owned for found in part]
    assert len(every) == len(set(every))
    assert len({id(part.__pydantic_fields_set__) for part in (decoded, one, two)}) == 3
