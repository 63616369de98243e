"""Calls of one script over a line: by its hash, and whole where a server does not know it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis import exceptions as driver

from symfonic_redis.errors import NotReplicated
from symfonic_redis.scripts import STORED, Script
from symfonic_redis.wire import Command, Line, succeeded

Attempt = Callable[[], Awaitable[tuple[list[Any], int]]]
"""Makes calls: their replies, and how many replicas acknowledged all."""

Call = tuple[Sequence[str], Sequence[str | bytes | int]]
"""Keys and arguments of one call of a script."""


async def evaluate(line: Line, script: Script, calls: Sequence[Call], wait: Command | None) -> tuple[list[Any], int]:
    """Call a script once for each of `calls`; return the replies in order, and how many replicas acknowledged all.

    A server may lose a script at any time (a restart, a failover, SCRIPT FLUSH), one node of a cluster alone: what it
    did not run is sent again, whole, and nothing else.

    Raises the driver's error for the first call that failed.
    """
    replies, acknowledged = await line.exchange_each([_command("EVALSHA", script.sha, *call) for call in calls], wait)
    missing = [number for number, reply in enumerate(replies) if isinstance(reply, driver.NoScriptError)]
    if missing:
        whole = [_command("EVAL", script.text, *calls[number]) for number in missing]
        found, count = await line.exchange_each(whole, wait)
        acknowledged = count if len(missing) == len(calls) else min(acknowledged, count)
        for number, reply in zip(missing, found, strict=True):
            replies[number] = reply
    return succeeded(replies), acknowledged


def check_replicas(operation: str, replies: Sequence[Any], acknowledged: int, least: int) -> None:
    """Raise `NotReplicated` for a write that was stored and that fewer replicas have than were asked for."""
    if acknowledged < least and any(reply[0] in STORED for reply in replies):
        raise NotReplicated(
            f"{operation}: what it wrote is stored on the master, but {acknowledged} of the {least} replicas asked "
            "for are known to have it; do not write it again, see to the replicas",
            acknowledged,
        )


def _command(name: str, script: str, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Command:
    return name, script, len(keys), *keys, *args
