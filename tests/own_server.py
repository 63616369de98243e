"""Servers that one test may ruin, and what an error says when all of it is printed."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator

from redis.asyncio import Redis
from servers import Server, binary

PASSWORD = "open-sesame"


@contextlib.contextmanager
def own_server(*arguments: str, kind: str = "valkey", directory: str | None = None) -> Iterator[Server]:
    """A server of the test's own, stopped afterwards."""
    server = Server(binary(kind), *arguments, directory=directory)
    try:
        yield server
    finally:
        server.stop()


def with_password(url: str, user: str = "", password: str = PASSWORD) -> str:
    return url.replace("//", f"//{user}:{password}@")


def everything_said(error: BaseException | None) -> str:
    """All that a log could show of an error: each link of its chain, and its traceback."""
    said = "".join(traceback.format_exception(error))
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and one not in seen:
            seen.append(one)
            said += f"{one!s}\n{one!r}\n{one.args!r}\n"
            # As tracebacks and error trackers do: a suppressed context is not shown.
            waiting += one.__cause__, None if one.__suppress_context__ else one.__context__
    return said


async def until(happens: Callable[[], Awaitable[object]], *, seconds: float = 30) -> None:
    """Ask again and again until the answer is true."""
    limit = time.monotonic() + seconds
    while not await happens():
        assert time.monotonic() < limit
        await asyncio.sleep(0.02)


async def calls(client: Redis, command: str) -> int:
    """How often the server ran a command since it started, at the top level and in scripts."""
    stats = await client.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])
