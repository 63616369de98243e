"""Every script with arguments and keys that nobody would send: it refuses before it writes, or writes all of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from unittest import mock

import pytest
import redis as driver
from hypothesis import given, settings
from hypothesis import strategies as st
from operations import TENANTS, TREES, WRITES, Worker, do
from own_server import own_server, until

from symfonic_redis import Deployment, Relay, TenantScope, connect, relay_status, scopes
from symfonic_redis.keys import scope_keys
from symfonic_redis.resp import Packed
from symfonic_redis.scripts import runnable, script

HOSTILE = st.sampled_from(
    [
        *("", "0", "-1", "1", "2", "3", "7", "100", "0x10", "1e3", "1e400", "-1e400", "nan", "inf", "-inf", "9" * 30),
        *("1.5", "-0", " 1", "1 ", "x", "-", "+", "*", "(", "=", "all", "0-0", "1-1", "99999999999999-1", "\x00", "\n"),
        *("working", "semantic", "tree:a/b", "org/acme", "1 working id 3\nabc", "1 working id 99\nabc", "%"),
    ]
).map(str.encode) | st.binary(max_size=12)


class Call(NamedTuple):
    """A call of a script, as it was sent once."""

    name: str
    keys: list[bytes]
    args: list[bytes]


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def _words(parts: Sequence[object] | Packed) -> list[bytes]:
    """Keys or arguments one by one, also those that were packed beforehand."""
    if isinstance(parts, Packed):
        return [*map(_bytes, parts.words)]
    return [word for part in parts for word in (_words(part) if isinstance(part, Packed) else [_bytes(part)])]


@contextlib.contextmanager
def recorded() -> Iterator[list[Call]]:
    """What is sent to scripts meanwhile."""
    found: list[Call] = []
    run_each = Deployment.run_each

    async def noted(self, operation, sent, calls, **options):
        found.extend(Call(sent.name, _words(keys), _words(args)) for keys, args in calls[:3])
        return await run_each(self, operation, sent, calls, **options)

    with mock.patch.object(Deployment, "run_each", noted):
        yield found


class Target:
    """A graph backend that takes some nodes."""

    def __init__(self) -> None:
        self.calls = 0

    async def add_node(self, scope, node):
        self.calls += 1
        if self.calls % 4:
            raise ConnectionResetError
        return node


async def _use_everything(url: str) -> None:
    """Make every call that runs a script, and leave behind what the scripts then find."""
    async with connect(url, feed=8) as redis:
        worker = Worker(redis, TenantScope.root("org", "acme").child("conversation", "c-1"))
        for name in [*WRITES, *TREES, *TENANTS, "push"]:
            await do(worker, name)
        keys = scope_keys(redis.prefix, worker.scope)
        await redis.call("test", "DEL", *keys.everything)
        await scopes(redis, "acme")
        for name in ("push_many", "stage", "add_node", "update_node", "summary", "idempotent push"):
            await do(worker, name)
        relay = Relay(redis, Target(), first_pause=0.01, attempts=2, idle=0.05)
        async with asyncio.TaskGroup() as group:
            group.create_task(relay.run())

            async def done() -> bool:
                return not (await relay_status(redis)).lag

            await until(done)
            relay.stop()
        for name in ("push_many", "update_node"):
            await do(worker, name)


ODD_KEYS = {
    b"odd:string": ("SET", b"odd:string", b"text"),
    b"odd:number": ("SET", b"odd:number", b"5"),
    b"odd:list": ("RPUSH", b"odd:list", b"a", b"1 working x 1\nz", b"\x00"),
    b"odd:set": ("SADD", b"odd:set", b"acme"),
    b"odd:zset": ("ZADD", b"odd:zset", 1, b"a", "inf", b"b", -1.5, b"c"),
    b"odd:hash": (
        "HSET",
        b"odd:hash",
        b"born",
        b"x",
        b"keep",
        b"y",
        b"a",
        b"1",
        b"relay read",
        b"z",
        b"relay f x",
        b"q",
    ),
    b"odd:stream": ("XADD", b"odd:stream", "1-1", b"s", b"x"),
    b"odd:feed": ("XADD", b"odd:feed", "*", b"f", b"v"),
}


# A hash that is one block is restored in its own order, so equal values have equal bytes.
ORDERED = ("--hash-max-ziplist-entries", "10000", "--hash-max-ziplist-value", "100000")


class Bench:
    """A server of its own, the calls that were recorded on it, and the state that each of them finds."""

    def __init__(self, url: str) -> None:
        with recorded() as found:
            asyncio.run(_use_everything(url))
        self.calls: dict[str, list[Call]] = {name: [] for name in runnable()}
        for call in found:
            # The last of them find most: nothing is closed any more.
            self.calls[call.name] = [*self.calls[call.name][-7:], call]
        self.client = driver.Redis.from_url(url, socket_timeout=30, retry=None)
        for name in runnable():
            self.client.script_load(script(name).text)
        # Of all the partitions of a purged tenant, what no call names is left away: it only takes time.
        named = {key for calls in self.calls.values() for call in calls for key in call.keys}
        for name in set(self.client.keys()) - named:
            self.client.delete(name)
        for call in (
            call for calls in self.calls.values() for call in calls if call.keys and b"lease@" in call.keys[0]
        ):
            if call.name != "relay_lease":
                self.client.set(call.keys[0], call.args[0])  # as when they were sent
        for command in ODD_KEYS.values():
            self.client.execute_command(*command)
        self.client.xgroup_create("odd:feed", "relay", "0")
        self.begin = self.state()
        self.reset()
        assert self.state() == self.begin

    def state(self) -> dict[bytes, bytes]:
        names = sorted(self.client.keys())
        pipe = self.client.pipeline(transaction=False)
        for name in names:
            pipe.dump(name)
        return dict(zip(names, pipe.execute(), strict=True))

    def reset(self) -> None:
        pipe = self.client.pipeline(transaction=False)
        pipe.flushall()
        for name, value in self.begin.items():
            pipe.restore(name, 0, value)
        pipe.execute()

    def send(self, call: Call) -> Exception | None:
        """Send it; return the error that the script answered. A server that hangs or is gone fails the test."""
        try:
            self.client.execute_command("EVALSHA", script(call.name).sha, len(call.keys), *call.keys, *call.args)
        except driver.ResponseError as error:
            return error
        return None


@pytest.fixture(scope="module", params=["valkey", "redis", "redis-6.2", "redis-8.2"])
def bench(request) -> Iterator[Bench]:
    with own_server(*ORDERED, kind=request.param) as server:
        one = Bench(server.url)
        yield one
        one.client.close()


def _mutate(draw, items: list[bytes], fresh: Callable[[], bytes]) -> None:
    """Replace one of the items, put one in, leave out one or the rest, or let two change places."""
    at = draw(st.integers(0, len(items)))
    match draw(st.sampled_from(["replace"] * 4 + ["insert", "remove", "cut", "swap"])):
        case "replace":
            items[at : at + 1] = [fresh()]
        case "insert":
            items.insert(at, fresh())
        case "remove":
            del items[at : at + 1]
        case "cut":
            del items[at:]
        case "swap" if len(items) > 1:
            items[at - 1], items[0] = items[0], items[at - 1]


@pytest.fixture(scope="module")
def valkey_bench() -> Iterator[Bench]:
    with own_server(*ORDERED) as server:
        one = Bench(server.url)
        yield one
        one.client.close()


@st.composite
def mutated(draw, call: Call) -> Call:
    """A call with some of its keys or arguments changed."""
    keys, args = list(call.keys), list(call.args)

    def odd() -> bytes:
        # No key twice: each has a purpose of its own, and two purposes of one key nobody could serve.
        return draw(st.sampled_from([name for name in (*ODD_KEYS, b"odd:none") if name not in keys]))

    for _ in range(draw(st.integers(1, 3))):
        if draw(st.integers(0, 3)):
            _mutate(draw, args, lambda: draw(HOSTILE | st.binary(min_size=16, max_size=16)))
        else:
            _mutate(draw, keys, odd)
    return Call(call.name, keys, args)


@pytest.mark.parametrize("name", runnable())
def test_the_recording_has_every_script(bench, name):
    assert bench.calls[name]


@settings(max_examples=max(30, settings.default.max_examples // 40))
@pytest.mark.parametrize("name", runnable())
@given(data=st.data())
def test_a_script_that_refuses_has_written_nothing(bench, name, data):
    call = data.draw(mutated(data.draw(st.sampled_from(bench.calls[name]))))
    bench.reset()
    error = bench.send(call)
    assert bench.client.ping()
    # What an import puts together stands beside the scope: no reader sees it, and a commit counts it.
    beside = call.keys[8:] if name in ("import_rows", "import_nodes") else []
    if error is not None:
        assert without(bench.state(), beside) == without(bench.begin, beside), f"{name} refused half-way: {error}"


@pytest.mark.parametrize("name", runnable())
def test_each_key_and_each_argument_alone_is_refused_before_a_write(valkey_bench, name):
    bench = valkey_bench
    call = bench.calls[name][-1]
    fresh = [os.urandom(16), *call.args[1:]] if len(call.args) > 1 and len(call.args[0]) == 16 else call.args
    wrong = [
        Call(name, [*call.keys[:at], odd, *call.keys[at + 1 :]], fresh)
        for at in range(len(call.keys))
        for odd in ODD_KEYS
    ]
    wrong += [
        Call(name, call.keys, [*fresh[:at], odd, *fresh[at + 1 :]])
        for at in range(min(len(fresh), 16))
        for odd in (b"", b"x", b"-1", b"inf")
    ]
    wrong += [Call(name, call.keys, fresh[:at]) for at in range(len(fresh))]
    wrong += [Call(name, call.keys[:at], fresh) for at in range(len(call.keys))]
    beside = call.keys[8:] if name in ("import_rows", "import_nodes") else []
    for one in wrong:
        bench.reset()
        if (error := bench.send(one)) is not None:
            assert without(bench.state(), beside) == without(bench.begin, beside), f"{one} refused half-way: {error}"


def without(state: dict[bytes, bytes], keys: list[bytes]) -> dict[bytes, bytes]:
    return {key: value for key, value in state.items() if key not in keys}


def test_half_a_write_is_noticed(bench):
    """The check itself: a script that writes and then fails."""
    bench.reset()
    with pytest.raises(driver.ResponseError):
        bench.client.eval("redis.call('RPUSH', KEYS[1], 'x') redis.call('HGET', KEYS[1], 'x')", 1, "odd:list")
    assert bench.state() != bench.begin
