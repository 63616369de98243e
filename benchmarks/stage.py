"""What the measures share: the servers they start, who observes them, and the contenders."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from blocks import Block, Row
from contenders import Contender, Local, Remote, SilentError
from environments import PEERS, TTL, python_of
from observed import Observer, server_time
from profiles import Profile

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from servers import BINARIES, Server

OURS = "symfonic-redis"
FLOOR = "floor"
BARE = "bare LPUSH+LTRIM"
OVER_OURS = "each peer over ours"
"""The case of a peer's figures over this package's."""

MIRROR = 50
"""Nodes kept in the mirror: few, so that it is full, and its trimming is measured too."""

FULL: dict[str, Any] = {"ttl": TTL, "mirror": MIRROR}
"""Mirror, index and expiry: what a push does at most, the feed excepted."""


class Stage:
    """Servers and contenders of a measure, made when it asks for them and stopped after it."""

    def __init__(self, profile: Profile, binary: str, *, peers: bool) -> None:
        self.profile = profile
        self.binary = binary
        self.with_peers = peers
        self.versions: dict[str, dict[str, str]] = {}
        self.skipped: list[str] = []
        self.server_version = ""
        self._exits = contextlib.AsyncExitStack()

    async def apart(self, measure: Callable[[Stage], Awaitable[list[Row]]]) -> list[Row]:
        """Run one measure; stop what it started, so that the next one has the machine to itself."""
        async with contextlib.AsyncExitStack() as self._exits:
            return await measure(self)

    async def server(self, *arguments: str) -> Observer:
        """Start a server of this run's own."""
        server = Server(self.binary, *arguments)
        self._exits.callback(server.stop)
        observer = Observer(server.url)
        self._exits.push_async_callback(observer.close)
        self.server_version = await observer.version()
        return observer

    async def local(self, name: str, module: str, url: str, **options: Any) -> Local:
        contender = Local(name, module, url, **options)
        self._exits.push_async_callback(contender.close)
        self.versions[module] = contender.versions
        return contender

    async def remote(self, name: str, module: str, url: str, **options: Any) -> Remote:
        contender = await Remote.start(name, module, url, **options)
        self._exits.push_async_callback(contender.close)
        self.versions[module] = contender.versions
        return contender

    def packages(self) -> list[tuple[str, str]]:
        """What the contenders were, and their versions; a driver's version goes with its peer."""
        return [
            item
            for found in self.versions.values()
            for item in found.items()
            if item[0] not in ("redis", "symfonic-redis")
        ]

    async def pair(self, url: str, **options: Any) -> tuple[Local, Local]:
        """The floor and ours, doing the same under prefixes of their own."""
        return (
            await self.local(FLOOR, "floor", url, prefix="floor", **options),
            await self.local(OURS, "symfonic_layer", url, prefix="ours", **options),
        )

    async def peers(self, url: str) -> list[Remote]:
        """The peers that can be installed, each in its own process."""
        found = []
        for one in PEERS if self.with_peers else ():
            python = python_of(one)
            if python is None:
                self.skipped.append(f"{one.name}: not installed")
                continue
            try:
                found.append(await self.remote(one.name, one.module, url, python=python, ttl=TTL, **one.options))
            except SilentError as error:
                print(f"Skipped: {error}", flush=True)
                self.skipped.append(f"{one.name}: it does not start")
        return found


class Timed:
    """Blocks of one kind of call, with the server's time and bytes; knows what a contender sends at the top level."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._sampled: dict[str, tuple[Counter[str], int]] = {}
        self._trips: dict[str, float] = {}

    async def block(self, contender: Contender, do: str, count: int, **request: Any) -> Block:
        """`count` calls one after the other."""
        if contender.name not in self._sampled:
            # The first call of a conversation makes things that later ones find.
            await contender.ask(do, count=2, **request)
            self._sampled[contender.name] = await self._observer.top_level(
                lambda: contender.ask(do, count=SAMPLE, **request)
            )
            _, seen = await self._observer.measure(lambda: contender.ask(do, count=SAMPLE, **request))
            self._trips[contender.name] = seen.trips / SAMPLE
        # Makes the conversation, where a contender must, connects, and wakes a process that waited for its turn.
        await contender.ask(do, **{**request, "count": SAMPLE})
        seconds, seen = await self._observer.measure(lambda: contender.ask(do, count=count, **request))
        return Block(
            seconds,
            count / sum(seconds),
            server_time(seen, self._sampled[contender.name][0], count, SAMPLE),
            seen.received / count,
            seen.sent / count,
        )

    def sent(self, contender: str) -> str:
        """What the contender sends for a call."""
        commands, trips = round(self._sampled[contender][1] / SAMPLE), round(self._trips[contender])
        if not commands:
            return ""
        return f"{commands} command{'s' * (commands > 1)} in {trips} round trip{'s' * (trips > 1)}"


SAMPLE = 10
"""Calls that are watched to learn what they send, and calls that come before each block."""


def servers() -> dict[str, str]:
    """The servers that are here: name -> binary. The first is the one to use."""
    found = {name: find() for name, find in BINARIES.items()}
    names = sorted(found, key=lambda name: name != "redis")
    return {name: str(found[name]) for name in names if found[name]}
