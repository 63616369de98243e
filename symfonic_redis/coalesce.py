"""Pushes of a layer that are made at once travel together, in the order of each scope.

A push that finds none under way leaves at once. Others leave in batches, at the latest when the event loop has gone
round once: nothing waits for a timer. Of a scope one batch is under way at a time, and what is pushed meanwhile follows
it; its turns go as one call of the script, where no idempotency key sets them apart. A batch is made once: a retry
sends the same calls with the same operation ids.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from copy import copy
from itertools import takewhile
from typing import Any

from symfonic_redis.channel import outcome_of, settle
from symfonic_redis.errors import KeyConflict, MemoryUnavailable
from symfonic_redis.models import PushReceipt
from symfonic_redis.pushes import Push, Target, call_of, key_names, receipts_of
from symfonic_redis.store import Store
from symfonic_redis.telemetry import Operation

SCOPES = 32
"""Scopes of one batch: many share the cost of one, and few enough that the server works while the next is made."""

TURNS = 32
"""Turns of one scope in a batch; a push of more travels alone.

Enough to share the cost of a call, and few enough that some of a crowd make their next push while others' are stored.
"""

GRACE = 0.1
"""Seconds that a push is overdue before it is given up alone: most times its batch tells what was wrong."""

BYTES = 131_072
"""Bytes of one scope's rows in a batch; the same holds."""


class _Rider:
    """A push on its way, and its caller."""

    __slots__ = ("answer", "ends", "push")

    def __init__(self, push: Push, ends: float, answer: asyncio.Future[PushReceipt | Exception]) -> None:
        self.push = push
        self.ends = ends
        self.answer = answer


