"""One connection on which reads go out and the server says what of it was changed since (ADR-008).

Both come in one stream, so what was said before a reply is known when the reply is, and a server that answers has said
all there was to say. Reads of any number of tasks travel one behind the other.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redis import exceptions as driver

from symfonic_redis import telemetry
from symfonic_redis.retry import code_of
from symfonic_redis.tracking import Load, Source, Windows
from symfonic_redis.wire import Command, pack, succeeded

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

_PUSHED = object()
"""Stands for a message that is no reply."""

_log = logging.getLogger(__name__)


class _Asked:
    """Commands under way: what is known of their replies, and who waits for them."""

    __slots__ = ("count", "future", "load", "replies", "sent")

    def __init__(self, count: int, sent: float, load: Load | None) -> None:
        self.count, self.sent, self.load = count, sent, load
        self.replies: list[Any] = []
        self.future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()


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
        self._task: asyncio.Task[None] | None = None
        self._asked: deque[_Asked] = deque()
        self._out: list[bytes] = []
        self._wanted = asyncio.Event()
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
            self._task = asyncio.create_task(self._run(None))
        return False

    async def open(self) -> None:
        """Connect now; errors are the driver's."""
        opened = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(opened))
        try:
            await opened
        except asyncio.CancelledError:
            self.drop()
            await asyncio.wait([self._task])
            raise

    async def load(self, key: str, length: int) -> list[bytes]:
        """The newest rows of a list, which are kept too; errors are the driver's.

        Cost: one round trip, an LRANGE and a PTTL.
        """
        source = self._source
        if source is None:
            raise driver.ConnectionError("the connection is gone")
        load = self._windows.begin(source, key, length, asyncio.get_running_loop().time())
        rows, _ = succeeded(await self._ask([("LRANGE", key, 0, length - 1), ("PTTL", key)], load))
        return list(rows)

    def drop(self) -> None:
        """Give the connection up, and all that was read over it."""
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
        source, self._source = self._source, None
        if source is not None:
            source.trusted = 0.0
            self._windows.drop(source)
        asked, self._asked = self._asked, deque()
        self._out.clear()
        for one in asked:
            if not one.future.done():
                one.future.set_exception(driver.ConnectionError("the connection was lost"))
                one.future.exception()  # who asked may be gone: nobody need fetch it

    async def _connect(self) -> Any:
        connection = self._make()
        try:
            await connection.connect()
            # Set after connecting: the handshake has its own.
            parser = connection._parser  # noqa: SLF001 - as the driver's own pool does for its messages
            parser.set_invalidation_push_handler(self._invalidated)
            parser.set_pubsub_push_handler(_ignored)
            await connection.send_packed_command(pack([("CLIENT", "TRACKING", "ON")]))
            await connection.read_response()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def _run(self, opened: asyncio.Future[None] | None) -> None:
        """Connect, and serve until the connection is lost; `opened` is told how connecting went."""
        try:
            async with asyncio.timeout(CONNECT):
                connection = await self._connect()
        except (driver.RedisError, OSError) as error:
            if opened is not None and not opened.done():
                opened.set_exception(error)
            elif code_of(error) != "CONNECTION":
                _log.warning("windows are not tracked, every read asks the server: %s", type(error).__name__)
        else:
            # Nothing is left of a connection before, or replies would go to the wrong reads.
            self._asked.clear()
            self._out.clear()
            source = self._source = Source()
            # First of all: from now on, a different answer tells that keys have moved.
            first = self._ask([self._heartbeat])
            if opened is not None and not opened.done():
                opened.set_result(None)
            await self._serve(connection, source, first)
        self._not_before = asyncio.get_running_loop().time() + self._pause * random.uniform(0.5, 1)  # noqa: S311 - spreads attempts, guards nothing
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    async def _serve(self, connection: Any, source: Source, first: asyncio.Future[list[Any]]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for work in (self._send(connection), self._read(connection, source), self._beat(source, first)):
                    group.create_task(work)
        except* (driver.RedisError, OSError) as lost:
            _log.info("the connection that tracks windows is lost: %s", type(lost.exceptions[0]).__name__)
        finally:
            if self._source is source:
                self._end()
            await connection.disconnect(nowait=not self._closed)

    async def _send(self, connection: Any) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            out, self._out = self._out, []
            await connection.send_packed_command(b"".join(out), check_health=False)

    async def _read(self, connection: Any, source: Source) -> None:
        while True:
            try:
                reply = await connection.read_response(disable_decoding=True, timeout=float("inf"), push_request=True)
            except driver.ResponseError as error:
                reply = error
            if reply is _PUSHED:
                continue
            if not self._asked:
                raise driver.InvalidResponse("a reply that nobody asked for")
            asked = self._asked[0]
            asked.replies.append(reply)
            if len(asked.replies) == asked.count:
                self._asked.popleft()
                # It was alive when this was sent, or later.
                source.trusted = max(source.trusted, asked.sent + STALENESS)
                self._answered(asked)

    def _answered(self, asked: _Asked) -> None:
        # Here, in the order of the stream, and not where it is waited for: what is said next must find it kept.
        if asked.load is not None:
            rows, ttl = asked.replies
            if isinstance(rows, list) and isinstance(ttl, int):
                self._windows.settle(asked.load, rows, ttl)
            else:
                self._windows.abandon(asked.load)
        if not asked.future.done():
            asked.future.set_result(asked.replies)

    async def _beat(self, source: Source, first: asyncio.Future[list[Any]]) -> None:
        """Ask for signs of life; raise when there is none."""
        asked, before = first, None
        while True:
            async with asyncio.timeout(HEARTBEAT_TIMEOUT):
                answer = succeeded(await asked)
            self._pause = FIRST_PAUSE
            if before is not None and answer != before:
                self._windows.drop(source)
            before = answer
            await asyncio.sleep(HEARTBEAT)
            asked = self._ask([self._heartbeat])

    def _ask(self, commands: Sequence[Command], load: Load | None = None) -> asyncio.Future[list[Any]]:
        asked = _Asked(len(commands), asyncio.get_running_loop().time(), load)
        self._asked.append(asked)
        self._out.append(pack(commands))
        self._wanted.set()
        return asked.future

    async def _invalidated(self, message: Any) -> object:
        """Keys were changed, expired or evicted; all of them, where none is named."""
        keys = message[1]
        if keys is None:
            if self._source is not None:
                self._windows.drop(self._source)
            telemetry.windows_invalidated.add(1, self._attributes)
        else:
            self._windows.evict([key.decode("utf-8", "replace") for key in keys])
            telemetry.windows_invalidated.add(len(keys), self._attributes)
        return _PUSHED


async def _ignored(_: object) -> object:
    return _PUSHED
