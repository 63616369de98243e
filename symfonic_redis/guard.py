"""Calls of other people's code within a turn: none outlasts its time or blocks the event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import NamedTuple, TypeVar

from symfonic_redis.errors import ConfigurationError

GRACE = 1.0
"""Seconds in which a call that was cancelled may clean up. One that goes on is left to itself."""

_T = TypeVar("_T")


class TooManyThreadsError(Exception):
    """So many calls block already that no further one is begun."""


class _Raised(NamedTuple):
    error: BaseException


def is_async(found: object) -> bool:
    """Whether calling it gives something to await: an async function, one in a wrapper, an object with such a call."""
    if not callable(found):
        return False
    return inspect.iscoroutinefunction(inspect.unwrap(found)) or inspect.iscoroutinefunction(type(found).__call__)


def check_seconds(name: str, seconds: object) -> None:
    """Refuse a time limit that is none.

    Raises:
        ConfigurationError: it is not a positive, finite number.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise ConfigurationError(f"{name} must be a positive number of seconds: correct it")


async def within(call: Awaitable[_T], seconds: float | None = None) -> _T:
    """Await a call, for so long or without a limit.

    It runs in a task of its own; one that ignores its cancellation is left behind after `GRACE`. The caller's own
    cancellation reaches the call and passes through. So does a `CancelledError` that the call raises by itself: a
    cancelled turn stays cancelled, whoever noticed it first.

    Raises:
        TimeoutError: it took longer; it was cancelled.
        Exception: whatever it raised.
    """
    task = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            raise TimeoutError
        if not task.cancelled() and (error := task.exception()) is not None:
            raise _failure(error)
        return task.result()
    finally:
        if not task.done():
            task.add_done_callback(_heard)
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE)


def _failure(error: BaseException) -> Exception:
    """What a call raised, as a failure: a library that exits or panics must not end a turn that can do without it."""
    return error if isinstance(error, Exception) else RuntimeError(f"it raised {type(error).__name__}")


def _heard(task: asyncio.Future[_T]) -> None:
    """Take note of how an abandoned call ended, or the loop would report it as forgotten."""
    if not task.cancelled():
        task.exception()


async def in_thread(room: threading.Semaphore, function: Callable[..., _T], *arguments: object) -> _T:
    """What a function returns that may block; it runs in a thread of its own.

    A thread cannot be stopped: who no longer waits leaves it behind. Not the loop's own executor: calls that hang
    would use up its few threads, which look up host names too, and the process would wait for them at its end.

    Args:
        room: how many such threads there may be at once. Each has its place until it ends, waited for or not.
        function: what to call.
        arguments: with what.

    Raises:
        TooManyThreadsError: there is no room; the function was not called.
        Exception: whatever it raised.
    """
    if not room.acquire(blocking=False):
        raise TooManyThreadsError
    outcome: Future[_T | _Raised] = Future()
    outcome.set_running_or_notify_cancel()  # or who stops waiting would cancel it, and the thread could not end it
    context = copy_context()

    def work() -> None:
        found: _T | _Raised
        try:
            found = context.run(function, *arguments)
        except BaseException as error:  # noqa: BLE001 - handed over and raised where it is awaited
            found = _Raised(error)
        room.release()
        outcome.set_result(found)

    try:
        threading.Thread(target=work, name=f"{__name__}.in_thread", daemon=True).start()
    except RuntimeError:  # the system gives no more threads
        room.release()
        raise
    found = await asyncio.wrap_future(outcome)
    if isinstance(found, _Raised):
        raise _failure(found.error)
    return found
