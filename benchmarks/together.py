"""Many at once: a crowd of tasks in one worker, and writers of one conversation who get in each other's way."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from blocks import Block, Row, row, take_turns
from contenders import Contender, SilentError
from stage import FLOOR, FULL, OURS, OVER_OURS, Stage

ROOM = 1_000
"""The window of a storm: everything that is written stays, so that it can be counted."""


async def run(stage: Stage) -> list[Row]:
    return [*await crowd(stage), *await client(stage), *await storm(stage)]


def crowds(count: int) -> dict[str, list[str]]:
    """The cases of a crowd of so many tasks, and the conversation of each task."""
    return {
        f"{count} tasks, a conversation each": [f"crowd{task}" for task in range(count)],
        f"{count} tasks, one conversation": ["crowd"] * count,
    }


async def crowd_block(one: Contender, _: int, conversations: list[str], each: int, size: int) -> Block:
    """A task for each of `conversations`, all at once: throughput, and the client's own work for one append."""
    done = await one.ask("storm", conversations=conversations, each=each, size=size)
    if done["errors"]:
        raise SilentError(f"{one.name} raised {done['errors']}")
    count = len(done["names"])
    return Block(per_second=count / done["seconds"], cpu_us=done["cpu"] / count * 1e6)


async def crowd(stage: Stage) -> list[Row]:
    """Tasks of one process, on conversations of their own and on one: throughput over bare redis-py's."""
    return await _crowded(stage, "crowd", "throughput", crowds(stage.profile.tasks))


async def client(stage: Stage) -> list[Row]:
    """What a push in the crowd costs the worker's own process."""
    (case, conversations), *_ = crowds(stage.profile.tasks).items()
    return await _crowded(stage, "client", "client time", {case: conversations})


async def _crowded(stage: Stage, measure: str, figure: str, cases: dict[str, list[str]]) -> list[Row]:
    profile = stage.profile
    observer = await stage.server()
    pair = await stage.pair(observer.url, **FULL)
    rows = []
    for case, conversations in cases.items():
        work = partial(crowd_block, conversations=conversations, each=profile.each, size=profile.payload)
        found = await take_turns(pair, profile.blocks, work)
        rows += [
            row(measure, case, name, blocks, found.get(FLOOR, []), figure=figure, against=FLOOR)
            for name, blocks in found.items()
        ]
    return rows


async def storm(stage: Stage) -> list[Row]:
    """Writers on one conversation: throughput, and what became of the turns whose append returned."""
    profile = stage.profile
    observer = await stage.server()
    url = observer.url
    peers = await stage.peers(url)
    contenders: list[Contender] = [*await stage.pair(url, **FULL, window=ROOM), *peers]
    fate: dict[str, Counter[str]] = {one.name: Counter() for one in contenders}

    async def work(one: Contender, number: int) -> Block:
        conversation = f"storm{number}"
        request: dict[str, Any] = {"conversations": [conversation] * profile.writers, "size": profile.payload}
        # Made beforehand, and connected, as by workers that served it before.
        await one.ask("storm", **request, each=0)
        done = await one.ask("storm", **request, each=profile.storm_each)
        told = fate[one.name]
        if number >= 0 and one.name != FLOOR:
            kept = Counter(await one.ask("names", conversation=conversation))
            told["acknowledged"] += len(done["names"])
            told["lost"] += sum(not kept[name] for name in done["names"])
            told["doubled"] += sum(times - 1 for times in kept.values())
            told["refused"] += sum(done["errors"].values())
        return Block(per_second=len(done["names"]) / done["seconds"])

    found = await take_turns(contenders, profile.storm_blocks, work)
    return [
        row(
            "storm",
            f"{profile.writers} writers, one conversation",
            name,
            blocks,
            found.get(FLOOR, []),
            figure="throughput",
            against=FLOOR,
            note=_fate(fate[name]),
        )
        for name, blocks in found.items()
    ] + [
        row("storm", OVER_OURS, one.name, found[one.name], found.get(OURS, []), figure="throughput", against=OURS,
            note=_fate(fate[one.name]))
        for one in peers
        if one.name in found
    ]  # fmt: skip


def _fate(told: Counter[str]) -> str:
    if not told["acknowledged"]:
        return ""
    refused = f", {told['refused']} refused" if told["refused"] else ""
    return f"of {told['acknowledged']} acknowledged {told['lost']} lost, {told['doubled']} doubled{refused}"
