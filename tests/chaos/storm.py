"""What happens to servers and workers during a run, drawn from a seed."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter

from chaos.crew import Crew, Member
from chaos.topology import Topology

LONG = 6.0
"""Seconds. A server that is frozen for so long outlasts an attempt's time-out."""


class Storm:
    """Two strands of events, one over the servers and one over the workers.

    Args:
        topology: whose servers.
        crew: whose workers.
        seed: of what happens and when.
        kill_every: seconds from one recovered master to the next kill.
        every: seconds between other events, on average, in each strand.
    """

    def __init__(self, topology: Topology, crew: Crew, *, seed: int, kill_every: float, every: float) -> None:
        self.events: Counter[str] = Counter()
        self.down = 0.0  # seconds, of all masters that were killed
        self._topology = topology
        self._crew = crew
        self._chance = random.Random(seed)
        self._kill_every = kill_every
        self._every = every

    async def blow(self) -> None:
        """Go on until cancelled."""
        async with asyncio.TaskGroup() as strands:
            strands.create_task(self._servers())
            strands.create_task(self._workers())

    async def _servers(self) -> None:
        # One after the other: no event undoes what another is doing.
        topology, loop = self._topology, asyncio.get_running_loop()
        kill_at = loop.time() + self._kill_every * 0.5
        while True:
            await asyncio.sleep(min(self._pause(), max(0.0, kill_at - loop.time())))
            master = self._chance.choice(await topology.masters())
            # Whole, also when the run ends meanwhile: a server must not be left stopped, or half promoted.
            if loop.time() >= kill_at:
                began = loop.time()
                await _whole(topology.kill_master(master))
                self.down += loop.time() - began
                self.events["master killed"] += 1
                kill_at = loop.time() + self._kill_every
                continue
            events = topology.mishaps
            (event,) = self._chance.choices([*events], [*events.values()])
            if event == "script flush":
                await topology.tell(master, "SCRIPT", "FLUSH")
            elif event == "memory full":
                await _whole(topology.fill(master, self._chance.uniform(0.3, 1.5)))
            elif event == "server stopped":
                long = self._chance.random() < 0.1
                await _whole(topology.freeze(master, LONG if long else self._chance.uniform(0.1, 1)))
            else:
                await _whole(topology.migrate(self._chance))
            self.events[event] += 1

    async def _workers(self) -> None:
        crew = self._crew
        while True:
            await asyncio.sleep(self._pause())
            member: Member = self._chance.choice(crew.members)
            event = self._chance.choice(("worker killed", "worker stopped", "worker overtaken"))
            self.events[event] += 1
            if event == "worker killed":
                crew.kill(member)
                continue
            if event == "worker overtaken":
                crew.overtake(member)
            else:
                member.signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(self._chance.uniform(0.1, 2))
            finally:
                member.signal(signal.SIGCONT)

    def _pause(self) -> float:
        return self._chance.uniform(0.5, 1.5) * self._every


async def _whole(work) -> None:
    """Await `work` to its end, also when this is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
