"""A server that answers and refuses: each reason its own error, at once, with nothing written."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator

import pytest
from acl_users import Users, acl_users
from own_server import PASSWORD, calls, everything_said, own_server, with_password
from redis import exceptions as driver
from redis.asyncio import Redis
from servers import BINARIES

from symfonic_redis import (
    AccessDenied,
    MemoryUnavailable,
    OutOfMemory,
    PersistenceFailed,
    ServerRefused,
    StreamGraphStore,
    WorkingLayer,
    connect,
)
from symfonic_redis.keys import scope_keys
from symfonic_redis.retry import code_of, is_transient, translate

WRONG = "close-sesame"
AT_ONCE = 5.0  # seconds on a busy machine, against a deadline of 30
LONG = 30.0

ALL_KINDS = pytest.mark.parametrize("kind", list(BINARIES))


async def _refused(call, kind: type[ServerRefused], client: Redis) -> ServerRefused:
    """Make the call; it must fail at once, after a single attempt."""
    before = await calls(client, "evalsha"), await calls(client, "eval")
    started = time.monotonic()
    with pytest.raises(kind) as caught:
        await call
    assert type(caught.value) is kind
    assert time.monotonic() - started < AT_ONCE
    assert (await calls(client, "evalsha"), await calls(client, "eval")) == (before[0] + 1, before[1])
    assert PASSWORD not in everything_said(caught.value)
    return caught.value


@ALL_KINDS
async def test_a_full_server_is_out_of_memory_and_the_window_is_unchanged(scope, turn, kind):
    with own_server("--maxmemory-policy", "noeviction", kind=kind) as server:
        async with connect(server.url, deadline=LONG) as deployment, Redis.from_url(server.url) as admin:
            graph = StreamGraphStore(deployment)
            layer = WorkingLayer(deployment, graph_store=graph)
            await layer.push(scope, turn())
            await layer.rehydrate_from_messages(scope, [{"role": "user", "content": "saved"}])
            await graph.add_node(scope, (await graph.query_nodes(scope))[0])
            await admin.config_set("maxmemory", 1)
            for call in (
                layer.push(scope, turn()),
                layer.push_many(scope, [turn(), turn()], idempotency_key="job"),
                layer.rehydrate_from_messages(scope, [{"role": "user", "content": "x"}], only_if_empty=False),
                graph.add_node(scope, (await graph.query_nodes(scope))[0]),
            ):
                error = await _refused(call, OutOfMemory, admin)
                assert f"127.0.0.1:{server.port} is out of memory" in str(error)
            # What is there can be read all the same.
            assert [entry.content for entry in await layer.get_context(scope)] == ["turn 1"]
            assert await graph.count(scope) == 2
            await admin.config_set("maxmemory", 0)
            # The refused job left no trace: its delivery is stored now.
            receipt = await layer.push(scope, turn(), idempotency_key="job")
            assert (receipt.window_length, receipt.duplicate) == (2, False)


@ALL_KINDS
async def test_a_full_server_lets_a_scope_be_cleared(scope, turn, kind):
    """Nothing else frees the memory; so the clear must not need any to be remembered."""
    with own_server("--maxmemory-policy", "noeviction", kind=kind) as server:
        async with connect(server.url, deadline=LONG) as deployment, Redis.from_url(server.url) as admin:
            graph = StreamGraphStore(deployment)
            layer = WorkingLayer(deployment, graph_store=graph)
            await layer.push(scope, turn())
            await admin.config_set("maxmemory", 1)
            await layer.clear(scope)
            assert await layer.get_context(scope) == []
            assert await graph.count(scope) == 0


@ALL_KINDS
async def test_a_server_that_cannot_persist_refuses_writes(scope, turn, kind):
    directory = tempfile.mkdtemp(prefix="swm-test-")
    with own_server(kind=kind, directory=directory) as server:
        async with connect(server.url, deadline=LONG) as deployment, Redis.from_url(server.url) as admin:
            layer = WorkingLayer(deployment)
            await layer.push(scope, turn())
            shutil.rmtree(directory)
            await admin.config_set("save", "3600 1000000")
            await admin.execute_command("BGSAVE")
            until = time.monotonic() + 30
            while (await admin.info("persistence"))["rdb_last_bgsave_status"] != "err":
                assert time.monotonic() < until
                await asyncio.sleep(0.05)
            error = await _refused(layer.push(scope, turn()), PersistenceFailed, admin)
            assert f"127.0.0.1:{server.port} cannot persist" in str(error)
            assert [entry.content for entry in await layer.get_context(scope)] == ["turn 1"]
            # Or it would not stop: it would want to save first.
            await admin.config_set("save", "")


USER_RULES = {
    # What it may not do -> the rules, after `on` and the password.
    "run scripts": ("~{prefix}:*", "+@all", "-@scripting"),
    "append to lists": ("~{prefix}:*", "+@all", "-lpush"),
    "touch our keys": ("~other:*", "~{prefix}:config", "+@all"),
}


@pytest.fixture
async def users(server) -> AsyncIterator[Users]:
    async with acl_users(server) as users:
        yield users


@pytest.mark.parametrize("may_not", list(USER_RULES))
async def test_a_user_who_may_not_write_is_denied(redis, scope, turn, users, may_not):
    await WorkingLayer(redis).push(scope, turn())
    url = await users.make(*(rule.format(prefix=redis.prefix) for rule in USER_RULES[may_not]))
    async with connect(url, prefix=redis.prefix, deadline=LONG) as deployment:
        layer = WorkingLayer(deployment)
        if may_not == "append to lists":
            # Inside the script, so the server counts one call: there was one attempt.
            await _refused(layer.push(scope, turn()), AccessDenied, users.admin)
        started = time.monotonic()
        with pytest.raises(AccessDenied, match=redis.endpoint) as caught:
            await layer.push(scope, turn())
        assert time.monotonic() - started < AT_ONCE
        assert PASSWORD not in everything_said(caught.value)
    assert [entry.content for entry in await WorkingLayer(redis).get_context(scope)] == ["turn 1"]


async def test_a_user_who_may_not_read_is_denied(redis, scope, turn, users):
    await WorkingLayer(redis).push(scope, turn())
    url = await users.make(f"~{redis.prefix}:config", "+@all")
    async with connect(url, prefix=redis.prefix, deadline=LONG) as deployment:
        with pytest.raises(AccessDenied, match="get_context was refused"):
            await WorkingLayer(deployment).get_context(scope)


@pytest.mark.parametrize("command", ["ltrim", "pexpire", "persist", "xadd", "xtrim", "zadd", "pexpireat", "hset"])
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_a_user_who_may_do_only_half_of_a_write_does_none_of_it(redis, scope, turn, users, command):
    """A refusal in the middle of a script is not rolled back: it has to come before the first write."""
    await WorkingLayer(redis, 1, StreamGraphStore(redis)).push(scope, turn())
    url = await users.make(f"~{redis.prefix}:*", "+@all", f"-{command}")
    ttl = None if command == "persist" else 3600
    async with connect(url, prefix=redis.prefix, deadline=LONG) as deployment:
        graph = StreamGraphStore(deployment, ttl=ttl)
        layer = WorkingLayer(deployment, 1, graph, evicted_retention=0, ttl=ttl, working_graph_retention=1)
        with pytest.raises(AccessDenied):
            await layer.push(scope, turn(), idempotency_key="job")
    assert [entry.content for entry in await WorkingLayer(redis).get_context(scope)] == ["turn 1"]
    assert [node.label for node in await StreamGraphStore(redis).query_nodes(scope)] == ["turn 1"]
    assert await redis.call("exists", "EXISTS", scope_keys(redis.prefix, scope).idem) == 0


@ALL_KINDS
async def test_a_wrong_or_missing_password_is_denied_at_once(scope, kind):
    with own_server("--requirepass", PASSWORD, kind=kind) as server:
        for url in (with_password(server.url, password=WRONG), with_password(server.url, user="nobody"), server.url):
            deployment = connect(url, deadline=LONG)
            started = time.monotonic()
            with pytest.raises(AccessDenied, match="check the URL") as caught:
                await WorkingLayer(deployment).get_context(scope)
            assert time.monotonic() - started < AT_ONCE
            said = everything_said(caught.value)
            assert PASSWORD not in said
            assert WRONG not in said
            await deployment.aclose()


MESSAGES = {
    # What servers say, as they say it; the driver strips a code that it has a class for.
    "OOM command not allowed when used memory > 'maxmemory'.": OutOfMemory,
    "Error running script (call to f_0a): @user_script:9: @user_script: 9: "
    "-OOM command not allowed when used memory > 'maxmemory'.": OutOfMemory,
    "MISCONF Errors writing to the AOF file: No space left on device": PersistenceFailed,
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.": (
        PersistenceFailed
    ),
    "Error running script (call to f_0a): @user_script:9: @user_script: 9: "
    "-MISCONF Errors writing to the AOF file: No space left on device": PersistenceFailed,
    "NOPERM this user has no permissions to access one of the keys used as arguments": AccessDenied,
    "The user executing the script can't run this command or subcommand script: 0a, on @user_script:9.": AccessDenied,
    "The user executing the script can't access at least one of the keys mentioned in the command arguments": (
        AccessDenied
    ),
    "something nobody has foreseen": ServerRefused,
}


@pytest.mark.parametrize("message", MESSAGES)
def test_what_a_server_says_is_understood(message):
    error = driver.ResponseError(message)
    assert not is_transient(error)
    assert type(translate(error, "push", "h:1")) is MESSAGES[message]


@pytest.mark.parametrize(
    "code",
    ["READONLY", "LOADING", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS", "BUSY", "UNBLOCKED", "CONNECTION"],
)
def test_a_server_that_changes_its_state_is_asked_again(code):
    error: Exception = driver.ResponseError(f"{code} something")
    if code == "CONNECTION":
        error = driver.ConnectionError("reset")
    assert code_of(error) == code
    assert is_transient(error)
    wrapped = driver.ResponseError(f"Error running script (call to f_0a): @user_script:1: -{code} something")
    assert code == "CONNECTION" or is_transient(wrapped)


@ALL_KINDS
async def test_a_master_that_became_a_replica_will_not_wait_and_is_asked_again(kind):
    with own_server("--replicaof", "127.0.0.1", "1", kind=kind) as replica:
        async with Redis(port=replica.port) as admin:
            with pytest.raises(driver.ResponseError) as refused:
                await admin.execute_command("WAIT", 1, 10)
    assert code_of(refused.value) == "READONLY"
    assert is_transient(refused.value)


def test_content_that_looks_like_a_code_is_never_asked():
    # An error of our own making never reaches the classifier, so a turn that says OOM is just a turn.
    assert code_of(MemoryUnavailable("OOM")) == ""
