"""The story in one screen: three workers share a conversation, one is killed, nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from symfonic_redis.deployment import Deployment
from symfonic_redis.fleet import Fleet, Worker, WorkerDied
from symfonic_redis.graph import StreamGraphStore
from symfonic_redis.layer import WorkingLayer
from symfonic_redis.scope import TenantScope, format_scope
from symfonic_redis.transcripts import Turn

WORKERS = 3
WINDOW = 10
TTL = 3600.0
KILLED_AT = 9
"""The turn in whose middle a worker is killed."""

_LINES = (
    ("user", "Hi, I bought a bicycle light from you and it stopped working."),
    ("assistant", "I am sorry to hear that. May I have your order number?"),
    ("user", "It is BL-20417, from the 3rd of May."),
    ("assistant", "Thank you. I see one Aurora front light, delivered on the 6th of May. What does it do?"),
    ("user", "It blinks twice and goes dark, also right after charging."),
    ("assistant", "That points to the battery. Has it been in the rain for long?"),
    ("user", "One wet ride last week, nothing special."),
    ("assistant", "The warranty covers that. Would you like a replacement or your money back?"),
    ("user", "A replacement, please. But in black, not silver."),
    ("assistant", "The black one is in stock. It would ship to 14 Mill Lane, is that still right?"),
    ("user", "No, I moved. It is 9 Harbour Street now, second floor."),
    ("assistant", "Noted: 9 Harbour Street, second floor. Shall I keep that as your address?"),
    ("user", "Yes, for all orders."),
    ("assistant", "Done. The black Aurora goes out tomorrow; keep the old one, no return needed."),
    ("user", "Great. Can you tell me the tracking number when there is one?"),
    ("assistant", "I will send it to you by e-mail tomorrow before noon."),
    ("user", "Perfect, thank you."),
    ("assistant", "You are welcome. Ride safely!"),
)

TURNS = tuple(Turn(speaker, text, f"t{number}") for number, (speaker, text) in enumerate(_LINES, 1))


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold at the end, and whether it does."""

    claim: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Ending:
    """What the demo found: the window as read at the end, and the checks."""

    window: list[str]
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)


Tell = Callable[[str], None]
"""Takes one line of the story."""


async def demo(deployment: Deployment, tell: Tell, *, pause: float = 0.0) -> Ending:
    """Play the story on an open deployment that other processes can reach.

    Args:
        deployment: gets a new conversation, which vanishes after an hour.
        tell: shows a line.
        pause: seconds between turns, for whoever watches.
    """
    graph = StreamGraphStore(deployment, ttl=TTL)
    layer = WorkingLayer(deployment, WINDOW, graph, ttl=TTL)
    conversation = TenantScope.root("org", "acme").child("conversation", f"demo-{uuid4().hex[:8]}")
    scope = format_scope(conversation)
    settings = {
        "url": deployment.url,
        "prefix": deployment.prefix,
        "deadline": deployment.deadline,
        "max_entries": WINDOW,
        "mirror": True,
        "ttl": TTL,
    }
    async with Fleet(WORKERS, settings) as fleet:
        tell(f"{WORKERS} worker processes share one conversation on {deployment.endpoint}.")
        for number, turn in enumerate(TURNS, 1):
            worker = fleet.workers[number % WORKERS]
            if number == KILLED_AT:
                await _killed_in_the_middle(fleet, worker, scope, turn, tell)
            else:
                await worker.push(**_request(scope, turn))
                tell(f"{worker.name} (pid {worker.pid})  {turn.speaker}: {turn.content}")
            await asyncio.sleep(pause)
        windows = [await worker.context(scope) for worker in fleet.workers]
    entries = await layer.get_context(conversation)
    mirrored = [node.properties["turn_id"] for node in await graph.query_nodes(conversation)]
    newest = [[turn.speaker, turn.turn_id, turn.content] for turn in TURNS[-WINDOW:]]
    return Ending(
        [layer.render_for_prompt(entry) for entry in entries],
        (
            Check(f"every worker sees the same {WINDOW} turns", all(window == windows[0] for window in windows)),
            Check("they are the newest turns, in order", windows[0] == newest),
            Check(
                f"all {len(TURNS)} turns are in the mirror, none lost, none doubled",
                mirrored == [turn.turn_id for turn in TURNS],
            ),
        ),
    )


async def _killed_in_the_middle(fleet: Fleet, worker: Worker, scope: str, turn: Turn, tell: Tell) -> None:
    delivery = asyncio.create_task(worker.push(**_request(scope, turn)))
    # Before, while or after the server stores it: each run may differ, and each must end the same.
    await asyncio.sleep(random.uniform(0, 0.001))  # noqa: S311 - a story, no secret
    worker.kill()
    try:
        await delivery
        tell(f"{worker.name} (pid {worker.pid})  {turn.speaker}: {turn.content}")
        tell(f"{worker.name} is killed with SIGKILL right after it answered.")
    except WorkerDied:
        tell(f"{worker.name} is killed with SIGKILL in the middle of turn {turn.turn_id}: stored or not, nobody knows.")
    successor = await fleet.replace(worker)
    if successor is None:
        return
    seen = await successor.context(scope)
    tell(f"{successor.name} (pid {successor.pid}) takes its place and sees {len(seen)} turns.")
    receipt = await successor.push(**_request(scope, turn))
    was = "it was there already, not doubled" if receipt["duplicate"] else "it had been lost, now stored"
    tell(f"{successor.name} is given turn {turn.turn_id} again: {was}.")


def _request(scope: str, turn: Turn) -> dict[str, Any]:
    return {
        "scope": scope,
        "speaker": turn.speaker,
        "turn_id": turn.turn_id,
        "content": turn.content,
        "key": turn.turn_id,
    }
