"""What can go wrong, one class for each thing a caller may want to handle apart.

::

    SymfonicRedisError
    ├── ConfigurationError      the deployment or a constructor's argument is wrong: fix it, no retry helps
    ├── MemoryUnavailable       the server could not be reached within the deadline: try later, or degrade
    ├── NotReplicated           the write IS stored on the master, and too few replicas are known to have it
    ├── InvalidInput            (also a ValueError) a scope, entry or option is refused: nothing was written
    ├── ScopeClosed             the scope was purged: a late writer cannot bring it back
    ├── NodeNotFound            (also a KeyError) the node to change is not there
    ├── CodecError              a stored row cannot be read: damaged, or written by a newer version
    ├── KeyConflict             a key of ours holds another type: something else writes under our prefix
    └── ServerRefused           the server answers, but will not do this
        ├── OutOfMemory         it is at `maxmemory` and evicts nothing
        ├── PersistenceFailed   it cannot write its snapshot or AOF, so it refuses writes
        └── AccessDenied        the ACL user may not run this command or touch this key (on Redis 6.2, which cannot be
                                asked beforehand, a write may then have been applied in part)

Every message is one sentence that says what to do, and holds neither credentials nor content.
"""

from __future__ import annotations


class SymfonicRedisError(Exception):
    """The root of everything this package raises on purpose."""


class ConfigurationError(SymfonicRedisError):
    """The deployment or a constructor's argument is wrong; no retry helps."""


class MemoryUnavailable(SymfonicRedisError):  # noqa: N818 - the reference system's public name
    """The server could not be reached, or would not take the call, until the deadline."""


class NotReplicated(SymfonicRedisError):  # noqa: N818 - names the condition
    """The write is stored on the master, and fewer replicas than asked for are known to have it.

    Attributes:
        replicas: how many acknowledged it.
    """

    def __init__(self, message: str, replicas: int = 0) -> None:
        super().__init__(message)
        self.replicas = replicas


class InvalidInput(SymfonicRedisError, ValueError):  # noqa: N818 - reads as what it is; it is a ValueError too
    """A scope, an entry or an option is refused; nothing was written."""


class ScopeClosed(SymfonicRedisError):  # noqa: N818 - names the condition
    """The scope was purged and is closed to writes for a while; nothing was written."""


class NodeNotFound(SymfonicRedisError, KeyError):  # noqa: N818 - names the condition, as KeyError does
    """The node to change is not there: deleted, trimmed, or another scope's; nothing was written."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would show it in quotes


class CodecError(SymfonicRedisError):
    """A stored row cannot be read: it is damaged, or a newer version wrote it."""


class KeyConflict(SymfonicRedisError):  # noqa: N818 - names the condition, as the driver's own errors do
    """A key of ours holds another type; nothing was written."""


class ServerRefused(SymfonicRedisError):  # noqa: N818 - names the condition
    """The server answers but will not do this; a retry would get the same answer."""


class OutOfMemory(ServerRefused):
    """The server is at `maxmemory` and evicts nothing."""


class PersistenceFailed(ServerRefused):
    """The server cannot write its snapshot or AOF and therefore refuses writes."""


class AccessDenied(ServerRefused):
    """The ACL user may not run the command or touch the key."""
