"""A great many conversations, quickly: one captured push, sent again under other names. And as many bare lists."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import bare_list
from stage import FULL, Stage
from symfonic_layer import scope_of

from symfonic_redis.batches import chunks
from symfonic_redis.keys import partition_of
from symfonic_redis.wire import pack

CHUNK = 500
SHORT = 1.0
"""The deadline of these pushes, in seconds: the server soon forgets their operation ids, as it does in real life."""


def conversation(number: int) -> str:
    # Of one length, so that lengths in the captured call stay right.
    return f"c{number:09d}"


def tag(name: str) -> bytes:
    """The partition of a conversation, as it stands in each of its keys (ADR-001)."""
    return b"{%04d}" % partition_of(scope_of(name).scope_path)


async def fill(stage: Stage, url: str, count: int, **options: Any) -> None:
    """Give each of `count` conversations its first turn, mirrored and indexed.

    Raises:
        RuntimeError: the last of them cannot be read: a key is made in another way than this file knows.
    """
    first = conversation(0)
    floor = await stage.local("fill", "floor", url, prefix="ours", options={"deadline": SHORT}, **{**FULL, **options})
    words, ids, _ = await floor.peer.session(first)
    marker = b"OPERATION-ID-16B"
    for at in ids:
        words[at] = marker
    packed = pack([words])
    name, own = first.encode(), tag(first)

    def push(number: int) -> bytes:
        other = conversation(number)
        call = packed.replace(name, other.encode()).replace(own, tag(other))
        return call.replace(marker, os.urandom(16), 1)

    await _send(url, map(push, range(1, count)))
    ours = await stage.local("check", "symfonic_layer", url, prefix="ours", **FULL)
    if len(await ours.ask("names", conversation=conversation(count - 1))) < 1:
        raise RuntimeError("the last conversation is empty: fill.py makes keys in another way than the package")


async def fill_bare(url: str, count: int, size: int) -> None:
    """Give each of as many bare lists its first turn."""
    row = "x" * size
    await _send(url, (pack([("LPUSH", bare_list.key(conversation(number)), row)]) for number in range(count)))


async def _send(url: str, calls: Iterable[bytes]) -> None:
    """Send packed commands, some hundreds in one go."""
    reader, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
    for some in chunks(calls, CHUNK):
        writer.writelines(some)
        await writer.drain()
        for _ in some:
            await _reply(reader)
    writer.close()
    await writer.wait_closed()


async def _reply(reader: asyncio.StreamReader) -> None:
    line = await reader.readline()
    if line.startswith(b"-"):
        raise RuntimeError(f"the server refused a write: {line.decode(errors='replace').strip()}")
    if line.startswith(b"*"):
        for _ in range(int(line[1:])):
            await _reply(reader)
    elif line.startswith(b"$"):
        await reader.readexactly(int(line[1:]) + 2)
