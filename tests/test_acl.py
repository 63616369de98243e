"""ACL rules: a user runs everything of ours on its own keys and nothing else, and sees nothing of another tenant."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import re
from pathlib import Path

import pytest
from acl_users import Users, acl_users
from keyspace import dump
from operations import READS, TENANTS, TREES, WIDE_READS, WRITES, Worker, do
from own_server import until
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError
from test_cli import answer, fails, run

from symfonic_redis import (
    AccessDenied,
    ConfigurationError,
    InvalidInput,
    Relay,
    TenantScope,
    acl,
    acl_rules,
    connect,
    health,
    relay_status,
    scopes,
)
from symfonic_redis.keys import feeds_key, lease_key, relays_key, scope_keys, tenant_keys, tenants_key
from symfonic_redis.scripts import commands_of, runnable, script

PACKAGE = Path(__file__).resolve().parent.parent / "symfonic_redis"
# Ids that patterns could mistake for another's, and one that is plain.
NAMES = (
    "a",
    "ab",
    "a*",
    "a?",
    "[ab]",
    "a\\",
    "~*",
    "a:",
    "%61",
    "a b",
    ") +@all (",
    "\u200b",
    "é",
    "e\u0301",
    "A",
)


def scope_of(tenant: str) -> TenantScope:
    return TenantScope.root("org", tenant).child("conversation", "c-1")


class Rules:
    """A server, the users made on it, and how old it is."""

    def __init__(self, users: Users, version: tuple[int, int], prefix: str) -> None:
        self.users, self.version, self.prefix = users, version, prefix

    async def user(self, tenant: str | None = None, **options: object) -> str:
        return await self.users.make(*acl_rules(tenant, prefix=self.prefix, version=self.version, **options))

    @property
    def selectors(self) -> bool:
        return self.version >= (7, 0)


@pytest.fixture
async def acls(server, prefix):
    """Users by rules, on each backend in turn, beside an admin who has filled two tenants."""
    async with acl_users(server) as users:
        info = await users.admin.info("server")
        version = tuple(map(int, str(info["redis_version"]).split(".")[:2]))
        async with connect(server.url, prefix=prefix, feed=100) as admin:
            for tenant in ("acme", "globex"):
                worker = Worker(admin, scope_of(tenant))
                for name in ("push_many", "push_many", "stage", "add_node", "update_node", "summary"):
                    await do(worker, name)
        yield Rules(users, version, prefix)


@pytest.fixture
async def admin(server, prefix):
    async with connect(server.url, prefix=prefix, feed=100) as deployment:
        yield deployment


async def denials(users: Users) -> list[str]:
    """What the server noted as refused to the users of this test: commands, keys."""
    entries = await users.admin.execute_command("ACL", "LOG", 1000)
    pairs = [entry if isinstance(entry, dict) else dict(zip(entry[::2], entry[1::2], strict=True)) for entry in entries]
    named = [{_str(key): _str(value) for key, value in entry.items()} for entry in pairs]
    mine = [entry["object"] for entry in named if entry["username"] in users.names]
    # The driver tells its own name, and `health` asks for a setting: both go on without an answer.
    return [name for name in mine if not name.lower().startswith(("client", "config"))]


def _str(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# --- what is allowed ---


async def test_a_tenants_user_runs_everything_but_a_relay(acls, admin):
    async with connect(await acls.user("acme"), prefix=acls.prefix, feed=100, deadline=30) as redis:
        worker = Worker(redis, scope_of("acme"))
        calls = [*WRITES, *TREES, *(TENANTS if acls.selectors else ())]
        for name in (*calls, "reopen", "reopen_tree", *WRITES):
            if name not in ("purge", "purge_tree", "purge_tenant"):
                await do(worker, name)
            for call in READS.values():
                await call(worker)
        for name in ("purge", "reopen", "purge_tree", "reopen_tree"):
            await do(worker, name)
        if acls.selectors:
            # A relay has read the feed: its books and its list of feeds go too.
            await do(worker, "push")
            await _relayed(admin)
            await do(worker, "purge_tenant")
            assert not await dump(admin, f"{acls.prefix}:*:acme:*feed*")
            await do(worker, "reopen_tenant")
        await do(worker, "push")
        for call in WIDE_READS.values():
            await call(worker)
        assert [entry.scope.tenant_id for entry in (await scopes(redis, "acme")).entries] == ["acme"]
    assert await denials(acls.users) == []


class Target:
    """A graph backend that takes any node."""

    async def add_node(self, scope, node):
        return node


async def _relayed(redis) -> None:
    """Run a relay until it has done all there is."""
    relay = Relay(redis, Target(), idle=0.05)

    async def done() -> bool:
        found = await relay_status(redis)
        return bool(found.tenants) and not found.lag

    async with asyncio.TaskGroup() as group:
        group.create_task(relay.run())
        await until(done)
        relay.stop()


async def test_a_services_user_runs_everything_for_every_tenant(acls):
    async with connect(await acls.user(), prefix=acls.prefix, feed=100, deadline=30) as redis:
        for tenant in ("acme", "globex", "new"):
            worker = Worker(redis, scope_of(tenant))
            for name in (*WRITES, "reopen", *TREES, "push", *TENANTS, "push"):
                await do(worker, name)
            for call in (*READS.values(), *WIDE_READS.values()):
                await call(worker)
        await _relayed(redis)
    assert await denials(acls.users) == []


async def test_a_services_user_begins_a_prefix_and_a_tenants_user_does_not(acls):
    other = f"{acls.prefix}-new"
    make = acls.users.make
    rules = {tenant: acl_rules(tenant, prefix=other, version=acls.version) for tenant in (None, "acme")}
    if acls.selectors:
        with pytest.raises(ConfigurationError, match="init"):
            async with connect(await make(*rules["acme"]), prefix=other):
                pass
    async with connect(await make(*rules[None]), prefix=other):
        pass
    async with connect(await make(*rules["acme"]), prefix=other) as redis:
        await do(Worker(redis, scope_of("acme")), "push")


@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_who_may_only_read_reads_everything_and_writes_nothing(acls, admin, tenant):
    before = await dump(admin, f"{acls.prefix}:*")
    async with connect(await acls.user(tenant, read_only=True), prefix=acls.prefix, feed=100) as redis:
        worker = Worker(redis, scope_of("acme"))
        for name, call in (*READS.items(), *WIDE_READS.items()):
            assert await call(worker) is not None or name == "get_node", name
        if tenant is None:
            await relay_status(redis)
        assert await denials(acls.users) == []
        # A summary that is gone, or that another writes, is told without a write, and 6.2 cannot ask for rights.
        asked = set() if acls.selectors else {"summary"}
        for name in set(WRITES) - {"update_node"} - asked | set(TREES) | set(TENANTS):
            with pytest.raises(AccessDenied):
                await do(worker, name)
    assert await dump(admin, f"{acls.prefix}:*") == before


async def test_who_may_only_read_lists_past_a_scope_that_is_gone(acls, admin):
    worker = Worker(admin, scope_of("acme"))
    keys = scope_keys(acls.prefix, worker.scope)
    await admin.call("test", "DEL", *keys.everything)
    async with connect(await acls.user("acme", read_only=True), prefix=acls.prefix) as redis:
        assert (await scopes(redis, "acme")).entries == ()
        assert await admin.call("test", "ZCARD", keys.shared.scopes) == 1


async def test_health_without_info(acls):
    rules = (*acl_rules("acme", prefix=acls.prefix, version=acls.version), "-info")
    async with connect(await acls.users.make(*rules), prefix=acls.prefix) as redis:
        assert (await health(redis)).version == "unknown"
        await do(Worker(redis, scope_of("acme")), "push")


async def test_another_database_needs_the_right_to_select_it(acls):
    url = (await acls.user("acme", database=1)).removesuffix("/0") + "/1"
    async with Redis.from_url(url) as client:
        await client.ping()
    url = (await acls.user("acme")).removesuffix("/0") + "/1"
    async with Redis.from_url(url) as client:
        with pytest.raises((NoPermissionError, ConnectionError)):
            await client.ping()


async def test_the_rules_take_away_what_a_user_had(acls):
    url = await acls.users.make("~*", "+@all", *(["(+@all ~*)"] if acls.selectors else []))
    await acls.users.admin.execute_command(
        "ACL", "SETUSER", acls.users.names[-1], *acl_rules("acme", prefix=acls.prefix, version=acls.version)
    )
    async with Redis.from_url(url) as client:
        for command in (("GET", "x"), ("KEYS", "*"), ("SUBSCRIBE", "x")):
            with pytest.raises(NoPermissionError):
                await client.execute_command(*command)


# --- what is denied ---


def forbidden(key: str) -> dict[str, tuple[object, ...]]:
    """Commands that no user of ours may run, whatever the key."""
    lines = f"""
        FLUSHALL / FLUSHDB / SWAPDB 0 1 / KEYS * / SCAN 0 / RANDOMKEY / DBSIZE / CONFIG GET * / CONFIG SET maxmemory 1
        DEBUG SLEEP 0 / ACL LIST / ACL SETUSER x on / ACL WHOAMI / ACL LOG / CLIENT LIST / CLIENT KILL ID 1 / CLIENT ID
        CLIENT TRACKING on / CLIENT TRACKING on BCAST PREFIX {key} / CLIENT PAUSE 1 / CLIENT SETNAME x / MONITOR
        SHUTDOWN NOSAVE / REPLICAOF no one / SLAVEOF no one / PSYNC ? -1 / SYNC / FAILOVER / MIGRATE h 1 {key} 0 1
        DUMP {key} / RESTORE {key} 0 x / COPY {key} {key} / MOVE {key} 1 / RENAMENX {key} {key} / SORT {key}
        OBJECT ENCODING {key} / OBJECT FREQ {key} / MEMORY USAGE {key} / TOUCH {key} / SUBSCRIBE x / PSUBSCRIBE *
        PUBLISH x y / PUBSUB CHANNELS / MULTI / EXEC / WATCH {key} / UNWATCH / SELECT 1 / SAVE / BGSAVE / BGREWRITEAOF
        LASTSAVE / SLOWLOG GET / LATENCY LATEST / MODULE LIST / COMMAND / ROLE / SCRIPT LOAD x / SCRIPT FLUSH
        SCRIPT KILL / SCRIPT EXISTS x / KEYS {key} / DEL {key} / APPEND {key} x / GETDEL {key} / STRLEN {key}
        HGETALL {key} / SMEMBERS {key} / SUNION {key} / SUNIONSTORE {key} {key} / SINTER {key} / SISMEMBER {key} x
        XREADGROUP GROUP g c STREAMS {key} > / XGROUP DESTROY {key} g / XINFO STREAM {key} / XGROUP CREATE {key} g 0
        LMOVE {key} {key} LEFT LEFT / BLPOP {key} 1 / CLUSTER NODES / CLUSTER FORGET x / LOLWUT
    """
    listed = [one.split() for one in re.split(r" / |\n", lines) if one.strip()]
    return {" ".join(one): tuple(one) for one in listed}


FROM_7 = (  # commands that version 6.2 does not know
    "FUNCTION LIST",
    "FUNCTION LOAD x",
    "FUNCTION FLUSH",
    "FCALL f 0",
    "EVAL_RO x 0",
    "SORT_RO x",
    "CLIENT NO-EVICT on",
)


async def refused(client: Redis, *command: object) -> None:
    with pytest.raises(ResponseError) as caught:
        await client.execute_command(*command)
    text = str(caught.value)
    denied = isinstance(caught.value, NoPermissionError) or re.search(
        # DEBUG is off unless a server is told otherwise, and says so before it looks at rules.
        r"NOPERM|ACL failure|can't run this command|can't access at least one of the keys|^DEBUG command not allowed",
        text,
    )
    assert denied, f"{command}: {text}"


@contextlib.asynccontextmanager
async def client_of(url: str):
    async with Redis.from_url(url, single_connection_client=True, protocol=2) as client:
        yield client


async def test_what_no_user_may_run(acls, admin):
    before = await dump(admin, f"{acls.prefix}:*")
    own = scope_keys(acls.prefix, scope_of("acme"))
    async with client_of(await acls.user("acme")) as client:
        commands = forbidden(own.turns)
        if acls.selectors:
            commands |= {line: tuple(line.split()) for line in FROM_7}
        for command in commands.values():
            await refused(client, *command)
            # In a script too, where the server runs the command at all.
            with pytest.raises(ResponseError):
                await client.execute_command("EVAL", "return redis.call(unpack(ARGV))", 1, own.turns, *command)
        assert await client.ping()
    if acls.selectors:
        name = acls.users.names[-1]
        assert b"no permissions" in await acls.users.admin.execute_command("ACL", "DRYRUN", name, "DEBUG", "SLEEP", "0")
    async with client_of(await acls.user()) as client:
        theirs = {"SMEMBERS", "SUNION", "XREADGROUP", "HGETALL", "DEL"}  # what a relay needs
        for command in commands.values():
            if command[0] not in theirs and command[:2] != ("XGROUP", "CREATE"):
                await refused(client, *command)
    assert await dump(admin, f"{acls.prefix}:*") == before


def plain_calls(key: str) -> list[tuple[object, ...]]:
    """The commands that a tenant's user has, on one key."""
    return [
        ("GET", key), ("SET", key, "x"), ("EXISTS", key), ("TYPE", key), ("PTTL", key), ("UNLINK", key),
        ("LRANGE", key, 0, -1), ("LLEN", key), ("LPUSH", key, "x"), ("RPUSH", key, "x"), ("LTRIM", key, 0, 0),
        ("LREM", key, 0, "x"), ("HGET", key, "x"), ("HMGET", key, "x"), ("HSET", key, "x", "y"), ("HDEL", key, "x"),
        ("HKEYS", key), ("HLEN", key), ("HRANDFIELD", key), ("ZADD", key, 1, "x"), ("ZCARD", key), ("ZSCAN", key, 0),
        ("ZSCORE", key, "x"), ("ZREM", key, "x"), ("ZRANGEBYSCORE", key, 0, 1), ("ZREVRANGE", key, 0, 1),
        ("ZREVRANGEBYSCORE", key, 1, 0), ("XADD", key, "*", "f", "v"), ("XLEN", key), ("XRANGE", key, "-", "+"),
        ("XREVRANGE", key, "+", "-"), ("XREAD", "STREAMS", key, "0"), ("XDEL", key, "0-1"),
        ("XTRIM", key, "MAXLEN", 0), ("XINFO", "GROUPS", key), ("XPENDING", key, "g"), ("INCR", key),
        ("PEXPIRE", key, 1), ("PEXPIREAT", key, 1), ("PERSIST", key), ("SADD", key, "x"), ("SREM", key, "x"),
        ("SCARD", key), ("RENAME", key, key),
    ]  # fmt: skip


