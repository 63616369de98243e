"""The turns that fell out of the window: what a summary is made of. And window and evicted turns in one read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

from symfonic_redis.errors import ConfigurationError
from symfonic_redis.keys import scope_keys
from symfonic_redis.layer import WorkingLayer
from symfonic_redis.models import MemoryEntry
from symfonic_redis.scope import ScopeLike


@runtime_checkable
class EvictedWorkingSource(Protocol):
    """Anything that can tell which turns of a scope the working window has let go."""

    async def evicted(self, scope: ScopeLike) -> Sequence[Any]:
        """The turns of exactly this scope that fell out of its window, oldest first: objects with `content`."""
        ...


class EvictedTurns(tuple[MemoryEntry, ...]):  # noqa: SLOT001 - a tuple with a field: CPython allows no slots for it
    """Evicted turns, oldest first, as a tuple.

    Attributes:
        older_gone: there were still older ones, and they are gone for good: the layer keeps no more.
    """

    older_gone: bool

    def __new__(cls, turns: Iterable[MemoryEntry] = (), *, older_gone: bool = False) -> Self:
        """Make the tuple and note whether something is missing ahead of it."""
        made = super().__new__(cls, turns)
        made.older_gone = older_gone
        return made


class WorkingMemory(NamedTuple):
    """Window and evicted turns of a scope as they were at one moment: no turn is missing between, none is in both.

    Attributes:
        window: the entries of the window, oldest first.
        evicted: the turns before them.
    """

    window: tuple[MemoryEntry, ...]
    evicted: EvictedTurns


class RedisEvictedSource:
    """The evicted turns of a layer, the same from every worker: the part of its list behind the window.

    How many turns the window has and how many are kept behind it is taken from the layer.

    Args:
        layer: our `WorkingLayer`.

    Raises:
        ConfigurationError: it is another layer, which cannot tell what it let go, or one that keeps nothing evicted.
    """

    def __init__(self, layer: WorkingLayer) -> None:
        given: object = layer  # an untyped caller may pass anything
        if not isinstance(given, WorkingLayer):
            raise ConfigurationError(
                f"a {type(given).__name__} keeps no evicted turns: pass a symfonic_redis.WorkingLayer"
            )
        if not layer.bounds.evicted:
            raise ConfigurationError("the layer keeps no evicted turns: give it an evicted_retention of at least 1")
        self._layer = layer

    async def evicted(self, scope: ScopeLike) -> EvictedTurns:
        """The turns of exactly this scope that fell out of the window and are still kept, oldest first.

        Read apart from the window, the two may be a push apart; `read` has both of one moment. A damaged row is
        skipped, counted and logged once, unless the layer is strict.

        After `evicted_retention` was raised, `older_gone` is true again only when the new cap is reached.

        Cost: one round trip, one LRANGE.

        Raises:
            InvalidInput: the scope is malformed.
            MemoryUnavailable: the server was not reached within the deadline.
            CodecError: a row is damaged and the layer is strict.
        """
        return (await self._read("evicted", scope, self._layer.bounds.window)).evicted

    async def read(self, scope: ScopeLike) -> WorkingMemory:
        """Window and evicted turns of exactly this scope at one moment. Cost and errors as `evicted`."""
        return await self._read("read", scope, 0)

    async def _read(self, operation: str, scope: ScopeLike, first: int) -> WorkingMemory:
        """The rows of the list from `first`, the newest being 0, as far as the layer's bounds go."""
        layer, store = self._layer, self._layer.store
        keys = scope_keys(layer.deployment.prefix, scope)
        window, end = layer.bounds.window, layer.bounds.window + layer.bounds.evicted
        # One row more than is kept: that it is there says that older ones are gone.
        rows = await store.read(operation, keys.turns, "LRANGE", keys.turns, first, end)
        return WorkingMemory(
            window=tuple(store.entries(keys, rows[: max(0, window - first)], first)),
            evicted=EvictedTurns(
                store.entries(keys, rows[max(0, window - first) : end - first], max(first, window)),
                older_gone=len(rows) > end - first,
            ),
        )
