"""Every key name of the package, built in this one place.

::

    <prefix>:config                                  string   schema version and partitions of the deployment
    <prefix>:{0042}:<tenant>:<path>:turns            list     window and evicted turns, newest at the head
    <prefix>:{0042}:<tenant>:<path>:ops              hash     operation id -> receipt, this generation
    <prefix>:{0042}:<tenant>:<path>:ops:old          hash     the generation before
    <prefix>:{0042}:<tenant>:<path>:idem             zset     digest of an idempotency key, scored by its expiry in ms
    <prefix>:{0042}:<tenant>:<path>:graph:<layer>    stream   the mirror of one layer
    <prefix>:{0042}:<tenant>:<path>:graph:<layer>:edits  hash what was changed of its nodes, see lua/edits.lua
    <prefix>:{0042}:<tenant>:<path>:staged           list     records that wait to be published
    <prefix>:{0042}:<tenant>:<path>:meta             hash     what is noted of the scope
    <prefix>:{0042}:<tenant>:<path>:summary          hash     the shared summary (ADR-005), see lua/summary_claim.lua
    <prefix>:{0042}:<tenant>:<path>:import           string   id of the import that runs; what it has so far stands
                                                              below, as import:turns and so on, see lua/import_begin.lua
    <prefix>:{0042}:<tenant>:scopes                  zset     encoded paths, scored by when the scope is gone
    <prefix>:{0042}:<tenant>:closed                  hash     tombstones -> until when, see lua/closed.lua
    <prefix>:{0042}:<tenant>:ops, ops:old            hash     operation ids of closing and reopening
    <prefix>:{0042}:<tenant>:feed                    stream   changes of this partition's scopes
    <prefix>:{0042}:<tenant>:feed:seq                string   the feed's counter
    <prefix>:{0042}:<tenant>:relay                   hash     what the relays have copied, see lua/relay_read.lua
    <prefix>:{0042}:<tenant>:dead                    stream   changes that no retry brought into a relay's target
    <prefix>:{0042}:tenants                          set      encoded tenants with a scope in this partition
    <prefix>:{0042}:lease@<relay>                    string   who serves this partition's feeds now
    <prefix>:{0042}:lease@<relay>:token              string   counts the leases that were ever taken
    <prefix>:{0042}:feeds@<relay>                    set      encoded tenants whose feeds the relay has read
    <prefix>:{0042}:relays                           set      names of the relays that have read a feed here

`{0042}` is the partition: CRC32 of the scope path modulo 1,024, as the hash tag. All keys of a scope share a slot,
so one script handles them atomically on Redis Cluster, and a tenant's conversations still spread over every shard
(ADR-001). Ids are percent-encoded, so no id, whatever it holds, reaches another scope's key or another slot.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from urllib.parse import quote, unquote
from zlib import crc32

from symfonic_redis.errors import ConfigurationError
from symfonic_redis.models import MemoryLayer
from symfonic_redis.resp import Packed
from symfonic_redis.scope import SCOPE_PATH_DELIMITER, ScopeLike, scope_address

PARTITIONS = 1024
"""How many hash tags a deployment spreads over. Changing it would move every scope: it is checked at connect."""

_TYPES = {
    "turns": "list",
    "ops": "hash",
    "old": "hash",
    "idem": "zset",
    "edits": "hash",
    "scopes": "zset",
    "closed": "hash",
    "tenants": "set",
    "relays": "set",
    "seq": "string",
    "staged": "list",
    "meta": "hash",
    "summary": "hash",
    "import": "string",
    "relay": "hash",
}

_PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")


def check_prefix(prefix: str) -> str:
    """Return `prefix` if it may start every key; it must not hold a brace, a glob or a space.

    Raises:
        ConfigurationError: it is empty, longer than 64, or holds anything but letters, digits, `.`, `_`, `:`, `-`.
    """
    given: object = prefix  # an untyped caller may pass anything
    if not isinstance(given, str) or not _PREFIX.fullmatch(given):
        raise ConfigurationError("prefix must be 1 to 64 letters, digits, '.', '_', ':' or '-': choose another")
    return prefix


@lru_cache(maxsize=4_096)
def encode_id(value: str) -> str:
    """Percent-encode an id, so that it holds only letters, digits, `_`, `.`, `-`, `~` and `%XX`; one-to-one."""
    return quote(value, safe="", errors="surrogatepass")


def config_key(prefix: str) -> str:
    """The key of the deployment's configuration."""
    return f"{prefix}:config"


def partition_of(scope_path: str) -> int:
    """The partition of a scope path, 0 to 1,023."""
    return crc32(scope_path.encode("utf-8", "surrogatepass")) % PARTITIONS


def decode_id(value: str) -> str:
    """The inverse of `encode_id`."""
    return unquote(value, errors="surrogatepass")


def encode_path(scope_path: str) -> str:
    """A scope path as keys hold it: kinds and ids, each percent-encoded, joined by `/`."""
    return "/".join(encode_id(part) for part in scope_path.split(SCOPE_PATH_DELIMITER))


def decode_path(value: str) -> str:
    """The inverse of `encode_path`."""
    return SCOPE_PATH_DELIMITER.join(decode_id(part) for part in value.split("/"))


def is_encoded(name: str) -> bool:
    """Whether a member of an index is what `encode_id` or `encode_path` wrote, not something else's."""
    try:
        return bool(name) and encode_path(decode_path(name)) == name
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class TenantKeys:
    """The keys that a tenant has in one partition, whatever the scope."""

    closed: str
    scopes: str
    tenants: str
    feed: str
    feed_seq: str
    ops: str
    ops_old: str
    relay: str
    dead: str