def test_the_calls_below_are_all_that_a_tenants_user_has():
    allowed = {rule[1:].upper() for rule in acl_rules("acme") if rule.startswith("+")}
    tried = {f"{call[0]}|{call[1]}" if call[0] == "XINFO" else call[0] for call in plain_calls("x")}
    assert tried == allowed - {"PING", "INFO", "TIME"} - acl._ROUTING


async def test_another_tenants_keys_are_out_of_reach(acls, admin):
    before = await dump(admin, f"{acls.prefix}:*")
    mine, theirs = (scope_keys(acls.prefix, scope_of(tenant)) for tenant in ("acme", "globex"))
    others = [theirs.turns, theirs.graph("working"), theirs.summary, theirs.shared.scopes, theirs.shared.feed]
    partition = theirs.partition
    outside = [lease_key(acls.prefix, partition, "relay"), f"{acls.prefix}x:config", "anything"]
    async with client_of(await acls.user("acme")) as client:
        for key in (*others, *outside):
            for call in plain_calls(key):
                await refused(client, *call)
                await refused(client, "EVAL", "return redis.call(unpack(ARGV))", 1, key, *call)  # declared
                await refused(client, "EVAL", "return redis.call(unpack(ARGV))", 0, *call)  # undeclared
                await refused(client, "EVAL", "return redis.call(unpack(ARGV))", 1, mine.turns, *call)
                await refused(client, "EVAL", "return redis.pcall(unpack(ARGV))", 1, mine.turns, *call)
            await refused(client, "RENAME", mine.turns, key)
            await refused(client, "RENAME", key, mine.turns)
            await refused(client, "EXISTS", mine.turns, key)
            await refused(client, "XREAD", "BLOCK", 1, "STREAMS", mine.shared.feed, key, 0, 0)
            for name in runnable():
                await refused(client, "EVALSHA", script(name).sha, 2, mine.turns, key)
            await refused(client, "MULTI")
            await refused(client, "WATCH", key)
            await refused(client, "CLIENT", "TRACKING", "on", "BCAST", "PREFIX", key)
    assert await dump(admin, f"{acls.prefix}:*") == before


