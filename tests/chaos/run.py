"""One run: servers, proxy, workers, the storm over them, and the comparison at the end."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from chaos.checker import Stored, Violation, check, check_reads
from chaos.crew import Crew
from chaos.history import DUPLICATE, OK, History
from chaos.storm import Storm
from chaos.topology import Topology, Way
from chaos.turns import scope_of
from chaos.worker import Task
from symfonic_redis import RedisEvictedSource, StreamGraphStore, WorkingLayer, connect
from symfonic_redis.keys import scope_keys

PREFIX = "chaos"
STALLED = 180.0
"""Seconds without one acknowledged turn after which a run is given up."""

MOST_CRASHES = 10
"""Workers that end by themselves before a run is given up."""

ABREAST = 16
"""Conversations compared at a time."""


@dataclass(frozen=True)
class Plan:
    """What a run does; see `chaos.__main__`."""

    pushes: int
    workers: int
    conversations: int
    share: float
    kill_every: float
    every: float
    seed: int
    server: str
    keep: str = ""
    window: int = 10
    evicted: int = 50

    @property
    def turns(self) -> int:
        """Of each conversation."""
        return -(-self.pushes // self.conversations)


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        seconds: from the first write to the last acknowledgement.
        down: of these, how many passed between the kill of a master and its return, or its replica's.
        checking: seconds of the comparison, with the last restart of the servers.
    """

    history: History
    violations: list[Violation] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    requests: dict[str, int] = field(default_factory=dict)
    stored: int = 0
    seconds: float = 0.0
    down: float = 0.0
    checking: float = 0.0
    stalled: bool = False

    @property
    def held(self) -> bool:
        return not (self.violations or self.crashes or self.stalled)

    @property
    def repeats(self) -> int:
        """Writes that a worker sent again, because they failed or because their worker was killed."""
        outcomes = self.history.outcomes
        return sum(outcomes.values()) - outcomes[OK] - outcomes[DUPLICATE] - outcomes["InvalidInput"]


async def run(plan: Plan, kind: type[Topology], say) -> Outcome:
    """Carry a plan out; `say` takes a line of progress."""
    outcome = Outcome(History())
    way = Way(plan.seed)
    topology = kind(plan.server, way)
    with tempfile.TemporaryDirectory(prefix="swm-chaos-") as directory:
        try:
            await topology.start()
            await _write(plan, topology, outcome, plan.keep or directory, say)
            began = time.monotonic()
            await topology.settle()
            await _compare(plan, topology, outcome)
            outcome.checking = time.monotonic() - began
        finally:
            topology.stop()
            way.stop()
    return outcome


async def _write(plan: Plan, topology: Topology, outcome: Outcome, directory: str, say) -> None:
    history = outcome.history
    journal = str(Path(directory, "worker.history"))
    # The first to connect writes the deployment's configuration.
    async with connect(topology.direct, prefix=PREFIX):
        pass
    sizes = plan.turns, plan.conversations, plan.window, plan.evicted
    crew = Crew(Task(topology.url, PREFIX, journal, *sizes, topology.options), plan.workers, history)
    storm = Storm(topology, crew, seed=plan.seed, kill_every=plan.kill_every, every=plan.every)
    outcome.crashes, outcome.events = crew.crashes, storm.events
    topology.way.ask("share", plan.share)
    began = moved = told = time.monotonic()
    reached = 0
    blowing = asyncio.create_task(storm.blow())
    try:
        while not (crew.done or outcome.stalled or blowing.done() or len(crew.crashes) > MOST_CRASHES):
            await asyncio.sleep(0.25)
            crew.listen()
            now, acknowledged = time.monotonic(), history.acknowledged
            if acknowledged > reached:
                reached, moved = acknowledged, now
            outcome.stalled = now - moved > STALLED
            if now - told > 5:
                told = now
                say(f"{now - began:5.0f} s  {acknowledged} acknowledged  {', '.join(_list(storm.events))}")
        outcome.seconds = time.monotonic() - began
        if blowing.done():
            await blowing  # raises what went wrong
        blowing.cancel()
        with suppress(asyncio.CancelledError):
            await blowing
        outcome.requests, outcome.down = topology.way.counts(), storm.down
        topology.way.ask("share", 0)
        crew.leave()
        async with asyncio.timeout(60):
            while crew.leaving:
                crew.listen()
                await asyncio.sleep(0.05)
    finally:
        blowing.cancel()
        crew.close()


async def _compare(plan: Plan, topology: Topology, outcome: Outcome) -> None:
    outcome.violations += check_reads(outcome.history)
    names = [f"c{number}" for number in range(plan.conversations)]
    async with connect(topology.direct, prefix=PREFIX) as redis:
        graph = StreamGraphStore(redis, strict=True)
        layer = WorkingLayer(redis, plan.window, graph, evicted_retention=plan.evicted, strict=True)
        source = RedisEvictedSource(layer)

        async def compare(name: str) -> None:
            scope = scope_of(name)
            memory = await source.read(scope)
            stored = Stored(
                stream=[
                    (node.id.partition(".")[0], str(node.properties["content"]))
                    async for node in graph.nodes(scope, "working")
                ],
                window=[entry.content for entry in memory.window],
                evicted=[entry.content for entry in memory.evicted],
                older_gone=memory.evicted.older_gone,
            )
            outcome.stored += len(stored.stream)
            outcome.violations += check(
                name, outcome.history.turns[name], stored, window=plan.window, evicted=plan.evicted
            )

        for first in range(0, len(names), ABREAST):
            await asyncio.gather(*map(compare, names[first : first + ABREAST]))
    expected = {scope_keys(PREFIX, scope_of(name)).graph("working") for name in names}
    for key in await topology.streams(PREFIX) - expected:
        outcome.violations.append(Violation("leak", key, "a conversation that nobody wrote"))


def _list(events: Counter[str]) -> list[str]:
    return [f"{event} {count}" for event, count in sorted(events.items())]
