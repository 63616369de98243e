"""Every kind of write, with its answer and what it leaves behind: a table for the tests that disturb writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from redis.asyncio import Redis

from symfonic_redis import Deployment, MemoryEntry, MemoryLayer, MemoryNode, StreamGraphStore, WorkingLayer
from symfonic_redis.keys import scope_keys
from symfonic_redis.scripts import script

SCRIPT = b"EVALSHA"
WINDOW = 3


class Worker:
    """A worker: a layer with a mirror, on its own deployment."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.graph = StreamGraphStore(deployment)
        self.layer = WorkingLayer(deployment, WINDOW, self.graph)

    async def everything(self, scope) -> tuple[list[str], list[str], int]:
        """What the scope holds: the window, the labels of turns and facts, the number of rows with the evicted ones."""
        keys = scope_keys(self.deployment.prefix, scope)
        turns = await self.graph.query_nodes(scope, MemoryLayer.WORKING)
        facts = await self.graph.query_nodes(scope, MemoryLayer.SEMANTIC)
        return (
            [entry.content for entry in await self.layer.get_context(scope)],
            [node.label for node in turns + facts],
            await self.deployment.call("length", "LLEN", keys.turns),
        )


class Case(NamedTuple):
    """A write, with its answer and what it leaves, after the turns a, b, c (`empty`: after none)."""

    run: Callable[[Worker, Any], Awaitable[Any]]
    answer: Any
    leaves: tuple[list[str], list[str], int]
    empty: bool = False


def turn_of(scope, content: str) -> MemoryEntry:
    return MemoryEntry.turn(scope, speaker="user", turn_id=content, content=content)


async def _push(worker: Worker, scope):
    receipt = await worker.layer.push(scope, turn_of(scope, "d"))
    return await _known(worker, scope, receipt.node_ids), receipt[1:]


async def _push_many(worker: Worker, scope):
    receipt = await worker.layer.push_many(scope, [turn_of(scope, "d"), turn_of(scope, "e")])
    return await _known(worker, scope, receipt.node_ids), receipt[1:]


async def _known(worker: Worker, scope, ids) -> list[str | None]:
    nodes = [await worker.graph.get_node(scope, name) for name in ids]
    return [node and node.label for node in nodes]


async def _add_node(worker: Worker, scope):
    node = MemoryNode(layer=MemoryLayer.SEMANTIC, tenant_id=scope.tenant_id, label="fact")
    added = await worker.graph.add_node(scope, node)
    return await _known(worker, scope, [added.id])


def _rehydrate(*, only_if_empty: bool):
    messages = [{"role": "user", "content": "d"}, {"role": "assistant", "content": "e"}]
    return lambda worker, scope: worker.layer.rehydrate_from_messages(scope, messages, only_if_empty=only_if_empty)


WRITES = {
    "push": Case(_push, (["d"], (3, 1, False, False)), (["b", "c", "d"], ["a", "b", "c", "d"], 4)),
    "push_many": Case(_push_many, (["d", "e"], (3, 2, False, False)), (["c", "d", "e"], ["a", "b", "c", "d", "e"], 5)),
    "clear": Case(lambda worker, scope: worker.layer.clear(scope), None, ([], [], 0)),
    "rehydrate": Case(_rehydrate(only_if_empty=False), 2, (["c", "d", "e"], ["a", "b", "c"], 5)),
    "resume": Case(_rehydrate(only_if_empty=True), 2, (["d", "e"], [], 2), empty=True),
    "add_node": Case(_add_node, ["fact"], (["a", "b", "c"], ["a", "b", "c", "fact"], 3)),
}


async def load_scripts(url: str) -> None:
    """Let the server know every script, so that a write is exactly one EVALSHA."""
    async with Redis.from_url(url) as client:
        for name in ("push", "clear", "rehydrate", "node_add"):
            await client.script_load(script(name).text)


async def begin(worker: Worker, scope, case: Case) -> None:
    if not case.empty:
        await worker.layer.push_many(scope, [turn_of(scope, content) for content in "abc"])
