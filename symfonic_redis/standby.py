"""A layer that goes on while the server is away: it serves the windows it last read, and keeps its own pushes.

What this costs in truth, and why it is off unless asked for: a window served meanwhile lacks what other workers wrote,
may have expired or been purged, and a push that waits is in this process alone. It is gone if the process dies, and
nobody else sees it before the server is back. Its receipt says `queued`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

from redis import asyncio as redis

from symfonic_redis import telemetry
from symfonic_redis.deployment import Deployment
from symfonic_redis.errors import (
    ConfigurationError,
    KeyConflict,
    MemoryUnavailable,
    NotReplicated,
    ScopeClosed,
    ServerRefused,
)
from symfonic_redis.keys import ScopeKeys, scope_keys
from symfonic_redis.layer import EVICTED_RETENTION, IDEMPOTENCY_TTL, WorkingLayer, check_count
from symfonic_redis.models import MemoryEntry, PushReceipt, STMSummaryMode
from symfonic_redis.pushes import Push
from symfonic_redis.retention import Idempotency
from symfonic_redis.scope import ScopeLike
from symfonic_redis.windows import read_windows

MAX_QUEUED = 1_000
"""Pushes that may wait, unless said otherwise."""

MAX_QUEUED_BYTES = 64 << 20
"""Bytes of rows that may wait, 64 MiB."""

MAX_WINDOWS = 1_000
"""Windows that are remembered, unless said otherwise; those read longest ago are forgotten."""

PAUSE = 0.5
"""Seconds between attempts to reach the server, about; each attempt takes up to the deployment's deadline."""

_log = logging.getLogger(__name__)