async def test_the_names_of_other_tenants_stay_closed(acls, admin):
    """What a script must count the tenant into cannot be read, not even by a script."""
    partition = scope_keys(acls.prefix, scope_of("acme")).partition
    mine = scope_keys(acls.prefix, scope_of("acme"))
    await _relayed(admin)
    shared = (tenants_key(acls.prefix, partition), feeds_key(acls.prefix, partition, "relay"))
    before = await dump(admin, f"{acls.prefix}:*")
    reading = [
        (name, *arguments)
        for key in shared
        for name, *arguments in (
            ("SMEMBERS", key), ("SSCAN", key, 0), ("SRANDMEMBER", key), ("SPOP", key), ("SUNION", key),
            ("SINTER", key), ("SDIFF", key), ("SISMEMBER", key, "globex"), ("SORT", key),
            ("SUNIONSTORE", mine.turns, key), ("SMOVE", key, mine.turns, "globex"), ("DUMP", key),
            ("COPY", key, mine.turns),
        )
    ]  # fmt: skip
    if acls.selectors:
        reading += [("RENAME", key, mine.turns) for key in shared] + [("UNLINK", key) for key in shared]
        reading += [("SMEMBERS", relays_key(acls.prefix, partition), key) for key in shared]
    async with client_of(await acls.user("acme")) as client:
        for command in reading:
            with pytest.raises(ResponseError):
                await client.execute_command(*command)
            for keys in ((), shared[:1], (mine.turns,)):
                with pytest.raises(ResponseError):
                    await client.execute_command("EVAL", "return redis.call(unpack(ARGV))", len(keys), *keys, *command)
        # What is left: whoever guesses a name can tell whether it is there, and take it out.
        assert await client.execute_command("SADD", shared[0], "acme") == 0
    assert await dump(admin, f"{acls.prefix}:*") == before


