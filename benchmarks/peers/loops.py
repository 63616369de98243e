"""The measured loops, the same for every contender. Standard library only: each peer's own Python runs this file.

A contender is a class `Peer(url, **options)` with

    threads               True when its calls block, so that writers need threads
    session(conversation) what a worker holds of one conversation; awaited
    message(text)         what its append takes; made before the clock starts
    append(session, message), read(session)
    texts(session)        what a read now finds, oldest first, as texts; awaited
    close()               awaited
"""

from __future__ import annotations

import asyncio
import inspect
import random
import string
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

WRITER_LIMIT = 15.0
"""Seconds after which a writer of a storm stops, whatever is left to write."""


def text(name: str, size: int) -> str:
    """A text of `size` characters that nobody else has: it begins with `name`, which holds no blank."""
    return (name + " " + "".join(random.choices(string.ascii_letters, k=size)))[: max(size, len(name))]


def name_of(found: str) -> str:
    """The name with which `text` began."""
    return found.split(" ", 1)[0]


async def _settle(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


async def append(peer: Any, conversation: str, count: int, size: int) -> list[float]:
    """Append one after the other; return the seconds of each."""
    session = await peer.session(conversation)
    seconds = []
    for number in range(count):
        message = peer.message(text(f"{conversation}/{number}", size))
        started = time.perf_counter()
        await _settle(peer.append(session, message))
        seconds.append(time.perf_counter() - started)
    return seconds


async def read(peer: Any, conversation: str, count: int) -> list[float]:
    """Read one after the other; return the seconds of each."""
    session = await peer.session(conversation)
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        await _settle(peer.read(session))
        seconds.append(time.perf_counter() - started)
    return seconds


async def storm(peer: Any, conversations: list[str], each: int, size: int, name: str = "w") -> dict[str, Any]:
    """One writer for each of `conversations`, all at once, each with a session of its own, each appending `each` times.

    Returns:
        `seconds` from the first to the last, `cpu` seconds that this process worked meanwhile, `names` of the texts
        whose append returned, and the `errors` of the others by type.
    """
    sessions = [await peer.session(conversation) for conversation in conversations]
    messages = [
        [(f"{name}{writer}.{number}", peer.message(text(f"{name}{writer}.{number}", size))) for number in range(each)]
        for writer in range(len(sessions))
    ]
    names: list[str] = []
    errors: Counter[str] = Counter()
    until = time.monotonic() + WRITER_LIMIT

    async def write(writer: int) -> None:
        for known_as, message in messages[writer]:
            if time.monotonic() > until:
                return
            try:
                await _settle(peer.append(sessions[writer], message))
                names.append(known_as)
            except Exception as error:  # noqa: BLE001 - whatever a contender raises is counted, none ends the run
                errors[type(error).__name__] += 1

    started, worked = time.perf_counter(), time.process_time()
    if peer.threads:
        with ThreadPoolExecutor(len(sessions)) as pool:
            loop = asyncio.get_running_loop()
            # A blocking append is no awaitable, so `write` runs to its end in the thread's own loop.
            work = [
                loop.run_in_executor(pool, lambda w=writer: asyncio.run(write(w))) for writer in range(len(sessions))
            ]
            await asyncio.gather(*work)
    else:
        await asyncio.gather(*(write(writer) for writer in range(len(sessions))))
    seconds, cpu = time.perf_counter() - started, time.process_time() - worked
    return {"seconds": seconds, "cpu": cpu, "names": names, "errors": dict(errors)}


async def names(peer: Any, conversation: str) -> list[str]:
    """The names of the texts that a read of the conversation finds."""
    return [name_of(found) for found in await peer.texts(await peer.session(conversation))]


async def answer(peer: Any, request: dict[str, Any]) -> Any:
    """Carry out one request of driver.py's protocol."""
    do = request.pop("do")
    return await {"append": append, "read": read, "storm": storm, "names": names}[do](peer, **request)
