"""Relaying: worker processes that copy what happens to nodes into a graph backend, at least once, in order per scope.

Any number of processes under one name share the partitions: each takes a lease on one that has work, copies a batch,
notes it, and gives the partition back. Everything a relay knows stands on the server, so killing one loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from dataclasses import dataclass, field
from typing import Any

from redis import asyncio as redis

from symfonic_redis.books import Batch, Books, Entry, Feed, Lease, LeaseLost
from symfonic_redis.connection import deployment_of
from symfonic_redis.copier import Copier
from symfonic_redis.deployment import Deployment
from symfonic_redis.errors import ConfigurationError, MemoryUnavailable
from symfonic_redis.keys import tenant_keys
from symfonic_redis.patience import Refusals, patiently

BATCH = 500
"""Unfinished changes of one feed at most. A scope that waits for a retry holds up the others of its feed only when so
many changes wait."""

SLICE = 2.0
"""Seconds after which a partition with more work goes back, so that no other partition starves."""

FIRST_LOOK = 0.05
"""Seconds between two looks for work while there is some; it doubles up to `idle` while there is none."""

LOOK_SHARE = 10
"""So many times as long as a look took is the least time until the next: with 100,000 feeds a look takes a second."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Outcome:
    """What became of a batch: the ids that are done, and the failures (the entry, its count, its error's type)."""

    done: list[str] = field(default_factory=list)
    failed: list[tuple[Entry, int, str]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)


