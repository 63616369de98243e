"""Keys: no id reaches another scope's key or slot, and the partitions spread evenly."""

from __future__ import annotations

import itertools
import string
from collections import Counter
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symfonic_redis import ConfigurationError, InvalidInput, MemoryLayer, ScopeLevel, TenantScope, connect
from symfonic_redis.keys import (
    PARTITIONS,
    ScopeKeys,
    check_prefix,
    config_key,
    encode_id,
    partition_of,
    scope_keys,
)

SLOTS = 16_384
PLAIN = frozenset(string.ascii_letters + string.digits + "_.-~%/:{}")

# What an id would have to hold to leave its own key, next to anything else.
HOSTILE = st.text(st.sampled_from(":{}*?[]\\/% \x00\n.~-_aA0é\ud800😀"), min_size=1, max_size=8)
NAMES = (HOSTILE | st.text(st.characters(exclude_characters="\x1f"), min_size=1, max_size=8)).filter(str.strip)
SCOPES = st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=4, unique_by=lambda level: level[0]).map(
    lambda path: TenantScope.from_path([ScopeLevel(kind=kind, id=id_) for kind, id_ in path])
)


def keys_of(scope: TenantScope, prefix: str = "swm") -> list[str]:
    keys = scope_keys(prefix, scope)
    return [keys.turns, keys.ops, keys.ops_old, keys.idem, *(keys.graph(layer) for layer in MemoryLayer)]


def crc16(data: bytes) -> int:
    """CRC-16/XMODEM, by which Redis Cluster places keys."""
    value = 0
    for byte in data:
        value ^= byte << 8
        for _ in range(8):
            value = (value << 1 ^ 0x1021 if value & 0x8000 else value << 1) & 0xFFFF
    return value


def slot_of(key: str) -> int:
    start = key.find("{")
    end = key.find("}", start + 1)
    tagged = key[start + 1 : end] if start >= 0 and end > start + 1 else key
    return crc16(tagged.encode()) % SLOTS


def test_the_slot_computed_here_is_the_one_of_the_specification():
    assert crc16(b"123456789") == 0x31C3
    assert slot_of("{user1000}.following") == slot_of("user1000")


@given(SCOPES, SCOPES)
def test_two_scopes_share_no_key(one, other):
    if one.scope_path == other.scope_path:
        assert keys_of(one) == keys_of(other)
    else:
        assert not set(keys_of(one)) & set(keys_of(other))
        assert scope_keys("swm", one).digest != scope_keys("swm", other).digest


@given(st.tuples(NAMES, NAMES), st.lists(NAMES, min_size=2, max_size=4))
def test_two_tenants_share_no_key_even_under_one_path(tenants, parts):
    class Duck:
        def __init__(self, tenant: str) -> None:
            self.tenant_id, self.scope_path = tenant, "\x1f".join(parts)

    one, other = map(Duck, tenants)
    if tenants[0] != tenants[1]:
        assert not set(keys_of(one)) & set(keys_of(other))
        assert scope_keys("swm", one).digest != scope_keys("swm", other).digest


@given(SCOPES, SCOPES)
def test_no_key_is_below_a_key_of_another_scope(one, other):
    if one.scope_path != other.scope_path:
        above = (*keys_of(one), scope_keys("swm", one).base)
        assert not any(key.startswith(f"{name}:") for key in keys_of(other) for name in above)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([("a", "b"), ("c", "d")], [("a", "b/c/d")]),
        ([("a", "b")], [("a", "b:turns")]),
        ([("a", "b")], [("a", "b}:x{")]),
        ([("a", "b")], [("a", "B")]),
        ([("a", "%3A")], [("a", ":")]),
        ([("a", "b ")], [("a", "b")]),
        ([("a", "é")], [("a", "e\u0301")]),
        ([("a", "acme")], [("a", "acme-corp")]),
    ],
)
def test_ids_that_look_alike_stay_apart(one, other):
    first, second = (TenantScope.from_path([ScopeLevel(kind=k, id=i) for k, i in path]) for path in (one, other))
    assert not set(keys_of(first)) & set(keys_of(second))


@given(SCOPES)
def test_all_keys_of_a_scope_are_in_one_slot(scope):
    tag = f"{partition_of(scope.scope_path):04d}"
    assert {slot_of(key) for key in keys_of(scope)} == {slot_of(tag)}
    assert all(key.startswith(f"swm:{{{tag}}}:") for key in keys_of(scope))


