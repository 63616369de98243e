"""What the server says of a stretch of work: its own time, bytes on the wire, memory.

Time. `INFO commandstats` counts a script's commands twice: in EVALSHA's time and in their own. The same holds for EXEC.
So a call's time is that of its containers (EVALSHA, EVAL, EXEC, FCALL), and of the other commands only the share that
clients sent outside of them. Which those are is taken from MONITOR, once for each contender.
Bytes. `INFO stats` counts what the server read and wrote. What asking costs is measured by asking twice, and taken off.
Round trips. `INFO stats` also counts how often the server read from a connection and wrote to one. What is sent in one
go is read in one go, and so are its replies written, unless they are long: the lesser of the two counts is taken.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from redis.asyncio import Redis

sys.path.append(str(Path(__file__).parent / "peers"))

from floor import commands_of

CONTAINERS = frozenset({"eval", "evalsha", "exec", "fcall"})


CALM = 5
"""Looks, 0.2 s apart, that must find the same number of keys."""


REST_LIMIT = 30.0
"""Seconds that this may take."""


class Seen(NamedTuple):
    """Of a stretch of work: microseconds and calls by command, bytes to and from the server, round trips."""

    usec: dict[str, float]
    calls: dict[str, int]
    received: int
    sent: int
    trips: int


class Observer:
    """Asks one server, over a connection of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = Redis.from_url(url)
        self._asking = (0, 0)

    async def _snapshot(self) -> tuple[dict[str, Any], dict[str, Any]]:
        # Bytes last before and first after the work would be best; a fixed order makes the cost of asking a constant.
        return await self._client.info("commandstats"), await self._client.info("stats")

    async def measure(self, work: Callable[[], Awaitable[Any]]) -> tuple[Any, Seen]:
        await self._snapshot()
        first = await self._snapshot()
        before = await self._snapshot()
        asking = _traffic(first, before)
        result = await work()
        after = await self._snapshot()
        usec, calls = {}, {}
        for name, values in after[0].items():
            old = before[0].get(name, {"usec": 0, "calls": 0})
            if values["calls"] > old["calls"]:
                command = name.removeprefix("cmdstat_")
                usec[command] = values["usec"] - old["usec"]
                calls[command] = values["calls"] - old["calls"]
        received, sent, reads, writes = (
            total - cost for total, cost in zip(_traffic(before, after), asking, strict=True)
        )
        usec.pop("info", None)
        return result, Seen(usec, calls, received, sent, min(reads, writes))

    async def memory(self) -> int:
        """Bytes in use, the connections' buffers excepted."""
        found = await self._client.info("memory")
        return int(found["used_memory"]) - int(found["mem_clients_normal"])

    async def memory_at_rest(self) -> int:
        """The same once nothing goes any more: keys that expired, values that are freed in the background."""
        last, same = -1, 0
        # The last few of a great many expired keys go slowly.
        until = time.monotonic() + REST_LIMIT
        while same < CALM and time.monotonic() < until:
            await asyncio.sleep(0.2)
            keys = await self._client.dbsize()
            same = same + 1 if keys == last else 0
            last = keys
        return await self.memory()

    async def flush(self) -> None:
        """Remove everything; the server is this run's own."""
        await self._client.flushall()

    async def top_level(self, work: Callable[[], Awaitable[Any]]) -> tuple[Counter[str], int]:
        """How often each command was sent outside scripts and transactions during `work`; and how many were sent."""
        found: Counter[str] = Counter()
        sent = 0
        inside: set[bytes] = set()
        for sender, words in await commands_of(self.url, work):
            command = words[0].decode().lower()
            if sender == b"lua":
                continue
            sent += 1
            if command in ("exec", "discard"):
                inside.discard(sender)
            if sender not in inside:
                found[command] += 1
            if command == "multi":
                inside.add(sender)
        return found, sent

    async def load(self, script: str) -> str:
        """Load a script; return the name under which EVALSHA knows it."""
        return str(await self._client.script_load(script))

    async def version(self) -> str:
        found = await self._client.info("server")
        if "valkey_version" in found:
            return f"Valkey {found['valkey_version']}"
        return f"Redis {found['redis_version']}"

    async def close(self) -> None:
        await self._client.aclose()


def server_time(seen: Seen, sampled: Counter[str], operations: int, sampled_operations: int) -> float:
    """Microseconds of the server for one operation, nothing counted twice; see above."""
    total = 0.0
    for command, usec in seen.usec.items():
        share = 1.0
        if command not in CONTAINERS:
            expected = sampled.get(command.split("|")[0], 0) / sampled_operations * operations
            share = min(1.0, expected / seen.calls[command])
        total += usec * share
    return total / operations


def _traffic(before: tuple[Any, Any], after: tuple[Any, Any]) -> list[int]:
    """Bytes to and from the server, and how often it read and wrote."""
    names = "total_net_input_bytes", "total_net_output_bytes", "total_reads_processed", "total_writes_processed"
    return [int(after[1][name] - before[1][name]) for name in names]
