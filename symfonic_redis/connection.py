"""The one module that knows where the server is and how to reach it.

A `Deployment` is a server and a prefix on it. Its calls go through `wire`, an attempt at a time, and are repeated by
`retry` alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self, Unpack
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary

from redis import asyncio as redis
from redis import exceptions as driver
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from symfonic_redis import config
from symfonic_redis.embedded import EmbeddedServer
from symfonic_redis.errors import ConfigurationError
from symfonic_redis.keys import check_prefix
from symfonic_redis.options import ATTEMPT_TIMEOUT, DEADLINE, MAX_CONNECTIONS, MAX_ROW_BYTES, Options, check_options
from symfonic_redis.retry import persist
from symfonic_redis.scripts import Script
from symfonic_redis.urls import embedded_port, fake_pool, read_url
from symfonic_redis.wire import Wire


class Deployment:
    """A server, a prefix on it, and how long a call may take. Made by `connect`; safe for any number of tasks.

    `async with` opens it and checks the server; a deployment that was not entered opens at its first call.
    It belongs to one event loop. After the block, or `aclose`, it is closed for good.

    Attributes:
        prefix: starts every key.
        deadline: seconds for one call, retries included.
        attempt_timeout: seconds for one attempt.
        max_row_bytes: the longest encoded row.
        feed: how many changes are kept for each partition of each tenant, or None.
        encryption: the keys of its rows, or None.
        endpoint: where it leads, without credentials, for messages and logs.
        permitted: the scripts that the user was found to have the rights for.
    """

    def __init__(self, target: str | redis.Redis, **options: Unpack[Options]) -> None:
        check_options(options)
        self.prefix = check_prefix(options.get("prefix", "swm"))
        self.deadline = options.get("deadline", DEADLINE)
        self.attempt_timeout = options.get("attempt_timeout", ATTEMPT_TIMEOUT)
        self.max_row_bytes = options.get("max_row_bytes", MAX_ROW_BYTES)
        self.feed = options.get("feed")
        self.encryption = options.get("encryption")
        self._max_connections = options.get("max_connections", MAX_CONNECTIONS)
        self.permitted: set[str] = set()
        self._target = target
        self._scheme = ""
        self.attributes: dict[str, str | int] = {"db.system.name": "redis"}
        self._server: EmbeddedServer | None = None
        self._owns_pool = isinstance(target, str)
        self._wire: Wire | None = None
        self._opened = False
        self._closed = False
        self._opening: asyncio.Task[None] | None = None
        if isinstance(target, str):
            self._scheme, self.endpoint = read_url(target)
            if self._scheme not in ("embedded", "fake"):
                self._use(self._make_pool(target))
        else:
            self._use(_pool_of(target))

    def __repr__(self) -> str:
        return f"<Deployment {self.prefix!r} at {self.endpoint}>"

    def _use(self, pool: redis.ConnectionPool) -> None:
        options = pool.connection_kwargs
        # fakeredis invents a host name: it leads nowhere.
        address = "fake" if self._scheme == "fake" else str(options.get("path") or options.get("host") or "localhost")
        self.attributes["db.namespace"] = str(options.get("db") or 0)
        self.attributes["server.address"] = address
        self.endpoint = address
        if "path" not in options and self._scheme != "fake":
            port = int(options.get("port") or 6379)
            self.attributes["server.port"] = port
            self.endpoint = f"{address}:{port}"
        self._wire = Wire(pool, self._max_connections, owned=self._owns_pool)

    def _make_pool(self, url: str) -> redis.ConnectionPool:
        # Refused outside the handler: the driver's message may quote the URL, and with it the password.
        with suppress(ValueError, TypeError):
            pool = redis.ConnectionPool.from_url(
                url,
                socket_timeout=None,  # each attempt has its own time-out
                socket_connect_timeout=self.attempt_timeout,
                retry=Retry(NoBackoff(), 0),
                **({} if url.startswith("unix:") else {"socket_keepalive": True}),
            )
            pool.connection_class(**pool.connection_kwargs)  # an option that is unknown shows itself only here
            return pool
        raise ConfigurationError("the URL cannot be read: write it as redis://user:password@host:port/db")

    @property
    def url(self) -> str:
        """A URL under which other processes of this machine reach the same server. It may hold credentials.

        For `embedded://` that is the server's unix socket, once opened.

        Raises:
            ConfigurationError: there is none, as for `fake://` and a client that the caller brought.
        """
        if self._server is not None:
            return f"unix://{self._server.socket_path}"
        if isinstance(self._target, str) and self._scheme not in ("fake", "embedded"):
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
            self._use(await self._start())
        await config.verify(self._call, self.prefix, self.endpoint)
        await config.verify_version(self._call, self.endpoint)
        self._opened = True

    async def _start(self) -> redis.ConnectionPool:
        parts = urlsplit(str(self._target))
        if self._scheme == "fake":
            return fake_pool(parts.netloc)
        self._server = await EmbeddedServer.start(unquote(parts.path) or None, port=embedded_port(parts.query))
        return self._make_pool(f"unix://{self._server.socket_path}")

    async def aclose(self) -> None:
        """Close what this deployment opened: its pool and its embedded server, never a client it was given."""
        self._closed = True
        self._opened = False
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._wire is not None:
            await self._wire.close()
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

    async def run(self, operation: str, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:
        """Run a script, in one round trip; two when the server does not know it yet.

        The same call is sent again, with the same operation id, until it is answered or the deadline passes.
        A server may lose a script at any time (a restart, a failover, SCRIPT FLUSH): it is sent whole when missing.

        Raises:
            MemoryUnavailable, ServerRefused, KeyConflict: see `retry.persist`.
        """
        if not self._opened:
            await self.open()

        async def attempt() -> Any:
            try:
                return await self._line().exchange("EVALSHA", script.sha, len(keys), *keys, *args)
            except driver.NoScriptError:
                return await self._line().exchange("EVAL", script.text, len(keys), *keys, *args)

        return await self._persist(operation, attempt)

    async def call_many(self, operation: str, commands: Sequence[Sequence[str | bytes | int]]) -> list[Any]:
        """Send commands that may be repeated without harm, in one round trip; return their raw replies in order.

        Raises:
            MemoryUnavailable, ServerRefused, KeyConflict: one of them failed; see `retry.persist`.
        """
        if not self._opened:
            await self.open()
        if not commands:
            return []

        return list(await self._persist(operation, lambda: self._line().exchange_many(commands)))

    async def _call(self, operation: str, *command: str | bytes | int) -> Any:
        return await self._persist(operation, lambda: self._line().exchange(*command))

    def _line(self) -> Wire:
        if self._wire is None:
            raise ConfigurationError("this deployment is not open: enter it with `async with`")
        return self._wire

    async def _persist(self, operation: str, attempt: Any) -> Any:
        return await persist(
            attempt,
            operation=operation,
            endpoint=self.endpoint,
            deadline=self.deadline,
            attempt_timeout=self.attempt_timeout,
            attributes=self.attributes,
        )


def connect(target: str | redis.Redis, **options: Unpack[Options]) -> Deployment:
    """Return the deployment behind a URL or a `redis.asyncio` client. Use it with `async with`.

    Args:
        target: `redis://` or `rediss://` with `user:password@host:port/db`, `unix:///path.sock`; `embedded://` for a
            real server in a child process, gone when closed; `embedded:///path` for one that keeps its data there
            and is shared by the processes that open it; `fake://` or `fake://name` for fakeredis, in this process.
            Or a client: our calls go out without its retry, and it is never closed by us.
        options: see `Options`.

    Raises:
        ConfigurationError: an unknown scheme, or an option out of range. The server is not contacted yet.
    """
    return Deployment(target, **options)


# By the client's identity, and only while a layer or a store holds the deployment, which holds the client.
_deployments: WeakValueDictionary[int, Deployment] = WeakValueDictionary()


def deployment_of(target: Deployment | redis.Redis) -> Deployment:
    """Return `target` itself, or the one deployment of a client that was passed as it is.

    Raises:
        ConfigurationError: it is neither.
    """
    if isinstance(target, Deployment):
        return target
    found = _deployments.get(id(target))
    if found is None:
        _pool_of(target)  # refuses anything else, a URL too: who opens a deployment closes it
        found = _deployments[id(target)] = Deployment(target)
    return found


def _pool_of(client: object) -> redis.ConnectionPool:
    if not isinstance(client, redis.Redis):
        raise ConfigurationError(
            f"a {type(client).__name__} is no connection: pass what connect() returns, or a redis.asyncio.Redis client"
        )
    return client.connection_pool
