"""The servers of a run, what can be done to them, and the proxy before them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

from own_server import until
from redis.asyncio import Redis
from servers import BINARIES, Server

DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--repl-diskless-sync-delay", "0")
"""With these nothing that was answered is lost by a SIGKILL of the server. A replica is in sync at once."""

LOADING = 300.0
"""Seconds that a server may take to load what it holds."""

LAG = 0.02
"""Seconds that a replica is behind. Without, a master that dies would hardly ever take along what its replica lacks."""


class Way:
    """The proxy's process; see `chaos.proxy`."""

    def __init__(self, seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.proxy", str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )

    def ask(self, *words: object) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise RuntimeError("the proxy has ended")
        return answer

    def counts(self) -> dict[str, int]:
        return dict(json.loads(self.ask("counts")))

    def stop(self) -> None:
        self._process.communicate(timeout=10)


class Topology:
    """One server, behind a proxy.

    Attributes:
        url: of the workers, through the proxy.
        direct: of the checker.
        options: of `connect`.
        durable: options of the servers.
        mishaps: what happens to a server besides its being killed, and how often in proportion.
        way: the proxy.
    """

    options: ClassVar[dict[str, Any]] = {}
    durable: ClassVar[tuple[str, ...]] = DURABLE
    mishaps: ClassVar[dict[str, int]] = {"script flush": 3, "memory full": 2, "server stopped": 2}

    def __init__(self, kind: str, way: Way) -> None:
        found = BINARIES[kind]()
        if found is None:
            raise SystemExit(f"the server {kind} is not installed")
        self.kind = kind
        self._binary = found
        self.way = way
        self.servers: list[Server] = []

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._front}/0"

    @property
    def direct(self) -> str:
        return self.servers[0].url

    async def masters(self) -> list[Server]:
        """The servers that take writes now."""
        return self.servers[:1]

    async def start(self) -> None:
        server = await self.launch()
        self._front = int(self.way.ask("front", "master", server.port))

    async def launch(self, *arguments: str, port: int | None = None) -> Server:
        server = await asyncio.to_thread(Server, self._binary, *self.durable, *arguments, port=port)
        server.patience = LOADING
        self.servers.append(server)
        return server

    async def kill_master(self, server: Server) -> None:
        """SIGKILL; back when a master serves again."""
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)

    async def settle(self) -> None:
        """At the end of a run the server dies once more: what is compared is what is on disk."""
        await self.kill_master(self.servers[0])

    async def fill(self, server: Server, seconds: float) -> None:
        """The server is out of memory for a while."""
        await self.tell(server, "CONFIG", "SET", "maxmemory", "1mb")
        await asyncio.sleep(seconds)
        await self.tell(server, "CONFIG", "SET", "maxmemory", "0")

    async def freeze(self, server: Server, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        os.kill(server.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            os.kill(server.pid, signal.SIGCONT)

    async def tell(self, server: Server, *command: str | int) -> Any:
        """Send a command, past the proxy."""
        async with Redis(port=server.port, socket_timeout=30, decode_responses=True) as client:
            return await client.execute_command(*command)

    async def streams(self, prefix: str) -> set[str]:
        """The keys of all mirrors there are, so that one that nobody expects is seen."""
        found: set[str] = set()
        for server in await self.masters():
            async with Redis(port=server.port, decode_responses=True) as client:
                async for key in client.scan_iter(f"{prefix}:*:graph:working", count=10_000):
                    found.add(key)
        return found

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


class Failover(Topology):
    """A master and a replica. A turn is acknowledged when both have it; a killed master's replica is promoted."""

    options: ClassVar[dict[str, Any]] = {"min_replicas": 1}

    async def start(self) -> None:
        await super().start()
        # By way of the proxy, which leads to whichever is the master.
        await self.linked(await self.launch("--replicaof", "127.0.0.1", str(self._front)))
        self.way.ask("lag", LAG)

    async def kill_master(self, server: Server) -> None:
        replica = self.servers[1]
        await asyncio.to_thread(server.kill)
        await self.tell(replica, "REPLICAOF", "NO", "ONE")
        self.servers.reverse()
        await asyncio.to_thread(self.way.ask, "target", "master", replica.port)
        # The old one comes back as a replica, and takes over what the new one has.
        await asyncio.to_thread(server.start)
        await self.tell(server, "REPLICAOF", "127.0.0.1", self._front)
        await self.linked(server)

    async def linked(self, replica: Server) -> None:
        """Wait until it has all that its master has."""

        async def up() -> bool:
            return (await self.tell(replica, "INFO", "replication"))["master_link_status"] == "up"

        await until(up, seconds=LOADING)
