"""The connection that calls share: every caller gets its own replies, or an error, and never another's."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from own_server import until
from redis import asyncio as redis
from redis import exceptions as driver
from scripted import Connection, Scripted, Transport

from symfonic_redis import ConfigurationError, channel
from symfonic_redis.channel import FLUSH, SILENCE, Channel
from symfonic_redis.wire import LARGE, Wire

LONG = 60.0
"""Seconds in which nothing ends by itself while a test runs."""

SHORT = 0.05

REPLIES: list[tuple[bytes, Any]] = [
    (b"+OK\r\n", b"OK"),
    (b":1234567\r\n", 1234567),
    (b"$11\r\nline\r\nbreak\r\n", b"line\r\nbreak"),
    (b"$0\r\n\r\n", b""),
    (b"_\r\n", None),
    (b"*3\r\n$1\r\na\r\n*1\r\n:7\r\n*0\r\n", [b"a", [7], []]),
    (b"%1\r\n+k\r\n,1.5\r\n", {b"k": 1.5}),
    (b"$-1\r\n", None),
]
PUSHED = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nkey\r\n"
REFUSED = b"-ERR no such thing\r\n"


class Line:
    """A channel over a transport of the test's own."""

    def __init__(self, patience: float = LONG) -> None:
        connection = Connection()
        self.transport: Transport = connection.transport
        self.channel = Channel(connection, patience)
        self.calls = 0

    async def call(self, count: int = 1, until: float | None = None) -> asyncio.Task[list[Any]]:
        """A call that was sent and awaits so many replies."""
        task = asyncio.create_task(self.channel.exchange(b"%d " % self.calls, count, until))
        self.calls += 1
        await asyncio.sleep(0)
        return task

    def feed(self, *parts: bytes) -> None:
        for part in parts:
            if self.transport.open:  # as a transport does: what was dropped hears nothing more
                self.channel.data_received(part)


async def outcomes(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    async with asyncio.timeout(LONG):
        return await asyncio.gather(*tasks, return_exceptions=True)


def kinds(results: list[Any]) -> list[Any]:
    return [type(result) if isinstance(result, BaseException) else result for result in results]


# --- replies ------------------------------------------------------------------------------------


@pytest.fixture
def patient_of_silence(monkeypatch):
    """A machine that is busy must not look like a server that is silent."""
    monkeypatch.setattr(channel, "SILENCE", 60.0)


@pytest.mark.parametrize("pushed", [b"", PUSHED], ids=["", "with messages between"])
async def test_replies_may_be_split_anywhere(pushed):
    data = pushed + b"".join(reply + pushed for reply, _ in REPLIES)
    values = [value for _, value in REPLIES]
    for at in range(len(data) + 1):
        line = Line()
        first, second, third = [await line.call(count) for count in (1, 4, 3)]
        line.feed(*filter(None, (data[:at], data[at:])))
        assert await outcomes([first, second, third]) == [values[:1], values[1:5], values[5:]]
        assert line.channel.idle
        assert line.channel.usable


async def test_replies_may_come_byte_by_byte():
    line = Line()
    data = b"".join(reply + PUSHED for reply, _ in REPLIES)
    tasks = [await line.call() for _ in REPLIES]
    line.feed(*(data[at : at + 1] for at in range(len(data))))
    assert await outcomes(tasks) == [[value] for _, value in REPLIES]


async def test_the_error_of_one_command_stands_among_the_replies():
    line = Line()
    tasks = [await line.call(3), await line.call()]
    line.feed(b":1\r\n" + REFUSED + b":2\r\n:3\r\n")
    (one, error, two), three = await outcomes(tasks)
    assert (one, two, three) == (1, 2, [3])
    assert isinstance(error, driver.ResponseError)
    assert line.channel.usable


@given(
    calls=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40) | st.none()), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
async def test_whoever_is_cancelled_whenever_the_others_get_their_own(calls, cuts):
    """Of each call: how many replies it awaits, and after how many bytes it is cancelled, if it is."""
    line = Line()
    tasks = [await line.call(count) for count, _ in calls]
    numbers = iter(range(100))
    expected = [[next(numbers) for _ in range(count)] for count, _ in calls]
    data = b"".join(b":%d\r\n" % number for numbers in expected for number in numbers)
    begin = 0
    for end in sorted({*cuts, *(at for _, at in calls if at is not None), len(data)}):
        for task, (_, at) in zip(tasks, calls, strict=True):
            if at is not None and at <= begin:
                task.cancel()
        await asyncio.sleep(0)
        if data[begin:end]:
            line.feed(data[begin:end])
        begin = end
        await asyncio.sleep(0)
    for task, numbers in zip(tasks, expected, strict=True):
        if not task.cancelled():
            assert (await outcomes([task])) == [numbers]
    assert any(at is not None for _, at in calls) or not any(task.cancelled() for task in tasks)
    assert line.channel.idle
    late = await line.call()
    line.feed(b":4711\r\n")
    assert await late == [4711]


