"""One attempt: a connection from the driver's pool, a command, its reply.

Nothing here or underneath re-sends, whatever the client was set to (ADR-003). Replies are undecoded: rows are bytes.
A reply that was not read, as on cancellation, makes the driver drop the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import asyncio as redis
from redis import exceptions as driver

Command = Sequence[str | bytes | int]
"""A command's name and its arguments."""


async def exchange(pool: redis.ConnectionPool, *command: str | bytes | int) -> Any:
    """Send one command and read its reply; errors are the driver's."""
    connection = await pool.get_connection()  # type: ignore[no-untyped-call]  # the driver leaves it untyped
    try:
        await connection.send_command(*command)
        return await connection.read_response(disable_decoding=True)
    finally:
        await pool.release(connection)


async def exchange_many(pool: redis.ConnectionPool, commands: Sequence[Command]) -> list[Any]:
    """Send commands in one go and read their replies; raise the first error when all are read."""
    connection = await pool.get_connection()  # type: ignore[no-untyped-call]  # as above
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
        await pool.release(connection)
