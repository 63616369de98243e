"""Graph backends that stand for a user's own in the relay's tests."""

from __future__ import annotations

import os
import sqlite3

from symfonic_redis.scope import format_scope


class SqliteTarget:
    """A backend in a file that several processes share: a node a row, its id the primary key, inserted or refused.

    `arrivals` holds every call of add_node in the order in which it came, repeated ones too.
    """

    def __init__(self, path: str) -> None:
        self.db = sqlite3.connect(path, timeout=60, isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=OFF")
        self.db.execute("CREATE TABLE IF NOT EXISTS nodes (id TEXT PRIMARY KEY, scope TEXT, turn TEXT)")
        self.db.execute("CREATE TABLE IF NOT EXISTS arrivals (number INTEGER PRIMARY KEY, id TEXT, scope TEXT)")

    async def add_node(self, scope, node):
        # As an insert-only backend does: a second row of an id is an error.
        values = (node.id, format_scope(scope), node.properties["turn_id"])
        self.db.execute("INSERT INTO arrivals (id, scope) VALUES (?, ?)", values[:2])
        self.db.execute("INSERT INTO nodes VALUES (?, ?, ?)", values)
        return node

    async def get_node(self, scope, node_id):
        return self.db.execute("SELECT id FROM nodes WHERE id = ?", (node_id,)).fetchone()


def sqlite_target() -> SqliteTarget:
    """For the command line, which takes a factory's import path."""
    return SqliteTarget(os.environ["TARGET_FILE"])


class ListTarget:
    """Remembers what it was asked, in order; fails where it is told to."""

    def __init__(self, fails=None) -> None:
        self.calls = []
        self.fails = fails or (lambda turn: False)

    @property
    def turns(self):
        return [turn for _, turn in self.calls]

    async def add_node(self, scope, node):
        turn = node.properties["turn_id"]
        if self.fails(turn):
            raise ConnectionResetError("the content of a turn: 4111 1111 1111 1111")
        self.calls.append((scope.scope_path, turn))
        return node
