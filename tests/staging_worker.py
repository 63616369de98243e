"""A zygote of workers to be killed: it forks one for each line of its input, so that a worker starts in milliseconds.

A line is `url prefix scope`. A worker stages batches of records under that scope, publishes now and then, and says each
step on the standard output, which all of them share: `pid N`, `staged ID ID ...`, `flushed ID ID ...`. When a worker
is gone, the zygote says `gone`.
"""

from __future__ import annotations

import asyncio
import os
import sys

from symfonic_redis import (
    MemoryRecord,
    RedisMemoryLifecycle,
    RedisMemoryWriter,
    StreamGraphStore,
    WorkingLayer,
    WriteRequest,
    connect,
    parse_scope,
)

WINDOW = 1000
LAYERS = ("working", "semantic", "profile")


def say(*words: str) -> None:
    os.write(1, (" ".join(words) + "\n").encode())


async def work(url: str, prefix: str, name: str) -> None:
    scope = parse_scope(name)
    async with connect(url, prefix=prefix) as redis:
        layer = WorkingLayer(redis, WINDOW, StreamGraphStore(redis))
        writer, lifecycle = RedisMemoryWriter(layer), RedisMemoryLifecycle(layer)
        for number in range(1_000):
            records = [MemoryRecord(scope=scope, content=f"{number} of {layer}", layer=layer) for layer in LAYERS]
            receipt = await writer.write(WriteRequest(scope, records))
            say("staged", *receipt.accepted)
            if number % 4 == 3:
                say("flushed", *(await lifecycle.flush(scope)).committed)


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(work(*line.split()))
            os._exit(0)
        say("pid", str(child))
        os.waitpid(child, 0)
        say("gone")


if __name__ == "__main__":
    main()