@given(SCOPES)
def test_no_id_brings_a_special_character_into_a_key(scope):
    prefix, tag, *rest = scope_keys("swm", scope).base.split(":")
    assert prefix == "swm"
    assert tag == f"{{{partition_of(scope.scope_path):04d}}}"
    assert len(rest) == 2
    assert set("".join(rest)) <= PLAIN - set(":{}")
    assert rest[1].count("/") == 2 * scope.scope_depth - 1


@given(st.text(), st.text())
def test_the_encoding_of_ids_is_one_to_one(one, other):
    assert (encode_id(one) == encode_id(other)) == (one == other)
    assert encode_id(one).isascii()


def test_the_keys_look_as_documented(scope):
    keys = scope_keys("swm", scope)
    base = "swm:{0214}:acme:org/acme/conversation/c-123"
    assert keys.base == base
    assert (keys.turns, keys.ops, keys.ops_old, keys.idem, keys.graph("working")) == (
        f"{base}:turns",
        f"{base}:ops",
        f"{base}:ops:old",
        f"{base}:idem",
        f"{base}:graph:working",
    )
    assert keys.tenant == "acme"
    assert len(keys.digest) == 16
    assert int(keys.digest, 16) >= 0
    assert config_key("swm") == "swm:config"


def test_the_type_of_a_key_is_told_by_its_name(scope):
    keys = scope_keys("swm", scope)
    named = {keys.turns: "list", keys.ops: "hash", keys.ops_old: "hash", keys.idem: "zset"}
    named |= {keys.graph(layer): "stream" for layer in MemoryLayer}
    assert {key: ScopeKeys.type_of(key) for key in named} == named


@pytest.mark.parametrize(
    ("path", "partition"),
    [
        ("tenant\x1facme", 164),
        ("org\x1facme\x1fconversation\x1fc-123", 214),
        ("org\x1f😀", 405),
        ("org\x1f\ud800", 790),
    ],
)
def test_a_partition_never_changes(path, partition):
    # These literals are on disk in every deployment: a change here moves everybody's conversations.
    assert partition_of(path) == partition
    assert partition_of(path) == crc32(path.encode("utf-8", "surrogatepass")) % 1024


@given(SCOPES)
def test_a_partition_is_one_of_1024(scope):
    assert PARTITIONS == 1024
    assert 0 <= partition_of(scope.scope_path) < 1024


@pytest.mark.parametrize("shards", [3, 6, 16])
def test_scopes_spread_evenly_over_shards(shards):
    # As redis-cli --cluster create deals the slots: consecutive ranges of equal length.
    shard_of = {tag: slot_of(f"{{{tag:04d}}}") * shards // SLOTS for tag in range(PARTITIONS)}
    scopes = 100_000
    load = Counter(shard_of[partition_of(f"org\x1facme\x1fconversation\x1fc-{n}")] for n in range(scopes))
    assert max(load.values()) / (scopes / shards) <= 1.1


@pytest.mark.parametrize("prefix", ["s", "swm", "app:prod:swm", "a.b_c-d", "9", "x" * 64])
def test_a_plain_prefix_is_taken(prefix, scope):
    assert check_prefix(prefix) == prefix
    assert all(key.startswith(f"{prefix}:{{") for key in keys_of(scope, prefix))


@pytest.mark.parametrize("prefix", ["", "x" * 65, "a b", "a{b}", "a*", "a?", "[a]", "a\\b", "ü", "a\n", "a\x00", "a/b"])
def test_any_other_prefix_is_refused(prefix):
    with pytest.raises(ConfigurationError, match="prefix"):
        check_prefix(prefix)
    with pytest.raises(ConfigurationError, match="prefix"):
        connect("redis://localhost", prefix=prefix)


def test_prefixes_share_no_key(scope):
    names = ["swm", "swm:", "swm:x", "swm2", "s", "swm:config", "config"]
    keys = [{config_key(name), *keys_of(scope, name)} for name in names]
    assert all(not one & other for one, other in itertools.combinations(keys, 2))


def test_a_malformed_scope_has_no_keys():
    with pytest.raises(InvalidInput):
        scope_keys("swm", object())
