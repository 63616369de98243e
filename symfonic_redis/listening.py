"""One connection on which reads go out and the server says what of it was changed since (ADR-010).

Both come in one stream, so what was said before a reply is known when the reply is, and a server that answers has said
all there was to say. Reads of any number of tasks travel one behind the other.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redis import exceptions as driver

from symfonic_redis import telemetry
from symfonic_redis.channel import Channel
from symfonic_redis.resp import Command, pack
from symfonic_redis.retry import code_of
from symfonic_redis.tracking import Source, Windows
from symfonic_redis.wire import succeeded

HEARTBEAT = 1.0
"""Seconds between signs of life that are asked for."""

HEARTBEAT_TIMEOUT = 2.0
"""Seconds that one may take; then the connection is given up."""

STALENESS = HEARTBEAT + HEARTBEAT_TIMEOUT
"""The longest time, in seconds, for which a window is served that the server could not say was changed."""

CONNECT = 5.0
"""Seconds in which the connection must be made anew."""

FIRST_PAUSE = 0.1
"""Seconds; the upper bound of the pause after a first attempt to connect that failed. It doubles each time."""

LONGEST_PAUSE = 10.0
"""Seconds; the upper bound of any pause."""

_log = logging.getLogger(__name__)


class Listener:
    """The connection to one server. It is made anew in the background, when a read finds it gone.

    Args:
        make: a connection of the driver's, not yet made, in version 3 of the protocol.
        windows: where what is read is kept.
        heartbeat: the command that is asked for a sign of life. A different answer says that windows may have moved.
        attributes: of the counters.
    """

    def __init__(
        self, make: Callable[[], Any], windows: Windows, heartbeat: Command, attributes: Mapping[str, str | int]
    ) -> None:
        self._make = make
        self._windows = windows
        self._heartbeat = heartbeat
        self._attributes = attributes
        self._source: Source | None = None  # while there is a connection
        self._channel: Channel | None = None  # the same
        self._task: asyncio.Task[None] | None = None
        self._pause = FIRST_PAUSE
        self._not_before = 0.0
        self._closed = False

    @property
    def alive(self) -> bool:
        """Whether there is a connection, or one is being made."""
        return self._task is not None and not self._task.done()

    @property
    def ready(self) -> bool:
        """Whether there is a connection. If not, one is made in the background, unless it is too soon."""
        if self._source is not None:
            return True
        if not self.alive and not self._closed and asyncio.get_running_loop().time() >= self._not_before:
            self._task = asyncio.create_task(self._again())
        return False

    async def open(self) -> None:
        """Connect now; errors are the driver's.

        Raises:
            ConfigurationError: the connection leads to no server, as one to fakeredis.
        """
        async with asyncio.timeout(CONNECT):
            channel = await self._connect()
        self._begin(channel)
        self._task = asyncio.create_task(self._serve(channel))

    async def load(self, key: str, length: int, until: float) -> list[bytes]:
        """The newest rows of a list, which are kept too; errors are the driver's.

        Cost: one round trip, an LRANGE and a PTTL.
        """
        source = self._source
        if source is None:
            raise driver.ConnectionError("the connection is gone")
        load = self._windows.begin(source, key, length, asyncio.get_running_loop().time())
        try:
            rows, ttl = await self._ask(source, [("LRANGE", key, 0, length - 1), ("PTTL", key)], until)
            # What was said of the key since, be it behind the replies in the same packet, has taken the mark away.
            self._windows.settle(load, rows, ttl)
        finally:
            self._windows.abandon(load)
        return list(rows)

    def drop(self) -> None:
        """Give the connection up, and all that was read over it."""
        if self._channel is not None:
            self._channel.drop()  # the task may not have begun, and then closes nothing
        if self._task is not None:
            self._task.cancel()
        self._end()

    async def close(self) -> None:
        """Close the connection for good."""
        self._closed = True
        self.drop()
        if self._task is not None:
            await asyncio.wait([self._task])

    def _end(self) -> None:
        """Trust nothing of the connection any more."""
        source, self._source, self._channel = self._source, None, None
        if source is not None:
            source.trusted = 0.0
            self._windows.drop(source)

    async def _connect(self) -> Channel:
        connection = self._make()
        try:
            await connection.connect()
            channel = Channel(connection, HEARTBEAT_TIMEOUT, pushed=self._pushed, lost=self._end)
            succeeded(await channel.exchange(pack([("CLIENT", "TRACKING", "ON")]), 1, None))
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return channel

    async def _again(self) -> None:
        """Connect anew, and serve until that connection is lost."""
        try:
            async with asyncio.timeout(CONNECT):
                channel = await self._connect()
        except (driver.RedisError, OSError) as error:
            if code_of(error) != "CONNECTION":
                _log.warning("windows are not tracked, every read asks the server: %s", type(error).__name__)
            self._rest()
        else:
            self._begin(channel)
            await self._serve(channel)

    def _begin(self, channel: Channel) -> None:
        self._source, self._channel = Source(), channel

    async def _serve(self, channel: Channel) -> None:
        """Ask for signs of life until there is none."""
        try:
            await self._beat(self._source)
        except (driver.RedisError, OSError) as error:
            _log.info("the connection that tracks windows is lost: %s", type(error).__name__)
        finally:
            self._end()
            await channel.close(0)
        self._rest()

    async def _beat(self, source: Source | None) -> None:
        before = None
        while True:
            answer = await self._ask(source, [self._heartbeat], asyncio.get_running_loop().time() + HEARTBEAT_TIMEOUT)
            self._pause = FIRST_PAUSE
            if before is not None and answer != before and source is not None:
                # Keys have moved to other nodes.
                self._windows.drop(source)
            before = answer
            await asyncio.sleep(HEARTBEAT)

    def _rest(self) -> None:
        """Let a while pass before the next attempt to connect, each time a longer one."""
        self._not_before = asyncio.get_running_loop().time() + self._pause * random.uniform(0.5, 1)  # noqa: S311 - spreads attempts, guards nothing
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    async def _ask(self, source: Source | None, commands: Sequence[Command], until: float) -> list[Any]:
        channel = self._channel
        if channel is None or source is None or self._source is not source:
            raise driver.ConnectionError("the connection is gone")
        sent = asyncio.get_running_loop().time()
        replies = succeeded(await channel.exchange(pack(commands), len(commands), until))
        if self._source is source:
            # It was alive when this was sent, or later.
            source.trusted = max(source.trusted, sent + STALENESS)
        return replies

    def _pushed(self, message: Sequence[Any]) -> None:
        """Keys were changed, expired or evicted; all of them, where none is named."""
        if message[0] != b"invalidate":
            return
        keys = message[1]
        if keys is None:
            if self._source is not None:
                self._windows.drop(self._source)
            telemetry.windows_invalidated.add(1, self._attributes)
        else:
            self._windows.evict([key.decode("utf-8", "replace") for key in keys])
            telemetry.windows_invalidated.add(len(keys), self._attributes)
