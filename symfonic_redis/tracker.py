"""Tracked reads of a deployment: which connection a window is read over, and which writes it must not outlive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from redis import exceptions as driver
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from symfonic_redis import telemetry
from symfonic_redis.errors import AccessDenied
from symfonic_redis.evaluate import Attempt, Call
from symfonic_redis.listening import Listener
from symfonic_redis.options import TRACK_BYTES, TRACK_WINDOWS, Options
from symfonic_redis.resp import Packed
from symfonic_redis.retry import code_of
from symfonic_redis.tracking import Window, Windows
from symfonic_redis.wire import Line, Wire, exchange_all

_PING = ("PING",)
_MAP = ("CLUSTER", "SLOTS")


class Tracker:
    """The windows that one worker keeps of one deployment, for one event loop.

    Args:
        most: windows that are kept.
        most_bytes: what they may take, about.
        attributes: of the counters.
    """

    def __init__(self, most: int, most_bytes: int, attributes: dict[str, str | int]) -> None:
        self.windows = Windows(most, most_bytes)
        self._attributes = attributes
        self._listeners: dict[Wire, Listener] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def find(self, key: str, length: int) -> Window | None:
        """A window that may be served without asking the server."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            return None
        window = self.windows.find(key, length, loop.time())
        if window is not None:
            telemetry.windows_found.add(1, self._attributes)
        return window

    async def open(self, line: Line, endpoint: str) -> None:
        """Connect to a server, any of a cluster's, so that a user without the right learns it now.

        Raises:
            AccessDenied: the user may not track.
            Otherwise the driver's errors.
        """
        self._loop = asyncio.get_running_loop()
        wire = await line.place("")
        try:
            await self._listener(line, wire).open()
        except driver.RedisError as error:
            if code_of(error) != "NOPERM":
                raise
            raise AccessDenied(
                f"tracking was refused: the user on {endpoint} may not use CLIENT TRACKING; extend its ACL rules, as "
                "acl_rules(tracking=True) does, or connect without track_windows"
            ) from error

    def read(self, key: str, length: int) -> Callable[[Line, float], Awaitable[list[bytes]]]:
        """Attempts to read the newest rows of a list, newest first, from the server, and to keep them.

        The first goes where it is tracked, if that can be done now; others, as any read does.

        Cost: one round trip, an LRANGE and a PTTL; one LRANGE while there is no connection that tracks.
        """
        telemetry.windows_missed.add(1, self._attributes)
        first = True

        async def attempt(line: Line, until: float) -> list[bytes]:
            nonlocal first
            tracked, first = first and not self._closed and asyncio.get_running_loop() is self._loop, False
            if tracked:
                listener = self._listener(line, await line.place(key))
                # One that is lost meanwhile, or a key that is elsewhere by now: the plain way finds it.
                with suppress(driver.ConnectionError, driver.AskError):
                    if listener.ready:
                        return await listener.load(key, length, until)
            (rows,) = await exchange_all(line, [("LRANGE", key, 0, length - 1)], until)
            return list(rows)

        return attempt

    def guard(self, calls: Sequence[Call], attempt: Attempt) -> Attempt:
        """Attempts of a write that leave no window of its keys behind: not before it, nor after, nor when it fails.

        When one attempt was not enough, the master may be another by now, which a connection to the old one would not
        say: all windows are dropped.
        """
        keys = [str(key) for names, _ in calls for key in (names.words if isinstance(names, Packed) else names)]
        tried = False

        async def guarded(until: float) -> tuple[list[Any], int]:
            nonlocal tried
            if tried:
                self._doubt()
            tried = True
            self.windows.evict(keys)
            try:
                return await attempt(until)
            finally:
                self.windows.evict(keys)

        return guarded

    async def close(self) -> None:
        """Close all connections, and forget all windows."""
        self._closed = True
        for listener in self._listeners.values():
            await listener.close()

    def _doubt(self) -> None:
        for listener in self._listeners.values():
            listener.drop()

    def _listener(self, line: Line, wire: Wire) -> Listener:
        found = self._listeners.get(wire)
        if found is None:
            # The nodes of a cluster come and go.
            self._listeners = {wire: one for wire, one in self._listeners.items() if one.alive}
            heartbeat = _PING if wire is line else _MAP
            found = self._listeners[wire] = Listener(lambda: _apart(wire), self.windows, heartbeat, self._attributes)
        return found


def tracker_of(options: Options, attributes: dict[str, str | int]) -> Tracker | None:
    """What keeps windows as the options say, or None."""
    chosen = options.get("track_windows", False)
    most = TRACK_WINDOWS if chosen is True else chosen
    return Tracker(most, options.get("track_bytes", TRACK_BYTES), attributes) if most else None


def _apart(wire: Wire) -> object:
    """A connection of its own, not yet made: in version 3 of the protocol, which has messages beside replies."""
    return wire.apart(
        protocol=3,
        decode_responses=False,
        health_check_interval=0,
        retry=Retry(NoBackoff(), 0),
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
    )
