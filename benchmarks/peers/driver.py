"""A contender in a process of its own: `driver.py MODULE`. It speaks JSON, one line a request, one line an answer.

    {"do": "setup", "url": ..., "options": {...}}                        -> {"ok": {"versions": {...}}}
    {"do": "append", "conversation": ..., "count": n, "size": bytes}    -> {"ok": [seconds, ...]}
    {"do": "read", "conversation": ..., "count": n}                      -> {"ok": [seconds, ...]}
    {"do": "storm", "conversations": [...], "each": n, "size": bytes}   -> {"ok": {"seconds", "cpu", "names", "errors"}}
    {"do": "names", "conversation": ...}                                 -> {"ok": [name, ...]}

A request that fails is answered by {"error": "type: text"}. The process ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import sys
from importlib.metadata import version
from typing import Any

import loops


async def serve(module: Any, requests: Any, answers: Any) -> None:
    loop = asyncio.get_running_loop()
    peer: Any = None
    while line := await loop.run_in_executor(None, requests.readline):
        request = json.loads(line)
        try:
            if request["do"] == "setup":
                peer = module.Peer(request["url"], **request["options"])
                found: Any = {"versions": {name: version(name) for name in module.PACKAGES}}
            else:
                found = await loops.answer(peer, request)
            answers.write(json.dumps({"ok": found}) + "\n")
        except Exception as error:  # noqa: BLE001 - the run goes on without this contender, and says why
            answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        answers.flush()
    if peer is not None:
        await peer.close()


if __name__ == "__main__":
    # What a library prints must not stand between the answers.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.disable(logging.ERROR)
    asyncio.run(serve(importlib.import_module(sys.argv[1]), sys.stdin, channel))
