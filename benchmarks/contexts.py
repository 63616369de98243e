"""The windows of many conversations: in one call, and in as many calls as there are windows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from blocks import Block, Row, row, take_turns
from observed import server_time
from redis.asyncio import Redis
from stage import FULL, Stage
from symfonic_layer import scope_of

from symfonic_redis.keys import scope_keys

WINDOWS = 64
TURNS = 10

ONE = f"get_contexts({WINDOWS})"
IN_TURN = f"{WINDOWS} x get_context, in turn"
AT_ONCE = f"{WINDOWS} x get_context, at once"
BARE = f"bare pipeline of {WINDOWS} LRANGE"


class Reader:
    """A way to read all of the windows."""

    def __init__(self, name: str, read: Callable[[], Awaitable[Any]]) -> None:
        self.name = name
        self._read = read

    async def times(self, count: int) -> list[float]:
        """Read all of them so often; return the seconds of each time."""
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            await self._read()
            seconds.append(time.perf_counter() - started)
        return seconds


async def run(stage: Stage) -> list[Row]:
    profile = stage.profile
    observer = await stage.server()
    contender = await stage.local("contexts", "symfonic_layer", observer.url, **FULL)
    peer = contender.peer
    layer, scopes = peer.layer, [scope_of(f"c{number}") for number in range(WINDOWS)]
    for number in range(WINDOWS):
        await contender.ask("append", conversation=f"c{number}", count=TURNS, size=profile.payload)
    keys = [scope_keys(peer.deployment.prefix, scope).turns for scope in scopes]

    async def in_turn() -> None:
        for scope in scopes:
            await layer.get_context(scope)

    async def at_once() -> None:
        await asyncio.gather(*(layer.get_context(scope) for scope in scopes))

    async with Redis.from_url(observer.url) as client:

        async def bare() -> None:
            pipeline = client.pipeline(transaction=False)
            for key in keys:
                pipeline.lrange(key, 0, TURNS - 1)
            await pipeline.execute()

        readers = [
            Reader(ONE, lambda: layer.get_contexts(scopes)),
            Reader(IN_TURN, in_turn),
            Reader(AT_ONCE, at_once),
            Reader(BARE, bare),
        ]
        trips: dict[str, int] = {}

        async def work(one: Reader, _: int) -> Block:
            sampled, _ = await observer.top_level(lambda: one.times(1))
            count = max(2, profile.calls // 10)
            seconds, seen = await observer.measure(lambda: one.times(count))
            trips[one.name] = round(seen.trips / count)
            return Block(
                seconds,
                count / sum(seconds),
                server_time(seen, sampled, count, 1),
                seen.received / count,
                seen.sent / count,
            )

        found = await take_turns(readers, profile.blocks, work)
    case = f"{WINDOWS} windows of {TURNS} turns"
    cases = ((case, IN_TURN, readers), (f"{case}, over calls at once", AT_ONCE, (readers[0], readers[2])),
             (f"{case}, over bare redis-py", BARE, (readers[0], readers[3])))  # fmt: skip
    return [
        row("contexts", name, one.name, found.get(one.name, []), found.get(against, []), figure="p50", against=against,
            note=f"{trips[one.name]} round trip{'s' * (trips[one.name] > 1)}")
        for name, against, some in cases
        for one in some
    ]  # fmt: skip
