"""Calls of others' code: bounded in time, cancelled with their caller, kept off the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from unittest.mock import AsyncMock, MagicMock

import pytest
from own_server import until

from symfonic_redis import ConfigurationError
from symfonic_redis.guard import TooManyThreadsError, check_seconds, in_thread, is_async, within


async def returned(value):
    return value


async def raised(error):
    raise error


class Stubborn:
    """Goes on when it is cancelled, until it is released."""

    def __init__(self) -> None:
        self.started, self.cancelled, self.release = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run(self):
        self.started.set()
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
        raise ValueError


async def test_a_call_in_time_gives_what_it_gives():
    assert await within(returned(5)) == await within(returned(5), 60) == 5
    with pytest.raises(KeyError):
        await within(raised(KeyError("x")), 60)


async def test_a_call_that_ignores_its_cancellation_is_left_behind():
    stubborn = Stubborn()
    with pytest.raises(TimeoutError):
        await within(stubborn.run(), 0.01)
    assert stubborn.cancelled.is_set()
    stubborn.release.set()
    await asyncio.sleep(0)


@pytest.mark.parametrize("seconds", [None, 60])
async def test_a_cancellation_that_the_call_raises_passes_through(seconds):
    with pytest.raises(asyncio.CancelledError):
        await within(raised(asyncio.CancelledError()), seconds)


@pytest.mark.parametrize("seconds", [None, 60])
async def test_the_callers_cancellation_reaches_the_call_and_passes_through(seconds):
    stubborn = Stubborn()
    task = asyncio.create_task(within(stubborn.run(), seconds))
    await stubborn.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stubborn.cancelled.is_set()
    stubborn.release.set()
    await asyncio.sleep(0)


async def test_a_thread_gives_what_it_gives_in_the_callers_context():
    room, variable = threading.BoundedSemaphore(1), contextvars.ContextVar("v")
    variable.set("seen")
    assert await in_thread(room, variable.get) == "seen"
    assert await in_thread(room, threading.current_thread) is not threading.current_thread()
    for error in (ValueError, StopIteration):
        with pytest.raises((ValueError, RuntimeError)):  # a coroutine cannot raise StopIteration
            await in_thread(room, MagicMock(side_effect=error("x")))
    assert room.acquire(blocking=False)  # each thread gave its place back


async def test_threads_that_hang_stop_nobody_and_do_not_pile_up():
    room, gate = threading.BoundedSemaphore(2), threading.Event()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await within(in_thread(room, gate.wait), 0.01)
    before = threading.active_count()
    for _ in range(100):
        with pytest.raises(TooManyThreadsError):
            await in_thread(room, gate.wait)
    assert threading.active_count() <= before
    gate.set()

    async def free() -> bool:
        try:
            return await in_thread(room, gate.wait)
        except TooManyThreadsError:
            return False

    await until(free)


async def plain_async(value):
    return value


class Call:
    async def __call__(self, value):
        return value


@functools.wraps(plain_async)
def wrapped(value):
    return plain_async(value)


@pytest.mark.parametrize(
    "found",
    [plain_async, Call(), AsyncMock(), wrapped, functools.partial(plain_async, 1)],
    ids=["function", "object", "double", "wrapper", "partial"],
)
def test_what_gives_something_to_await_is_async(found):
    assert is_async(found)


@pytest.mark.parametrize("found", [None, "x", print, MagicMock(), lambda value: value, threading.Event().wait])
def test_anything_else_is_not(found):
    assert not is_async(found)


@pytest.mark.parametrize("seconds", [0, -1, True, None, "5", [5], float("nan"), float("inf")])
def test_a_limit_that_is_none_is_refused(seconds):
    with pytest.raises(ConfigurationError, match="wait must be a positive number"):
        check_seconds("wait", seconds)


class PanicError(BaseException):
    """As libraries raise that are not written in Python."""


async def test_what_is_no_ordinary_exception_is_a_failure_like_any_other():
    async def panics():
        raise PanicError

    def panics_too():
        raise PanicError

    def leaves():
        raise SystemExit("no credentials")

    with pytest.raises(RuntimeError, match="PanicError"):
        await within(panics(), 1)
    for function, name in ((panics_too, "PanicError"), (leaves, "SystemExit")):
        with pytest.raises(RuntimeError, match=name):
            await in_thread(threading.Semaphore(1), function)
