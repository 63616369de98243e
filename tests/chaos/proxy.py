"""The way between workers and servers, in a process of its own: it loses a share of what passes.

Commands come on the standard input, a line each, and are answered by a line:

    front NAME PORT     listen on a port of its own, which is the answer, and pass everything on to PORT
    target NAME PORT    pass new connections on to PORT from now on, and cut those there are
    share X             mistreat this share of the requests
    lag X               let a replica's stream arrive so many seconds late; what is on its way dies with the master
    counts              how many there were and what was done to them, as JSON

A client sends one request at a time and waits for its reply. So what arrives at once is taken for a request, or for a
part of a long one, and what comes back next is the beginning of its reply.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter, deque

DELAY = 0.3
"""Seconds; the longest delay."""

_HARM = {"lose": 10, "cut": 3, "drop": 4, "close": 2, "delay": 1}
"""In which proportion. Most of all: the server has done it, and nobody hears of it."""

_REPLICATION = (b"REPLCONF", b"PSYNC", b"\r\nSYNC\r\n", b"\r\nsentinel-")
"""What replicas say, and sentinels, of which each names its connections."""


class Faults:
    """How many requests there were, and which are mistreated."""

    def __init__(self, seed: int) -> None:
        self.share = 0.0
        self.lag = 0.0
        self.counts: Counter[str] = Counter()
        self._chance = random.Random(seed)

    def draw(self) -> str | None:
        self.counts["requests"] += 1
        if self._chance.random() >= self.share:
            return None
        (harm,) = self._chance.choices([*_HARM], [*_HARM.values()])
        self.counts[harm] += 1
        return harm

    def delay(self) -> float:
        return self._chance.uniform(0.01, DELAY)


class Client(asyncio.Protocol):
    """A client's connection. `server` is its other half, once that stands."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.harm: str | None = None
        self.replica = False
        self._waiting: list[bytes] | None = []
        self.transport: asyncio.Transport = None
        self.server: asyncio.Transport | None = None

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.front.clients.add(self)
        self.front.task(self._reach())

    async def _reach(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self.server, _ = await loop.create_connection(lambda: Answers(self), "127.0.0.1", self.front.target)
        except OSError:
            self.cut()
            return
        if self.transport.is_closing():
            self.cut()
        self._release()

    def data_received(self, data: bytes) -> None:
        if self._waiting is not None:
            self._waiting.append(data)
            return
        self.replica = self.replica or any(word in data for word in _REPLICATION)
        # It would only begin anew.
        harm = None if self.replica else self.front.faults.draw()
        if harm == "drop":
            self.cut()
        elif harm == "delay":
            self._waiting = [data]
            asyncio.get_running_loop().call_later(self.front.faults.delay(), self._release)
        else:
            self.harm = harm
            self.server.write(data)

    def _release(self) -> None:
        waiting, self._waiting = self._waiting or [], None
        if not self.server.is_closing():
            self.server.write(b"".join(waiting))

    def connection_lost(self, _) -> None:
        self.front.clients.discard(self)
        self.cut()

    def cut(self) -> None:
        self.transport.abort()
        if self.server is not None:
            self.server.abort()


class Answers(asyncio.Protocol):
    """The server's half of a client's connection."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._late: deque[bytes] = deque()

    def data_received(self, data: bytes) -> None:
        client = self._client
        if client.replica:
            self._late.append(data)
            asyncio.get_running_loop().call_later(client.front.faults.lag, self._arrive)
            return
        harm, client.harm = client.harm, None
        if harm is None:
            client.transport.write(data)
        elif harm == "lose":
            client.cut()
        else:
            client.transport.write(data[: len(data) // 2] if harm == "cut" else data)
            # What was written goes out first.
            client.transport.close()

    def _arrive(self) -> None:
        if self._late:
            self._client.transport.write(self._late.popleft())

    def connection_lost(self, _) -> None:
        self._late.clear()
        self._client.transport.close()


class Front:
    """A port, and where it leads."""

    def __init__(self, faults: Faults, target: int) -> None:
        self.faults = faults
        self.target = target
        self.clients: set[Client] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def task(self, work) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def lead_to(self, target: int) -> None:
        self.target = target
        for client in list(self.clients):
            client.cut()


async def serve(seed: int) -> None:
    faults, fronts = Faults(seed), {}
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode():
        answer = "ok"
        match line.split():
            case ["front", name, port]:
                front = fronts[name] = Front(faults, int(port))
                server = await loop.create_server(lambda front=front: Client(front), "127.0.0.1", 0)
                answer = str(server.sockets[0].getsockname()[1])
            case ["target", name, port]:
                fronts[name].lead_to(int(port))
            case ["share", share]:
                faults.share = float(share)
            case ["lag", lag]:
                faults.lag = float(lag)
            case ["counts"]:
                answer = json.dumps(faults.counts)
        print(answer, flush=True)  # noqa: T201 - the answer to whoever started the process


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
