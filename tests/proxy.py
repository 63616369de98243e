"""A TCP proxy in front of a server that mistreats chosen requests, and counts all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Literal, Self

Action = Literal["drop", "lose", "hold", "delay"]


class Rule:
    """What happens to some of the requests that contain `marker`; made by `Proxy.on`.

    `reached` is set when the rule applies. A held request is delivered by `release()`; `reply` is then what the
    server answered, whether or not the client was still there to hear it.
    """

    def __init__(self, marker: bytes, action: Action, nth: int, times: int, seconds: float) -> None:
        self.action = action
        self.seconds = seconds
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self.reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._marker = marker
        self._applies = range(nth, nth + times)
        self._seen = 0

    def takes(self, request: bytes) -> bool:
        if self._marker not in request:
            return False
        self._seen += 1
        return self._seen in self._applies

    def release(self) -> None:
        self.released.set()


class Proxy:
    """Listens on a loopback port of its own and passes everything on to `port`, except what a rule says.

    `requests` holds every request as its list of arguments, also those that never arrive. `chance`, when set, is
    asked for an action for each request, `None` to pass it on.
    """

    def __init__(self, port: int) -> None:
        self.requests: list[list[bytes]] = []
        self.chance: Callable[[list[bytes]], Action | None] = lambda _: None
        self.port = 0
        self._target = port
        self._rules: list[Rule] = []
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def on(self, marker: bytes, action: Action, *, nth: int = 1, times: int = 1, seconds: float = 0) -> Rule:
        """Mistreat the requests `nth` to `nth + times - 1`, counted from now, that contain `marker`.

        `drop`: close the connection, the server never sees the request. `lose`: the server does, the client never
        sees the reply. `hold`: keep it until `release()`, even if the client has gone. `delay`: for `seconds`.
        """
        rule = Rule(marker, action, nth, times, seconds)
        self._rules.append(rule)
        return rule

    def silence(self, word: bytes) -> asyncio.Event:
        """Let nothing more come back on connections, those there are, that ever sent this word as an argument.

        They stay open, and what is sent on them still arrives. What came back meanwhile follows when the event is set.
        """
        spoken = asyncio.Event()
        for link in self._links:
            if word in link.words:
                link.spoken = spoken
        return spoken

    def counted(self) -> Counter[str]:
        """How many requests there were of each command."""
        return Counter(arguments[0].decode().upper() for arguments in self.requests)

    async def listen(self) -> None:
        """Take connections (again), on the same port as before."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Refuse connections, and cut those there are."""
        if self._server is not None:
            self._server.close()
        for link in list(self._links):
            link.cut()

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.refuse()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Transports close in the next round of the loop.
        await asyncio.sleep(0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(reader, writer, back, forth)
        self._links.add(link)
        answers = asyncio.create_task(link.answers())
        requests = asyncio.create_task(self._requests(link))
        self._tasks |= {answers, requests}
        for task in (answers, requests):
            task.add_done_callback(self._tasks.discard)
        requests.add_done_callback(lambda _: self._links.discard(link))

    async def _requests(self, link: _Link) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                request, arguments = await _request(link.reader)
                self.requests.append(arguments)
                link.words.update(arguments)
                rule = next((rule for rule in self._rules if rule.takes(request)), None)
                await link.treat(request, rule.action if rule else self.chance(arguments), rule)
        link.cut()


class _Link:
    """One client's connection, and its other half to the server."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        back: asyncio.StreamReader,
        forth: asyncio.StreamWriter,
    ) -> None:
        self.reader = reader
        self._writer = writer
        self._back = back
        self._forth = forth
        self._swallow = False
        self._held: Rule | None = None
        self.words: set[bytes] = set()
        self.spoken = asyncio.Event()
        self.spoken.set()

    async def treat(self, request: bytes, action: Action | None, rule: Rule | None) -> None:
        if rule is not None:
            rule.reached.set()
        if action == "drop":
            raise EOFError
        if action == "lose":
            self._swallow = True
        elif action == "delay" and rule is not None:
            await asyncio.sleep(rule.seconds)
        elif action == "hold" and rule is not None:
            await rule.released.wait()
            self._held = rule
        self._forth.write(request)
        await self._forth.drain()
        if self._held is not None:
            # The client may have gone: without this the end of its stream would cut the link before the answer.
            await self._held.reply
            self._held = None

    async def answers(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self._back.read(1 << 16):
                if self._held is not None and not self._held.reply.done():
                    self._held.reply.set_result(data)
                # The client sends one request at a time, so an answer that begins is the answer of the lost one.
                if self._swallow:
                    break
                await self.spoken.wait()
                self._writer.write(data)
        self.cut()

    def cut(self) -> None:
        if self._held is not None and not self._held.reply.done():
            self._held.reply.cancel()
        self._writer.transport.abort()
        self._forth.transport.abort()


async def _request(reader: asyncio.StreamReader) -> tuple[bytes, list[bytes]]:
    head = await reader.readuntil(b"\r\n")
    parts, arguments = [head], []
    for _ in range(int(head[1:])):
        size = await reader.readuntil(b"\r\n")
        value = await reader.readexactly(int(size[1:]) + 2)
        parts += size, value
        arguments.append(value[:-2])
    return b"".join(parts), arguments