class StandbyLayer(WorkingLayer):
    """A `WorkingLayer` that keeps serving while the server is away.

    The first call that does not reach the server within the deadline puts the layer on standby; so does no other error.
    From then on, until the server answers again:

    - `get_context`, `get_contexts` and `retrieve` return the window as this worker last read or pushed it, its waiting
      turns at the end; of a window that it never read they raise `MemoryUnavailable`, as everything else does.
    - `push` and `push_many` wait here, and their receipts say `queued`; when the queue is full they raise.

    When the server is back, what waits is stored in its order, once: a push that was stored before its answer was lost
    is recognised, for a day. Turns that others wrote meanwhile stand before them. Turns of a conversation that a purge
    closed are given up. What the server refuses goes on waiting, and what follows it. See docs/standby.md.

    Args:
        redis, max_entries, graph_store, and the options up to `strict`: see `WorkingLayer`.
        max_queued: pushes that may wait.
        max_windows: windows that are remembered.

    Call `aclose` when the worker ends: what still waits has its last chance there.

    Cost: a push takes about four more commands on the server, for every push has an idempotency key.
    """

    def __init__(
        self,
        redis: Deployment | redis.Redis,
        max_entries: int = 10,
        graph_store: object | None = None,
        *,
        stm_summary_mode: STMSummaryMode = "off",
        working_graph_retention: int | None = None,
        evicted_retention: int = EVICTED_RETENTION,
        ttl: float | None = None,
        strict: bool = False,
        max_queued: int = MAX_QUEUED,
        max_windows: int = MAX_WINDOWS,
    ) -> None:
        super().__init__(
            redis,
            max_entries,
            graph_store,
            stm_summary_mode=stm_summary_mode,
            working_graph_retention=working_graph_retention,
            evicted_retention=evicted_retention,
            ttl=ttl,
            strict=strict,
        )
        check_count("max_queued", max_queued, least=1, most=1_000_000)
        check_count("max_windows", max_windows, least=0, most=1_000_000)
        self._max_queued = max_queued
        self._max_windows = max_windows
        self._queues: dict[str, deque[Push]] = {}  # by the key of the conversation's turns; never an empty one
        self._windows: OrderedDict[str, list[bytes]] = OrderedDict()  # rows, newest first
        self._bytes = 0
        self._away = False
        self._watch: asyncio.Task[None] | None = None

    @property
    def away(self) -> bool:
        """Whether the server did not answer when it was last asked."""
        return self._away

    @property
    def queued(self) -> int:
        """How many pushes wait."""
        return sum(map(len, self._queues.values()))

    async def _read(self, operation: str, scopes: Sequence[ScopeKeys]) -> list[list[MemoryEntry]]:
        """The windows of scopes, in one exchange; while the server is away, as this worker knows them."""
        if not self._away:
            before = [self._windows.get(keys.turns) for keys in scopes]
            try:
                found = await read_windows(self.store, operation, scopes, self.bounds.window)
            except MemoryUnavailable:
                self._stand_by()
            else:
                unchanged = [self._windows.get(keys.turns) is known for keys, known in zip(scopes, before, strict=True)]
                for keys, rows, same in zip(scopes, found, unchanged, strict=True):
                    if same:  # or a push was stored since, and is newer
                        self._remember(keys.turns, rows)
                return [self._shown(keys, rows) for keys, rows in zip(scopes, found, strict=True)]
        if unknown := [keys.turns for keys in scopes if keys.turns not in self._windows]:
            raise MemoryUnavailable(
                f"{self.deployment.endpoint} is away and this worker has not read the window {unknown[0]}: retry later"
            )
        telemetry.windows_stale.add(len(scopes), self.deployment.attributes)
        return [self._shown(keys, self._windows[keys.turns]) for keys in scopes]

    def _shown(self, keys: ScopeKeys, rows: list[bytes]) -> list[MemoryEntry]:
        return self.store.entries(keys, self._with_queued(keys.turns, rows))

    async def clear(self, scope: ScopeLike) -> None:
        """As `WorkingLayer.clear`; what waits for this scope is stored first, so that it is cleared too."""
        key = scope_keys(self.deployment.prefix, scope).turns
        await self._replay(key)
        await super().clear(scope)
        self._windows.pop(key, None)

    async def rehydrate_from_messages(
        self,
        scope: ScopeLike,
        messages: Sequence[Any] | None,
        *,
        max_turns: int | None = None,
        only_if_empty: bool = True,
    ) -> int:
        """As `WorkingLayer.rehydrate_from_messages`; what waits for this scope is stored first."""
        key = scope_keys(self.deployment.prefix, scope).turns
        await self._replay(key)
        self._windows.pop(key, None)
        return await super().rehydrate_from_messages(scope, messages, max_turns=max_turns, only_if_empty=only_if_empty)

    async def aclose(self, seconds: float = 5.0) -> int:
        """Wait so long for what is queued to be stored, then give up the rest; return how many pushes are lost."""
        if self._watch is not None:
            await asyncio.wait([self._watch], timeout=seconds)
            self._watch.cancel()
            await asyncio.wait([self._watch])
        lost = self.queued
        self._queues.clear()
        self._bytes = 0
        if lost:
            telemetry.pushes_lost.add(lost, self.deployment.attributes)
            _log.error("%s pushes that waited for the server are lost: the worker ended before it was back", lost)
        return lost

    async def _send(self, push: Push) -> PushReceipt:
        if push.idempotency is None:
            # So that a push is recognised however long after its first attempt it is sent again.
            push = push._replace(idempotency=Idempotency.of(uuid.uuid4().hex, IDEMPOTENCY_TTL))
        key = push.keys.turns
        if not self._away and key not in self._queues:
            try:
                receipt = await super()._send(push)
            except NotReplicated:
                self._said(push)
                raise
            except MemoryUnavailable:
                self._stand_by()
            else:
                if not receipt.duplicate:
                    self._said(push)
                return receipt
        return self._queue(push)

    def _said(self, push: Push) -> None:
        """Note what was stored at the end of a window that is known, unless a read has found it there meanwhile."""
        key = push.keys.turns
        if key in self._windows and push.rows[-1] not in self._windows[key]:
            self._remember(key, [*reversed(push.rows), *self._windows[key]])

    def _queue(self, push: Push) -> PushReceipt:
        size = sum(map(len, push.rows))
        key = push.keys.turns
        if any(waiting.idempotency == push.idempotency for waiting in self._queues.get(key, ())):
            return self._receipt(key, duplicate=True)
        if self.queued >= self._max_queued or self._bytes + size > MAX_QUEUED_BYTES:
            raise MemoryUnavailable(
                f"{self.deployment.endpoint} is away and {self.queued} pushes wait already: retry later"
            )
        if self.foreign is not None:
            push = push._replace(turns=deepcopy(push.turns))  # the caller may change them meanwhile
        self._queues.setdefault(key, deque()).append(push)
        self._bytes += size
        telemetry.pushes_queued.add(1, self.deployment.attributes)
        self._watch_for_return()
        return self._receipt(key, duplicate=False)

    def _receipt(self, key: str, *, duplicate: bool) -> PushReceipt:
        rows = self._with_queued(key, self._windows.get(key, []))
        return PushReceipt((), len(rows), 0, duplicate=duplicate, queued=True)

    def _with_queued(self, key: str, rows: list[bytes]) -> list[bytes]:
        """Rows, newest first, behind the conversation's own waiting ones that are not among them yet."""
        there = set(rows)
        waiting = [row for push in self._queues.get(key, ()) for row in push.rows if row not in there]
        return [*reversed(waiting), *rows][: self.bounds.window]

    def _remember(self, key: str, rows: list[bytes]) -> None:
        self._windows[key] = rows[: self.bounds.window]
        self._windows.move_to_end(key)
        if len(self._windows) > self._max_windows:
            self._windows.popitem(last=False)

    def _stand_by(self) -> None:
        if not self._away:
            _log.warning("%s is away: windows are served as last read, and pushes wait", self.deployment.endpoint)
        self._away = True
        self._watch_for_return()

    def _watch_for_return(self) -> None:
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._return())

    async def _return(self) -> None:
        """Store what waits as soon as the server answers; end when nothing waits any more."""
        while self._away or self._queues:
            try:
                with suppress(ServerRefused):  # a refusal is an answer
                    await self.deployment.call("standby", "PING")
                self._away = False
                for key in list(self._queues):
                    try:
                        await self._replay(key)
                    except (ServerRefused, KeyConflict) as error:
                        _log.warning("a push that waited is refused and goes on waiting: %s", error)
            except MemoryUnavailable:
                self._away = True
            except ConfigurationError:
                return  # the deployment was closed: `aclose` says what is lost
            except Exception:  # noqa: BLE001 - whatever it is, it must not strand what waits
                _log.exception("what waits could not be stored; it is tried again")
            if self._away or self._queues:
                await asyncio.sleep(PAUSE * (0.5 + random.random()))  # noqa: S311 - jitter, no secret

    async def _replay(self, key: str) -> None:
        """Store what waits for one conversation, oldest first.

        Raises:
            MemoryUnavailable, ServerRefused, KeyConflict: this push and those after it go on waiting.
        """
        while queue := self._queues.get(key):
            push = queue[0]
            try:
                with suppress(NotReplicated):  # it is stored, and nobody waits for more
                    await super()._send(push)
                telemetry.pushes_replayed.add(1, self.deployment.attributes)
                self._said(push)
            except ScopeClosed:
                telemetry.pushes_lost.add(1, self.deployment.attributes)
                _log.warning("a push that waited is given up: its scope was purged meanwhile")
            if queue and queue[0] is push:  # unless two stored it at the same time, as a clear may
                queue.popleft()
                self._bytes -= sum(map(len, push.rows))
            if not queue:
                self._queues.pop(key, None)
