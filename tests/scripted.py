"""A server that answers as a test tells it, and a transport that carries what a test feeds it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

from proxy import _request
from redis._parsers import _AsyncHiredisParser

Answer = Callable[[list[bytes]], bytes | None]


def echo(arguments: list[bytes]) -> bytes:
    """Give back the last argument."""
    return b"$%d\r\n%b\r\n" % (len(arguments[-1]), arguments[-1])


class Client:
    """A connection that the server has taken."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.requests: list[list[bytes]] = []


class Scripted:
    """Greets as a server of RESP3 does, unless it is `mute`, and gives each other request the answer of `answer`.

    `None` is no answer. Attributes: `clients`, in the order in which they came.
    """

    def __init__(self, answer: Answer = echo) -> None:
        self.answer = answer
        self.mute = False
        self.clients: list[Client] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for client in self.clients:
            client.writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until what is asked holds; it is asked whenever a client came, or a request."""
        async with asyncio.timeout(60):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        client = Client(writer)
        self.clients.append(client)
        self._changed.set()
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            while True:
                _, arguments = await _request(reader)
                if self.mute:
                    continue
                if arguments[0] in {b"HELLO", b"CLIENT", b"SELECT"}:
                    writer.write(b"%1\r\n$5\r\nproto\r\n:3\r\n" if arguments[0] == b"HELLO" else b"+OK\r\n")
                    continue
                client.requests.append(arguments)
                answer = self.answer(arguments)
                if answer is not None:
                    writer.write(answer)
                self._changed.set()


class Transport(asyncio.Transport):
    """Carries nothing: `sent` is what was written; a test calls `data_received` of the protocol itself."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.open = True
        self._protocol: Any = asyncio.Protocol()

    def write(self, data: Any) -> None:
        self.sent.append(bytes(data))

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def close(self) -> None:
        if self.open:
            self.open = False
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()


class Connection:
    """What a channel needs of the driver's connection."""

    def __init__(self) -> None:
        self.transport = Transport()
        self._writer = SimpleNamespace(transport=self.transport)
        self._parser = _AsyncHiredisParser

    async def disconnect(self) -> None:
        self.transport.close()
