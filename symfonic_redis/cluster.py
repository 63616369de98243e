"""A cluster behind the face of one server: each command goes to the node that has its key (ADR-006).

The map of the slots is read from any node that answers. Redirections are followed at once; a slot that nobody serves,
a node that is gone and keys that are on their way go up to `retry.persist`, which waits and tries again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redis import exceptions as driver
from redis.crc import key_slot

from symfonic_redis.errors import ConfigurationError
from symfonic_redis.resp import Command
from symfonic_redis.routing import Address, SlotMap, read_slots, resolved, slot_of
from symfonic_redis.wire import Wire, exchange_all, together

HOPS = 5
"""Redirections of one command that are followed in one attempt."""

LOOK = 1.0
"""Seconds that one node has to tell the map of the slots; then the next one is asked."""

PATIENCE = 3.0
"""Seconds that an attempt waits for the map to be read anew, after a node did not answer."""

_UNSENT = object()
"""Stands for the answer of a command that is yet to be sent."""

Outcome = tuple[list[Any], int]
"""Replies in order, errors among them, and how many replicas acknowledged."""


class Cluster:
    """The connections to the nodes of a cluster, for one event loop.

    Args:
        seeds: nodes to ask first.
        wire_to: makes the connections to one node.
        from_replicas: ask a replica of the master where there is one. Its connections must have sent READONLY.
    """

    def __init__(
        self, seeds: Iterable[Address], wire_to: Callable[[Address], Wire], *, from_replicas: bool = False
    ) -> None:
        self._seeds = list(seeds)
        self._wire_to = wire_to
        self._from_replicas = from_replicas
        self._nodes: dict[Address, Wire] = {}
        self._map: SlotMap | None = None
        self._looking: asyncio.Task[Exception | None] | None = None
        self._doubted: set[Address] = set()
        self._closed = False

    async def exchange_everywhere(self, command: Command, until: float | None = None) -> list[Any]:
        """See `Line`."""
        async with asyncio.timeout_at(until):
            masters = (await self._slots()).replicas
            replies = await together(exchange_all(self._node(address), [command], until) for address in masters)
        return [reply for (reply,) in replies]

    async def exchange_each(
        self, commands: Sequence[Command], wait: Command | None = None, until: float | None = None
    ) -> Outcome:
        """See `Line`. Commands of one node go in one go, to all nodes at a time; those of one slot stay in order."""
        async with asyncio.timeout_at(until):
            return await self._exchange(commands, wait, until)

    async def _exchange(self, commands: Sequence[Command], wait: Command | None, until: float | None) -> Outcome:
        await self._slots()
        if self._doubted and self._looking is not None:
            # A node did not answer: who took over is looked up before it is asked again.
            await asyncio.wait([self._looking], timeout=PATIENCE)
        groups: dict[Address, list[int]] = {}
        slots = [slot_of(command) for command in commands]
        for number, slot in enumerate(slots):
            groups.setdefault(self._place(slot), []).append(number)
        replies: list[Any] = [None] * len(commands)
        acknowledged = await together(
            self._group(address, numbers, commands, slots, replies, wait, until) for address, numbers in groups.items()
        )
        return replies, min(acknowledged, default=0)

    async def place(self, key: str) -> Wire:
        """See `Line`."""
        await self._slots()
        return self._node(self._place(key_slot(key.encode())))

    async def close(self) -> None:
        """See `Line`."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        await asyncio.gather(*(wire.close() for wire in self._nodes.values()))

    async def _group(  # noqa: PLR0917 - the parts of one exchange
        self,
        address: Address,
        numbers: list[int],
        commands: Sequence[Command],
        slots: Sequence[int | None],
        replies: list[Any],
        wait: Command | None,
        until: float | None,
    ) -> int:
        """Exchange some of the commands with one node and fill in their replies; return how many acknowledged."""
        answers, acknowledged = await self._send(address, [commands[number] for number in numbers], wait, until)
        sent_on: dict[int, list[tuple[int, Any]]] = {}
        for number, answer in zip(numbers, answers, strict=True):
            replies[number] = answer
            slot = slots[number]
            if slot is None:
                continue
            if slot in sent_on:
                # It came after one that is sent on: again, or it would have been answered before it.
                sent_on[slot].append((number, _UNSENT))
            elif isinstance(answer, driver.AskError):
                sent_on[slot] = [(number, answer)]

        async def follow(slot: int) -> list[int]:
            counts = []
            for number, answer in sent_on[slot]:
                replies[number], count = await self._follow(commands[number], slot, address, answer, wait, until)
                counts.append(count)
            return counts

        counts = [count for some in await together(follow(slot) for slot in sent_on) for count in some]
        # A node that sent everything on has written nothing that its replicas could acknowledge.
        if len(counts) < len(numbers):
            counts.append(acknowledged)
        return min(counts)

    async def _follow(  # noqa: PLR0917 - the parts of one exchange
        self, command: Command, slot: int, asked: Address, answer: Any, wait: Command | None, until: float | None
    ) -> tuple[Any, int]:
        """Send one command, unless it has an answer already, and follow where it is sent on to."""
        count = 0
        for _ in range(HOPS):
            if isinstance(answer, driver.MovedError):
                asked = resolved(answer.host, answer.port, asked[0])
                self._moved(slot, asked)
                (answer,), count = await self._send(asked, [command], wait, until)
            elif isinstance(answer, driver.AskError):
                asked = resolved(answer.host, answer.port, asked[0])
                # Together, on one connection: it lets in just the command that follows.
                (_, answer), count = await self._send(asked, [("ASKING",), command], wait, until)
            elif answer is _UNSENT:
                asked = self._place(slot)
                (answer,), count = await self._send(asked, [command], wait, until)
            else:
                break
        if isinstance(answer, driver.AskError):
            answer = driver.TryAgainError("the slot moves too fast to be followed")
        return answer, count

    async def _send(
        self, address: Address, commands: Sequence[Command], wait: Command | None, until: float | None
    ) -> Outcome:
        try:
            replies, acknowledged = await self._node(address).exchange_each(commands, wait, until)
        except BaseException:
            # Also when it took too long and the attempt was cut off.
            self._doubted.add(address)
            self._look_soon()
            raise
        if any(isinstance(reply, driver.ClusterDownError | driver.ReadOnlyError) for reply in replies):
            self._look_soon()
        return replies, acknowledged

    def _node(self, address: Address) -> Wire:
        if self._closed:
            raise ConfigurationError("this deployment is closed: call connect() again")
        if address not in self._nodes:
            self._nodes[address] = self._wire_to(address)
        return self._nodes[address]

    def _place(self, slot: int | None) -> Address:
        """The node that serves a slot; any master without a slot."""
        assert self._map is not None  # noqa: S101 - every call has read it
        if slot is None:
            return random.choice(list(self._map.replicas))  # noqa: S311 - spreads calls, guards nothing
        owner = self._map.owners[slot]
        if owner is None:
            self._look_soon()
            raise driver.ClusterDownError("nobody serves the slot")
        replicas = self._map.replicas.get(owner) if self._from_replicas else None
        return random.choice(replicas) if replicas else owner  # noqa: S311 - the same

    def _moved(self, slot: int, address: Address) -> None:
        if self._map is not None:
            self._map.owners[slot] = address
        self._look_soon()

    async def _slots(self) -> SlotMap:
        """The map; read now if there is none yet."""
        if self._map is None:
            looking = self._look_soon()
            failure = await asyncio.shield(looking) if looking else None
            if failure is not None:
                raise failure
        if self._map is None:
            raise ConfigurationError("this deployment is closed: call connect() again")
        return self._map

    def _look_soon(self) -> asyncio.Task[Exception | None] | None:
        """Read the map anew in the background: one reading at a time, whoever asks for it."""
        if self._closed:
            return None
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return self._looking

    async def _look(self) -> Exception | None:
        """Read the map from the first node that tells it; return why none did."""
        known = [] if self._map is None else self._map.nodes()
        random.shuffle(known)
        known.sort(key=self._doubted.__contains__)  # who did not answer is asked last
        failure: Exception = driver.ClusterDownError("no node knows who serves the slots")
        for address in [*known, *self._seeds]:
            try:
                async with asyncio.timeout(LOOK):
                    (reply,) = await exchange_all(self._node(address), [("CLUSTER", "SLOTS")])
            except (driver.RedisError, OSError, ConfigurationError) as error:
                failure = error
                continue
            if reply:
                self._map = read_slots(reply, address[0])
                self._doubted.clear()
                await self._forget()
                return None
        return failure

    async def _forget(self) -> None:
        """Close the connections to nodes that are gone; those with a call under way the next time."""
        assert self._map is not None  # noqa: S101 - just read
        there = {*self._seeds, *self._map.nodes()}
        gone = [self._nodes.pop(address) for address in set(self._nodes) - there if self._nodes[address].idle]
        for wire in gone:
            await wire.close()
