"""Play transcripts through several worker processes, and check what the server holds afterwards.

Each turn of a conversation goes to another worker than the one before, as behind a load balancer. A worker that dies
is replaced and its turn delivered again, under the same idempotency key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import uuid4

from symfonic_redis.deployment import Deployment
from symfonic_redis.errors import InvalidInput
from symfonic_redis.fleet import Fleet
from symfonic_redis.layer import WorkingLayer
from symfonic_redis.scope import TenantScope, format_scope
from symfonic_redis.transcripts import Conversation, Turn

CONVERSATIONS_A_WORKER = 8
"""How many conversations are in flight for each worker."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one conversation came to.

    Attributes:
        conversation: its id.
        pushed: turns the workers acknowledged.
        redelivered: turns that had to be delivered again because a worker died.
        evicted: turns that left the window, as the receipts say.
        window: turns in the window at the end, read by another process.
        correct: the window is exactly the newest turns in their order, and the receipts add up.
        refused: why a turn was refused, at which the conversation ends; None when none was.
    """

    conversation: str
    pushed: int
    redelivered: int
    evicted: int
    window: int
    correct: bool
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What a replay came to: the outcomes, the turns each worker served, and how long the pushing took."""

    outcomes: tuple[Outcome, ...]
    served: dict[str, int]
    seconds: float

    @property
    def pushed(self) -> int:
        """Turns in all."""
        return sum(outcome.pushed for outcome in self.outcomes)

    @property
    def correct(self) -> bool:
        """Whether every conversation ended right."""
        return all(outcome.correct for outcome in self.outcomes)


@dataclass(slots=True)
class _Played:
    """Sums over a conversation's receipts."""

    pushed: int = 0
    redelivered: int = 0
    evicted: int = 0
    refused: str | None = None


async def replay(
    deployment: Deployment,
    conversations: Sequence[Conversation],
    base: TenantScope,
    *,
    workers: int,
    window: int,
    ttl: float | None,
    on_turn: Callable[[], None] = lambda: None,
) -> Report:
    """Play `conversations` below `base` through `workers` processes and compare the windows with the transcripts.

    Args:
        deployment: an open one that other processes can reach.
        conversations: with ids that are unique among them.
        base: each conversation becomes its child `conversation <id>`, which must be empty.
        workers: how many processes.
        window: turns a window holds.
        ttl: seconds after which what was written vanishes; None keeps it.
        on_turn: called after each turn, for a progress bar.

    Raises:
        InvalidInput: a conversation holds turns already; nothing was written.
        MemoryUnavailable: a worker could not reach the server.
    """
    layer = WorkingLayer(deployment, window, ttl=ttl)
    scopes = [base.child("conversation", conversation.id) for conversation in conversations]
    names = [format_scope(scope) for scope in scopes]
    for scope, name in zip(scopes, names, strict=True):
        if await layer.get_context(scope):
            raise InvalidInput(f"{name} holds turns already: replay into another --scope, or clear it")
    run = uuid4().hex  # idempotency keys outlive a cleared conversation, so each run has its own
    settings = {
        "url": deployment.url,
        "prefix": deployment.prefix,
        "deadline": deployment.deadline,
        "max_entries": window,
        "mirror": False,
        "ttl": ttl,
    }
    async with Fleet(workers, settings) as fleet:
        gate = asyncio.Semaphore(workers * CONVERSATIONS_A_WORKER)

        async def play(number: int) -> Outcome:
            async with gate:
                conversation = conversations[number]
                played = _Played()
                for index, turn in enumerate(conversation.turns):
                    try:
                        receipt, again = await fleet.deliver(number + index, names[number], turn, f"{run}:{index}")
                    except InvalidInput as error:
                        played.refused = str(error)
                        break
                    played.pushed += 1
                    played.redelivered += again
                    # A turn that was there already when it was delivered again moved one out too, the first time.
                    played.evicted += int(index >= window) if receipt["duplicate"] else receipt["evicted"]
                    on_turn()
                return await _outcome(layer, scopes[number], conversation, played)

        started = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as tasks:
                playing = [tasks.create_task(play(number)) for number in range(len(conversations))]
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # they fail for one reason: the server, or the workers
        seconds = time.perf_counter() - started
        served = {worker.name: worker.served for worker in (*fleet.workers, *fleet.retired)}
    return Report(tuple(task.result() for task in playing), dict(sorted(served.items())), seconds)


async def _outcome(layer: WorkingLayer, scope: TenantScope, conversation: Conversation, played: _Played) -> Outcome:
    """Read the window back and compare it with the transcript."""
    turns, window = conversation.turns, layer.bounds.window
    held = [
        Turn(str(entry.metadata["speaker"]), entry.content, str(entry.metadata["turn_id"]))
        for entry in await layer.get_context(scope)
    ]
    adds_up = played.pushed == len(turns) and played.evicted == max(0, len(turns) - window)
    return Outcome(
        conversation.id,
        played.pushed,
        played.redelivered,
        played.evicted,
        len(held),
        held == list(turns[-window:]) and adds_up,
        played.refused,
    )
