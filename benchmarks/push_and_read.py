"""One worker, one call after the other: a push, and a read of ten turns."""

from __future__ import annotations

from blocks import Block, Row, row, take_turns
from contenders import Contender
from environments import TTL
from stage import BARE, FLOOR, FULL, OURS, OVER_OURS, Stage, Timed

RPUSH = "bare RPUSH"
WARM = 70
"""Turns pushed before: more than window, evicted turns and mirror keep, so that everything is trimmed."""

TEN = 10


async def run(stage: Stage) -> list[Row]:
    observer = await stage.server()
    url, profile = observer.url, stage.profile
    own: list[Contender] = [
        *await stage.pair(url, **FULL),
        await stage.local("no mirror", "symfonic_layer", url, prefix="plain", ttl=TTL),
        await stage.local("with feed", "symfonic_layer", url, prefix="feed", feed=1_000, **FULL),
        await stage.local(BARE, "bare_list", url),
        await stage.local(RPUSH, "bare_push", url),
        await stage.local("original, in process", "original_layer", url),
    ]
    peers = await stage.peers(url)
    for one in own:
        await one.ask("append", conversation="warm", count=WARM, size=profile.payload)

    pushes, reads = Timed(observer), Timed(observer)

    async def push(one: Contender, number: int) -> Block:
        # Ours goes on with a full window, its dearest state; a peer, which has no bound, gets a new conversation.
        conversation = f"push{number}" if one in peers else "warm"
        return await pushes.block(one, "append", profile.calls, conversation=conversation, size=profile.payload)

    pushed = await take_turns([*own, *peers], profile.blocks, push)
    rows = [
        row("push", "one after the other", name, found, pushed.get(FLOOR, []), figure="p50", against=FLOOR,
            note=pushes.sent(name))
        for name, found in pushed.items()
    ]  # fmt: skip
    rows += [
        row("push", "over one RPUSH", name, pushed[name], pushed[RPUSH], figure="p50", against=RPUSH)
        for name in (OURS, "no mirror", "with feed", FLOOR, BARE, RPUSH)
        if name in pushed and RPUSH in pushed
    ]
    rows += [
        row("push", OVER_OURS, one.name, pushed[one.name], pushed.get(OURS, []), figure="p50", against=OURS,
            note=pushes.sent(one.name))
        for one in peers
        if one.name in pushed
    ]  # fmt: skip
    rows += [
        row("push", "server time", name, found, pushed.get(BARE, []), figure="server time", against=BARE)
        for name, found in pushed.items()
        if name != FLOOR and found[0].server_us
    ]
    rows += [
        row("push", "bytes on the wire", name, found, pushed.get(BARE, []), figure="bytes", against=BARE)
        for name, found in pushed.items()
        if name != FLOOR and found[0].received
    ]

    apart = ("with feed", "no mirror", BARE, RPUSH)
    readers = [one for one in [*own, *peers] if one.name in pushed and one.name not in apart]

    for one in readers:
        await one.ask("append", conversation="ten", count=TEN, size=profile.payload)

    async def read(one: Contender, _: int) -> Block:
        return await reads.block(one, "read", profile.calls, conversation="ten")

    found = await take_turns(readers, profile.blocks, read)
    return rows + [
        row("read of 10", "one after the other", name, blocks, found.get(FLOOR, []), figure="p50",
            against="bare LRANGE", note=reads.sent(name))
        for name, blocks in found.items()
    ]  # fmt: skip
