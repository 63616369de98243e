"""Working memory for AI agents that many workers share, native to Redis."""

from symfonic_redis.acl import acl_rules
from symfonic_redis.archive import Imported, export, import_
from symfonic_redis.changes import Change
from symfonic_redis.connection import connect
from symfonic_redis.conversation import ConversationSource, ConversationTurn, LegacyConversationSource
from symfonic_redis.deployment import Deployment
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
    KeyringMismatch,
    MemoryUnavailable,
    NodeNotFound,
    NotReplicated,
    OutOfMemory,
    PersistenceFailed,
    ScopeClosed,
    ServerRefused,
    SymfonicRedisError,
)
from symfonic_redis.evicted import EvictedTurns, EvictedWorkingSource, RedisEvictedSource, WorkingMemory
from symfonic_redis.feed import latest_cursor, watch
from symfonic_redis.graph import StreamGraphStore
from symfonic_redis.health import Health, health
from symfonic_redis.hydration import Hydration, hydrate
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
from symfonic_redis.records import (
    ExtractionRequest,
    ExtractionResult,
    FlushReceipt,
    MemoryExtractionPort,
    MemoryLifecyclePort,
    MemoryRecord,
    MemoryWritePort,
    WriteReceipt,
    WriteRequest,
)
from symfonic_redis.relay import Relay
from symfonic_redis.results import ResolvedInput, StageResult, applied, no_change
from symfonic_redis.scope import ScopeLevel, ScopeLike, TenantScope, parse_scope
from symfonic_redis.sealing import Keyring
from symfonic_redis.stages import consolidation_handler, lifecycle_handler, write_handler
from symfonic_redis.staging import RedisMemoryLifecycle, RedisMemoryWriter
from symfonic_redis.standby import StandbyLayer
from symfonic_redis.summarize import STMSummary, summarize_entries
from symfonic_redis.summary_cache import SharedSummaryCache
from symfonic_redis.summary_service import (
    STMSummaryPort,
    STMSummaryRequest,
    STMSummaryResult,
    WorkingMemorySummaryService,
    validate_summary,
)
from symfonic_redis.tenancy import ScopeEntry, ScopePage, Totals, scopes, totals
from symfonic_redis.window import WindowBlock, WorkingWindow

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "Change",
    "CodecError",
    "ConfigurationError",
    "ConversationSource",
    "ConversationTurn",
    "Deployment",
    "Durability",
    "EvictedTurns",
    "EvictedWorkingSource",
    "ExtractionRequest",
    "ExtractionResult",
    "FlushReceipt",
    "Health",
    "Hydration",
    "Imported",
    "InvalidInput",
    "KeyConflict",
    "Keyring",
    "KeyringMismatch",
    "LegacyConversationSource",
    "MemoryEntry",
    "MemoryExtractionPort",
    "MemoryLayer",
    "MemoryLifecyclePort",
    "MemoryNode",
    "MemoryRecord",
    "MemoryUnavailable",
    "MemoryWritePort",
    "MultiScopeIgnoredWarning",
    "NodeNotFound",
    "NotReplicated",
    "OutOfMemory",
    "PersistenceFailed",
    "Purged",
    "PushReceipt",
    "RedisEvictedSource",
    "RedisMemoryLifecycle",
    "RedisMemoryWriter",
    "Relay",
    "RelayStatus",
    "ResolvedInput",
    "STMSummary",
    "STMSummaryMode",
    "STMSummaryPort",
    "STMSummaryRequest",
    "STMSummaryResult",
    "ScopeClosed",
    "ScopeEntry",
    "ScopeLevel",
    "ScopeLike",
    "ScopePage",
    "ServerRefused",
    "SharedSummaryCache",
    "StageResult",
    "StandbyLayer",
    "StreamGraphStore",
    "SymfonicRedisError",
    "TenantProgress",
    "TenantScope",
    "Totals",
    "WindowBlock",
    "WorkingLayer",
    "WorkingMemory",
    "WorkingMemorySummaryService",
    "WorkingWindow",
    "WriteReceipt",
    "WriteRequest",
    "acl_rules",
    "applied",
    "coerce_durability",
    "connect",
    "consolidation_handler",
    "export",
    "health",
    "hydrate",
    "import_",
    "latest_cursor",
    "lifecycle_handler",
    "no_change",
    "parse_scope",
    "purge",
    "purge_tenant",
    "purge_tree",
    "relay_status",
    "reopen",
    "reopen_tenant",
    "reopen_tree",
    "scopes",
    "summarize_entries",
    "totals",
    "validate_summary",
    "watch",
    "write_handler",
]
