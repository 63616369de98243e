"""A cluster under the storm: masters are killed, their replicas take over, slots move from node to node."""

from __future__ import annotations

import asyncio
import random
from typing import Any, ClassVar

import topologies
from own_server import until
from redis.crc import key_slot
from redis.exceptions import RedisError
from servers import Server

from chaos.topology import LAG, LOADING, Topology
from chaos.turns import scope_of
from symfonic_redis.keys import scope_keys

BATCH = 20
"""Keys of a slot that move at a time."""


class Cluster(Topology):
    """Three masters, each with a replica, and a front of the proxy before each of the six.

    A turn is acknowledged when a replica has it too.
    """

    options: ClassVar[dict[str, Any]] = {"min_replicas": 1}
    mishaps: ClassVar[dict[str, int]] = {"slot moved": 6, "script flush": 2, "memory full": 2, "server stopped": 2}

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{front}" for front in list(self._fronts)[:3])

    @property
    def direct(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:3])

    async def start(self) -> None:
        made = await asyncio.to_thread(topologies.cluster, options=lambda: self.durable, kind=self.kind)
        self.servers = made.servers
        self._fronts: dict[int, Server] = {}
        for server in self.servers:
            front = int(self.way.ask("front", server.port, server.port))
            self._fronts[front] = server
            server.patience = LOADING
            server.add_arguments("--cluster-announce-port", str(front))
            # Every client is sent on to the fronts. Of replicas the proxy leaves the connections alone.
            await self.tell(server, "CONFIG", "SET", "cluster-announce-port", front)
        await until(self._announced)
        self.way.ask("lag", LAG)

    async def masters(self) -> list[Server]:
        found: list[Server] = []

        async def agreed() -> bool:
            found[:] = [self._fronts[port] for port in await self._owners() if port in self._fronts]
            return len(found) == 3

        await until(agreed, seconds=LOADING)
        return found

    async def kill_master(self, server: Server) -> None:
        await asyncio.to_thread(server.kill)

        async def taken_over() -> bool:
            fronts = await self._owners(beside=server)
            return len(fronts) == 3 and all(self._fronts.get(port) not in (None, server) for port in fronts)

        await until(taken_over, seconds=LOADING)
        await asyncio.to_thread(server.start)
        await until(self._in_sync, seconds=LOADING)

    async def freeze(self, server: Server, seconds: float) -> None:
        await super().freeze(server, seconds)
        await until(self._in_sync, seconds=LOADING)

    async def settle(self) -> None:
        """At the end all six die at once: what is compared is what is on the disks."""
        await until(self._in_sync, seconds=LOADING)
        for server in self.servers:
            await asyncio.to_thread(server.kill)
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in self.servers))
        await until(self._in_sync, seconds=LOADING)

    async def migrate(self, chance: random.Random) -> None:
        """Move the slot of some conversation to another master, its keys in small batches."""
        name = f"c{chance.randrange(50)}"
        slot = key_slot(scope_keys("chaos", scope_of(name)).turns.encode())
        masters = await self.masters()
        owners = [server for server in masters if await self._serves(server, slot)]
        if len(owners) != 1:
            return
        source = owners[0]
        target = chance.choice([server for server in masters if server is not source])
        source_id, target_id = [await self.tell(one, "CLUSTER", "MYID") for one in (source, target)]
        await self.tell(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        await self.tell(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        while keys := await self.tell(source, "CLUSTER", "GETKEYSINSLOT", slot, BATCH):
            await self.tell(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            await asyncio.sleep(0.01)
        for server in (target, source, *(one for one in masters if one not in (source, target))):
            await self.tell(server, "CLUSTER", "SETSLOT", slot, "NODE", target_id)

    async def _serves(self, server: Server, slot: int) -> bool:
        ranges = await self._raw_slots(server)
        return any(first <= slot <= last and self._fronts.get(port) is server for first, last, port in ranges)

    async def _owners(self, *, beside: Server | None = None) -> set[int]:
        """The announced ports of those that serve slots, as the first server that answers sees it."""
        for server in self.servers:
            if server is not beside:
                try:
                    return {port for _, _, port in await self._raw_slots(server)}
                except (RedisError, OSError):
                    continue
        return set()

    async def _raw_slots(self, server: Server) -> list[tuple[int, int, int]]:
        """First and last slot of each range, and the announced port of its master."""
        found = []
        nodes = str(await self.tell(server, "CLUSTER", "NODES"))
        for line in nodes.splitlines():
            words = line.split()
            if "master" in words[2] and "fail" not in words[2].split(","):
                port = int(words[1].split("@")[0].rpartition(":")[2])
                for span in words[8:]:
                    if not span.startswith("["):
                        first, _, last = span.partition("-")
                        found.append((int(first), int(last or first), port))
        return found

    async def _announced(self) -> bool:
        """Whether every node knows every other by its front."""
        for server in self.servers:
            nodes = str(await self.tell(server, "CLUSTER", "NODES"))
            ports = {int(line.split()[1].split("@")[0].rpartition(":")[2]) for line in nodes.splitlines()}
            if ports != set(self._fronts):
                return False
        return await self._in_sync()

    async def _in_sync(self) -> bool:
        """Whether all nodes think the cluster whole, and every replica has what its master has."""
        for server in self.servers:
            try:
                state = str(await self.tell(server, "CLUSTER", "INFO"))
                replication = await self.tell(server, "INFO", "replication")
            except (RedisError, OSError):
                return False
            if "cluster_state:ok" not in state or replication.get("master_link_status", "up") != "up":
                return False
        return len(await self.masters_now()) == 3

    async def masters_now(self) -> set[int]:
        """Those that say themselves that they are masters with a replica in sync."""
        found = set()
        for server in self.servers:
            replication = await self.tell(server, "INFO", "replication")
            if replication["role"] == "master" and replication["connected_slaves"] > 0:
                found.add(server.port)
        return found