# --- what is sent -------------------------------------------------------------------------------


async def test_a_call_leaves_at_once_and_those_of_one_turn_of_the_loop_together():
    line = Line()
    tasks = [asyncio.create_task(line.channel.exchange(b"%d " % number, 1, None)) for number in range(6)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert line.transport.sent == [b"0 ", b"1 2 3 4 5 "]
    line.feed(b":0\r\n:1\r\n:2\r\n:3\r\n:4\r\n:5\r\n")
    assert await outcomes(tasks) == [[number] for number in range(6)]


async def test_not_more_is_gathered_than_the_server_should_wait_for():
    line = Line()
    data = b"x" * (FLUSH // 2)
    tasks = [asyncio.create_task(line.channel.exchange(data, 1, None)) for _ in range(6)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [len(sent) // len(data) for sent in line.transport.sent] == [1, 2, 2, 1]
    line.feed(b":0\r\n" * 6)
    await outcomes(tasks)


# --- a connection that is of no more use --------------------------------------------------------


@pytest.mark.parametrize(
    "nonsense", [b"?nonsense\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$x\r\n", b"\0\0\0\0\r\n"]
)
async def test_what_is_not_the_protocol_fails_all_who_wait(nonsense):
    line = Line()
    tasks = [await line.call(2), await line.call(2), await line.call()]
    line.feed(b":1\r\n:2\r\n:3\r\n" + nonsense + b":4\r\n:5\r\n")
    assert kinds(await outcomes(tasks)) == [[1, 2], driver.ConnectionError, driver.ConnectionError]
    assert not line.channel.usable
    assert not line.transport.open


async def test_a_reply_that_nobody_asked_for_closes_the_connection():
    line = Line()
    tasks = [await line.call()]
    line.feed(b":1\r\n:2\r\n")
    assert await outcomes(tasks) == [[1]]
    assert not line.channel.usable
    assert not line.transport.open


async def test_a_message_that_the_server_pushes_is_no_reply():
    line = Line()
    line.feed(PUSHED)
    assert line.channel.usable
    task = await line.call()
    line.feed(PUSHED + b":1\r\n")
    assert await task == [1]


async def test_a_connection_that_is_lost_fails_all_who_wait_also_for_half_a_reply():
    line = Line()
    tasks = [await line.call(), await line.call(2), await line.call(), await line.call()]
    tasks[2].cancel()
    line.feed(b":1\r\n:2\r\n$5\r\nhel")
    line.channel.connection_lost(ConnectionResetError())
    results = await outcomes(tasks)
    assert kinds(results) == [[1], driver.ConnectionError, asyncio.CancelledError, driver.ConnectionError]
    assert results[1] is not results[3]  # or their tracebacks would grow into each other
    assert line.channel.idle


async def test_a_call_that_finds_the_connection_lost_fails_at_once():
    line = Line()
    line.channel.connection_lost(None)
    async with asyncio.timeout(LONG / 2):
        with pytest.raises(driver.ConnectionError):
            await line.channel.exchange(b"x", 1, None)
    assert not line.transport.sent


async def test_a_connection_that_the_server_ends_is_not_used_again():
    line = Line()
    assert not line.channel.eof_received()
    assert not line.channel.usable


async def test_a_server_that_loads_its_data_fails_the_call_and_no_other():
    line = Line()
    tasks = [await line.call(2), await line.call(), await line.call()]
    line.feed(b"-LOADING Redis is loading the dataset in memory\r\n:1\r\n:2\r\n-NOAUTH Authentication required.\r\n")
    assert kinds(await outcomes(tasks)) == [driver.BusyLoadingError, [2], driver.AuthenticationError]


async def test_after_readonly_the_others_get_their_replies_and_then_the_connection_is_closed():
    line = Line()
    tasks = [await line.call(2), await line.call()]
    line.feed(b"-READONLY You can't write against a read only replica.\r\n:1\r\n")
    assert not line.channel.usable
    assert line.transport.open
    line.feed(b":2\r\n")
    (refused, one), two = await outcomes(tasks)
    assert isinstance(refused, driver.ReadOnlyError)
    assert (one, two) == (1, [2])
    assert not line.transport.open


# --- time ---------------------------------------------------------------------------------------


async def test_a_call_whose_time_is_over_while_the_server_is_silent_drops_the_connection():
    line = Line()
    patient = await line.call()
    hasty = await line.call(until=asyncio.get_running_loop().time() + 2 * SILENCE)
    assert kinds(await outcomes([hasty, patient])) == [TimeoutError, driver.ConnectionError]
    assert not line.transport.open
    assert not line.channel.usable


async def test_a_connection_that_fell_silent_after_a_word_is_dropped_with_the_first_call_that_is_late():
    line = Line()
    first = await line.call()
    hasty = await line.call(until=asyncio.get_running_loop().time() + 3 * SILENCE)
    patient = await line.call()
    line.feed(b":1\r\n")  # heard after they were sent, and nothing since
    assert await first == [1]
    assert kinds(await outcomes([hasty, patient])) == [TimeoutError, driver.ConnectionError]
    assert not line.channel.usable


@pytest.mark.usefixtures("patient_of_silence")
async def test_a_call_that_had_hardly_any_time_does_not_drop_the_connection():
    line = Line()
    patient = await line.call()
    hasty = await line.call(until=asyncio.get_running_loop().time())
    assert kinds(await outcomes([hasty])) == [TimeoutError]
    line.feed(b":1\r\n")
    assert await patient == [1]
    assert line.channel.usable


@pytest.mark.usefixtures("patient_of_silence")
async def test_a_call_whose_time_is_over_while_the_server_talks_fails_alone():
    line = Line()
    first = await line.call()
    hasty = await line.call(until=asyncio.get_running_loop().time() + SHORT)
    patient = await line.call()
    await asyncio.sleep(0.001)
    line.feed(b":1\r\n")
    assert kinds(await outcomes([first, hasty])) == [[1], TimeoutError]
    assert line.channel.usable
    line.feed(b":2\r\n:3\r\n")  # the first of them is nobody's any more
    assert await patient == [3]


async def test_a_call_without_a_time_of_its_own_has_the_channels():
    line = Line(patience=SHORT)
    assert kinds(await outcomes([await line.call()])) == [TimeoutError]


@pytest.mark.usefixtures("patient_of_silence")
async def test_a_call_with_less_time_is_told_before_those_that_came_earlier():
    line = Line()
    loop = asyncio.get_running_loop()
    order: list[str] = []

    async def call(name: str, seconds: float) -> None:
        with contextlib.suppress(TimeoutError, driver.ConnectionError):
            await line.channel.exchange(b"x", 1, loop.time() + seconds)
        order.append(name)

    tasks = [asyncio.create_task(call(name, seconds)) for name, seconds in (("slow", 5), ("fast", 0.3), ("mid", 1.5))]
    await asyncio.sleep(0.01)
    line.feed(PUSHED)  # the server talks
    await asyncio.wait(tasks[1:2])
    assert order == ["fast"]
    await asyncio.wait(tasks[2:])
    assert order == ["fast", "mid"]
    line.feed(b":1\r\n:2\r\n:3\r\n")
    await outcomes(tasks)


async def test_closing_lets_those_under_way_end():
    line = Line()
    task = await line.call()
    closing = asyncio.create_task(line.channel.close(LONG))
    await asyncio.sleep(0)
    assert not line.channel.usable
    line.feed(b":1\r\n")
    async with asyncio.timeout(LONG / 2):
        await closing
    assert await task == [1]


async def test_closing_does_not_wait_for_ever():
    line = Line()
    task = await line.call()
    await line.channel.close(SHORT)
    assert kinds(await outcomes([task])) == [driver.ConnectionError]


# --- making the connection ----------------------------------------------------------------------


@pytest.fixture
async def server() -> AsyncIterator[Scripted]:
    async with Scripted() as server:
        yield server


@contextlib.asynccontextmanager
async def wire_to(server: Scripted, *, patience: float = LONG) -> AsyncIterator[Wire]:
    pool = redis.BlockingConnectionPool.from_url(
        f"redis://127.0.0.1:{server.port}/0", max_connections=5, socket_connect_timeout=LONG, socket_timeout=LONG
    )
    wire = Wire(pool, 5, owned=True, patience=patience, shared=True)
    try:
        yield wire
    finally:
        await wire.close()


async def say(wire: Wire, text: str, until: float | None = None) -> str:
    ((reply,), _) = await wire.exchange_each([("ECHO", text)], None, until)
    if isinstance(reply, Exception):
        raise reply
    return str(reply.decode())


def begun(calls: list[Coroutine[Any, Any, Any]]) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(call) for call in calls]


async def test_for_three_hundred_first_callers_one_connection_is_made(server):
    async with wire_to(server) as wire:
        assert await outcomes(begun([say(wire, str(n)) for n in range(300)])) == [str(n) for n in range(300)]
        assert len(server.clients) == 1
        assert [arguments[1] for arguments in server.clients[0].requests] == [b"%d" % n for n in range(300)]


async def test_the_one_who_began_to_connect_may_go_away(server):
    async with wire_to(server) as wire:
        tasks = begun([say(wire, str(n)) for n in range(3)])
        await asyncio.sleep(0)
        tasks[0].cancel()
        assert kinds(await outcomes(tasks)) == [asyncio.CancelledError, "1", "2"]
        assert len(server.clients) == 1


async def test_connecting_that_hangs_ends_when_patience_does_and_is_tried_anew(server):
    server.mute = True
    async with wire_to(server, patience=0.5) as wire:
        tasks = begun([say(wire, str(n)) for n in range(30)])
        hasty = asyncio.create_task(say(wire, "x", asyncio.get_running_loop().time() + SHORT))
        assert kinds(await outcomes([hasty])) == [TimeoutError]
        assert not any(task.done() for task in tasks)
        results = await outcomes(tasks)
        assert all(isinstance(result, TimeoutError | driver.TimeoutError) for result in results)
        assert len(server.clients) == 1
        server.mute = False
        assert await say(wire, "again") == "again"
        assert len(server.clients) == 2


async def test_an_error_that_many_share_does_not_grow_with_them(server):
    server.mute = True
    async with wire_to(server, patience=SHORT) as wire:
        results = await outcomes(begun([say(wire, str(n)) for n in range(300)]))
        assert max(len(list(traceback.walk_tb(result.__traceback__))) for result in results) < 20


async def test_closing_while_connecting_ends_both(server):
    server.mute = True
    async with wire_to(server) as wire:
        tasks = begun([say(wire, str(n)) for n in range(3)])
        await server.until(lambda: server.clients)
        async with asyncio.timeout(LONG / 2):
            await wire.close()
        assert kinds(await outcomes(tasks)) == [ConfigurationError] * 3


async def test_an_idle_connection_that_the_server_closed_is_replaced(server):
    async with wire_to(server) as wire:
        for number in range(1, 4):
            assert await say(wire, str(number)) == str(number)
            assert len(server.clients) == number
            server.clients[-1].writer.close()
            channel = wire._channel
            assert channel is not None
            await until(lambda channel=channel: _is_over(channel))


async def _is_over(channel: Channel) -> bool:
    return not channel.usable


async def test_calls_outstanding_when_the_server_closes_fail_and_the_next_one_connects_anew(server):
    server.answer = lambda arguments: None
    async with wire_to(server) as wire:
        tasks = begun([say(wire, str(n)) for n in range(5)])
        await server.until(lambda: server.clients and len(server.clients[0].requests) == 5)
        server.clients[0].writer.write(b"$1\r\n0\r\n$1\r\n")
        server.clients[0].writer.close()
        assert kinds(await outcomes(tasks)) == ["0", *[driver.ConnectionError] * 4]
        server.answer = lambda arguments: b"+%b\r\n" % arguments[-1]
        assert await say(wire, "next") == "next"
        assert len(server.clients) == 2


async def test_a_node_that_is_no_longer_the_master_is_not_asked_over_the_same_connection(server):
    server.answer = lambda arguments: b"-READONLY You can't write against a read only replica.\r\n"
    async with wire_to(server) as wire:
        with pytest.raises(driver.ReadOnlyError):
            await say(wire, "x")
        server.answer = lambda arguments: b"+%b\r\n" % arguments[-1]
        assert await say(wire, "y") == "y"
        assert [len(client.requests) for client in server.clients] == [1, 1]


async def test_a_call_that_is_large_or_blocks_has_a_connection_of_its_own(server):
    async with wire_to(server) as wire:
        assert await say(wire, "small") == "small"
        large = "x" * LARGE
        assert await say(wire, large) == large
        await wire.exchange_each([("XREAD", "BLOCK", 0, "STREAMS", "s", "$")])
        assert await say(wire, "small again") == "small again"
        assert [[arguments[0] for arguments in client.requests] for client in server.clients] == [
            [b"ECHO", b"ECHO"],
            [b"ECHO", b"XREAD"],
        ]


async def test_closing_ends_though_the_server_takes_nothing(server):
    async with wire_to(server) as wire:
        assert await say(wire, "small") == "small"
        server.clients[0].writer.transport.pause_reading()
        tasks = begun([say(wire, "x" * (LARGE - 100)) for _ in range(100)])
        await asyncio.sleep(0.01)
        async with asyncio.timeout(LONG / 2):
            await wire.close()
        assert set(kinds(await outcomes(tasks))) <= {driver.ConnectionError, ConfigurationError}