class Relay:
    """Copies changes from the feeds of a deployment into a graph backend.

    A target sees each node at least once, the changes of one scope in order, and each change again after a crash: it
    must take `add_node` of an id that it has as no second node. Where the target has `get_node`, a change that may have
    been copied before is looked for first. Turns that were never mirrored are not copied, nor are rehydrated ones.

    Args:
        redis: what `connect(..., feed=N)` returns.
        target: a backend with an async `add_node(scope, node)`; see `copier.Copier` for what else it may have.
        name: processes of one name share the work; another name copies everything once more, into another target.
        attempts: tries of a change before it goes to the dead letters, and its scope goes on without it.
        first_pause: seconds before the second try; it doubles with each. Ten attempts last about 80 s.
        longest_pause: seconds between two tries at most.
        lease: seconds after which another process takes over from one that is silent.
        partitions: how many this process serves at a time.
        concurrency: calls to the target at a time.
        timeout: seconds for one call to the target.
        idle: seconds between two looks for work when there is none.

    Raises:
        ConfigurationError: the deployment has no feed, the target no `add_node`, or an argument is out of range.
    """

    def __init__(
        self,
        redis: Deployment | redis.Redis,
        target: Any,
        *,
        name: str = "relay",
        attempts: int = 10,
        first_pause: float = 0.2,
        longest_pause: float = 30.0,
        lease: float = 15.0,
        partitions: int = 16,
        concurrency: int = 16,
        timeout: float = 30.0,
        idle: float = 2.0,
    ) -> None:
        self.deployment = deployment_of(redis)
        if self.deployment.feed is None:
            raise ConfigurationError("this deployment has no feed: connect with feed=N, here and in every writer")
        if min(attempts, partitions, concurrency) < 1 or min(first_pause, longest_pause, lease, timeout, idle) <= 0:
            raise ConfigurationError("a relay's numbers must be positive: correct them")
        self.name = name
        self._books = Books(self.deployment, name, uuid.uuid4().hex, lease)
        self._copier = Copier(self.deployment, target, timeout)
        self._attempts = attempts
        self._first_pause, self._longest_pause = first_pause, longest_pause
        self._lease, self._idle = lease, idle
        self._partitions = partitions
        self._calls = asyncio.Semaphore(concurrency)
        self._stopping = asyncio.Event()
        self._busy: dict[asyncio.Task[int], int] = {}
        self._known: set[Feed] = set()
        self._settled: dict[Feed, int] = {}
        self._refusals = Refusals(self.deployment.prefix, self._pause)

    def stop(self) -> None:
        """End `run` gracefully: calls under way are finished and noted, and the partitions are given back."""
        self._stopping.set()

    async def run(self) -> int:
        """Copy until `stop`; return how many changes were handled. An unreachable server is waited for.

        Cost when idle: each `idle` seconds 1,024 SUNIONs and a GET for each feed, pipelined: 5 ms, and 11 ms for each
        1,024 feeds. A tenant with some thousand conversations has as many. Looking takes at most a tenth of the time.

        Raises:
            AccessDenied, and what else the server answers to a look for work: it will not change. A single feed that
                it refuses to serve is logged and left alone, for 0.2 s at first and then longer each time.
        """
        loop = asyncio.get_running_loop()
        stopper = asyncio.create_task(self._stopping.wait())
        handled, pause, look, least = 0, FIRST_LOOK, loop.time(), FIRST_LOOK
        queue: list[tuple[int, list[str]]] = []
        try:
            while not self._stopping.is_set():
                if not queue and (began := loop.time()) >= look:
                    queue = await patiently(self._due(), [])
                    least = max(FIRST_LOOK, LOOK_SHARE * (loop.time() - began))
                    look = loop.time() + max(least, pause)
                    pause = min(2 * pause, self._idle)
                while queue and len(self._busy) < self._partitions:
                    partition, tenants = queue.pop()
                    self._busy[asyncio.create_task(self._serve(partition, tenants))] = partition
                patience = None if queue else max(0.0, look - loop.time())
                # A partition with a slow target does not keep this process from the others.
                await asyncio.wait({stopper, *self._busy}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if done := await self._collect():
                    handled, pause, look = handled + done, FIRST_LOOK, min(look, loop.time() + least)
            await asyncio.gather(*self._busy, return_exceptions=True)
            return handled + await self._collect()
        finally:
            for task in (stopper, *self._busy):
                task.cancel()
            self._busy.clear()

    async def drain(self) -> int:
        """Copy what is due now and end; return how many changes were handled.

        What waits for another try, or is under another process's lease, is left. Errors as of `run`, and
        `MemoryUnavailable` when the server is not reached.
        """
        handled = 0
        while not self._stopping.is_set():
            due = await self._due()
            done = 0
            for start in range(0, len(due), self._partitions):
                for partition, tenants in due[start : start + self._partitions]:
                    self._busy[asyncio.create_task(self._serve(partition, tenants))] = partition
                await asyncio.wait(self._busy)
                finished = list(self._busy)
                self._busy.clear()
                done += sum(task.result() for task in finished)
            handled += done
            if not done:
                break
        return handled

    async def _collect(self) -> int:
        """How many changes the partitions that are served to their end had."""
        finished = [task for task in self._busy if task.done()]
        for task in finished:
            del self._busy[task]
        return sum([await patiently(task, 0) for task in finished])

    async def _due(self) -> list[tuple[int, list[str]]]:
        """The partitions with something to do that this process does not serve now, each with its tenants."""
        due: dict[int, list[str]] = {}
        for feed in await self._look():
            due.setdefault(feed.partition, []).append(feed.tenant)
        for partition in self._busy.values():
            due.pop(partition, None)
        # In any order: processes that look at the same time should not fight for the same partition.
        return random.sample(sorted(due.items()), len(due))

    async def _look(self) -> set[Feed]:
        """The feeds with something to do. Those whose last number has not moved since all was done cost one GET."""
        # What was seen once is kept: the last scope of a partition may be purged before its changes were read.
        self._known |= await self._books.feeds()
        latest = await self._books.latest(sorted(self._known))
        await self._books.forget(self._known - latest.keys())
        self._known &= latest.keys()
        self._refusals.keep(self._known)
        moved = {feed: number for feed, number in latest.items() if self._settled.get(feed) != number}
        due, settled = await self._books.due(moved)
        self._settled = {feed: number for feed, number in self._settled.items() if latest.get(feed) == number}
        self._settled.update({feed: latest[feed] for feed in settled})
        return {feed for feed in due if not self._refusals.waits(feed)}

    async def _serve(self, partition: int, tenants: list[str]) -> int:
        """Copy what a partition's feeds have, for a while; return how many changes were handled."""
        lease = await self._books.take(partition)
        if lease is None:
            return 0
        handled = 0
        finished = asyncio.Event()
        keeper = asyncio.create_task(self._keep(lease, finished))
        try:
            ends = asyncio.get_running_loop().time() + SLICE
            for tenant in tenants:
                feed, more = Feed(partition, tenant), True
                while more and not self._stopping.is_set():
                    done, more = await self._refusals.served(feed, self._round(lease, tenant), (0, False))
                    handled += done
                    more = more and asyncio.get_running_loop().time() < ends
        except LeaseLost as error:
            _log.warning("%s", error)
        finally:
            # Not cancelled: a call cut off on its way could take the partition anew after it was given back.
            finished.set()
            with contextlib.suppress(MemoryUnavailable):
                await keeper
            if lease.held:
                with contextlib.suppress(MemoryUnavailable):
                    await self._books.release(lease)
        return handled

    async def _keep(self, lease: Lease, finished: asyncio.Event) -> None:
        """Keep a lease while a batch takes long."""
        while not finished.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(finished.wait(), self._lease / 3)
                return
            kept = await self._books.take(lease.partition)
            if kept is None or kept.value != lease.value:
                lease.until = 0.0
                return
            lease.until = max(lease.until, kept.until)

    async def _round(self, lease: Lease, tenant: str) -> tuple[int, bool]:
        """Read a batch, copy it, note it. Return how many were handled, and whether there may be more to do now."""
        batch = await self._books.read(lease, tenant, BATCH)
        if not batch.entries:
            await self._books.ack(lease, tenant, (), None)
            return 0, False
        lanes: dict[bytes, list[Entry]] = {}
        for entry in batch.entries:
            lanes.setdefault(entry.fields.get(b"p", b""), []).append(entry)
        outcome = _Outcome()
        await asyncio.gather(*(self._lane(lease, tenant, lane, batch, outcome) for lane in lanes.values()))
        dead = 0
        for entry, count, error in outcome.failed:
            wait = None if count >= self._attempts else self._pause(count)
            if await self._books.fail(lease, tenant, entry.id, count, wait, error):
                dead += 1
                _log.warning(
                    "a change went to the dead letters %s after %d failures, the last a %s",
                    tenant_keys(self.deployment.prefix, tenant, lease.partition).dead,
                    count,
                    error,
                )
            if wait is not None:
                outcome.waits.append(wait)
        waits = None if self._stopping.is_set() else min(outcome.waits, default=None)
        done = await self._books.ack(lease, tenant, outcome.done, waits)
        return done + dead, dead > 0 or (done > 0 and len(batch.entries) == BATCH)

    async def _lane(self, lease: Lease, tenant: str, lane: list[Entry], batch: Batch, outcome: _Outcome) -> None:
        """Copy the changes of one scope in order, up to the first that fails or waits."""
        for entry in lane:
            failure = batch.failures.get(entry.id)
            if failure is not None and failure.wait > 0:
                outcome.waits.append(failure.wait / 1000)
                return
            error = ""
            async with self._calls:
                if self._stopping.is_set() or not lease.held:
                    return
                error = await self._copier.copy(Feed(lease.partition, tenant), entry)
            if error:
                outcome.failed.append((entry, 1 + (failure.times if failure else 0), error))
                return
            outcome.done.append(entry.id)

    def _pause(self, failures: int) -> float:
        longest = min(self._longest_pause, self._first_pause * 2.0 ** min(failures - 1, 60))
        return longest * random.uniform(0.75, 1.0)  # noqa: S311 - spreads retries, guards nothing
