"""What grows: conversations, windows, payloads, workers. The ratio should stay where it is."""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial

from blocks import Block, Row, row, take_turns
from contenders import Local, Remote, SilentError
from fill import conversation, fill, fill_bare
from observed import Observer, server_time
from stage import BARE, FLOOR, FULL, OURS, SAMPLE, Stage, Timed

YARDSTICK = 1_000
"""Conversations of the server that the others are compared with."""

BEHIND = 51
"""Rows that a list keeps behind its window."""

TASKS = 4
"""Concurrent tasks of each worker."""


async def run(stage: Stage) -> list[Row]:
    return [*await conversations(stage), *await windows(stage), *await payloads(stage), *await workers(stage)]


class Crowded:
    """One contender on a server with many conversations."""

    def __init__(self, what: str, count: int, observer: Observer, contender: Local) -> None:
        self.name = f"{what}, {many(count)}"
        self.count, self.observer, self.contender = count, observer, contender

    async def push(self, times: int, size: int) -> list[float]:
        """The seconds of pushes, each to any of the conversations."""
        seconds: list[float] = []
        for _ in range(times):
            any_of_them = conversation(random.randrange(self.count))
            seconds += await self.contender.ask("append", conversation=any_of_them, count=1, size=size)
        return seconds


def many(count: int) -> str:
    return f"{count:,} conversation{'' if count == 1 else 's'}"


async def conversations(stage: Stage) -> list[Row]:
    """Servers with more and more conversations, side by side; and on each as many bare lists.

    What the bare script loses from one to the next is the server's own: memory that is no longer in a cache.
    """
    profile = stage.profile
    crowded = []
    for count in profile.conversations:
        observer = await stage.server()
        started = time.monotonic()
        await fill(stage, observer.url, count)
        await fill_bare(observer.url, count, profile.payload)
        await observer.memory_at_rest()
        print(f"  {count:,} conversations after {time.monotonic() - started:.0f} s", flush=True)
        ours = await stage.local(OURS, "symfonic_layer", observer.url, prefix="ours", **FULL)
        crowded += [
            Crowded(OURS, count, observer, ours),
            Crowded(BARE, count, observer, await stage.local(BARE, "bare_list", observer.url)),
        ]

    async def work(one: Crowded, _: int) -> Block:
        sampled, _ = await one.observer.top_level(lambda: one.push(SAMPLE, profile.payload))
        seconds, seen = await one.observer.measure(lambda: one.push(profile.calls, profile.payload))
        return Block(seconds, len(seconds) / sum(seconds), server_time(seen, sampled, len(seconds), SAMPLE))

    done = await take_turns(crowded, profile.blocks, work)
    counts = profile.conversations
    yardstick = YARDSTICK if YARDSTICK in counts else counts[-1]
    cases = (("push", OURS, "p50"), ("push", OURS, "server time"), (BARE, BARE, "server time"))
    rows = [
        row("conversations", f"{case}, {figure}", many(count), done.get(f"{what}, {many(count)}", []),
            done.get(f"{what}, {many(yardstick)}", []), figure=figure, against=many(yardstick))
        for case, what, figure in cases
        for count in counts
    ]  # fmt: skip
    return rows + [
        row("conversations", "push, server time on the same server", many(count),
            done.get(f"{OURS}, {many(count)}", []), done.get(f"{BARE}, {many(count)}", []),
            figure="server time", against=BARE)
        for count in counts
    ]  # fmt: skip


async def windows(stage: Stage) -> list[Row]:
    """Windows of more turns: a push into a full one, and a read of all of it."""
    profile = stage.profile
    observer = await stage.server()
    rows = []
    for window in profile.windows:
        pair = [
            await stage.local(FLOOR, "floor", observer.url, prefix=f"f{window}", window=window, **FULL),
            await stage.local(OURS, "symfonic_layer", observer.url, prefix=f"o{window}", window=window, **FULL),
        ]
        for one in pair:
            await one.ask("append", conversation="full", count=window + BEHIND, size=profile.payload)
        for do, what in (("append", "push"), ("read", "read of all")):
            timed = Timed(observer)
            request = {"size": profile.payload} if do == "append" else {}

            async def work(one: Local, _: int, do: str, timed: Timed, request: dict[str, int]) -> Block:
                return await timed.block(one, do, max(10, profile.calls // 2), conversation="full", **request)

            found = await take_turns(pair, profile.blocks, partial(work, do=do, timed=timed, request=request))
            rows += [
                row(
                    "windows",
                    f"{what}, window of {window}",
                    name,
                    blocks,
                    found.get(FLOOR, []),
                    figure="p50",
                    against=FLOOR,
                )
                for name, blocks in found.items()
            ]
    return rows


async def payloads(stage: Stage) -> list[Row]:
    """Longer turns: a push."""
    profile = stage.profile
    observer = await stage.server()
    rows = []
    for size in profile.payloads:
        pair = [
            await stage.local(FLOOR, "floor", observer.url, prefix=f"f{size}", size=size, **FULL),
            await stage.local(OURS, "symfonic_layer", observer.url, prefix=f"o{size}", **FULL),
        ]
        for one in pair:
            await one.ask("append", conversation="long", count=70, size=size)
        timed = Timed(observer)

        async def work(one: Local, _: int, timed: Timed, size: int) -> Block:
            return await timed.block(one, "append", max(10, profile.calls // 2), conversation="long", size=size)

        found = await take_turns(pair, profile.blocks, partial(work, timed=timed, size=size))
        rows += [
            row("payloads", f"push of {size:,} B", name, blocks, found.get(FLOOR, []), figure="p50", against=FLOOR)
            for name, blocks in found.items()
        ]
    return rows


class Team:
    """Worker processes of one kind."""

    def __init__(self, name: str, members: list[Remote]) -> None:
        self.name = name
        self.members = members


async def workers(stage: Stage) -> list[Row]:
    """More worker processes on one server, each with a few conversations at a time: throughput of all."""
    profile = stage.profile
    observer = await stage.server()
    rows = []
    for count in profile.workers:
        teams = []
        for name, module in ((FLOOR, "floor"), (OURS, "symfonic_layer")):
            start = [stage.remote(name, module, observer.url, prefix=f"{module}{count}", **FULL) for _ in range(count)]
            teams.append(Team(name, list(await asyncio.gather(*start))))

        async def work(team: Team, number: int) -> Block:
            async def one(member: int, each: int) -> int:
                names = [f"w{member}t{task}" for task in range(TASKS)]
                done = await team.members[member].ask(
                    "storm", conversations=names, each=each, size=profile.payload, name=f"{number}."
                )
                if done["errors"]:
                    raise SilentError(f"{team.name} raised {done['errors']}")
                return len(done["names"])

            everyone = range(len(team.members))
            for member in everyone:
                await one(member, 0)  # one by one: floors watch what the server gets
            started = time.perf_counter()
            written = await asyncio.gather(*(one(member, profile.each) for member in everyone))
            return Block(per_second=sum(written) / (time.perf_counter() - started))

        found = await take_turns(teams, max(2, profile.blocks // 3), work)
        rows += [
            row("workers", f"workers: {count}, {TASKS} tasks each", name, blocks, found.get(FLOOR, []),
                figure="throughput", against=FLOOR)
            for name, blocks in found.items()
        ]  # fmt: skip
        for team in teams:
            for member in team.members:
                await member.close()
    return rows
