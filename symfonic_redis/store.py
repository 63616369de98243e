"""The calls on a scope's memory, one script or command each. The only module that runs scripts."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from symfonic_redis import telemetry
from symfonic_redis.deployment import Deployment
from symfonic_redis.errors import AccessDenied, CodecError, InvalidInput, KeyConflict, KeyringMismatch, ScopeClosed
from symfonic_redis.evaluate import Call
from symfonic_redis.keys import ScopeKeys, encode_id
from symfonic_redis.limits import HARD_CAP, MAX_CHANGED, check_batch
from symfonic_redis.models import MemoryEntry
from symfonic_redis.retention import Bounds
from symfonic_redis.rows import decode_entry
from symfonic_redis.scripts import script
from symfonic_redis.sealing import PLAIN, Seal
from symfonic_redis.telemetry import Operation

MAX_COMPLAINTS = 10_000
"""Distinct warnings remembered as given; beyond them damage is only counted."""

_DENIED = 4
"""The state in which a write reports that the user may not run all of it; see lua/once.lua."""

_CLOSED = 3
"""The state in which a write reports that its scope is closed; see lua/closed.lua."""

_log = logging.getLogger(__name__)


class Store:
    """Reads and writes one deployment's scopes.

    Args:
        deployment: where.
        strict: raise `CodecError` for a damaged row instead of skipping it.
    """

    def __init__(self, deployment: Deployment, *, strict: bool = False) -> None:
        self.deployment = deployment
        self._strict = strict
        self._complained: set[str] = set()

    def seal(self, keys: ScopeKeys) -> Seal:
        """What seals and opens the rows of a scope: all that enters and leaves a store is sealed."""
        ring = self.deployment.encryption
        return Seal(ring, keys.identity) if ring else PLAIN

    async def rehydrate(self, keys: ScopeKeys, rows: Sequence[bytes], bounds: Bounds, *, only_if_empty: bool) -> int:
        """Append rows, oldest first, into an empty window or into any; return how many. See lua/rehydrate.lua."""
        check_batch(rows)
        args: list[str | bytes | int] = [bounds.rows, _text(bounds.ttl), int(only_if_empty), *rows]
        _, receipt = await self._write("rehydrate", keys, (keys.turns, keys.staged), args)
        return int(receipt)

    async def clear(self, keys: ScopeKeys, *, layer: str | None) -> None:
        """Empty window, evicted and staged turns, summary, and the mirror of `layer` when given. See lua/clear.lua."""
        name = layer or "working"
        names = (keys.turns, keys.graph(name), keys.edits(name), keys.staged, keys.summary)
        await self._write("clear", keys, names, [int(layer is not None)])

    async def add_node(self, keys: ScopeKeys, layer: str, payload: bytes, *, ttl: int | None) -> str:
        """Append an encoded node to the stream of `layer`; return its stream id. See lua/node_add.lua."""
        check_batch([payload])
        names = (keys.graph(layer), keys.edits(layer))
        _, receipt = await self._write("node_add", keys, names, [_text(ttl), layer, payload])
        return str(receipt.decode())

    def entries(self, keys: ScopeKeys, rows: Sequence[bytes], first: int = 0) -> list[MemoryEntry]:
        """Rows of the list, newest first, as entries, oldest first; `first` is the index of the newest one."""
        entries, seal = [], self.seal(keys)
        for index in range(len(rows) - 1, -1, -1):
            try:
                entries.append(decode_entry(rows[index], keys.tenant, seal=seal))
            except CodecError as error:
                self.damaged(keys.turns, first + index, error)
        return entries

    async def read(self, operation: str, key: str, *command: str | bytes | int, replica: bool = False) -> Any:
        """Send a command on one key that only reads; return the raw reply. `replica`: one may answer, if chosen so."""
        with Operation(operation, self.deployment.attributes):
            try:
                return await (self.deployment.call_replica if replica else self.deployment.call)(operation, *command)
            except KeyConflict as error:
                raise await self.name_conflict((key,), error) from error

    def damaged(self, key: str, index: int | str, error: CodecError) -> None:
        """Count and, once a key, log a row that cannot be read; raise instead when strict.

        A sealed row is also raised by a worker that has no keys at all: it could read nothing, and write in plain.
        """
        telemetry.rows_damaged.add(1, self.deployment.attributes)
        if self._strict or (self.deployment.encryption is None and isinstance(error, KeyringMismatch)):
            raise type(error)(f"row {index} of {key} cannot be read: {error}") from error
        self.complain(f"row:{key}", "row %s of %s cannot be read and is skipped: %s", index, key, error)

    async def update_node(self, keys: ScopeKeys, layer: str, at: str, changes: Mapping[str, bytes]) -> bool:
        """Change what is named of the node at a stream id; return whether it is there. See lua/node_update.lua.

        Raises:
            InvalidInput: more than 1,000 names of the node would be changed, or the changes are longer than a row.
        """
        size = sum(len(name) + len(value) for name, value in changes.items())
        if len(changes) > MAX_CHANGED or size > self.deployment.max_row_bytes:
            raise InvalidInput(f"a change holds {len(changes)} names of {size} bytes: change less, or add another node")
        args = [layer, at, *(part for change in changes.items() for part in change)]
        _, receipt = await self._write("node_update", keys, (keys.graph(layer), keys.edits(layer)), args)
        if int(receipt) < 0:
            raise InvalidInput(f"of a node at most {MAX_CHANGED} names can be changed: add another node")
        return bool(int(receipt))

    async def delete_node(self, keys: ScopeKeys, layer: str, at: str) -> None:
        """Remove the node at a stream id, if it is there. See lua/node_delete.lua."""
        await self._write("node_delete", keys, (keys.graph(layer), keys.edits(layer)), [layer, at])

    async def nodes(
        self,
        keys: ScopeKeys,
        layer: str,
        *,
        first: str = "-",
        last: str = "+",
        count: int,
        newest_first: bool = False,
        operation: str = "query_nodes",
        replica: bool = False,
    ) -> tuple[list[tuple[str, dict[bytes, bytes], dict[str, bytes]]], bool]:
        """A page of a layer's nodes: stream id, fields, and what was changed by name; and whether there may be more.

        A page has at most `count` nodes and ends after about 1 MiB. `replica`: one may answer. See lua/nodes.lua.
        """
        names = (keys.graph(layer), keys.edits(layer))
        args: list[str | bytes | int] = [first, last, count, int(newest_first)]
        with Operation(operation, self.deployment.attributes):
            try:
                found, edits, more = await self.deployment.run(operation, script("nodes"), names, args, replica=replica)
            except KeyConflict as error:
                raise await self.name_conflict(names, error) from error
        edits += [()] * (len(found) - len(edits))
        page = [
            (at.decode(), _pairs(fields), {name.decode(): value for name, value in _pairs(edited).items()})
            for (at, fields), edited in zip(found, edits, strict=True)
        ]
        return page, bool(more)

    async def _write(
        self, name: str, scope: ScopeKeys, own_keys: Sequence[str], own_args: Sequence[str | bytes | int]
    ) -> Any:
        keys, args = self._call_of(scope, own_keys, own_args, name)
        with Operation(name, self.deployment.attributes):
            try:
                reply = await self.deployment.run(name, script(name), keys, args)
            except KeyConflict as error:
                raise await self.name_conflict(keys, error) from error
            return self.accepted(name, reply)

    async def push_each(self, calls: Sequence[Call], deadline: float | None = None) -> list[Any]:
        """What lua/push.lua replies to each of `calls`, an error in its place; see `Deployment.run_each`."""
        return await self.deployment.run_each("push", script("push"), calls, deadline=deadline)

    def accepted(self, name: str, reply: Any) -> Any:
        """The reply of a write script, when it did what was asked.

        Raises:
            AccessDenied, ScopeClosed: it says that it did not.
        """
        self._admit(name, reply)
        if reply[0] == _CLOSED:
            raise ScopeClosed(
                f"{name} was refused: the scope was purged and is closed until {_time(int(reply[1]))}; reopen it "
                "if that is wrong"
            )
        return reply

    def _admit(self, name: str, reply: Any) -> None:
        """Note that the user may run a script, by its reply; raise `AccessDenied` when it says otherwise."""
        if reply[0] == _DENIED:
            raise AccessDenied(
                f"{name} was refused and nothing was written: the user on {self.deployment.endpoint} may not use "
                f"{reply[1].decode('utf-8', 'replace')}; extend its ACL rules"
            )
        self.deployment.permitted.add(name)

    def _call_of(
        self, scope: ScopeKeys, own_keys: Sequence[str], own_args: Sequence[str | bytes | int], name: str | None = None
    ) -> tuple[list[str], list[str | bytes | int]]:
        """Keys and arguments of a write: what once.lua, closed.lua and scope.lua take, then the script's own."""
        deployment, shared = self.deployment, scope.shared
        keys = [scope.ops, scope.ops_old, shared.closed, shared.scopes, shared.tenants, shared.feed, shared.feed_seq]
        keys += own_keys
        feed = deployment.feed
        args: list[str | bytes | int] = [*self.operation(name), scope.path, encode_id(scope.tenant)]
        args += ["", ""] if feed is None else [feed, feed * HARD_CAP]
        return keys, [*args, *own_args]

    def operation(self, name: str | None = None) -> tuple[bytes, int]:
        """The id of a write, and for how many milliseconds it is remembered; see lua/once.lua."""
        # Made once per call: every attempt carries the same id, and the server remembers it for two deadlines.
        keep = max(1, int(2000 * self.deployment.deadline))
        # Negative the first time of each kind: ask for the user's rights before anything is written.
        return os.urandom(16), -keep if name and name not in self.deployment.permitted else keep

    async def name_conflict(self, keys: Sequence[str], error: KeyConflict) -> KeyConflict:
        """The error of a key of the wrong type, with its name.

        The server does not say which it is: it is asked, now that something is wrong anyway.
        """
        kinds = await self.deployment.call_many("type", [("TYPE", key) for key in keys])
        for key, kind in zip(keys, kinds, strict=True):
            found, expected = kind.decode(), ScopeKeys.type_of(key)
            if found not in (expected, "none"):
                return KeyConflict(
                    f"nothing was written: the key {key} holds a {found} where a {expected} belongs, so something "
                    "else writes under our prefix; remove that key, or connect with another prefix"
                )
        return error

    def complain(self, about: str, message: str, *values: object) -> None:
        """Log a warning, once for each `about`."""
        if about not in self._complained and len(self._complained) < MAX_COMPLAINTS:
            self._complained.add(about)
            _log.warning(message, *values)


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def _text(value: int | None) -> str:
    return "" if value is None else str(value)
