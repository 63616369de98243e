"""A worker process. It writes the turns of the conversations that are leased to it, each in order, and reads at random.

Leases come on the standard input: `take c17 42` (write c17 from number 42), `leave` (finish what was begun, and exit).
The first write of a lease may have been made before by a worker that was killed: every write has an idempotency key.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from chaos.checker import view_faults
from chaos.history import DUPLICATE, OK, Journal
from chaos.turns import Step, entry_of, scope_of, step_of
from symfonic_redis import (
    Deployment,
    MemoryRecord,
    MemoryUnavailable,
    RedisEvictedSource,
    RedisMemoryLifecycle,
    RedisMemoryWriter,
    ServerRefused,
    StreamGraphStore,
    SymfonicRedisError,
    TenantScope,
    WorkingLayer,
    WriteRequest,
    connect,
    telemetry,
)

ABREAST = 12
"""Conversations that a worker writes at a time."""

BURST = 12
"""Steps of a conversation before another has its turn, at most."""

READS, BAD = 0.04, 0.002
"""How often a step is followed by a read, and by a write that must be refused."""

IDEMPOTENCY_TTL = 900
"""Seconds. A conversation is taken over within a few."""


class StagedOnly(SymfonicRedisError):  # noqa: N818 - an outcome of a write, as it stands in the journal
    """The turns wait, and their flush was refused."""


@dataclass(frozen=True)
class Task:
    """What a worker is told when it starts."""

    url: str
    prefix: str
    journal: str
    turns: int
    conversations: int
    window: int
    evicted: int
    options: dict[str, Any]


class _Again:
    """Stands in for the counter of retries."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def add(self, _: int, attributes: dict[str, Any]) -> None:
        self._journal.again(attributes["db.operation.name"])


class Worker:
    def __init__(self, task: Task, redis: Deployment, journal: Journal) -> None:
        self._task = task
        self._journal = journal
        self._layer = WorkingLayer(redis, task.window, StreamGraphStore(redis), evicted_retention=task.evicted)
        self._source = RedisEvictedSource(self._layer)
        self._writer, self._lifecycle = RedisMemoryWriter(self._layer), RedisMemoryLifecycle(self._layer)
        self._ways = {"push": self._push, "many": self._many, "stage": self._stage, "bad": self._bad}
        self._next: dict[str, int] = {}
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._leaving = False
        self._bad = 0

    async def run(self) -> None:
        drivers = [asyncio.create_task(self._drive()) for _ in range(ABREAST)]
        orders = asyncio.create_task(self._obey())
        # Whichever ends first: a driver ends early only by an error, which is a finding.
        await asyncio.wait([orders, *drivers], return_when=asyncio.FIRST_COMPLETED)
        orders.cancel()
        await asyncio.gather(*drivers)

    async def _obey(self) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := (await reader.readline()).decode().split():
            if line[0] == "leave":
                break
            self._next[line[1]] = int(line[2])
            self._queue.put_nowait(line[1])
        self._leaving = True
        for _ in range(ABREAST):
            self._queue.put_nowait("")

    async def _drive(self) -> None:
        while name := await self._queue.get():
            for _ in range(random.randint(1, BURST)):
                if self._leaving or self._next[name] > self._task.turns:
                    break
                step = step_of(name, self._next[name], self._task.turns)
                if await self._write(name, step):
                    self._next[name] = step.last + 1
                if random.random() < READS:
                    await self._read(name)
                if random.random() < BAD:
                    self._bad -= 1
                    await self._write(name, Step("bad", self._bad, 1))
            if self._leaving:
                return
            if self._next[name] <= self._task.turns:
                self._queue.put_nowait(name)

    async def _write(self, name: str, step: Step) -> bool:
        """Send a step until it is acknowledged; a bad one only once."""
        while True:
            self._journal.start(name, step)
            try:
                outcome, node = await self._ways[step.kind](name, step)
            except SymfonicRedisError as error:
                self._journal.end(name, step, type(error).__name__)
            else:
                self._journal.end(name, step, outcome, node)
                return True
            if self._leaving or step.kind == "bad":
                return False
            await asyncio.sleep(random.uniform(0.02, 0.3))

    async def _push(self, name: str, step: Step) -> tuple[str, str]:
        scope = scope_of(name)
        receipt = await self._layer.push(
            scope,
            entry_of(name, step.first, scope),
            idempotency_key=f"{name} {step.first}",
            idempotency_ttl=IDEMPOTENCY_TTL,
        )
        return _told(receipt)

    async def _many(self, name: str, step: Step) -> tuple[str, str]:
        scope = scope_of(name)
        receipt = await self._layer.push_many(
            scope,
            [entry_of(name, number, scope) for number in range(step.first, step.last + 1)],
            idempotency_key=f"{name} {step.first}",
            idempotency_ttl=IDEMPOTENCY_TTL,
        )
        return _told(receipt)

    async def _stage(self, name: str, step: Step) -> tuple[str, str]:
        scope = scope_of(name)
        entries = [entry_of(name, number, scope) for number in range(step.first, step.last + 1)]
        records = [MemoryRecord(scope=scope, content=entry.content, metadata=entry.metadata) for entry in entries]
        staged = await self._writer.write(WriteRequest(scope, records, f"{name} {step.first}"))
        if staged.degraded:
            raise MemoryUnavailable(staged.reason)
        try:
            published = await self._lifecycle.flush(scope)
        except ServerRefused as error:
            # The flush wrote nothing, but the turns are staged: whoever flushes next publishes them.
            raise StagedOnly(type(error).__name__) from error
        if published.degraded:
            raise MemoryUnavailable(published.reason)
        return (DUPLICATE if staged.duplicate else OK), "-"

    async def _bad(self, name: str, step: Step) -> tuple[str, str]:
        """A turn of another tenant under this scope: a leak, if it were stored."""
        entry = entry_of(name, step.first, TenantScope.root("org", "somebody-else"))
        return _told(await self._layer.push(scope_of(name), entry))

    async def _read(self, own: str) -> None:
        """Compare a conversation's window, or all that is kept of it: one's own, which must show what was stored."""
        own_one = random.random() < 0.5
        name = own if own_one else f"c{random.randrange(self._task.conversations)}"
        through = self._next[own] - 1 if own_one else 0
        scope = scope_of(name)
        with suppress(SymfonicRedisError):
            if random.random() < 0.5:
                views = [await self._layer.get_context(scope)]
            else:
                memory = await self._source.read(scope)
                views = [[*memory.evicted, *memory.window]]
            for view in views:
                for fault in view_faults(name, [entry.content for entry in view], through=through):
                    self._journal.violation(name, fault)
            self._journal.read()


def _told(receipt: Any) -> tuple[str, str]:
    node = receipt.node_ids[0].partition(".")[0] if receipt.node_ids else "-"
    return (DUPLICATE if receipt.duplicate else OK), node


async def main(task: Task) -> None:
    journal = Journal(task.journal)
    telemetry.retries = _Again(journal)
    while True:
        with suppress(MemoryUnavailable):
            async with connect(task.url, prefix=task.prefix, **task.options) as redis:
                await Worker(task, redis, journal).run()
                return


if __name__ == "__main__":
    asyncio.run(main(Task(**json.loads(sys.argv[1]))))
