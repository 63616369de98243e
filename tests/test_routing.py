"""Where a command goes in a cluster: for every command that the package sends, and every way a node is announced."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from redis.crc import key_slot

import symfonic_redis
from symfonic_redis import TenantScope
from symfonic_redis.keys import PARTITIONS, ScopeKeys, feeds_key, lease_key, relays_key, scope_keys, tenant_keys
from symfonic_redis.routing import KEYLESS, key_of, read_slots, resolved, slot_of

PACKAGE = Path(symfonic_redis.__file__).parent

KEYED = {
    "EVAL": (("EVAL", "return 1", 2, "k", "other", "argument"), b"k"),
    "EVALSHA": (("EVALSHA", "0" * 40, 1, b"k", "argument"), b"k"),
    "EXISTS": (("EXISTS", "k", "other"), b"k"),
    "GET": (("GET", "k"), b"k"),
    "HMGET": (("HMGET", "k", "field"), b"k"),
    "LLEN": (("LLEN", "k"), b"k"),
    "LRANGE": (("LRANGE", "k", 0, -1), b"k"),
    "PTTL": (("PTTL", "k"), b"k"),
    "SET": (("SET", "k", "value", "NX"), b"k"),
    "SMEMBERS": (("SMEMBERS", "k"), b"k"),
    "SREM": (("SREM", "k", "member"), b"k"),
    "SUNION": (("SUNION", "k", "other"), b"k"),
    "TYPE": (("TYPE", "k"), b"k"),
    "XLEN": (("XLEN", "k"), b"k"),
    "XRANGE": (("XRANGE", "k", "-", "+", "COUNT", 1), b"k"),
    "XREAD": (("XREAD", "COUNT", 1, "BLOCK", 5, "STREAMS", "k", "0-0"), b"k"),
    "XREVRANGE": (("XREVRANGE", "k", "+", "-"), b"k"),
    "ZCARD": (("ZCARD", "k"), b"k"),
    "ZREVRANGEBYSCORE": (("ZREVRANGEBYSCORE", "k", "+inf", "-inf"), b"k"),
    "ZSCAN": (("ZSCAN", "k", b"0", "COUNT", 100), b"k"),
}
# Words in capitals that the package passes to calls and that begin no command.
WORDS = {"BLOCK", "COUNT", "GET", "LIMIT", "NX", "ON", "SLOTS", "STREAMS", "TRACKING", "WITHSCORES", "UTF", "PX"}


def sent() -> set[str]:
    """The commands that the package's modules name: in a call, or at the head of a tuple."""
    found = set()
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            parts = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.Tuple) else []
            strings = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            found.update(word for word in strings[:3] if word.isascii() and word.isalpha() and word.isupper())
    return found


def test_every_command_that_the_package_sends_is_known_here():
    from symfonic_redis.retry import _CODES  # noqa: PLC0415 - codes of errors are words in capitals too

    unknown = {word for word in sent() - set(KEYED) - KEYLESS - WORDS if not _CODES.fullmatch(word)}
    assert unknown <= {"NOAUTH", "CONNECTION"}


@pytest.mark.parametrize(("command", "key"), KEYED.values(), ids=list(KEYED))
def test_a_command_goes_where_its_key_is(command, key):
    assert key_of(command) == key
    assert slot_of(command) == key_slot(key)
    assert key_of((command[0].lower(), *command[1:])) == key


@pytest.mark.parametrize("name", sorted(KEYLESS))
def test_a_command_without_a_key_goes_to_any_master(name):
    assert slot_of((name, "argument", "more")) is None


def test_a_script_without_keys_goes_to_any_master():
    assert key_of(("EVAL", "return 1", 0, "argument")) is None


def test_a_stream_named_streams_is_found():
    assert key_of(("XREAD", "STREAMS", "streams", "0")) == b"streams"
    assert key_of(("XREADGROUP", "GROUP", "g", "c", "STREAMS", b"k", ">")) == b"k"


@pytest.mark.parametrize("identity", ["acme", "{x}", "a{b}c", "}{", "{}", "\x00", "é", "{0001}"])
def test_all_keys_of_a_scope_and_of_its_partition_share_a_slot(identity):
    keys = scope_keys("swm", TenantScope.root("org", identity).child("conversation", identity))
    names = [keys.ops, keys.ops_old, *keys.everything, *shared(keys)]
    assert {key_slot(name.encode()) for name in names} == {key_slot(f"{keys.partition:04d}".encode())}


def shared(keys: ScopeKeys) -> list[str]:
    """The keys that the partition has besides."""
    every = tenant_keys("swm", keys.tenant, keys.partition)
    own = [getattr(every, name) for name in every.__slots__]
    relay = lease_key("swm", keys.partition, "relay")
    return [*own, relay, f"{relay}:token", feeds_key("swm", keys.partition, "relay"), relays_key("swm", keys.partition)]


def test_the_partitions_reach_every_part_of_the_slots():
    assert {key_slot(f"{number:04d}".encode()) * 16 // 16384 for number in range(PARTITIONS)} == set(range(16))


ANNOUNCED = {
    "an address": ([b"10.0.0.1", 7000, b"id", []], ("10.0.0.1", 7000)),
    "text": (["10.0.0.1", 7000, "id", {}], ("10.0.0.1", 7000)),
    "IPv6": ([b"::1", 7000, b"id", []], ("::1", 7000)),
    "a host name": ([b"one.example", 7000, b"id", [b"ip", b"10.0.0.1"]], ("one.example", 7000)),
    "nothing": ([b"", 7000, b"id", []], ("asked", 7000)),
    "null": ([None, 7000, b"id", []], ("asked", 7000)),
    "no host name": ([b"?", 7000, b"id", [b"ip", b"10.0.0.1"]], ("10.0.0.1", 7000)),
    "no host name, in version 3": ([b"?", 7000, b"id", {b"ip": b"10.0.0.1"}], ("10.0.0.1", 7000)),
    "no host name at all": ([b"?", 7000, b"id", []], ("asked", 7000)),
    "an old server's": ([b"10.0.0.1", 7000], ("10.0.0.1", 7000)),
}


@pytest.mark.parametrize(("node", "address"), ANNOUNCED.values(), ids=list(ANNOUNCED))
def test_a_node_is_found_however_it_is_announced(node, address):
    found = read_slots([[0, 99, node, [b"10.0.0.9", 7009, b"id", []]], [200, 200, node]], "asked")
    assert (found.owners[0], found.owners[99], found.owners[100], found.owners[200]) == (
        address,
        address,
        None,
        address,
    )
    assert found.nodes() == [address] or found.nodes() == [address, ("10.0.0.9", 7009)]
    assert len(found.owners) == 16384


def test_a_redirection_without_a_host_leads_to_the_host_that_was_asked():
    assert resolved("", 7001, "asked") == ("asked", 7001)
    assert resolved("one", 7001, "asked") == ("one", 7001)
