"""The Lua scripts: each header is held against what runs, and its cost against a real server's own counters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from symfonic_redis import SharedSummaryCache, StreamGraphStore, WorkingLayer
from symfonic_redis.keys import scope_keys
from symfonic_redis.retention import Bounds
from symfonic_redis.rows import encode_entry
from symfonic_redis.scripts import script, sources
from symfonic_redis.sealing import PLAIN
from symfonic_redis.store import Store

LUA = Path(__file__).resolve().parent.parent / "lua"
NAMES = sorted(path.stem for path in LUA.glob("*.lua"))
INCLUDE = re.compile(r"^--@include (\w+)$", re.MULTILINE)
FRAGMENTS = {name for source in sources().values() for name in INCLUDE.findall(source)}
RUNNABLE = [name for name in NAMES if name not in FRAGMENTS]

# Reads, and steps that may be repeated without harm: each header says so. Every other script takes an operation id.
REPEATABLE = {"nodes", "erase", "forget"} | {name for name in RUNNABLE if name.startswith("relay_")}

every_file = pytest.mark.parametrize("name", NAMES)
every_script = pytest.mark.parametrize("name", RUNNABLE)


def split(name: str) -> tuple[str, str]:
    """The header without its dashes, and the body without its comments."""
    lines = (LUA / f"{name}.lua").read_text("utf-8").splitlines()
    end = next(number for number, line in enumerate(lines) if not line.startswith("--") or line.startswith("--@"))
    header = "\n".join(line[2:].removeprefix(" ") for line in lines[:end])
    return header, "\n".join(re.sub(r"--.*", "", line) for line in lines[end:])


def parts(name: str) -> list[str]:
    """A script and all that it includes."""
    return [name, *INCLUDE.findall(sources()[name])]


def declared(name: str, what: str) -> tuple[set[int], set[int]]:
    """The indexes that the headers of a script and of its parts name, and where an open rest begins.

    `KEYS[1..7]  see once.lua` in a script's own header points to those of its parts.
    """
    fixed: set[int] = set()
    rest: set[int] = set()
    for part in parts(name):
        for first, last, opened in re.findall(rf"^{what}\[(\d+)(?:\.\.(\d+))?(\+)?\] ", split(part)[0], re.MULTILINE):
            if opened:
                rest.add(int(first))
            else:
                fixed.update(range(int(first), int(last or first) + 1))
    return fixed, rest


def running(name: str) -> str:
    return "\n".join(split(part)[1] for part in parts(name))


def test_the_scripts_are_found_beside_the_package():
    assert sorted(sources()) == NAMES
    assert all(sources()[name] == (LUA / f"{name}.lua").read_text("utf-8") for name in NAMES)


@every_file
def test_a_header_says_all_there_is_to_say(name):
    header, _ = split(name)
    assert re.match(rf"{name}: \w", header)
    wanted = {"COST", "KEYS[1", "ARGV[1", "RETURNS"}
    if name in FRAGMENTS:
        wanted = {"COST", "RETURNS"} if name == "closed" else {"COST", "LOCALS"}
    for part in wanted:
        assert re.search(rf"^{re.escape(part)}", header, re.MULTILINE), f"{name} does not say its {part}"
    assert ("ncluded" in header.split("KEYS[")[0]) == (name in FRAGMENTS)


@every_script
@pytest.mark.parametrize("what", ["KEYS", "ARGV"])
def test_the_headers_declare_what_runs_and_nothing_else(name, what):
    fixed, rest = declared(name, what)
    used = {int(found) for found in re.findall(rf"\b{what}\[(\d+)\]", running(name))}
    beyond = min(rest, default=10_000)
    assert {index for index in used if index < beyond} <= fixed, f"{name} uses what it does not declare"
    # What stands in the common places is declared by the part that uses it, so only a script's own are held to use.
    own = {int(found) for found in re.findall(rf"^{what}\[(\d+)\] ", split(name)[0], re.MULTILINE)}
    assert own <= used, f"{name} declares what it does not use"
    assert fixed | rest == set(range(1, len(fixed | rest) + 1)), f"{name} leaves a gap in its {what}"
    walks = re.search(rf"\b{what}\[[^\]\d]*[a-z]|#{what}\b|unpack\({what}", running(name))
    assert not rest or walks, f"{name} declares a rest that nothing walks"


@every_file
def test_no_command_walks_the_keyspace_or_knows_the_payload(name):
    _, body = split(name)
    commands = {command.upper() for command in re.findall(r"redis\.call\('(\w+)'", body)}
    assert not commands & {"KEYS", "SCAN", "HSCAN", "SSCAN", "ZSCAN", "FLUSHDB", "FLUSHALL", "RANDOMKEY", "SORT"}
    assert not re.search(r"\b(cmsgpack|struct|bit|cjson|loadstring|(?<!redis\.)pcall|math\.random|os)\b[.(]", body)
    assert set(re.findall(r"\bredis\.(\w+)", body)) <= {"call", "pcall", "acl_check_cmd", "error_reply"}


@every_file
def test_no_script_makes_a_key_up(name):
    """A key is one of KEYS, or a parameter or local that stands for one: never a string put together."""
    for command, first in re.findall(r"redis\.call\('(\w+)', ([^,)\n]+)", split(name)[1]):
        if command not in {"XINFO", "XGROUP", "XREADGROUP", "XPENDING"}:
            assert re.fullmatch(r"KEYS\[[^\]]+\]|unpack\(KEYS|[a-z]+", first), f"{name}: {command} {first}"


@every_file
def test_a_script_is_short(name):
    code = [line for line in split(name)[1].splitlines() if line.strip()]
    assert len(code) <= 72


@every_script
def test_a_write_is_applied_once_or_may_be_repeated(name):
    assert "--@" not in script(name).text
    if name in REPEATABLE:
        assert "once" not in parts(name)
        return
    assert parts(name)[1] == "once"
    last = split(name)[1].rstrip().splitlines()[-1]
    assert re.match(r"return \{0, once\(", last), "the operation is noted after the last write"


@every_script
async def test_a_script_is_what_the_server_hashes(name, redis):
    one = script(name)
    assert await redis.call("test", "SCRIPT", "LOAD", one.text) == one.sha.encode()


def test_an_unknown_script_is_a_mistake_of_ours():
    with pytest.raises(KeyError):
        script("unknown")


# --- cost ---


def stated(name: str) -> list[int]:
    """The numbers of the COST lines: how many commands."""
    return [int(number) for number in re.findall(r"\b\d+\b", split(name)[0].split("\nCOST")[1])]


async def commands_of(redis, call) -> int:
    """How many commands the server ran inside scripts while `call` was awaited."""

    async def counted() -> dict[str, int]:
        text = (await redis.call("test", "INFO", "commandstats")).decode()
        found = dict(re.findall(r"^cmdstat_([^:]+):calls=(\d+)", text, re.MULTILINE))
        ignored = ("eval", "evalsha", "info", "auth", "hello", "client", "script")
        return {name: int(calls) for name, calls in found.items() if name.partition("|")[0] not in ignored}

    before = await counted()
    await call
    after = await counted()
    return sum(after.values()) - sum(before.values())


def small_layer(redis, **options):
    return WorkingLayer(redis, max_entries=3, evicted_retention=2, **options)


async def test_a_push_costs_what_its_header_says(one_redis, scope, turn):
    plain, mirrored, ttl, first, first_mirrored, first_full = stated("push")[:6]
    layer = small_layer(one_redis)
    await layer.push_many(scope, [turn() for _ in range(6)])
    assert await commands_of(one_redis, layer.push(scope, turn())) == plain
    graph = StreamGraphStore(one_redis)
    layer = small_layer(one_redis, graph_store=graph)
    assert await commands_of(one_redis, layer.push(scope, turn())) == first_mirrored
    assert await commands_of(one_redis, layer.push(scope, turn())) == mirrored
    layer = small_layer(one_redis, graph_store=graph, working_graph_retention=2)
    assert await commands_of(one_redis, layer.push(scope, turn())) == first_full
    assert await commands_of(one_redis, layer.push(scope, turn())) == mirrored
    assert await commands_of(one_redis, small_layer(one_redis).push(scope, turn())) == first
    layer = small_layer(one_redis, graph_store=StreamGraphStore(one_redis, ttl=1000), ttl=1000)
    await layer.push(scope, turn())
    assert await commands_of(one_redis, layer.push(scope, turn())) == mirrored + 2 * ttl


async def test_a_turn_more_in_a_batch_costs_one_command_of_the_mirror(one_redis, scope, turn):
    layer = small_layer(one_redis, graph_store=StreamGraphStore(one_redis))
    await layer.push_many(scope, [turn() for _ in range(6)])
    two = await commands_of(one_redis, layer.push_many(scope, [turn(), turn()]))
    assert await commands_of(one_redis, layer.push_many(scope, [turn() for _ in range(5)])) == two + 3


async def test_a_clear_costs_what_its_header_says(one_redis, scope, turn):
    plain, mirrored = stated("clear")[:2]
    layer = small_layer(one_redis, graph_store=StreamGraphStore(one_redis))
    await layer.push(scope, turn())
    assert await commands_of(one_redis, layer.clear(scope)) == mirrored
    layer = small_layer(one_redis)
    await layer.push(scope, turn())
    assert await commands_of(one_redis, layer.clear(scope)) == plain


async def test_a_rehydration_costs_what_its_header_says(one_redis, scope, turn):
    (plain,) = stated("rehydrate")[:1]
    store, keys = Store(one_redis), scope_keys(one_redis.prefix, scope)
    rows = [encode_entry(turn(), limit=1000, seal=PLAIN)]
    await small_layer(one_redis).push(scope, turn())
    await store.clear(keys, layer=None)
    assert await commands_of(one_redis, store.rehydrate(keys, rows, Bounds(3, 2, None), only_if_empty=True)) == plain


async def test_a_node_costs_what_its_header_says(one_redis, scope):
    (plain,) = stated("node_add")[:1]
    store, keys = Store(one_redis), scope_keys(one_redis.prefix, scope)
    await store.add_node(keys, "semantic", b"x", ttl=None)
    assert await commands_of(one_redis, store.add_node(keys, "semantic", b"x", ttl=None)) == plain


async def test_what_every_write_costs_is_what_its_header_says(one_redis, scope):
    least, begins = stated("once")[:2]
    store, keys = Store(one_redis), scope_keys(one_redis.prefix, scope)
    rest = 4  # clear's own three looks, at an empty scope, and the one at what is closed
    assert await commands_of(one_redis, store.clear(keys, layer=None)) - rest == begins
    assert await commands_of(one_redis, store.clear(keys, layer=None)) - rest == least


async def test_a_shared_summary_costs_what_its_headers_say(one_redis, scope, turn):
    one, other = SharedSummaryCache(one_redis), SharedSummaryCache(one_redis, lease=60)
    granted, longer, there, prolonged, taking, gone = stated("summary_claim")
    kept, late = stated("summary_keep")[:2]

    async def claim(cache: SharedSummaryCache, revision: str) -> bytes | None:
        return (await cache.claim(scope, revision, [revision], max_chars=100)).token

    async def keep(token: bytes | None, revision: str) -> bool:
        return await one.keep(scope, revision, [revision], "text", token=token or b"", max_chars=100)

    key = scope_keys(one_redis.prefix, scope).summary
    await claim(one, "r1")
    assert await commands_of(one_redis, claim(one, "r1")) == gone
    await small_layer(one_redis).push(scope, turn())
    first = await claim(one, "r1")
    await keep(first, "r1")
    assert await commands_of(one_redis, claim(one, "r1")) == there
    await one_redis.call("test", "PEXPIRE", key, 40_000_000)
    assert await commands_of(one_redis, claim(one, "r1")) == prolonged
    assert await commands_of(one_redis, claim(one, "r2")) == granted
    assert await commands_of(one_redis, claim(one, "r2")) == taking
    assert await commands_of(one_redis, keep(first, "r2")) == late
    await one_redis.call("test", "HDEL", key, *await ends(one_redis, scope))
    await one_redis.call("test", "PEXPIRE", key, 50_000)
    taken: list[bytes | None] = []

    async def take() -> None:
        taken.append(await claim(other, "r3"))

    assert await commands_of(one_redis, take()) == longer
    assert await commands_of(one_redis, keep(taken[0], "r3")) == kept


async def ends(redis, scope) -> list[bytes]:
    """The fields that say until when a summary is being written."""
    fields = await redis.call("test", "HKEYS", scope_keys(redis.prefix, scope).summary)
    return [field for field in fields if field.endswith(b":ends")]
