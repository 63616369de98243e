"""Shows that the installed wheel works alone: `python -I tests/wheel_smoke.py`, from any other folder.

The environment holds the wheel and its core dependencies, nothing else; `redis-server` is on PATH. Prints one line;
exits with 1 and a sentence when anything is not as it must be.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import symfonic_redis
from symfonic_redis import MemoryEntry, StreamGraphStore, TenantScope, WorkingLayer, connect
from symfonic_redis.scripts import sources

PATIENCE = 30.0


def must(holds: object, what: str) -> None:
    if not holds:
        sys.exit(f"wheel smoke: {what}")


def start(binary: str, port: int, folder: str) -> subprocess.Popen[bytes]:
    """Start a server on the port and wait until it answers."""
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "no"]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and server.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as probe:
                probe.sendall(b"PING\r\n")
                if probe.recv(16).startswith(b"+PONG"):
                    return server
        except OSError:
            time.sleep(0.02)
    server.kill()
    server.wait(PATIENCE)
    sys.exit(f"wheel smoke: {binary} did not start on port {port}")


async def use(url: str) -> None:
    """Push and read with the mirror on, as two workers do, and compare every answer."""
    scope = TenantScope.root("org", "acme").child("conversation", "c-1")
    async with connect(url) as one, connect(url) as two:
        graph = StreamGraphStore(one)
        layer = WorkingLayer(one, max_entries=3, graph_store=graph, working_graph_retention=4)
        for number in range(5):
            turn = MemoryEntry.turn(scope, speaker="user", turn_id=f"t{number}", content=f"turn {number}")
            receipt = await layer.push(scope, turn, idempotency_key=f"job-{number}")
        must(receipt[1:] == (3, 1, False, False), f"the last receipt is {receipt}")
        again = await WorkingLayer(two, max_entries=3).push(scope, turn, idempotency_key="job-4")
        must(again.duplicate, "a redelivered turn was stored twice")
        window = [entry.content for entry in await WorkingLayer(two, max_entries=3).get_context(scope)]
        must(window == ["turn 2", "turn 3", "turn 4"], f"the window is {window}")
        nodes = await graph.query_nodes(scope)
        must([node.label for node in nodes] == [f"turn {n}" for n in range(1, 5)], f"the mirror is {nodes}")
        must(nodes[-1].id == receipt.node_id, "the receipt names another node than the mirror")
        await layer.clear(scope)
        must(await layer.get_context(scope) == [] and await graph.count(scope) == 0, "clear left something")
        replayed = await layer.rehydrate_from_messages(scope, [{"role": "user", "content": "saved"}])
        must(replayed == 1, f"rehydrate replayed {replayed}")


def main() -> None:
    package = Path(symfonic_redis.__file__).resolve().parent
    must(package.is_relative_to(Path(sys.prefix).resolve()), f"imported from {package}, not from {sys.prefix}")
    shipped = {file.stem: file.read_text("utf-8") for file in (package / "lua").glob("*.lua")}
    must(shipped, f"there are no scripts in {package / 'lua'}")
    must(sources() == shipped, "the scripts in use are not those of the installed package")
    binary = shutil.which("redis-server")
    must(binary, "redis-server is not on PATH")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="swm-smoke-") as folder:
        server = start(str(binary), port, folder)
        try:
            asyncio.run(asyncio.wait_for(use(f"redis://127.0.0.1:{port}/0"), 2 * PATIENCE))
        finally:
            server.terminate()
            try:
                server.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(PATIENCE)
    installed = version("symfonic-redis")
    must(
        installed == symfonic_redis.__version__, f"the wheel says {installed}, the package {symfonic_redis.__version__}"
    )
    sys.stdout.write(f"symfonic-redis {installed}: {len(shipped)} scripts from the wheel, pushes and reads\n")


if __name__ == "__main__":
    main()
