"""One attempt: a connection from the driver's pool, commands, their replies.

Nothing here or underneath re-sends, whatever the client was set to (ADR-003). Replies are undecoded: rows are bytes.
A reply that was not read, as on cancellation, makes the driver drop the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from redis import asyncio as redis
from redis import exceptions as driver

from symfonic_redis.errors import ConfigurationError
from symfonic_redis.retry import code_of

Command = Sequence[str | bytes | int]
"""A command's name and its arguments."""

PATIENCE = 1.0
"""Seconds that closing waits for attempts under way before it takes their connections away."""


class Line(Protocol):
    """What leads to where the data is: the connections to one server, or to the nodes of a cluster."""

    async def exchange(self, *command: str | bytes | int) -> Any:
        """Send one command and read its reply; errors are the driver's."""
        ...

    async def exchange_each(self, commands: Sequence[Command], wait: Command | None = None) -> tuple[list[Any], int]:
        """Send commands in one go; return the replies in order, errors of single commands among them.

        With `wait`, a WAIT, it follows on each connection that is used; the least of its replies is returned too.
        """
        ...

    async def exchange_everywhere(self, *command: str | bytes | int) -> list[Any]:
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


async def exchange_all(line: Line, commands: Sequence[Command]) -> list[Any]:
    """Send commands in one go and return their replies in order; raise the first error when all are read."""
    replies, _ = await line.exchange_each(commands)
    return succeeded(replies)


class Wire:
    """The connections to one server, for one event loop.

    Args:
        pool: the driver's.
        limit: attempts at a time; others wait. Beyond their own limit the driver's pools raise, or lose the wake-up of
            a waiter that was cancelled.
        owned: closing closes the pool too.
    """

    def __init__(self, pool: redis.ConnectionPool, limit: int, *, owned: bool) -> None:
        self._pool = pool
        self._gate = asyncio.Semaphore(limit)
        self._owned = owned
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._closed = False

    @property
    def idle(self) -> bool:
        """Whether no attempt is under way, nor waits to be."""
        return not self._under_way

    async def exchange(self, *command: str | bytes | int) -> Any:
        """See `Line`."""
        replies, _ = await self.exchange_each([command])
        return succeeded(replies)[0]

    async def exchange_everywhere(self, *command: str | bytes | int) -> list[Any]:
        """See `Line`."""
        return [await self.exchange(*command)]

    async def exchange_each(self, commands: Sequence[Command], wait: Command | None = None) -> tuple[list[Any], int]:
        """See `Line`."""
        self._under_way += 1
        try:
            async with self._gate:
                connection = await self._take()
                try:
                    return await _converse(connection, commands, wait)
                finally:
                    await self._pool.release(connection)
        finally:
            self._under_way -= 1
            if self._closed and not self._under_way:
                self._quiet.set()

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
        if self._owned:
            await self._pool.aclose()

    async def _take(self) -> Any:
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._closed or loop is not self._loop:
            what = "is closed: call connect() again" if self._closed else "belongs to another event loop: connect there"
            raise ConfigurationError(f"this deployment {what}")
        return await self._pool.get_connection()  # type: ignore[no-untyped-call]  # the driver leaves it untyped


def pack(commands: Sequence[Command]) -> bytes:
    """Commands as the protocol has them. The driver's own packing takes several times as long for many arguments."""
    parts: list[bytes] = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        for word in command:
            data = word if type(word) is bytes else str(word).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


async def _converse(connection: Any, commands: Sequence[Command], wait: Command | None) -> tuple[list[Any], int]:
    sent = commands if wait is None else [*commands, wait]
    await connection.send_packed_command(pack(sent))
    replies: list[Any] = []
    for _ in sent:
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