class Coalescer:
    """The pushes of one layer.

    Args:
        store: of the layer.
        target: where its turns go.
    """

    def __init__(self, store: Store, target: Target) -> None:
        self._store = store
        self._target = target
        self._queues: dict[str, deque[_Rider]] = {}  # of each busy scope, by the key of its turns: who follows
        self._ready: list[str] = []  # scopes that have riders and no batch under way
        self._batches: set[asyncio.Task[None]] = set()  # under way
        self._loop: asyncio.AbstractEventLoop | None = None

    async def push(self, push: Push) -> PushReceipt:
        """Store the turns. Errors as of `WorkingLayer.push`; what others meet who travel along is theirs alone."""
        deployment = self._store.deployment
        with Operation("push", deployment.attributes):
            loop = asyncio.get_running_loop()
            self._loop = self._loop or loop
            if not deployment.coalesce or loop is not self._loop:
                return await self._alone(push)  # a deployment belongs to one loop, and will say so
            key = push.keys.turns
            if not self._queues:
                self._queues[key] = deque()
                try:
                    return await self._alone(push)
                finally:
                    self._follow((key,))
            rider = _Rider(push, loop.time() + deployment.deadline, loop.create_future())
            queue = self._queues.get(key)
            if queue is None:
                self._queues[key] = deque((rider,))
                self._board(key)
            else:
                queue.append(rider)
            return await outcome_of(rider.answer)

    async def _alone(self, push: Push) -> PushReceipt:
        calls = [call_of(self._store, (push,), self._target)]
        (reply,) = await self._store.push_each(calls)
        return (await self._receipts((push,), reply))[0]

    def _board(self, key: str) -> None:
        if not self._ready:
            asyncio.get_running_loop().call_soon(self._depart)
        self._ready.append(key)
        # On a cluster a scope travels alone: with others it would wait for a node that is away, and is not its own.
        if len(self._ready) >= SCOPES or self._store.deployment.topology == "cluster":
            self._depart()

    def _depart(self) -> None:
        """Send what is ready."""
        if not self._ready:
            return  # it has left before
        keys, self._ready = self._ready, []
        groups = [group for key in keys for group in _boarding(self._queues[key])]
        batch = asyncio.get_running_loop().create_task(self._send(keys, groups))
        self._batches.add(batch)
        # A task that is cancelled before it began runs nothing of its own.
        batch.add_done_callback(lambda batch: self._ended(batch, keys, groups))

    def _follow(self, keys: Sequence[str]) -> None:
        """Their batch is answered: who has waited for it boards."""
        for key in keys:
            if self._queues[key]:
                self._board(key)
            else:
                del self._queues[key]

    async def _send(self, keys: list[str], groups: Sequence[Sequence[_Rider]]) -> None:
        try:
            if groups:
                await self._exchange(keys, groups)
        finally:
            self._ended(asyncio.current_task(), keys, groups)

    def _ended(self, batch: asyncio.Task[None] | None, keys: Sequence[str], groups: Sequence[Sequence[_Rider]]) -> None:
        if batch not in self._batches:
            return
        self._batches.remove(batch)
        for group in groups:
            for rider in group:
                rider.answer.cancel()  # the loop is being closed: nobody is left behind waiting
        # Those who were just told go on first: what they push next travels together too.
        asyncio.get_running_loop().call_soon(self._follow, keys)

    async def _exchange(self, keys: list[str], groups: Sequence[Sequence[_Rider]]) -> None:
        """Send a batch and tell each rider, at the latest when that one's own time is over."""
        calls = [call_of(self._store, [rider.push for rider in group], self._target) for group in groups]
        loop = asyncio.get_running_loop()
        ends = [rider.ends for group in groups for rider in group]
        last = max(ends)
        # Who found no room may have come before riders of other scopes, and has less time then.
        waiting = [rider for key in keys for rider in takewhile(lambda rider: rider.ends < last, self._queues[key])]
        overdue = loop.call_at(min(ends) + GRACE, self._give_up, [*groups, waiting])
        try:
            deadline = max(last - loop.time(), 0.001)
            replies = await self._store.push_each(calls, deadline)
        except Exception as error:  # noqa: BLE001 - it is each caller's
            replies = [error] * len(groups)
        finally:
            overdue.cancel()
        # Who waits leaves before those of this batch are told, and make their next push meanwhile.
        behind = [key for key in keys if self._queues[key]]
        keys[:] = [key for key in keys if not self._queues[key]]
        self._ready += behind
        self._depart()
        # The server is asked which key has the wrong type: the others do not wait for that.
        told = sorted(zip(groups, replies, strict=True), key=lambda pair: isinstance(pair[1], KeyConflict))
        for group, reply in told:
            await self._tell(group, reply)

    def _give_up(self, groups: Sequence[Sequence[_Rider]]) -> None:
        """Tell those whose time is over while their batch is still tried for the sake of later ones."""
        deployment = self._store.deployment
        now = asyncio.get_running_loop().time()
        late = [rider for group in groups for rider in group if not rider.answer.done()]
        for rider in late:
            if rider.ends <= now:
                settle(
                    rider.answer,
                    MemoryUnavailable(
                        f"push did not succeed within {deployment.deadline:g} s: {deployment.endpoint} is unavailable; "
                        "check that the server runs and can be reached"
                    ),
                )
        if later := [rider.ends for rider in late if rider.ends > now]:
            asyncio.get_running_loop().call_at(min(later) + GRACE, self._give_up, groups)

    async def _tell(self, group: Sequence[_Rider], reply: Any) -> None:
        try:
            receipts = await self._receipts([rider.push for rider in group], reply)
        except Exception as error:  # noqa: BLE001 - it is each caller's
            for rider in group:
                settle(rider.answer, _own(error))
            return
        for rider, receipt in zip(group, receipts, strict=True):
            settle(rider.answer, receipt)

    async def _receipts(self, pushes: Sequence[Push], reply: Any) -> list[PushReceipt]:
        """What became of each push of a call; raise what its reply is, or says."""
        if isinstance(reply, KeyConflict):
            raise await self._store.name_conflict(key_names(pushes[0].keys, self._target.layer), reply) from reply
        if isinstance(reply, BaseException):
            raise reply
        return list(receipts_of(self._store, pushes, self._target, reply))


def _boarding(queue: deque[_Rider]) -> list[list[_Rider]]:
    """Take those of a scope who travel next, oldest first, grouped by the call that they share.

    Neighbours without a name of their own share one; a name covers a call. Whoever was cancelled stays behind.
    """
    groups: list[list[_Rider]] = []
    turns = size = 0
    shared = False
    while queue:
        rider = queue[0]
        if rider.answer.done():
            queue.popleft()
            continue
        push = rider.push
        turns += len(push.rows)
        size += sum(map(len, push.rows))
        if groups and (turns > TURNS or size > BYTES):
            break
        queue.popleft()
        if shared and push.idempotency is None:
            groups[-1].append(rider)
        else:
            groups.append([rider])
        shared = push.idempotency is None
    return groups


def _own(error: Exception) -> Exception:
    """The error for one of several: each raises its own, and so its own traceback."""
    mine = copy(error)
    mine.__cause__ = error.__cause__
    return mine
