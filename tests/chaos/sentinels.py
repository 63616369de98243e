"""A master and a replica that three sentinels watch: they notice the death of a master, and promote."""

from __future__ import annotations

import asyncio

from own_server import until
from redis.exceptions import RedisError
from servers import Sentinel, Server, free_port

from chaos.topology import LAG, LOADING, Failover, Way

NAME = "memory"


class Sentinels(Failover):
    """As `Failover`, each server behind a front of its own, under which the sentinels know it."""

    @property
    def url(self) -> str:
        return "redis+sentinel://" + ",".join(f"127.0.0.1:{one.port}" for one in self._sentinels) + f"/{NAME}"

    def __init__(self, kind: str, way: Way) -> None:
        super().__init__(kind, way)
        self._fronts: dict[int, int] = {}
        self._sentinels: list[Sentinel] = []

    async def start(self) -> None:
        ports = [free_port(), free_port()]
        fronts = [int(self.way.ask("front", port, port)) for port in ports]
        self._fronts |= dict(zip(ports, fronts, strict=True))
        for port, front in self._fronts.items():
            known = ("--replica-announce-ip", "127.0.0.1", "--replica-announce-port", str(front))
            following = ("--replicaof", "127.0.0.1", str(fronts[0])) if self.servers else ()
            await self.launch(*known, *following, port=port)
        await self.linked(self.servers[1])
        self._sentinels = [await asyncio.to_thread(Sentinel, self._binary, NAME, fronts[0], 2) for _ in range(3)]
        await until(self._watched, seconds=LOADING)
        self.way.ask("lag", LAG)

    async def kill_master(self, server: Server) -> None:
        replica = self.servers[1]
        await asyncio.to_thread(server.kill)

        async def promoted() -> bool:
            return (await self.tell(replica, "ROLE"))[0] == "master"

        await until(promoted, seconds=LOADING)
        # The sentinels would take ten seconds to tell it.
        server.add_arguments("--replicaof", "127.0.0.1", str(self._fronts[replica.port]))
        await asyncio.to_thread(server.start)
        await self._agreed()

    async def freeze(self, server: Server, seconds: float) -> None:
        """As elsewhere; a master that is away for long finds itself replaced."""
        await super().freeze(server, seconds)
        await self._agreed()

    async def _agreed(self) -> None:
        """Wait until all is well, and note who is the master."""
        await until(self._watched, seconds=LOADING)
        masters = [one for one in self.servers if (await self.tell(one, "ROLE"))[0] == "master"]
        self.servers.sort(key=lambda one: one not in masters)

    def stop(self) -> None:
        for one in self._sentinels:
            one.stop()
        super().stop()

    async def _watched(self) -> bool:
        """Whether all sentinels agree on the master, it is one, and the other follows it."""
        ports = set()
        try:
            for one in self._sentinels:
                reply = await self.tell(one, "SENTINEL", "MASTER", NAME)
                state = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
                if (state["flags"], state["num-slaves"], state["num-other-sentinels"]) != ("master", "1", "2"):
                    return False
                ports.add(int(state["port"]))
            roles = {self._fronts[one.port]: await self.tell(one, "ROLE") for one in self.servers}
        except (RedisError, OSError):
            return False
        masters = {front for front, role in roles.items() if role[0] == "master"}
        # A replica's role ends with the state of its link, and how far it is.
        return ports == masters and all(role[3] == "connected" for role in roles.values() if role[0] == "slave")