@lru_cache(maxsize=4_096)
def tenant_keys(prefix: str, tenant: str, partition: int) -> TenantKeys:
    """The keys of `tenant`, as it is, in `partition`."""
    shard = f"{prefix}:{{{partition:04d}}}"
    base = f"{shard}:{encode_id(tenant)}"
    return TenantKeys(
        closed=f"{base}:closed",
        scopes=f"{base}:scopes",
        tenants=tenants_key(prefix, partition),
        feed=f"{base}:feed",
        feed_seq=f"{base}:feed:seq",
        ops=f"{base}:ops",
        ops_old=f"{base}:ops:old",
        relay=f"{base}:relay",
        dead=f"{base}:dead",
    )


def tenants_key(prefix: str, partition: int) -> str:
    """The set of encoded tenants of a partition."""
    return f"{prefix}:{{{partition:04d}}}:tenants"


def lease_key(prefix: str, partition: int, relay: str) -> str:
    """Who serves a partition for the relay of that name. No encoded tenant holds an `@`, so none shares the key."""
    return f"{prefix}:{{{partition:04d}}}:lease@{relay}"


def feeds_key(prefix: str, partition: int, relay: str) -> str:
    """The set of encoded tenants whose feeds of a partition the relay of that name has read."""
    return f"{prefix}:{{{partition:04d}}}:feeds@{relay}"


def relays_key(prefix: str, partition: int) -> str:
    """The set of names of the relays that have read a feed of a partition: a purge must find what they have noted."""
    return f"{prefix}:{{{partition:04d}}}:relays"


@dataclass(frozen=True, slots=True)
class ScopeKeys:
    """The keys of one scope. `digest` (16 hex digits) marks the scope in the ids of its nodes.

    `packed` holds what has been packed of them, by a name; it goes when they leave the cache.
    """

    tenant: str
    path: str
    partition: int
    shared: TenantKeys
    base: str
    digest: str
    turns: str
    ops: str
    ops_old: str
    idem: str
    packed: dict[object, Packed] = field(default_factory=dict, compare=False, repr=False)

    @property
    def identity(self) -> str:
        """What no other scope has, whatever the prefix: tenant and path, encoded."""
        return f"{encode_id(self.tenant)}:{self.path}"

    def graph(self, layer: str) -> str:
        """The stream that mirrors one layer of this scope."""
        return f"{self.base}:graph:{layer}"

    def edits(self, layer: str) -> str:
        """The hash of what was changed of that layer's nodes."""
        return f"{self.base}:graph:{layer}:edits"

    @property
    def staged(self) -> str:
        """The list of records that wait to be published."""
        return f"{self.base}:staged"

    @property
    def meta(self) -> str:
        """The hash of what is noted of the scope."""
        return f"{self.base}:meta"

    @property
    def summary(self) -> str:
        """The hash of the summary that all workers share, and of who writes the next."""
        return f"{self.base}:summary"

    @property
    def importing(self) -> str:
        """The id of the import that runs; what it has so far stands below."""
        return f"{self.base}:import"

    def beside(self, key: str) -> str:
        """Where an import puts together what will be `key` of this scope."""
        return f"{self.importing}{key.removeprefix(self.base)}"

    @property
    def filed(self) -> list[str]:
        """The keys that an archive fills: the turns, each layer's nodes, and then the edits of each layer."""
        streams = [self.graph(layer) for layer in MemoryLayer]
        return [self.turns, *streams, *(self.edits(layer) for layer in MemoryLayer)]

    @property
    def content(self) -> list[str]:
        """The keys that hold what was remembered: a scope is there as long as one of them is."""
        return [*self.filed, self.staged, self.meta]

    @property
    def everything(self) -> list[str]:
        """Every key that the scope may have, but its operation ids."""
        return [*self.content, self.idem, self.summary, self.importing, *map(self.beside, self.filed)]

    @staticmethod
    def type_of(key: str) -> str:
        """The Redis type that a scope's key must hold, by its name."""
        return _TYPES.get(key.rpartition(":")[2], "stream")


@lru_cache(maxsize=4_096)
def _scope_keys(prefix: str, tenant: str, path: str) -> ScopeKeys:
    encoded_path = encode_path(path)
    partition = partition_of(path)
    base = f"{prefix}:{{{partition:04d}}}:{encode_id(tenant)}:{encoded_path}"
    identity = f"{encode_id(tenant)}:{encoded_path}".encode()
    return ScopeKeys(
        tenant=tenant,
        path=encoded_path,
        partition=partition,
        shared=tenant_keys(prefix, tenant, partition),
        base=base,
        digest=blake2b(identity, digest_size=8).hexdigest(),
        turns=f"{base}:turns",
        ops=f"{base}:ops",
        ops_old=f"{base}:ops:old",
        idem=f"{base}:idem",
    )


def scope_keys(prefix: str, scope: ScopeLike) -> ScopeKeys:
    """The keys of `scope` under `prefix`, from a bounded cache.

    Raises:
        InvalidInput: the scope is malformed; see `scope_address`.
    """
    return _scope_keys(prefix, *scope_address(scope))


def indexed_keys(prefix: str, tenant: str, encoded_path: str) -> ScopeKeys:
    """The keys of a scope as the index names it. Not cached: a walk over an index would push out what is in use."""
    return _scope_keys.__wrapped__(prefix, tenant, decode_path(encoded_path))
