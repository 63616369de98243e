"""A worker process: it serves turns of any conversation and keeps none of it.

It reads one JSON object a line on its standard input and answers one a line on its standard output. It shares
nothing with the process that started it but the server. Run as `python -m symfonic_redis.worker`; see `fleet`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from symfonic_redis.connection import connect
from symfonic_redis.errors import InvalidInput, SymfonicRedisError
from symfonic_redis.graph import StreamGraphStore
from symfonic_redis.layer import WorkingLayer
from symfonic_redis.models import MemoryEntry
from symfonic_redis.named import keyring
from symfonic_redis.scope import parse_scope

LINE_LIMIT = 64 << 20
"""The longest line between a worker and its parent, in bytes."""


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    requests = asyncio.StreamReader(limit=LINE_LIMIT)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    first = await requests.readline()
    if not first:
        return
    settings = json.loads(first)
    prefix, deadline = settings["prefix"], settings["deadline"]
    async with connect(settings["url"], prefix=prefix, deadline=deadline, encryption=keyring()) as redis:
        graph = StreamGraphStore(redis, ttl=settings["ttl"]) if settings["mirror"] else None
        layer = WorkingLayer(redis, settings["max_entries"], graph, ttl=settings["ttl"])
        _reply(settings["id"], {"ready": True})
        async with asyncio.TaskGroup() as tasks:
            while line := await requests.readline():
                tasks.create_task(_answer(layer, json.loads(line)))
    transport.close()


async def _answer(layer: WorkingLayer, request: dict[str, Any]) -> None:
    try:
        reply = await _perform(layer, request)
    except SymfonicRedisError as error:
        reply = {"error": str(error), "refused": isinstance(error, InvalidInput)}
    _reply(request["id"], reply)


def _reply(number: int, reply: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"id": number, **reply}) + "\n")
    sys.stdout.flush()


async def _perform(layer: WorkingLayer, request: dict[str, Any]) -> dict[str, Any]:
    scope = parse_scope(request["scope"])
    if request["op"] == "context":
        entries = await layer.get_context(scope)
        return {"window": [[e.metadata["speaker"], e.metadata["turn_id"], e.content] for e in entries]}
    entry = MemoryEntry.turn(scope, speaker=request["speaker"], turn_id=request["turn_id"], content=request["content"])
    receipt = await layer.push(scope, entry, idempotency_key=request["key"])
    return {"evicted": receipt.evicted, "window": receipt.window_length, "duplicate": receipt.duplicate}


if __name__ == "__main__":
    try:
        asyncio.run(_serve())
    except SymfonicRedisError as failure:
        sys.exit(str(failure))
