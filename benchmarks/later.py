"""What the package may offer one day: measured when it is there, and said when it is not."""

from __future__ import annotations

import inspect
from typing import Any

from blocks import Block, Row, row, take_turns
from contenders import Local
from stage import FULL, Stage, Timed

from symfonic_redis import WorkingLayer
from symfonic_redis.options import Options

FEATURES = (
    # What it is called, what its option's name begins with, and the call that it must not slow down, or must speed up.
    ("coalesced pushes", "coalesc", "append"),
    ("tracked reads", "track", "read"),
)


def option(start: str) -> dict[str, Any] | None:
    """The option of `connect` or of the layer whose name begins so, as this folder's `Peer` takes it."""
    for name in Options.__annotations__:
        if name.startswith(start):
            return {"options": {name: True}}
    for name in inspect.signature(WorkingLayer.__init__).parameters:
        if name.startswith(start):
            return {"layer": {name: True}}
    return None


async def run(stage: Stage) -> list[Row]:
    profile = stage.profile
    rows = []
    for what, start, do in FEATURES:
        chosen = option(start)
        if chosen is None:
            print(f"Skipped: {what}, the package has no such option", flush=True)
            stage.skipped.append(f"{what}: the package has no such option")
            continue
        observer = await stage.server()
        pair = [
            await stage.local("off", "symfonic_layer", observer.url, prefix="off", **FULL),
            await stage.local("on", "symfonic_layer", observer.url, prefix="on", **FULL, **chosen),
        ]
        for one in pair:
            await one.ask("append", conversation="c", count=10, size=profile.payload)
        timed = Timed(observer)
        request = {"size": profile.payload} if do == "append" else {}

        async def work(
            one: Local, _: int, do: str = do, timed: Timed = timed, request: dict[str, int] = request
        ) -> Block:
            return await timed.block(one, do, profile.calls, conversation="c", **request)

        found = await take_turns(pair, profile.blocks, work)
        rows += [
            row(what, f"lone {do}", name, blocks, found.get("off", []), figure="p50", against="off")
            for name, blocks in found.items()
        ]
    return rows
