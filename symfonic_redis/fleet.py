"""Worker processes, as an agent service runs them: each serves turns of any conversation and keeps none of it.

This is the parent's side: start workers, hand them turns in rotation, replace the dead. `worker` is the other side.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from typing import Any, Self

from symfonic_redis.errors import InvalidInput, MemoryUnavailable
from symfonic_redis.transcripts import Turn
from symfonic_redis.worker import LINE_LIMIT

MOST_REDELIVERIES = 5
"""How often a turn is given to another worker after one died on it."""


class WorkerDied(MemoryUnavailable):
    """The worker process ended before it answered. What it was doing may have been done."""


class Worker:
    """A worker process, seen from its parent.

    Attributes:
        name: how it is called on screen.
        served: how many turns it has acknowledged.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.served = 0
        self._process = process
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last_words = ""
        self._reader = asyncio.create_task(self._read())
        self._listener = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, name: str, settings: dict[str, Any]) -> Self:
        """Start a worker with `settings`: `url`, `prefix`, `deadline`, and the layer's `max_entries`, `mirror`, `ttl`.

        They travel over the pipe and not as arguments: a URL may hold a password, and arguments are public.

        Raises:
            MemoryUnavailable: it ended before it was ready, and why.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # no module of the current folder may stand in for one of ours or of the library
            "-m",
            "symfonic_redis.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_LIMIT,
            start_new_session=True,  # an interrupt in the terminal is for the parent, which ends its workers
        )
        worker = cls(name, process)
        try:
            await worker._ask(settings)
        except WorkerDied as error:
            await worker.stop()
            raise MemoryUnavailable(
                f"worker {name} could not start: {worker._last_words or 'no reason given'}"
            ) from error
        return worker

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    async def push(self, **turn: Any) -> dict[str, Any]:
        """Have the worker push a turn: `scope`, `speaker`, `turn_id`, `content`, and `key`, its idempotency key.

        Raises:
            WorkerDied: it ended before it answered.
            InvalidInput: the turn is refused.
            MemoryUnavailable: it could not reach the server, or was refused there.
        """
        receipt = await self._ask({"op": "push", **turn})
        self.served += 1
        return receipt

    async def context(self, scope: str) -> list[list[str]]:
        """The window as the worker sees it: `[speaker, turn_id, content]`, oldest first."""
        window: list[list[str]] = (await self._ask({"op": "context", "scope": scope}))["window"]
        return window

    def kill(self) -> None:
        """SIGKILL: the process gets no chance to finish anything."""
        if self._process.returncode is None:
            self._process.kill()

    async def stop(self) -> None:
        """Let the worker finish and end; returns when it is gone."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()
        await self._reader
        await self._listener

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._reader.done():
            raise WorkerDied(f"worker {self.name} is gone: start another")
        number = next(self._numbers)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._send({"id": number, **request})
        reply = await future
        if "error" in reply:
            raise (InvalidInput if reply.get("refused") else MemoryUnavailable)(reply["error"])
        return reply

    def _send(self, message: dict[str, Any]) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _read(self) -> None:
        output = self._process.stdout
        # A last line that was cut by the worker's death is no JSON: it ends the reading as an end of file does.
        with contextlib.suppress(ValueError, KeyError):
            while output is not None and (line := await output.readline()):
                reply = json.loads(line)
                future = self._waiting.pop(reply["id"], None)
                if future is not None and not future.done():
                    future.set_result(reply)
        # It has most likely ended. To kill it now would take its end from asyncio, which then complains.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), 1)
        self.kill()
        await self._listener  # what it said last belongs to the error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(WorkerDied(f"worker {self.name} ended before it answered: start another"))
        self._waiting.clear()

    async def _listen(self) -> None:
        errors = self._process.stderr
        with contextlib.suppress(ValueError):
            while errors is not None and (line := await errors.readline()):
                self._last_words = line.decode("utf-8", "replace").strip() or self._last_words


class Fleet:
    """Workers that serve turns in rotation and are replaced when they die. Use it with `async with`.

    Attributes:
        workers: those that serve now.
        retired: those that died.
    """

    def __init__(self, size: int, settings: dict[str, Any]) -> None:
        self._size = size
        self._settings = settings
        self._started = 0
        self._replacing = asyncio.Lock()
        self.workers: list[Worker] = []
        self.retired: list[Worker] = []

    async def __aenter__(self) -> Self:
        try:
            for _ in range(self._size):
                self.workers.append(await self._start())
        except BaseException:
            await self._end(at_once=True)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._end(at_once=kind is not None)

    async def _end(self, *, at_once: bool) -> None:
        for worker in self.workers:
            if at_once:
                worker.kill()
            await worker.stop()

    async def _start(self) -> Worker:
        self._started += 1
        return await Worker.start(f"worker-{self._started}", self._settings)

    async def replace(self, worker: Worker) -> Worker | None:
        """Start a worker in the place of one that died; None when somebody did already."""
        async with self._replacing:  # all that waited for the dead one come here at once
            if worker not in self.workers:
                return None
            successor = await self._start()
            self.workers[self.workers.index(worker)] = successor
            self.retired.append(worker)
            await worker.stop()
            return successor

    async def deliver(self, number: int, scope: str, turn: Turn, key: str) -> tuple[dict[str, Any], int]:
        """Push a turn through the `number`-th worker in rotation; return the receipt and the redeliveries it took.

        Raises:
            WorkerDied: one worker after the other ended on this turn.
        """
        redelivered = 0
        while True:
            worker = self.workers[number % self._size]
            try:
                receipt = await worker.push(
                    scope=scope, speaker=turn.speaker, turn_id=turn.turn_id, content=turn.content, key=key
                )
            except WorkerDied:
                redelivered += 1
                if redelivered > MOST_REDELIVERIES:
                    raise
                await self.replace(worker)
            else:
                return receipt, redelivered
