"""One attempt: a connection from the driver's pool, commands, their replies.

Nothing here or underneath re-sends, whatever the client was set to (ADR-003). Replies are undecoded: rows are bytes.
A reply that was not read, as on cancellation, makes the driver drop the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from redis import asyncio as redis
from redis import exceptions as driver

from symfonic_redis.channel import Channel
from symfonic_redis.errors import ConfigurationError
from symfonic_redis.resp import Command, pack
from symfonic_redis.retry import code_of

_T = TypeVar("_T")

PATIENCE = 1.0
"""Seconds that closing waits for attempts under way before it takes their connections away."""

LARGE = 262_144
"""Bytes of commands beyond which an attempt has a connection of its own: others would wait for it to be sent."""

_BLOCKING = frozenset({"XREAD"})
"""Commands that make everything wait that is sent behind them."""


class Line(Protocol):
    """What leads to where the data is: the connections to one server, or to the nodes of a cluster."""

    async def exchange_each(
        self, commands: Sequence[Command], wait: Command | None = None, until: float | None = None
    ) -> tuple[list[Any], int]:
        """Send commands in one go; return the replies in order, errors of single commands among them.

        With `wait`, a WAIT, it follows on each connection that is used; the least of its replies is returned too.
        `until` is when to give up, in the loop's time, with `TimeoutError`. Other errors are the driver's.
        """
        ...

    async def exchange_everywhere(self, command: Command, until: float | None = None) -> list[Any]:
        """Send one command to each master; return the replies."""
        ...

    async def place(self, key: str) -> Wire:
        """The connections to the server that has a key."""
        ...

    async def close(self) -> None:
        """Let no further attempt begin, wait a little for those under way, then close what is owned."""
        ...


def succeeded(replies: list[Any]) -> list[Any]:
    """The replies, when no error is among them; else raise the first."""
    for reply in replies:
        if isinstance(reply, driver.ResponseError):
            raise reply
    return replies


async def exchange_all(line: Line, commands: Sequence[Command], until: float | None = None) -> list[Any]:
    """Send commands in one go and return their replies in order; raise the first error when all are read."""
    replies, _ = await line.exchange_each(commands, None, until)
    return succeeded(replies)


async def together(calls: Iterable[Awaitable[_T]]) -> list[_T]:
    """What calls return, made at a time; the first error when all have ended."""
    waiting = list(calls)
    if len(waiting) == 1:
        return [await waiting[0]]
    results = await asyncio.gather(*waiting, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


class Wire:
    """The connections to one server, for one event loop.

    Args:
        pool: the driver's.
        limit: attempts at a time that have a connection of their own; others wait. Beyond their own limit the driver's
            pools raise, or lose the wake-up of a waiter that was cancelled.
        owned: closing closes the pool too.
        patience: seconds in which the shared connection must be made.
        shared: attempts share one connection, but those that would keep others waiting.
    """

    def __init__(self, pool: redis.ConnectionPool, limit: int, *, owned: bool, patience: float, shared: bool) -> None:
        self._pool = pool
        self._gate = asyncio.Semaphore(limit)
        self._owned = owned
        self._patience = patience
        self._shared = shared
        self._channel: Channel | None = None
        self._opening: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._closed = False

    @property
    def idle(self) -> bool:
        """Whether no attempt is under way, nor waits to be."""
        return not self._under_way and (self._channel is None or self._channel.idle)

    async def exchange_everywhere(self, command: Command, until: float | None = None) -> list[Any]:
        """See `Line`."""
        return await exchange_all(self, [command], until)

    async def exchange_each(
        self, commands: Sequence[Command], wait: Command | None = None, until: float | None = None
    ) -> tuple[list[Any], int]:
        """See `Line`."""
        self._check()
        data = pack(commands if wait is None else [*commands, wait])
        if self._shared and wait is None and commands[0][0] not in _BLOCKING and len(data) <= LARGE:
            channel = self._channel
            if channel is None or not channel.usable:
                channel = await self._open(until)
            if channel is not None:
                return await channel.exchange(data, len(commands), until), 0
        async with asyncio.timeout_at(until):
            return await self._alone(data, len(commands), wait)

    async def place(self, key: str) -> Wire:  # noqa: ARG002 - see `Line`
        """See `Line`."""
        return self

    def apart(self, **options: Any) -> Any:
        """A connection that is not yet made and not of the pool, with other options than the pool's."""
        return self._pool.connection_class(**{**self._pool.connection_kwargs, **options})

    async def close(self) -> None:
        """See `Line`."""
        self._closed = True
        if self._under_way:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), PATIENCE)
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._channel is not None:
            await self._channel.close(PATIENCE)
        if self._owned:
            await self._pool.aclose()

    async def _alone(self, data: bytes, count: int, wait: Command | None) -> tuple[list[Any], int]:
        """Exchange over a connection that nobody else has meanwhile."""
        self._under_way += 1
        try:
            async with self._gate:
                self._check()
                connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]  # the driver leaves it untyped
                try:
                    return await _converse(connection, data, count, wait)
                finally:
                    await self._pool.release(connection)
        finally:
            self._ended()

    def _ended(self) -> None:
        self._under_way -= 1
        if self._closed and not self._under_way:
            self._quiet.set()

    async def _open(self, until: float | None) -> Channel | None:
        """Make the shared connection, once for all who need it; None when none can be shared."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._connect())
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        opening = self._opening  # another one may be under way when this one has failed
        self._under_way += 1
        try:
            async with asyncio.timeout_at(until):
                await asyncio.wait([opening])
        finally:
            self._ended()
        self._check()
        if (failure := opening.exception()) is not None:
            raise failure.with_traceback(None)  # one for all who waited: it would grow with each of them
        return self._channel

    async def _connect(self) -> None:
        if self._channel is not None:
            await self._channel.close(0)
            self._channel = None
        connection = self._pool.make_connection()  # type: ignore[no-untyped-call]  # the driver leaves it untyped
        try:
            async with asyncio.timeout(self._patience):
                await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        if Channel.suits(connection):
            self._channel = Channel(connection, self._patience)
        else:
            self._shared = False
            await connection.disconnect()

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._closed or loop is not self._loop:
            what = "is closed: call connect() again" if self._closed else "belongs to another event loop: connect there"
            raise ConfigurationError(f"this deployment {what}")


async def _converse(connection: Any, data: bytes, count: int, wait: Command | None) -> tuple[list[Any], int]:
    await connection.send_packed_command(data)
    replies: list[Any] = []
    for _ in range(count if wait is None else count + 1):
        # Also after one that failed: the connection must be left clean.
        try:
            replies.append(await connection.read_response(disable_decoding=True))
        except driver.ResponseError as error:
            replies.append(error)
    if any(isinstance(reply, driver.ResponseError) and code_of(reply) == "READONLY" for reply in replies):
        # No longer the master: what the address leads to by now is found by connecting anew.
        await connection.disconnect()
    if wait is None:
        return replies, 0
    *replies, acknowledged = replies
    if isinstance(acknowledged, driver.ResponseError) and not any(isinstance(r, driver.ResponseError) for r in replies):
        raise acknowledged
    return replies, acknowledged if isinstance(acknowledged, int) else 0