@pytest.mark.parametrize("tenant", NAMES)
async def test_no_id_makes_a_pattern_that_matches_another_tenant(acls, admin, tenant):
    async with connect(await acls.user(tenant), prefix=acls.prefix, feed=100) as redis:
        await do(Worker(redis, scope_of(tenant)), "push")
        assert await Worker(redis, scope_of(tenant)).layer.get_context(scope_of(tenant))
        for other in (*NAMES, "acme"):
            if other == tenant:
                continue
            worker = Worker(redis, scope_of(other))
            for call in (READS["get_context"], READS["nodes"], WIDE_READS["scopes"], WRITES["push"]):
                with pytest.raises(AccessDenied):
                    await call(worker)


async def test_a_relay_is_a_services(acls):
    async with connect(await acls.user("acme"), prefix=acls.prefix, feed=100) as redis:
        with pytest.raises(AccessDenied):
            await relay_status(redis)
        with pytest.raises(AccessDenied):
            await Relay(redis, Target()).run()


async def test_before_7_a_whole_tenant_is_purged_by_a_service(acls):
    if acls.selectors:
        pytest.skip("from 7.0 on a tenant purges itself")
    async with connect(await acls.user("acme"), prefix=acls.prefix) as redis:
        with pytest.raises(AccessDenied):
            await TENANTS["purge_tenant"](Worker(redis, scope_of("acme")))
    async with connect(await acls.user(), prefix=acls.prefix) as redis:
        await TENANTS["purge_tenant"](Worker(redis, scope_of("acme")))


