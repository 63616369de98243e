"""Working memory for AI agents that many workers share, native to Redis."""

from symfonic_redis.archive import Imported, export, import_
from symfonic_redis.changes import Change
from symfonic_redis.connection import Deployment, connect
from symfonic_redis.erasure import (
    Purged,
    purge,
    purge_tenant,
    purge_tree,
    reopen,
    reopen_tenant,
    reopen_tree,
)
from symfonic_redis.errors import (
    AccessDenied,
    CodecError,
    ConfigurationError,
    InvalidInput,
    KeyConflict,
    MemoryUnavailable,
    NodeNotFound,
    OutOfMemory,
    PersistenceFailed,
    ScopeClosed,
    ServerRefused,
    SymfonicRedisError,
)
from symfonic_redis.feed import latest_cursor, watch
from symfonic_redis.graph import StreamGraphStore
from symfonic_redis.health import Health, health
from symfonic_redis.layer import WorkingLayer
from symfonic_redis.models import (
    Durability,
    MemoryEntry,
    MemoryLayer,
    MemoryNode,
    MultiScopeIgnoredWarning,
    PushReceipt,
    STMSummaryMode,
    coerce_durability,
)
from symfonic_redis.progress import RelayStatus, TenantProgress, relay_status
from symfonic_redis.relay import Relay
from symfonic_redis.scope import ScopeLevel, ScopeLike, TenantScope, parse_scope
from symfonic_redis.tenancy import ScopeEntry, ScopePage, Totals, scopes, totals

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "Change",
    "CodecError",
    "ConfigurationError",
    "Deployment",
    "Durability",
    "Health",
    "Imported",
    "InvalidInput",
    "KeyConflict",
    "MemoryEntry",
    "MemoryLayer",
    "MemoryNode",
    "MemoryUnavailable",
    "MultiScopeIgnoredWarning",
    "NodeNotFound",
    "OutOfMemory",
    "PersistenceFailed",
    "Purged",
    "PushReceipt",
    "Relay",
    "RelayStatus",
    "STMSummaryMode",
    "ScopeClosed",
    "ScopeEntry",
    "ScopeLevel",
    "ScopeLike",
    "ScopePage",
    "ServerRefused",
    "StreamGraphStore",
    "SymfonicRedisError",
    "TenantProgress",
    "TenantScope",
    "Totals",
    "WorkingLayer",
    "coerce_durability",
    "connect",
    "export",
    "health",
    "import_",
    "latest_cursor",
    "parse_scope",
    "purge",
    "purge_tenant",
    "purge_tree",
    "relay_status",
    "reopen",
    "reopen_tenant",
    "reopen_tree",
    "scopes",
    "totals",
    "watch",
]
