"""One connection that the calls of a worker share: each is sent at once, and replies come back in the order of calls.

Nobody waits for another's reply before sending, and what is sent within one turn of the event loop travels together: no
timer holds anything back. The connection is made by the driver, with its credentials and TLS; then its transport is
taken over, for the driver lets one call at a time have a connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import hiredis
from redis import exceptions as driver

from symfonic_redis.errors import ConfigurationError
from symfonic_redis.retry import code_of

FLUSH = 16_384
"""Bytes that are gathered at most before they are sent, so that the server begins while others are still packed."""

SILENCE = 0.1
"""Seconds without a word, at least, after which a connection is given up together with a call whose time is over.

From when it was sent; one that talked until just now is only slow with that call.
"""

_PARTIAL = object()

_T = TypeVar("_T")


class _Awaited:
    """Replies that one caller waits for, and until when, in the loop's time."""

    __slots__ = ("count", "failure", "future", "replies", "sent", "until")

    def __init__(self, future: asyncio.Future[list[Any] | Exception], count: int, sent: float, until: float) -> None:
        self.future = future
        self.count = count
        self.replies: list[Any] = []
        self.failure: Exception | None = None
        self.sent = sent
        self.until = until


class Channel(asyncio.Protocol):
    """A connected connection of the driver, from now on shared by any number of calls of its event loop.

    Args:
        connection: the driver's; nobody else may use it any more.
        patience: seconds after which a call that names no time is given up.
        pushed: told what the server says unasked, in the order of the stream.
        lost: told, once, that the connection is gone.

    Raises:
        ConfigurationError: there is no transport to take over, see `suits`.

    Attributes:
        usable: whether another call may begin.
    """

    def __init__(
        self,
        connection: Any,
        patience: float,
        *,
        pushed: Callable[[Sequence[Any]], None] = lambda _: None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        if not self.suits(connection):
            raise ConfigurationError("a connection to fakeredis cannot be shared or tracked: connect to a server")
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._patience = patience
        self._pushed = pushed
        self._tell_lost = lost
        self._transport: asyncio.Transport = connection._writer.transport  # noqa: SLF001 - see the module
        self._driver = self._transport.get_protocol()
        self._reader = hiredis.Reader(
            protocolError=driver.InvalidResponse,
            replyError=connection._parser.parse_error,  # noqa: SLF001 - the driver's classes of errors
            notEnoughData=_PARTIAL,
        )
        self._waiting: deque[_Awaited] = deque()
        self._out: list[bytes] = []
        self._gathered = 0
        self._heard = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._lost = False
        self.usable = True
        self._transport.set_protocol(self)

    @staticmethod
    def suits(connection: Any) -> bool:
        """Whether a connection has a transport that can be taken over; one that leads to fakeredis has none."""
        transport = getattr(getattr(connection, "_writer", None), "transport", None)
        return hasattr(transport, "set_protocol") and hasattr(connection, "_parser")

    @property
    def idle(self) -> bool:
        """Whether no reply is awaited."""
        return not self._waiting

    async def exchange(self, data: bytes, count: int, until: float | None) -> list[Any]:
        """Send packed commands and wait for their `count` replies, errors of single commands among them.

        Args:
            data: the commands.
            count: how many they are.
            until: when to give up, in the loop's time. Whoever is cancelled before leaves its reply to nobody.

        Raises the driver's `ConnectionError`, or `TimeoutError`.
        """
        if self._lost:
            # Between the call that made the connection and this one; nothing would ever answer.
            raise driver.ConnectionError("the connection was closed")
        now = self._loop.time()
        if until is None:
            until = now + self._patience
        awaited = _Awaited(self._loop.create_future(), count, now, until)
        if not self._waiting:
            self._waiting.append(awaited)
            self._transport.write(data)
        else:
            self._waiting.append(awaited)
            self._gather(data)
        if self._timer is None or until < self._timer.when():
            self._remind(until)
        return await outcome_of(awaited.future)

    async def close(self, patience: float) -> None:
        """Let no further call begin, give those under way so many seconds, and close the connection."""
        self.usable = False
        if self._waiting and not self._lost:
            await asyncio.wait([awaited.future for awaited in self._waiting], timeout=patience)
        if self._waiting:
            # Disconnecting would wait until a server that takes nothing has taken what is still to be sent.
            self.drop()
        await self._connection.disconnect()

    def drop(self) -> None:
        """Close the connection at once; who waits for a reply is told that it is gone."""
        self._transport.abort()
        self.connection_lost(None)

    def _gather(self, data: bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)
        self._gathered += len(data)
        if self._gathered >= FLUSH:
            self._flush()

    def _flush(self) -> None:
        if self._out and not self._lost:
            self._transport.write(b"".join(self._out))
        self._out.clear()
        self._gathered = 0

    def _remind(self, when: float) -> None:
        # One timer for all: a timer for each call would cost as much as its packing.
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._check)

    def _check(self) -> None:
        """Give up the calls whose time is over; the connection too, if nothing came since one of them was sent."""
        self._timer = None
        now = self._loop.time()
        late = [awaited for awaited in self._waiting if awaited.until <= now]
        for awaited in late:
            settle(awaited.future, TimeoutError())
        if any(now - max(self._heard, awaited.sent) >= SILENCE for awaited in late):
            self.drop()
        elif left := [awaited.until for awaited in self._waiting if not awaited.future.done()]:
            self._remind(min(left))

    # What the transport calls.

    def data_received(self, data: bytes) -> None:
        """Hand on the replies that are complete."""
        self._heard = self._loop.time()
        waiting, reader = self._waiting, self._reader
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _PARTIAL:
                if isinstance(reply, hiredis.PushNotification):
                    self._pushed(reply)
                    continue
                awaited = waiting[0]
                awaited.replies.append(reply)
                if isinstance(reply, Exception):
                    self._refused(awaited, reply)
                if len(awaited.replies) == awaited.count:
                    waiting.popleft()
                    settle(awaited.future, awaited.failure or awaited.replies)
        except (driver.RedisError, IndexError):
            # Not the protocol, or a reply that nobody asked for: whose the next one is cannot be known.
            self.drop()
        if not self.usable and not waiting:
            self._transport.close()

    def eof_received(self) -> bool:
        """The server closed the connection: so does this side."""
        self.usable = False
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell all who wait."""
        if self._lost:
            return
        self._lost = True
        self.usable = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tell_lost()
        while self._waiting:
            settle(self._waiting.popleft().future, driver.ConnectionError("the connection was closed"))
        self._driver.connection_lost(exc)

    def pause_writing(self) -> None:
        """The driver keeps account of it."""
        self._driver.pause_writing()

    def resume_writing(self) -> None:
        """The same."""
        self._driver.resume_writing()

    def _refused(self, awaited: _Awaited, error: Exception) -> None:
        if isinstance(error, driver.ConnectionError):
            # The driver's word for a server that loads its data, or wants a password: it raises these at once.
            awaited.failure = error
        elif code_of(error) == "READONLY":
            # No longer the master: what the address leads to by now is found by connecting anew.
            self.usable = False


def settle(future: asyncio.Future[_T | Exception], outcome: _T | Exception) -> None:
    """Tell one who waits by `outcome_of`, if it still does."""
    # Never as the future's exception: of a caller that was cancelled meanwhile it would be reported as forgotten.
    if not future.done():
        future.set_result(outcome)


async def outcome_of(future: asyncio.Future[_T | Exception]) -> _T:
    """Wait for what `settle` tells; raise it when it is an error."""
    outcome = await future
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