async def test_a_tenants_user_may_run_its_own_scripts_on_its_own_keys(acls):
    """As the documentation says: what EVAL is for cannot be told from what else it can do."""
    own = scope_keys(acls.prefix, scope_of("acme"))
    async with client_of(await acls.user("acme")) as client:
        assert await client.execute_command("EVAL", "return redis.call('LLEN', KEYS[1])", 1, own.turns) > 0


async def test_the_configuration_is_read_by_a_tenant_and_not_written(acls):
    if not acls.selectors:
        pytest.skip("before 7.0 a key is allowed whole")
    key = f"{acls.prefix}:config"
    async with client_of(await acls.user("acme")) as client:
        assert await client.get(key)
        for command in (("SET", key, "x"), ("UNLINK", key), ("PEXPIRE", key, 1), ("RENAME", key, key)):
            await refused(client, *command)
            await refused(client, "EVAL", "return redis.call(unpack(ARGV))", 0, *command)


# --- the list of commands ---


def sent_by_python() -> set[str]:
    """Every string of the package that is a command's name; what knows errors and keys of commands is left out."""
    found: set[str] = set()
    for path in PACKAGE.glob("*.py"):
        if path.stem not in ("acl", "retry", "routing"):
            nodes = ast.walk(ast.parse(path.read_text("utf-8")))
            found |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return found


