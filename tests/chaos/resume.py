"""`python -m chaos.resume`: how long the slots of a cluster's master take no writes after it was killed.

A cluster of three masters with a replica each and a node timeout of a second; one task for each of 48 conversations
pushes turn after turn. A master is killed, its replica takes over, the old one comes back as a replica of that: so
many times. What counts is the longest wait of a write to one of the dead master's slots.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

from redis.crc import key_slot
from redis.exceptions import ConnectionError as Unreachable
from topologies import Topology, cluster, raw, until

from symfonic_redis import Deployment, MemoryEntry, TenantScope, WorkingLayer, connect
from symfonic_redis.keys import scope_keys

SCOPES = [TenantScope.root("org", "acme").child("conversation", f"c{number}") for number in range(48)]


def _masters(topology: Topology) -> dict[int, list[tuple[int, int]]]:
    """The port of each master, and its slots, as the first node that answers tells."""
    for server in topology.servers:
        try:
            with topology.admin(server) as client:
                found: dict[int, list[tuple[int, int]]] = {}
                for first, last, master, *_ in raw(client, "CLUSTER", "SLOTS"):
                    found.setdefault(master[1], []).append((first, last))
                return found
        except Unreachable:
            continue  # this one was killed
    raise RuntimeError("no node answers")


def _whole(topology: Topology) -> bool:
    for server in topology.servers:
        with topology.admin(server) as client:
            if "cluster_state:ok" not in raw(client, "CLUSTER", "INFO"):
                return False
            state = client.info("replication")
            if state["role"] == "slave" and state["master_link_status"] != "up":
                return False
            if state["role"] == "master" and not state["connected_slaves"]:
                return False
    return True


async def _rounds(deployment: Deployment, topology: Topology, count: int) -> list[float]:
    layer = WorkingLayer(deployment)
    slots = {scope: key_slot(scope_keys(deployment.prefix, scope).turns.encode()) for scope in SCOPES}
    waited = dict.fromkeys(SCOPES, 0.0)
    written = dict.fromkeys(SCOPES, 0)
    over = asyncio.Event()

    async def talk(scope: TenantScope) -> None:
        while not over.is_set():
            turn = MemoryEntry.turn(scope, speaker="user", turn_id=f"t{written[scope]}", content=f"{written[scope]}")
            began = time.monotonic()
            await layer.push(scope, turn)  # an error ends the run: none is raised before the deadline
            waited[scope] = max(waited[scope], time.monotonic() - began)
            written[scope] += 1

    talks = [asyncio.create_task(talk(scope)) for scope in SCOPES]
    found = []
    for number in range(count):
        await asyncio.sleep(1)
        waited.update(dict.fromkeys(SCOPES, 0.0))
        masters = await asyncio.to_thread(_masters, topology)
        port = sorted(masters)[number % len(masters)]
        victim = next(server for server in topology.servers if server.port == port)
        theirs = [scope for scope in SCOPES if any(a <= slots[scope] <= b for a, b in masters[port])]
        before = dict(written)
        victim.kill()
        while not all(written[scope] > before[scope] + 5 for scope in theirs):
            await asyncio.sleep(0.05)
            if any(task.done() for task in talks):
                await asyncio.gather(*talks)
        found.append(max(waited[scope] for scope in theirs))
        say(f"master {number + 1} killed: {len(theirs)} conversations waited at most {found[-1]:.2f} s")
        victim.start()
        await asyncio.to_thread(until, lambda: _whole(topology), 60)
    over.set()
    await asyncio.gather(*talks)
    for scope in SCOPES:
        held = [entry.content for entry in await layer.get_context(scope)]
        assert held == [str(n) for n in range(written[scope])][-len(held) :], "a turn is lost, doubled or out of order"
    return found


def say(line: str) -> None:
    """Print a line now."""
    print(line, flush=True)  # noqa: T201 - a command prints


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    topology = cluster()
    try:
        async with connect(topology.url, deadline=15.0) as deployment:
            found = await _rounds(deployment, topology, arguments.rounds)
    finally:
        topology.stop()
    middle, longest = statistics.median(found), max(found)
    say(f"{len(found)} kills: median {middle:.2f} s, longest {longest:.2f} s; every write succeeded")


if __name__ == "__main__":
    asyncio.run(_main())
