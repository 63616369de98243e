"""The one module that knows where the server is and how to reach it.

A `Deployment` is a server and a prefix on it. Its calls go through `wire`, an attempt at a time, and are repeated by
`retry` alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, TypeVar, Unpack

from symfonic_redis import config
from symfonic_redis.embedded import EmbeddedServer
from symfonic_redis.errors import ConfigurationError
from symfonic_redis.evaluate import Attempt, Call, check_replicas, evaluate
from symfonic_redis.keys import check_prefix
from symfonic_redis.options import ATTEMPT_TIMEOUT, DEADLINE, MAX_CONNECTIONS, MAX_ROW_BYTES, Options, check_options
from symfonic_redis.resp import Command, Packed, Word
from symfonic_redis.retry import persist, translate
from symfonic_redis.scripts import Script
from symfonic_redis.topologies import Limits, Reach, Target, reach, started
from symfonic_redis.tracker import tracker_of
from symfonic_redis.wire import Line, exchange_all

_T = TypeVar("_T")


class Deployment:
    """A server, a prefix on it, and how long a call may take. Made by `connect`; safe for any number of tasks.

    `async with` opens it and checks the server; a deployment that was not entered opens at its first call.
    It belongs to one event loop, and is closed for good after the block, or `aclose`.

    Attributes:
        prefix: starts every key.
        deadline: seconds for one call, retries included.
        attempt_timeout: seconds for one attempt.
        max_row_bytes: the longest encoded row.
        feed: how many changes are kept for each partition of each tenant, or None.
        encryption: the keys of its rows, or None.
        endpoint: where it leads, without credentials, for messages and logs.
        topology: `standalone`, `cluster` or `sentinel`; empty until an embedded or fake server is opened.
        min_replicas: how many replicas must have a write.
        tracker: what keeps its windows, or None.
        permitted: the scripts that the user was found to have the rights for.
    """

    def __init__(self, target: Target, **options: Unpack[Options]) -> None:
        check_options(options)
        self.prefix = check_prefix(options.get("prefix", "swm"))
        self.deadline = options.get("deadline", DEADLINE)
        self.attempt_timeout = options.get("attempt_timeout", ATTEMPT_TIMEOUT)
        self.max_row_bytes = options.get("max_row_bytes", MAX_ROW_BYTES)
        self.feed = options.get("feed")
        self.encryption = options.get("encryption")
        self.min_replicas = options.get("min_replicas", 0)
        connections, replicas = options.get("max_connections", MAX_CONNECTIONS), options.get("read_from") == "replica"
        self.coalesce = options.get("coalesce", True)
        self._limits = Limits(connections, self.attempt_timeout, replicas, self.coalesce)
        self.permitted: set[str] = set()
        self._target = target
        self._scheme = ""
        self.topology = ""
        self.attributes: dict[str, str | int] = {"db.system.name": "redis"}
        self.tracker = tracker_of(options, self.attributes)
        self._server: EmbeddedServer | None = None
        self._wire: Line | None = None
        self._replicas: Line | None = None
        self._opened = False
        self._closed = False
        self._opening: asyncio.Task[None] | None = None
        found = reach(target, self._limits)
        if isinstance(found, Reach):
            self._use(found)
        else:
            self._scheme, self.endpoint = found
            if self._scheme == "fake" and (self.min_replicas or self._limits.replicas or self.tracker):
                raise ConfigurationError("a fake server has no replicas and no tracking: leave these options out")

    def __repr__(self) -> str:
        return f"<Deployment {self.prefix!r} at {self.endpoint}>"

    def _use(self, reach: Reach) -> None:
        self.topology, self.endpoint = reach.topology, reach.endpoint
        self.attributes.update(reach.attributes)
        self._wire, self._replicas = reach.masters, reach.replicas

    @property
    def url(self) -> str:
        """A URL under which other processes of this machine reach the same server. It may hold credentials.

        For `embedded://` that is the server's unix socket, once opened.

        Raises:
            ConfigurationError: there is none, as for `fake://` and a client that the caller brought.
        """
        if self._server is not None:
            return f"unix://{self._server.socket_path}"
        if isinstance(self._target, str) and not self._scheme:
            return self._target
        raise ConfigurationError("this deployment has no URL that another process could use: connect to a server")

    async def open(self) -> Self:
        """Reach the server and compare its configuration. Idempotent.

        Cost: one GET and one INFO; a SET and a GET more on a new prefix.

        Raises:
            ConfigurationError: the deployment's configuration differs, or the server is too old.
            MemoryUnavailable: the server is not reached within the deadline.
        """
        if self._closed:
            raise ConfigurationError("this deployment is closed: call connect() again")
        if not self._opened:
            # Calls that come first at once open once, and share what comes of it.
            if self._opening is None or self._opening.done():
                self._opening = asyncio.create_task(self._open())
            try:
                await asyncio.shield(self._opening)
            except asyncio.CancelledError:
                caller = asyncio.current_task()
                if self._opening.cancelled() and not (caller and caller.cancelling()):
                    raise ConfigurationError("this deployment was closed while it opened") from None
                raise
        return self

    async def _open(self) -> None:
        if self._wire is None:
            found, self._server = await started(str(self._target), self._limits)
            self._use(found)
        await config.verify(self._call, self.prefix, self.endpoint)
        await config.verify_version(self._call, self.endpoint)
        if self.min_replicas:
            # A user who may not ask learns it before the first write.
            await self._call("connect", "WAIT", 0, 1)
        if (tracker := self.tracker) is not None:
            await self._persist("connect", lambda _: tracker.open(self._line(), self.endpoint))
        self._opened = True

    async def aclose(self) -> None:
        """Close what this deployment opened: its pool and its embedded server, never a client it was given."""
        self._closed = True
        self._opened = False
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait([self._opening])
        try:
            for line in (self.tracker, self._wire, self._replicas):
                if line is not None:
                    await line.close()
        finally:
            if self._server is not None:
                await self._server.close()

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except BaseException:
            await self.aclose()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def call(self, operation: str, *command: str | bytes | int) -> Any:
        """Send one command that may be repeated without harm; return the raw reply, strings as bytes.

        Args:
            operation: what it is for, in errors and metrics.
            command: the command and its arguments.

        Raises:
            MemoryUnavailable, ServerRefused, KeyConflict: see `retry.persist`.
        """
        if not self._opened:
            await self.open()
        return await self._call(operation, *command)

    async def call_replica(self, operation: str, *command: str | bytes | int) -> Any:
        """As `call`, but a replica may answer, where the deployment reads from replicas."""
        return (await self._exchange(operation, [command], self._nearest()))[0]

    async def repeat(self, operation: str, attempt: Callable[[Line, float], Awaitable[_T]]) -> _T:
        """Make attempts that may be repeated without harm, until one is answered. Errors as of `call`."""
        if not self._opened:
            await self.open()
        return await self._persist(operation, lambda until: attempt(self._line(), until))

    async def call_many(self, operation: str, commands: Sequence[Command], *, replica: bool = False) -> list[Any]:
        """Send commands that may be repeated without harm; return their raw replies in order. Errors as of `call`.

        Cost: one round trip; on a cluster one to each node, at the same time. `replica` as of `run`.
        """
        line = self._nearest() if replica else self._line
        return await self._exchange(operation, commands, line) if commands else []

    async def call_everywhere(self, operation: str, *command: str | bytes | int) -> list[Any]:
        """Send one command to each master; return the raw replies. Errors as of `call`."""
        return await self.repeat(operation, lambda line, until: line.exchange_everywhere(command, until))

    async def run(
        self,
        operation: str,
        script: Script,
        keys: Sequence[str] | Packed,
        args: Sequence[Word | Packed],
        *,
        replica: bool = False,
    ) -> Any:
        """Run a script, in one round trip; two when the server does not know it yet.

        The same call is sent again, with the same operation id, until it is answered or the deadline passes.

        Args:
            operation: what it is for, in errors and metrics.
            script: which.
            keys: all that it touches; of one slot.
            args: its arguments.
            replica: it only reads, and a replica may run it where the deployment reads from replicas.

        Raises:
            MemoryUnavailable, ServerRefused, KeyConflict: see `retry.persist`.
            NotReplicated: the write is stored, and fewer than `min_replicas` replicas are known to have it.
        """
        return (await self.run_many(operation, script, [(keys, args)], replica=replica))[0]

    async def run_many(
        self, operation: str, script: Script, calls: Sequence[Call], *, replica: bool = False
    ) -> list[Any]:
        """Run a script once for each of `calls`, all again when one is not answered; otherwise as `run`."""
        replies = await self.run_each(operation, script, calls, replica=replica)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def run_each(
        self,
        operation: str,
        script: Script,
        calls: Sequence[Call],
        *,
        replica: bool = False,
        deadline: float | None = None,
    ) -> list[Any]:
        """As `run_many`, but the error of a call that the server refuses, or no replica has, stands in its place.

        `deadline`: seconds for all, else the deployment's.
        """
        if not self._opened:
            await self.open()
        least = self.min_replicas if script.once else 0
        wait = ("WAIT", least, max(1, int(300 * min(self.attempt_timeout, self.deadline)))) if least else None
        line = self._nearest() if replica else self._line
        attempt: Attempt = lambda until: evaluate(line(), script, calls, wait, until)  # noqa: E731 - its type is in its name
        replies, acknowledged = await persist(
            attempt if self.tracker is None else self.tracker.guard(calls, attempt),
            operation=operation,
            endpoint=self.endpoint,
            deadline=self.deadline if deadline is None else deadline,
            attempt_timeout=self.attempt_timeout,
            attributes=self.attributes,
        )
        for number, reply in enumerate(replies):
            if isinstance(reply, Exception):
                replies[number] = translate(reply, operation, self.endpoint)
        check_replicas(operation, replies, acknowledged, least)
        return replies

    async def _exchange(self, operation: str, commands: Sequence[Command], line: Callable[[], Line]) -> list[Any]:
        if not self._opened:
            await self.open()
        return list(await self._persist(operation, lambda until: exchange_all(line(), commands, until)))

    async def _call(self, operation: str, *command: str | bytes | int) -> Any:
        return (await self._persist(operation, lambda until: exchange_all(self._line(), [command], until)))[0]

    def _line(self) -> Line:
        if self._wire is None:
            raise ConfigurationError("this deployment is not open: enter it with `async with`")
        return self._wire

    def _nearest(self) -> Callable[[], Line]:
        """Where each attempt of a call goes that a replica may answer: the first to one, the others to the master."""
        lines = iter([self._replicas] if self._replicas else [])
        return lambda: next(lines, None) or self._line()

    async def _persist(self, operation: str, attempt: Callable[[float], Awaitable[_T]]) -> _T:
        return await persist(
            attempt,
            operation=operation,
            endpoint=self.endpoint,
            deadline=self.deadline,
            attempt_timeout=self.attempt_timeout,
            attributes=self.attributes,
        )
