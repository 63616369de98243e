"""Many turns in one call, and what a hundred of them cost the server each, the mirror included."""

from __future__ import annotations

import time

from blocks import Block, Row, row, take_turns
from contenders import Contender, Local
from observed import server_time
from stage import BARE, FULL, OURS, Stage, Timed

BATCH = 100
TIMES = 3
"""Batches of a block."""


async def run(stage: Stage) -> list[Row]:
    profile = stage.profile
    observer = await stage.server()
    timed = Timed(observer)
    many = await stage.local(f"push_many({BATCH})", "symfonic_layer", observer.url, prefix="many", **FULL)
    contenders: list[Contender] = [
        many,
        await stage.local(f"{OURS}, one push a turn", "symfonic_layer", observer.url, prefix="ours", **FULL),
        await stage.local(BARE, "bare_list", observer.url),
    ]

    async def work(one: Contender, _: int) -> Block:
        if one is not many or not isinstance(one, Local):
            return await timed.block(one, "append", BATCH, conversation="batch", size=profile.payload)
        peer = one.peer
        scope = await peer.session("batch")
        entries = [peer.message(f"{number} " + "x" * profile.payload) for number in range(BATCH)]

        async def push() -> list[float]:
            seconds = []
            for _ in range(TIMES):
                started = time.perf_counter()
                await peer.layer.push_many(scope, entries)
                seconds.append((time.perf_counter() - started) / BATCH)
            return seconds

        sampled, _ = await observer.top_level(push)
        seconds, seen = await observer.measure(push)
        turns = TIMES * BATCH
        return Block(
            seconds,
            TIMES / sum(seconds),
            server_time(seen, sampled, turns, turns),
            seen.received / turns,
            seen.sent / turns,
        )

    found = await take_turns(contenders, profile.blocks, work)
    return [
        row("batch", "server time of a turn", name, blocks, found.get(BARE, []), figure="server time", against=BARE)
        for name, blocks in found.items()
    ]
