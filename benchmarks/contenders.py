"""Contenders as a run drives them: in this process, or in one of their own. Both answer the same requests."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

PEERS = Path(__file__).parent / "peers"
sys.path.append(str(PEERS))

import loops  # noqa: E402 - it stands in the folder above

PATIENCE = 300.0
"""Seconds for one answer of a process: a storm of the slowest peer takes tens."""


class SilentError(RuntimeError):
    """A contender failed; the run goes on without it."""


class Local:
    """A contender on this event loop."""

    def __init__(self, name: str, module: str, url: str, **options: Any) -> None:
        self.name = name
        made = importlib.import_module(module)
        self.peer = made.Peer(url, **options)
        self.versions = {package: version(package) for package in made.PACKAGES}

    async def ask(self, do: str, **request: Any) -> Any:
        return await loops.answer(self.peer, {"do": do, **request})

    async def close(self) -> None:
        await self.peer.close()


class Remote:
    """A contender in a process of its own, with a Python of its own; see peers/driver.py."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.versions: dict[str, str] = {}
        self._process = process

    @classmethod
    async def start(cls, name: str, module: str, url: str, *, python: str = sys.executable, **options: Any) -> Remote:
        process = await asyncio.create_subprocess_exec(
            python,
            str(PEERS / "driver.py"),
            module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=1 << 26,
        )
        contender = cls(name, process)
        try:
            contender.versions = (await contender.ask("setup", url=url, options=options))["versions"]
        except BaseException:
            await contender.close()
            raise
        return contender

    async def ask(self, do: str, **request: Any) -> Any:
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        if pipe_in is None or pipe_out is None:
            raise SilentError(f"{self.name} has no pipes")
        try:
            pipe_in.write(json.dumps({"do": do, **request}).encode() + b"\n")
            await pipe_in.drain()
            line = await asyncio.wait_for(pipe_out.readline(), PATIENCE)
        except (TimeoutError, ConnectionError) as error:
            raise SilentError(f"{self.name} did not answer: {type(error).__name__}") from error
        answer = json.loads(line) if line else {"error": "it ended"}
        if "error" in answer:
            raise SilentError(f"{self.name} failed: {answer['error']}")
        return answer["ok"]

    async def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


Contender = Local | Remote
