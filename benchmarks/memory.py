"""Memory of a mirrored turn and of a window row, over its encoded size: `memory.py [URL ...]`."""

import asyncio
import random
import string
import sys
import uuid

from symfonic_redis import MemoryEntry, StreamGraphStore, TenantScope, WorkingLayer, connect
from symfonic_redis.keys import scope_keys
from symfonic_redis.rows import encode_entry
from symfonic_redis.sealing import PLAIN

TURNS = 1_000
CONTENT = 300


async def measure(url: str) -> None:
    random.seed(1)
    scope = TenantScope.root("org", "acme").child("conversation", "c-123")
    async with connect(url, prefix=f"bench{uuid.uuid4().hex[:8]}") as redis:
        layer = WorkingLayer(redis, graph_store=StreamGraphStore(redis, ttl=60), working_graph_retention=TURNS, ttl=60)
        size = 0
        for number in range(TURNS):
            text = "".join(random.choices(string.ascii_letters + " ", k=CONTENT))
            entry = MemoryEntry.turn(scope, speaker="user", turn_id=f"t{number}", content=text)
            size += len(encode_entry(entry, limit=redis.max_row_bytes, seal=PLAIN))
            await layer.push(scope, entry)
        keys = scope_keys(redis.prefix, scope)
        used = await redis.call("memory", "MEMORY", "USAGE", keys.graph("working"), "SAMPLES", 0)
        rows = await redis.call("memory", "LLEN", keys.turns)
        list_used = await redis.call("memory", "MEMORY", "USAGE", keys.turns, "SAMPLES", 0)
        row = size / TURNS
        info = (await redis.call("memory", "INFO", "server")).decode()
        version = [line for line in info.splitlines() if line.startswith(("redis_version", "valkey_version"))][-1]
        node, in_window = used / TURNS / row, list_used / rows / row
        print(f"{version}: row {row:.0f} B, node {node:.3f} x, in the window {in_window:.3f} x")


for target in sys.argv[1:] or ["embedded://"]:
    asyncio.run(measure(target))
