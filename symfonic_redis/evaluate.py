"""Calls of one script over a line: by its hash, and whole where a server does not know it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis import exceptions as driver

from symfonic_redis.errors import NotReplicated
from symfonic_redis.resp import Command, Packed, Word
from symfonic_redis.retry import is_transient
from symfonic_redis.scripts import STORED, Script
from symfonic_redis.wire import Line

Attempt = Callable[[float], Awaitable[tuple[list[Any], int]]]
"""Makes calls until a time of the loop: their replies, and how many replicas acknowledged all."""

Call = tuple[Sequence[str] | Packed, Sequence[Word | Packed]]
"""Keys and arguments of one call of a script."""


async def evaluate(
    line: Line, script: Script, calls: Sequence[Call], wait: Command | None, until: float | None
) -> tuple[list[Any], int]:
    """Call a script once for each of `calls`; return the replies in order, and how many replicas acknowledged all.

    A server may lose a script at any time (a restart, a failover, SCRIPT FLUSH), one node of a cluster alone: what it
    did not run is sent again, whole, and nothing else.

    An error that another attempt would meet too stands in its call's place among the replies. Raises any other: then
    all calls are to be made again, as they were.
    """
    replies, acknowledged = await line.exchange_each(
        [_command("EVALSHA", script.sha, *call) for call in calls], wait, until
    )
    failed = [number for number, reply in enumerate(replies) if isinstance(reply, Exception)]
    if not failed:
        return replies, acknowledged
    missing = [number for number in failed if isinstance(replies[number], driver.NoScriptError)]
    if missing:
        whole = [_command("EVAL", script.text, *calls[number]) for number in missing]
        found, count = await line.exchange_each(whole, wait, until)
        acknowledged = count if len(missing) == len(calls) else min(acknowledged, count)
        for number, reply in zip(missing, found, strict=True):
            replies[number] = reply
    for reply in replies:
        if isinstance(reply, Exception) and is_transient(reply):
            raise reply
    return replies, acknowledged


def check_replicas(operation: str, replies: list[Any], acknowledged: int, least: int) -> None:
    """Put `NotReplicated` in the place of each reply of a write that fewer replicas have than were asked for.

    A call that wrote nothing keeps its own answer.
    """
    if acknowledged >= least:
        return
    for number, reply in enumerate(replies):
        if not isinstance(reply, Exception) and reply[0] in STORED:
            replies[number] = NotReplicated(
                f"{operation}: what it wrote is stored on the master, but {acknowledged} of the {least} replicas asked "
                "for are known to have it; do not write it again, see to the replicas",
                acknowledged,
            )


def _command(name: str, script: str, keys: Sequence[str] | Packed, args: Sequence[Word | Packed]) -> Command:
    if isinstance(keys, Packed):
        return name, script, len(keys.words), keys, *args
    return name, script, len(keys), *keys, *args
