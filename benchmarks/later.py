"""Options that save something: what each brings, on against off. Said when the package does not have one yet."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from blocks import Block, Row, row, take_turns
from contenders import Local
from stage import FULL, Stage, Timed
from together import crowd_block, crowds

from symfonic_redis import WorkingLayer
from symfonic_redis.options import Options

FEATURES = (
    # What it is called, what its option's name begins with, the call that goes one after the other, and whether a
    # crowd of tasks makes the same call. Off and on are both said: which one the package begins with may change.
    ("coalesced pushes", "coalesc", "append", True),
    ("tracked reads", "track", "read", False),
)
TURNS = 10


def option(start: str, *, on: bool) -> tuple[str, dict[str, Any]] | None:
    """The option of `connect` or of the layer whose name begins so, as results show it and as `Peer` takes it."""
    for name in Options.__annotations__:
        if name.startswith(start):
            return f"{name}={on}", {"options": {name: on}}
    for name in inspect.signature(WorkingLayer.__init__).parameters:
        if name.startswith(start):
            return f"{name}={on}", {"layer": {name: on}}
    return None


async def run(stage: Stage) -> list[Row]:
    rows = []
    for what, start, do, crowded in FEATURES:
        off, on = option(start, on=False), option(start, on=True)
        if off is None or on is None:
            print(f"Skipped: {what}, the package has no such option", flush=True)
            stage.skipped.append(f"{what}: the package has no such option")
            continue
        observer = await stage.server()
        pair = [
            await stage.local(name, "symfonic_layer", observer.url, prefix=prefix, **FULL, **chosen)
            for prefix, (name, chosen) in (("off", off), ("on", on))
        ]
        rows += await _alone(stage, what, do, pair, Timed(observer))
        if crowded:
            rows += await _crowded(stage, what, pair)
    return rows


async def _alone(stage: Stage, what: str, do: str, pair: list[Local], timed: Timed) -> list[Row]:
    """One call after the other; a read is of a conversation that was read just before."""
    profile = stage.profile
    for one in pair:
        await one.ask("append", conversation="c", count=TURNS, size=profile.payload)
    request = {"size": profile.payload} if do == "append" else {}

    async def work(one: Local, _: int) -> Block:
        return await timed.block(one, do, profile.calls, conversation="c", **request)

    found = await take_turns(pair, profile.blocks, work)
    off = pair[0].name
    return [
        row(what, f"{do}, one after the other", name, blocks, found.get(off, []), figure="p50", against=off)
        for name, blocks in found.items()
    ]


async def _crowded(stage: Stage, what: str, pair: list[Local]) -> list[Row]:
    """The crowds of `together`: throughput, and the client's time for a push."""
    profile, rows = stage.profile, list[Row]()
    off = pair[0].name
    for case, conversations in crowds(profile.tasks).items():
        work = partial(crowd_block, conversations=conversations, each=profile.each, size=profile.payload)
        found = await take_turns(pair, profile.blocks, work)
        rows += [
            row(what, case, name, blocks, found.get(off, []), figure=figure, against=off)
            for figure in ("throughput", "client time")
            for name, blocks in found.items()
        ]
    return rows
