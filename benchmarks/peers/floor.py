"""The floor: what a layer's calls send, sent again by bare redis-py on the same event loop.

What a push and a read send is taken from MONITOR, so it is what the server gets, however the package makes it: the
same script or command, the same keys, the same arguments. Of two pushes of one turn the 16-byte argument that differs
is the operation id; the floor sends a new one each time, or the server would answer from its memory.
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
from typing import Any
from urllib.parse import urlsplit

import loops
import symfonic_layer
from redis.asyncio import Redis

PACKAGES = ("redis",)
_ARGUMENT = re.compile(rb'"(?:[^"\\]|\\.)*"')
OPERATION_ID = 16


async def commands_of(url: str, work: Any) -> list[tuple[bytes, list[bytes]]]:
    """What the server ran during `await work()`: for each command who sent it (an address, or `lua`), and its words."""
    reader, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port, limit=1 << 26)
    # A connection that watches cannot mark the end, so another one does; it greets the server before.
    async with Redis.from_url(url, single_connection_client=True) as other:
        await other.ping()
        writer.write(b"MONITOR\r\n")
        await reader.readline()
        await work()
        end = os.urandom(8).hex()
        await other.echo(end)
    found = []
    while end.encode() not in (line := await reader.readline()):
        sender = line.split(b"]", 1)[0].rsplit(b" ", 1)[-1]
        words = [ast.literal_eval("b" + word.decode("latin-1")) for word in _ARGUMENT.findall(line)]
        if words:
            found.append((sender, words))
    writer.close()
    await writer.wait_closed()
    return found


class Peer:
    """See loops.py. `size` is that of the turn it sends; `options` are those of symfonic_layer.py."""

    threads = False

    def __init__(self, url: str, *, size: int = 300, **options: Any) -> None:
        self._url, self._size = url, size
        self._client = Redis.from_url(url)
        self._options = options
        self._ours: symfonic_layer.Peer | None = None
        self._known: dict[str, tuple[list[bytes], list[int], list[bytes]]] = {}

    async def session(self, conversation: str) -> tuple[list[bytes], list[int], list[bytes]]:
        """The push's words, where an operation id stands in them, and the read's words."""
        if conversation not in self._known:
            self._known[conversation] = await self._capture(conversation)
        return self._known[conversation]

    async def _capture(self, conversation: str) -> tuple[list[bytes], list[int], list[bytes]]:
        if self._ours is None:
            self._ours = symfonic_layer.Peer(self._url, **self._options)
            await self._ours.deployment.open()
            # The first call of a process also asks for the user's rights.
            await self._ours.append(symfonic_layer.scope_of("first"), self._ours.message("first"))
        ours, scope = self._ours, symfonic_layer.scope_of(conversation)
        message = ours.message(loops.text("floor", self._size))

        async def sample() -> None:
            await ours.append(scope, message)
            await ours.append(scope, message)
            await ours.read(scope)

        sent = [words for sender, words in await commands_of(self._url, sample) if sender != b"lua"]
        one, two = (words for words in sent if words[0].upper() in (b"EVALSHA", b"EVAL", b"FCALL"))
        (read,) = (words for words in sent if words[0].upper() == b"LRANGE")
        ids = [at for at, word in enumerate(one) if word != two[at] and len(word) == OPERATION_ID]
        return one, ids, read

    def message(self, text: str) -> Any:
        return text

    async def append(self, session: Any, message: Any) -> None:  # noqa: ARG002 - the captured turn is sent
        words, ids, _ = session
        words = list(words)
        for at in ids:
            words[at] = os.urandom(OPERATION_ID)
        await self._client.execute_command(*words)

    async def read(self, session: Any) -> Any:
        return await self._client.execute_command(*session[2])

    async def texts(self, session: Any) -> list[str]:
        return [str(row) for row in await self.read(session)]

    async def close(self) -> None:
        await self._client.aclose()
        if self._ours is not None:
            await self._ours.close()
