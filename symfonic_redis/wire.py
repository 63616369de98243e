"""One attempt: a connection from the driver's pool, a command, its reply.

Nothing here or underneath re-sends, whatever the client was set to (ADR-003). Replies are undecoded: rows are bytes.
A reply that was not read, as on cancellation, makes the driver drop the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis import asyncio as redis
from redis import exceptions as driver

from symfonic_redis.errors import ConfigurationError

Command = Sequence[str | bytes | int]
"""A command's name and its arguments."""

PATIENCE = 1.0
"""Seconds that closing waits for attempts under way before it takes their connections away."""


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

    async def exchange(self, *command: str | bytes | int) -> Any:
        """Send one command and read its reply; errors are the driver's."""
        async with self._gate:
            connection = await self._take()
            try:
                await connection.send_command(*command)
                return await connection.read_response(disable_decoding=True)
            finally:
                await self._give(connection)

    async def exchange_many(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one go and read their replies; raise the first error when all are read."""
        async with self._gate:
            connection = await self._take()
            try:
                await connection.send_packed_command(connection.pack_commands(commands))
                replies: list[Any] = []
                failure: driver.ResponseError | None = None
                for _ in commands:
                    # Also after one that failed: the connection must be left clean.
                    try:
                        replies.append(await connection.read_response(disable_decoding=True))
                    except driver.ResponseError as error:
                        failure = failure or error
                if failure is not None:
                    raise failure
                return replies
            finally:
                await self._give(connection)

    async def close(self) -> None:
        """Let no further attempt begin, wait a little for those under way, then close what is owned."""
        self._closed = True
        if self._under_way:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), PATIENCE)
        if self._owned:
            await self._pool.disconnect()

    async def _take(self) -> Any:
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._closed or loop is not self._loop:
            what = "is closed: call connect() again" if self._closed else "belongs to another event loop: connect there"
            raise ConfigurationError(f"this deployment {what}")
        self._under_way += 1
        try:
            return await self._pool.get_connection()  # type: ignore[no-untyped-call]  # the driver leaves it untyped
        except BaseException:
            self._left()
            raise

    async def _give(self, connection: Any) -> None:
        try:
            await self._pool.release(connection)
        finally:
            self._left()

    def _left(self) -> None:
        self._under_way -= 1
        if self._closed and not self._under_way:
            self._quiet.set()
