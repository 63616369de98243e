"""redis-benchmark: what the server itself gives when the client costs next to nothing. A ceiling, not a contender."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from bare_list import SCRIPT
from blocks import Block, Row, row, take_turns
from contenders import Contender, SilentError
from floor import commands_of
from stage import FLOOR, FULL, Stage

LIST = "redis-benchmark, LPUSH+LTRIM"
PUSH = "redis-benchmark, the push's script"


ID = "__rand_int__"
"""What the tool puts a number of twelve digits for."""

IDS = 2_000_000_000
"""Operation ids that the tool makes up; it takes no more."""


ALMOST = 0.99
"""Of the tool's calls so many must have been carried out; two of its ids may be equal."""


class Tool:
    """One command of redis-benchmark."""

    def __init__(self, name: str, command: list[str | bytes]) -> None:
        self.name = name
        self.command = command


async def run(stage: Stage) -> list[Row]:
    profile = stage.profile
    observer = await stage.server()
    beside = Path(stage.binary).with_name(Path(stage.binary).name.replace("-server", "-benchmark"))
    binary = str(beside) if beside.exists() else shutil.which("redis-benchmark") or shutil.which("valkey-benchmark")
    if binary is None:
        print("Skipped: the ceiling, there is no redis-benchmark here", flush=True)
        stage.skipped.append("the ceiling: no redis-benchmark here")
        return []
    floor, ours = await stage.pair(observer.url, **FULL)
    words, ids, _ = await floor.peer.session("ceiling")
    # An argument of a process holds no zero byte: the row, which no script looks into, is text of the same length.
    push: list[str | bytes] = [b"r" * len(word) if b"\0" in word else word for word in words]
    for at in ids:
        push[at] = ID
    sha = await observer.load(SCRIPT)
    row_size = max(len(word) for word in words)
    tools = [Tool(LIST, ["EVALSHA", sha, "1", "ceiling", "x" * row_size, "60"]), Tool(PUSH, push)]
    counted = await commands_of(observer.url, lambda: floor.ask("append", conversation="ceiling", count=1, size=1))
    if not any(sender == b"lua" for sender, _ in counted):
        raise RuntimeError("the push's script did not run: what was captured cannot be replayed")
    address = urlsplit(observer.url)

    async def work(one: Contender | Tool, _: int) -> Block:
        if not isinstance(one, Tool):
            done = await one.ask(
                "storm", conversations=["ceiling"] * profile.tasks, each=profile.each, size=profile.payload
            )
            return Block(per_second=len(done["names"]) / done["seconds"])
        command = [binary, "-h", str(address.hostname), "-p", str(address.port), "-c", str(profile.tasks)]
        command += ["-n", str(profile.ceiling), "-r", str(IDS), "--csv"]

        # The tool begins its numbers anew with the second and its process's number, and these may meet again.
        fresh = os.urandom(2).hex() + ID

        async def tool() -> subprocess.CompletedProcess[bytes]:
            # Blocking on purpose: nothing else runs meanwhile.
            words = [*command, *(fresh if word is ID else word for word in one.command)]
            return subprocess.run(words, capture_output=True, check=False, timeout=120)  # noqa: ASYNC221 - as said

        ended, seen = await observer.measure(tool)
        if seen.calls.get("lpush", 0) < ALMOST * profile.ceiling:
            raise SilentError(f"{one.name} did not do what was asked: its calls were refused, or taken for repetitions")
        lines = list(csv.reader(ended.stdout.decode(errors="replace").splitlines()))
        try:
            return Block(per_second=float(lines[-1][-7]))
        except (IndexError, ValueError):
            raise SilentError(f"{one.name} printed no figure") from None

    found = await take_turns([floor, ours, *tools], max(2, profile.storm_blocks), work)
    return [
        row("ceiling", f"{profile.tasks} at once, one conversation", name, blocks, found.get(FLOOR, []),
            figure="throughput", against=FLOOR)
        for name, blocks in found.items()
    ]  # fmt: skip
