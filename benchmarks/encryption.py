"""What sealing rows costs, sealed over plain: bytes, time in the worker and end to end: `encryption.py [URL ...]`."""

import asyncio
import os
import random
import string
import sys
import time
import uuid

from symfonic_redis import Keyring, MemoryEntry, StreamGraphStore, TenantScope, WorkingLayer, connect
from symfonic_redis.keys import scope_keys
from symfonic_redis.rows import decode_entry, encode_entry
from symfonic_redis.sealing import PLAIN, Seal

ROUNDS = 5
ROWS = 4_000
TURNS = 400
CONTENT = 300
LIMIT = 1 << 20

SCOPE = TenantScope.root("org", "acme").child("conversation", "c-123")
RING = Keyring({"2026-11": os.urandom(32)}, current="2026-11")


def entry_of(length: int) -> MemoryEntry:
    text = "".join(random.choices(string.ascii_letters + " ", k=length))
    return MemoryEntry.turn(SCOPE, speaker="user", turn_id="t1", content=text)


def in_the_worker(length: int) -> None:
    entry = entry_of(length)
    times: dict[str, list[float]] = {"encode": [], "decode": []}
    best: dict[tuple[str, str], float] = {}
    seals = {"plain": PLAIN, "sealed": Seal(RING, scope_keys("bench", SCOPE).identity)}
    sizes = {}
    # In turn and the best of some rounds: what else runs on the machine disturbs both alike.
    for _ in range(ROUNDS):
        for name, seal in seals.items():
            row = encode_entry(entry, limit=LIMIT, seal=seal)
            sizes[name] = len(row)
            for what in times:
                begun = time.perf_counter()
                for _ in range(ROWS):
                    if what == "encode":
                        encode_entry(entry, limit=LIMIT, seal=seal)
                    else:
                        decode_entry(row, "acme", seal=seal)
                taken = (time.perf_counter() - begun) / ROWS * 1e6
                best[name, what] = min(taken, best.get((name, what), taken))
    line = [f"content of {length} characters: row {sizes['plain']} B, sealed {sizes['sealed'] / sizes['plain']:.2f} x"]
    for what in times:
        plain, sealed = best["plain", what], best["sealed", what]
        line.append(f"{what} {plain:.1f} us, sealed {sealed / plain:.2f} x")
    print("; ".join(line))


async def end_to_end(url: str) -> None:
    async with (
        connect(url, prefix=f"bench{uuid.uuid4().hex[:8]}") as plain,
        connect(plain.url, prefix=f"bench{uuid.uuid4().hex[:8]}", encryption=RING) as sealed,
    ):
        best: dict[tuple[str, str], float] = {}
        for _ in range(ROUNDS):
            for name, redis in (("plain", plain), ("sealed", sealed)):
                layer = WorkingLayer(redis, graph_store=StreamGraphStore(redis, ttl=60), ttl=60)
                turns = [entry_of(CONTENT) for _ in range(TURNS)]
                begun = time.perf_counter()
                for turn in turns:
                    await layer.push(SCOPE, turn)
                pushed = time.perf_counter()
                for _ in turns:
                    await layer.get_context(SCOPE)
                for what, taken in (("push", pushed - begun), ("get_context of 10", time.perf_counter() - pushed)):
                    each = taken / TURNS * 1e6
                    best[name, what] = min(each, best.get((name, what), each))
        info = (await plain.call("encryption", "INFO", "server")).decode()
        version = [line for line in info.splitlines() if line.startswith(("redis_version", "valkey_version"))][-1]
        for what in ("push", "get_context of 10"):
            print(
                f"{version}, {what}: plain {best['plain', what]:.0f} us, "
                f"sealed {best['sealed', what] / best['plain', what]:.2f} x"
            )


random.seed(1)
for size in (30, 300, 3_000, 30_000):
    in_the_worker(size)
for target in sys.argv[1:] or ["embedded://"]:
    asyncio.run(end_to_end(target))
