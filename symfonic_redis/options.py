"""What may be chosen about a deployment, and in which range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

from symfonic_redis.errors import ConfigurationError
from symfonic_redis.sealing import Keyring

DEADLINE = 15.0
"""Seconds a call may take, retries included. Failovers took 2 to 9 s when measured."""

ATTEMPT_TIMEOUT = 5.0
"""Seconds one attempt may take before the next is made on another connection."""

MAX_CONNECTIONS = 50
"""Connections of a pool; calls beyond them wait for one. The driver's default pool raises instead."""

MAX_ROW_BYTES = 1 << 20
"""The longest encoded row, 1 MiB."""

TRACK_WINDOWS = 10_000
"""Windows that are tracked, unless said otherwise."""

MOST_WINDOWS = 10_000_000

TRACK_BYTES = 64 << 20
"""What they may take, 64 MiB."""

LONGEST = 86_400.0
"""The longest deadline and attempt, in seconds."""


class Options(TypedDict, total=False):
    """What may be chosen about a deployment; the defaults are in parentheses.

    Attributes:
        prefix: starts every key ("swm").
        deadline: seconds a call may take, retries included (15).
        attempt_timeout: seconds one attempt may take (5).
        max_connections: the most connections to one server, beside the one that calls share; beyond them calls wait
            (50). A client that was passed has its own.
        max_row_bytes: the longest encoded row (1 MiB).
        feed: changes kept for each partition of each tenant, for `watch` and `relay`; None for no feed (None). All
            workers of a deployment must choose the same.
        encryption: the keys that seal and open all rows, see docs/encryption.md; None for plain rows (None).
        min_replicas: replicas that must have a write before it counts, else `NotReplicated` (0). It covers what
            carries an operation id: every write of memory, not the books of a relay.
        read_from: "replica" lets a replica answer reads of a scope's window and nodes, on a cluster or behind
            sentinels; they may be behind by what the replica is ("master").
        coalesce: calls that are made at once travel together: pushes as batches, and everything that is short over one
            connection, unless a client was passed (True). See docs/performance.md.
        track_windows: how many windows are kept in this process, and read without a round trip while the server says
            that they are unchanged; True for 10,000, see docs/tracking.md (False).
        track_bytes: what these may take, about (64 MiB).
    """

    prefix: str
    deadline: float
    attempt_timeout: float
    max_connections: int
    max_row_bytes: int
    feed: int | None
    encryption: Keyring | None
    min_replicas: int
    read_from: Literal["master", "replica"]
    coalesce: bool
    track_windows: int | bool
    track_bytes: int


_SECONDS = {"deadline": LONGEST, "attempt_timeout": LONGEST}
_COUNTS: dict[str, float] = {
    "max_connections": 65_536,
    "max_row_bytes": 512 << 20,
    "feed": 100_000_000,
    "min_replicas": 100,
    "track_bytes": 1 << 40,
}


def check_options(options: Mapping[str, object]) -> None:
    """Refuse options that are unknown or out of range.

    Raises:
        TypeError: a name is unknown, as for any function.
        ConfigurationError: a value is of the wrong type or out of range.
    """
    unknown = set(options) - set(Options.__annotations__)
    if unknown:
        raise TypeError(f"connect() has no option {min(unknown)!r}; it has {', '.join(Options.__annotations__)}")
    for name, value in options.items():
        most = _SECONDS.get(name)
        if most and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most):
            raise ConfigurationError(f"{name} must be a positive number of seconds, at most {most:g}: correct it")
        most = None if value is None and name == "feed" else _COUNTS.get(name)
        least = 0 if name == "min_replicas" else 1
        if most and (isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most):
            raise ConfigurationError(f"{name} must be a whole number from {least} to {most:.0f}: correct it")
    if options.get("read_from", "master") not in ("master", "replica"):
        raise ConfigurationError('read_from must be "master" or "replica": correct it')
    if not isinstance(options.get("coalesce", True), bool):
        raise ConfigurationError("coalesce must be True or False: correct it")
    tracked = options.get("track_windows", False)
    if not isinstance(tracked, int) or not 0 <= tracked <= MOST_WINDOWS:
        raise ConfigurationError(f"track_windows must be True, False, or a number up to {MOST_WINDOWS}: correct it")
    if tracked and options.get("read_from") == "replica":
        raise ConfigurationError('track_windows and read_from="replica" exclude each other: leave one of them out')
    encryption = options.get("encryption")
    if encryption is not None and not isinstance(encryption, Keyring):
        raise ConfigurationError("encryption must be a Keyring: pass Keyring({id: key}, current=id)")
