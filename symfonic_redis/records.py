"""What the stages of a turn hand to whoever stores, publishes or extracts: records, requests, receipts.

A record says under which scope it belongs. Nothing here, and nothing that takes it, ever writes another scope over it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Protocol, Self

from symfonic_redis.errors import InvalidInput
from symfonic_redis.models import Durability, MemoryLayer, coerce_durability, turn_metadata
from symfonic_redis.scope import ScopeLike, scope_address

MAX_RECORD_ID_BYTES = 512
"""The longest id of a record, in UTF-8 bytes."""

HOMES: dict[str, MemoryLayer] = {**{layer.value: layer for layer in MemoryLayer}, "profile": MemoryLayer.SEMANTIC}
"""The layers that a record may name, and the one under which each is kept.

A profile is what is known for good about one user: it is kept as the semantic layer is, marked with its own name.
"""

_LEAST, _MOST = 1.0, 10.0


def _now() -> datetime:
    return datetime.now(UTC)


def _new_id() -> str:
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """One thing to remember, checked when it is made.

    Attributes:
        scope: whose memory; anything with `tenant_id` and `scope_path`.
        content: the text; not blank.
        layer: a `MemoryLayer`, its name, or `profile`. A `working` record becomes a turn of the window, any other a
            node of its layer; a profile is a node of the semantic layer whose property `record_layer` is `profile`.
        metadata: anything else, of the values that `MemoryEntry` takes. Of a turn, `speaker` and `turn_id`.
        id: the record's own; a random UUID unless given. A turn keeps it as its id, a node as its property `record_id`.
        importance: 1 (low) to 10 (critical).
        durability: of the node; else `metadata["durability"]`, else none.
        created_at: when it was made; aware, UTC unless given.

    Raises:
        InvalidInput: (a `ValueError`) the scope, or any other attribute, is refused.
    """

    scope: ScopeLike
    content: str
    layer: str = MemoryLayer.WORKING.value
    metadata: Mapping[str, object] = field(default_factory=dict, hash=False)
    id: str = field(default_factory=_new_id)
    importance: float = 5.0
    durability: Durability | None = None
    created_at: datetime = field(default_factory=_now)

    def __post_init__(self) -> None:
        scope_address(self.scope)
        given: Any = self  # an untyped caller may pass anything
        name = given.layer.value if isinstance(given.layer, Enum) else given.layer
        if not isinstance(name, str) or name not in HOMES:
            raise InvalidInput(f"a record's layer is unknown: use one of {', '.join(sorted(HOMES))}")
        if not isinstance(given.content, str) or not given.content.strip():
            raise InvalidInput("a record has no content: give it a text, or leave the record out")
        if not isinstance(given.metadata, Mapping) or any(type(key) is not str for key in given.metadata):
            raise InvalidInput("a record's metadata must be a dict with str keys: correct it")
        _check_record_id(given.id)
        importance = given.importance
        if isinstance(importance, bool) or not isinstance(importance, int | float) or not _LEAST <= importance <= _MOST:
            raise InvalidInput("a record's importance must be a number from 1 to 10: correct it")
        if not isinstance(given.created_at, datetime):
            raise InvalidInput("a record's created_at must be a datetime: correct it")
        metadata = dict(given.metadata)
        marker = metadata.get("durability") if given.durability is None else given.durability
        if marker is not None:
            marker = coerce_durability(marker)
            metadata["durability"] = marker
        for attribute, value in (("layer", name), ("metadata", metadata), ("durability", marker)):
            object.__setattr__(self, attribute, value)

    @property
    def home(self) -> MemoryLayer:
        """The layer under which the record is kept."""
        return HOMES[self.layer]

    @classmethod
    def turn(cls, scope: ScopeLike, *, speaker: str, turn_id: str, content: str, **values: Any) -> Self:
        """Return the record of one conversation turn of `scope`.

        Args:
            scope: where it belongs.
            speaker: who said it, such as `user`; stored as `metadata["speaker"]`.
            turn_id: the same for every row of one turn; stored as `metadata["turn_id"]`.
            content: what was said.
            values: other attributes. `speaker` and `turn_id` win over keys of these names in `metadata`.

        Raises:
            InvalidInput: the turn id is no text or empty, the speaker is no text, or another attribute is refused.
        """
        metadata = turn_metadata(values.pop("metadata", None), speaker, turn_id)
        return cls(scope=scope, content=content, metadata=metadata, **values)


def _check_record_id(value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidInput("a record's id must be a text that is not empty: leave it away for a random one")
    if len(value.encode("utf-8", "surrogatepass")) > MAX_RECORD_ID_BYTES:
        raise InvalidInput(f"a record's id has more than {MAX_RECORD_ID_BYTES} bytes: use a digest")


def record_of(value: Any) -> MemoryRecord:
    """A record, or any object with a record's attributes, as a record; its scope is the one it states.

    Raises:
        InvalidInput: it lacks a scope or a content, or one of its attributes is refused.
    """
    if isinstance(value, MemoryRecord):
        return value
    stated = {one.name: getattr(value, one.name) for one in fields(MemoryRecord) if hasattr(value, one.name)}
    if not {"scope", "content"} <= stated.keys():
        raise InvalidInput(f"a {type(value).__name__} states no scope or no content: pass a MemoryRecord")
    return MemoryRecord(**stated)


def same_scope(one: Any, other: Any) -> bool:
    """Whether two scopes are one address; the tenant and the path decide, of whichever package they are."""
    if one is other:
        return True
    try:
        return scope_address(one) == scope_address(other)
    except InvalidInput:
        return bool(one == other)


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """Records to stage under one scope.

    Attributes:
        scope: of the turn.
        records: `MemoryRecord`s of exactly this scope, oldest first; any iterable.
        idempotency_key: the records are staged only once under this name, from whichever worker; empty for none. With
            it, a write whose answer was lost may be sent again.
    """

    scope: ScopeLike
    records: tuple[Any, ...]
    idempotency_key: str = ""

    def __init__(self, scope: ScopeLike, records: Iterable[Any] = (), idempotency_key: str = "") -> None:
        object.__setattr__(self, "scope", scope)
        try:
            object.__setattr__(self, "records", tuple(records or ()))
        except TypeError:
            raise InvalidInput(
                f"a request's records are a {type(records).__name__}: pass a list of MemoryRecord"
            ) from None
        object.__setattr__(self, "idempotency_key", idempotency_key)

    def validate(self) -> Self:
        """Return the request if each of its records that states a scope states this one.

        Raises:
            InvalidInput: a record is another scope's. It is not rewritten: whoever made it named the wrong memory.
        """
        if not all(same_scope(getattr(record, "scope", self.scope), self.scope) for record in self.records):
            raise InvalidInput("a record belongs to another scope than the turn's: nothing was written")
        return self


def request_of(value: Any) -> WriteRequest:
    """A request, or any object with a request's attributes, as a request.

    Raises:
        InvalidInput: it lacks a scope or records.
    """
    if not hasattr(value, "scope") or not hasattr(value, "records"):
        raise InvalidInput(f"a {type(value).__name__} states no scope or no records: pass a WriteRequest")
    return WriteRequest(value.scope, value.records, getattr(value, "idempotency_key", ""))


@dataclass(frozen=True, slots=True)
class WriteReceipt:
    """What a write staged: all of its records or none.

    Attributes:
        accepted: the ids of the records that wait now, in their order.
        degraded: nothing is known to be staged: the store was not reached, or has no room.
        reason: one sentence when nothing was accepted; without content.
        duplicate: records were staged under this idempotency key before; these were not.
    """

    accepted: tuple[str, ...] = ()
    degraded: bool = False
    reason: str = ""
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class FlushReceipt:
    """What a flush published.

    Attributes:
        committed: the ids of the records that were published, in the order in which they were staged. Of more turns
            than the window holds, it shows the newest.
        degraded: nothing is known to be published: the store was not reached. What waited waits on, or was published.
        reason: one sentence when degraded; without content.
        node_ids: of each of them, its node's id; empty for one that has none, as a turn without a mirror.
    """

    committed: tuple[str, ...] = ()
    degraded: bool = False
    reason: str = ""
    node_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExtractionRequest:
    """What an extractor reads: what was asked and what was answered, in one turn of one scope."""

    scope: ScopeLike
    user_message: str
    assistant_message: str


@dataclass(frozen=True, slots=True)
class ExtractionResult:
    """What an extractor found.

    Attributes:
        scope: the request's.
        records: what to keep, of this scope.
        dropped: what was found and is not kept; only its number is told.
        reason: why there is nothing to keep, in the extractor's own words; empty for none.
        degraded: the extractor could not do its work.
    """

    scope: ScopeLike
    records: tuple[Any, ...] = ()
    dropped: tuple[Any, ...] = ()
    reason: str = ""
    degraded: bool = False

    def __post_init__(self) -> None:
        # An extractor may hand over a generator: it is gone through more than once.
        object.__setattr__(self, "records", tuple(self.records or ()))
        object.__setattr__(self, "dropped", tuple(self.dropped or ()))

    def write_request(self) -> WriteRequest:
        """The request that stages the records.

        Raises:
            InvalidInput: a record is another scope's.
        """
        return WriteRequest(self.scope, self.records).validate()


class MemoryWritePort(Protocol):
    """Stages records: what it accepted waits, and is not retrievable until it is flushed."""

    async def write(self, request: WriteRequest, /) -> WriteReceipt:
        """Stage the records of the request, all or none; refuse those of another scope."""
        ...


class MemoryLifecyclePort(Protocol):
    """Publishes what was staged."""

    async def flush(self, scope: ScopeLike, /) -> FlushReceipt:
        """Make what waits in exactly this scope retrievable, all at once, each record once."""
        ...


class MemoryExtractionPort(Protocol):
    """Finds in a turn what is worth keeping."""

    async def extract(self, request: ExtractionRequest, /) -> ExtractionResult:
        """The records to keep of this turn, under the request's scope."""
        ...
