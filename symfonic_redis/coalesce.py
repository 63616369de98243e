"""Pushes of a layer, one batch under way for each scope: those that are made meanwhile travel together, in their order.

A scope's push that finds none under way leaves at once. Nothing waits for a timer: a batch leaves when the one before it
is answered. It is made once; a retry sends the same calls with the same operation ids.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from copy import copy
from typing import Any

from symfonic_redis.errors import KeyConflict, MemoryUnavailable, SymfonicRedisError
from symfonic_redis.models import PushReceipt
from symfonic_redis.pushes import Push, Target, call_of, key_names, receipts_of
from symfonic_redis.scripts import script
from symfonic_redis.store import Store
from symfonic_redis.telemetry import Operation

MOST = 256
"""Turns that travel together at most; a script blocks the server while it runs."""

MOST_BYTES = 1 << 20
"""Bytes of rows that travel together at most. A push that is larger travels alone."""


class _Rider:
    """A push that waits for its turn, and its caller."""

    __slots__ = ("answer", "ends", "push")

    def __init__(self, push: Push, ends: float, loop: asyncio.AbstractEventLoop) -> None:
        self.push = push
        self.ends = ends
        self.answer: asyncio.Future[PushReceipt | Exception] = loop.create_future()

    def settle(self, outcome: PushReceipt | Exception) -> None:
        # Never as the future's exception: of a caller that was cancelled meanwhile it would be reported as forgotten.
        if not self.answer.done():
            self.answer.set_result(outcome)


class Coalescer:
    """The pushes of one layer.

    Args:
        store: of the layer.
        target: where its turns go.
    """

    def __init__(self, store: Store, target: Target) -> None:
        self._store = store
        self._target = target
        self._queues: dict[str, deque[_Rider]] = {}  # of scopes with a batch under way, by the key of their turns
        self._carriers: set[asyncio.Task[None]] = set()

    async def push(self, push: Push) -> PushReceipt:
        """Store the turns. Errors as of `WorkingLayer.push`; those of others that travel along are not told."""
        deployment = self._store.deployment
        key = push.keys.turns
        with Operation("push", deployment.attributes):
            queue = self._queues.get(key)
            if queue is not None:
                loop = asyncio.get_running_loop()
                rider = _Rider(push, loop.time() + deployment.deadline, loop)
                queue.append(rider)
                outcome = await rider.answer
                if isinstance(outcome, Exception):
                    raise outcome
                return outcome
            if not deployment.coalesce:
                return await self._alone(push)
            queue = self._queues[key] = deque()
            try:
                return await self._alone(push)
            finally:
                if queue:
                    carrier = asyncio.create_task(self._carry(key, queue))
                    self._carriers.add(carrier)
                    carrier.add_done_callback(self._carriers.discard)
                else:
                    del self._queues[key]

    async def _alone(self, push: Push) -> PushReceipt:
        store = self._store
        calls = [call_of(store, (push,), self._target)]
        (reply,) = await store.deployment.run_each("push", script("push"), calls)
        if isinstance(reply, Exception):
            raise await self._named(push, reply)
        (receipt,) = receipts_of(store, (push,), self._target, reply)
        return receipt

    async def _carry(self, key: str, queue: deque[_Rider]) -> None:
        riders: list[_Rider] = []
        try:
            while True:
                # Those who were just answered may have their next push ready: it travels along.
                await asyncio.sleep(0)
                riders = _boarding(queue)
                if not riders:
                    return
                await self._send(riders)
        finally:
            del self._queues[key]
            for rider in (*riders, *queue):
                rider.answer.cancel()  # the loop is being closed: nobody is left behind waiting

    async def _send(self, riders: Sequence[_Rider]) -> None:
        """Send a batch and tell each of its riders, at the latest when that one's own time is over."""
        groups = _groups(riders)
        calls = [call_of(self._store, [rider.push for rider in group], self._target) for group in groups]
        loop = asyncio.get_running_loop()
        deadline = riders[-1].ends - loop.time()
        sending = asyncio.create_task(
            self._store.deployment.run_each("push", script("push"), calls, deadline=max(deadline, 0.001))
        )
        try:
            for rider in riders:
                if (await asyncio.wait([sending], timeout=rider.ends - loop.time()))[0]:
                    break
                rider.settle(
                    MemoryUnavailable(
                        f"push did not succeed within {self._store.deployment.deadline:g} s: "
                        f"{self._store.deployment.endpoint} is unavailable; check that the server runs and can be reached"
                    )
                )
            await asyncio.wait([sending])
        finally:
            sending.cancel()
        if (failure := sending.exception()) is not None:
            for rider in riders:
                rider.settle(_own(failure))
            return
        for group, reply in zip(groups, sending.result(), strict=True):
            await self._tell(group, reply)

    async def _tell(self, group: Sequence[_Rider], reply: Any) -> None:
        try:
            if isinstance(reply, Exception):
                raise await self._named(group[0].push, reply)
            receipts = list(receipts_of(self._store, [rider.push for rider in group], self._target, reply))
        except SymfonicRedisError as error:
            for rider in group:
                rider.settle(_own(error))
            return
        for rider, receipt in zip(group, receipts, strict=True):
            rider.settle(receipt)

    async def _named(self, push: Push, error: Exception) -> Exception:
        if not isinstance(error, KeyConflict):
            return error
        named = await self._store.named(key_names(push.keys, self._target.layer), error)
        named.__cause__ = error
        return named


def _boarding(queue: deque[_Rider]) -> list[_Rider]:
    """Take those who travel next, oldest first; whoever was cancelled meanwhile stays behind."""
    riders: list[_Rider] = []
    turns = size = 0
    while queue:
        rider = queue[0]
        if rider.answer.done():
            queue.popleft()
            continue
        rows = rider.push.rows
        turns, size = turns + len(rows), size + sum(map(len, rows))
        if riders and (turns > MOST or size > MOST_BYTES):
            break
        riders.append(queue.popleft())
    return riders


def _groups(riders: Sequence[_Rider]) -> list[list[_Rider]]:
    """Those of a batch that share a call: neighbours without a name of their own. A name covers one call."""
    groups: list[list[_Rider]] = []
    for rider in riders:
        named = rider.push.idempotency is not None
        if groups and not named and groups[-1][-1].push.idempotency is None:
            groups[-1].append(rider)
        else:
            groups.append([rider])
    return groups


def _own(error: BaseException) -> Exception:
    """The error for one of several: each raises its own, and so its own traceback."""
    if not isinstance(error, Exception):
        return MemoryUnavailable("push was given up: the event loop is being closed")
    mine = copy(error)
    mine.__cause__ = error.__cause__
    return mine