async def test_the_commands_are_those_that_are_sent_and_no_others(valkey):
    async with Redis.from_url(valkey.url) as client:
        known = {name.upper(): value["flags"] for name, value in (await client.command()).items()}
    # `health` asks for a setting, and goes on without an answer.
    sent = {text for text in sent_by_python() if text.isupper() and text in known} - {"CONFIG"}
    sent = {{"CLUSTER": "CLUSTER|SLOTS", "CLIENT": "CLIENT|TRACKING"}.get(text, text) for text in sent}
    granted = {rule[1:].upper() for rule in acl_rules(tracking=True) if rule.startswith("+")} | acl._RUN
    scripts = frozenset().union(*map(commands_of, runnable()))
    assert sent | scripts == granted
    assert sent == acl._READS | acl._RELAY_READS | acl._WRITES | acl._RUN | acl._ROUTING | acl._TRACKING
    reads = {rule[1:].upper() for rule in acl_rules(read_only=True, tracking=True) if rule.startswith("+")}
    assert not [name for name in reads if "write" in known[name.partition("|")[0]]]
    assert sent - reads == {"SET", "SREM", "EVAL", "EVALSHA"}
    assert reads == (sent & reads) | commands_of("nodes") | commands_of("relay_status")
    for name in acl._READING_SCRIPTS:
        assert not [one for one in commands_of(name) if "write" in known[one.partition("|")[0]]]


def test_no_rule_allows_a_category_or_all():
    for tenant in (None, "acme"):
        for version in ((6, 2), (7, 0), (7, 2), (8, 2)):
            for read_only in (True, False):
                rules = " ".join(acl_rules(tenant, version=version, read_only=read_only, tracking=True))
                assert "+@" not in rules
                assert "~* " not in f"{rules} "
                assert "allkeys" not in rules
                assert "&" not in rules


def test_rules_are_refused_for_what_has_no_keys():
    with pytest.raises(InvalidInput):
        acl_rules(" ")
    with pytest.raises(InvalidInput):
        acl_rules("x" * 513)
    with pytest.raises(ConfigurationError, match="prefix"):
        acl_rules("acme", prefix="a*")
    with pytest.raises(ConfigurationError, match=r"6\.2"):
        acl_rules(version=(6, 0))


async def test_the_command_line_prints_rules_that_a_server_takes(valkey, prefix):
    line = run("acl", "--tenant", "a cme", "--prefix", prefix, "--server", "8.1.2").stdout
    assert line.count("\n") == 1
    assert line.split() == " ".join(acl_rules("a cme", prefix=prefix, version=(8, 1))).split()
    async with acl_users(valkey) as users:
        # As redis-cli and ACL files give them: separated by spaces, selectors too.
        async with connect(valkey.url, prefix=prefix):
            pass
        url = await users.make(*line.split())
        async with connect(url, prefix=prefix) as redis:
            await do(Worker(redis, scope_of("a cme")), "push")
    assert answer("acl", "--prefix", prefix, "--read-only") == list(acl_rules(prefix=prefix, read_only=True))
    assert "+select" in run("acl", "--database", "3").stdout
    assert answer("acl", "--tracking") == list(acl_rules(tracking=True))
    assert "version" in fails("acl", "--server", "new")


def test_the_shared_keys_are_those_that_scripts_are_given():
    """A new key that tenants share needs a rule, and a thought."""
    keys = tenant_keys("swm", "acme", 7)
    shared = {name for name in keys.__dataclass_fields__ if ":acme:" not in getattr(keys, name)}
    assert shared == {"tenants"}
