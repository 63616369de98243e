"""The calls of exporting and importing a scope. An import is put together beside the scope and moved in whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from symfonic_redis.archive_lines import Entry, Row
from symfonic_redis.errors import InvalidInput
from symfonic_redis.keys import ScopeKeys
from symfonic_redis.models import MemoryLayer
from symfonic_redis.store import Store

PATIENCE = 3_600_000
"""Milliseconds that an import may take. One that ends half-way is gone after that, at the latest."""

TOLERANCE = 86_400_000
"""Milliseconds by which an archive's times may lie ahead of the server's: its clock may be behind another's."""

_TAKEN = 5
"""The state in which a script reports that the scope holds something."""

_GIVEN_UP = 6
"""The state in which a script reports that the import may not go on."""

_LAYERS = len(MemoryLayer)


class ArchiveStore(Store):
    """Reads a scope as it is stored, and writes it as it was."""

    async def rows(self, keys: ScopeKeys) -> list[bytes]:
        """Every turn of the list, encoded, oldest first, from one moment. One LRANGE."""
        rows: list[bytes] = await self.read("export", keys.turns, "LRANGE", keys.turns, 0, -1)
        return rows[::-1]

    async def ttls(self, keys: ScopeKeys) -> dict[str, int]:
        """The milliseconds that keys have left, by their names within the scope, of those that expire."""
        names = keys.filed[: 1 + _LAYERS]
        left = await self.deployment.call_many("export", [("PTTL", name) for name in names])
        return {name.removeprefix(f"{keys.base}:"): ms for name, ms in zip(names, left, strict=True) if ms >= 0}

    async def latest(self) -> int:
        """The latest time that what is imported may have, in ms since the epoch. One TIME."""
        seconds, _ = await self.deployment.call("import", "TIME")
        return int(seconds) * 1000 + TOLERANCE

    async def begin(self, keys: ScopeKeys, import_id: str) -> None:
        """Open a place beside an empty scope. See lua/import_begin.lua."""
        turns, *streams = keys.filed[: 1 + _LAYERS]
        names = [keys.importing, turns, keys.staged, *streams, *map(keys.beside, keys.filed)]
        await self._step("import_begin", keys, names, [import_id, _LAYERS, PATIENCE])

    async def add(self, keys: ScopeKeys, import_id: str, records: Sequence[Row | Entry]) -> None:
        """Add turns, or nodes of one layer, oldest first. See lua/import_rows.lua and lua/import_nodes.lua."""
        first = records[0]
        args: list[str | bytes | int] = [import_id]
        if isinstance(first, Row):
            args += [record.row for record in records if isinstance(record, Row)]
            await self._step("import_rows", keys, [keys.importing, keys.beside(keys.turns)], args)
            return
        names = [keys.importing, keys.beside(keys.graph(first.layer)), keys.beside(keys.edits(first.layer))]
        for record in records:
            if isinstance(record, Entry):
                args += [record.at, 2 * len(record.fields)]
                args += [part for pair in record.fields.items() for part in pair]
                args.append(2 * len(record.edits))
                args += [part for change in record.edits.items() for part in change]
        await self._step("import_nodes", keys, names, args)

    async def commit(  # noqa: PLR0917 - what there is to compare, and for how long it is kept
        self, keys: ScopeKeys, import_id: str, rows: int, nodes: int, ttl: int | None, mirror_ttl: int | None
    ) -> None:
        """Move what was put together into its place, whole. See lua/import_commit.lua."""
        turns, *rest = keys.filed
        names = [keys.importing, turns, keys.staged, *rest, *map(keys.beside, keys.filed)]
        kept = ["" if ms is None else ms for ms in (ttl, mirror_ttl)]
        await self._step("import_commit", keys, names, [import_id, _LAYERS, rows, nodes, *kept])

    async def _step(self, name: str, keys: ScopeKeys, names: Sequence[str], args: Sequence[str | bytes | int]) -> None:
        state = (await self._write(name, keys, names, args))[0]
        if state in (_TAKEN, _GIVEN_UP):
            _refuse(state)


def _refuse(state: int) -> NoReturn:
    if state == _TAKEN:
        raise InvalidInput("the scope is not empty: clear or purge it, or import into another; nothing was imported")
    raise InvalidInput("another import into this scope began, or this one took over an hour: nothing was imported")
