"""Working memory for AI agents that many workers share, native to Redis."""

from symfonic_redis.connection import Deployment, connect
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
from symfonic_redis.scope import ScopeLevel, ScopeLike, TenantScope, parse_scope

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "CodecError",
    "ConfigurationError",
    "Deployment",
    "Durability",
    "Health",
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
    "PushReceipt",
    "STMSummaryMode",
    "ScopeClosed",
    "ScopeLevel",
    "ScopeLike",
    "ServerRefused",
    "StreamGraphStore",
    "SymfonicRedisError",
    "TenantScope",
    "WorkingLayer",
    "coerce_durability",
    "connect",
    "health",
    "parse_scope",
]
