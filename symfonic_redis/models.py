"""What is remembered: entries of the window, nodes of the mirror, and the receipts of writes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from symfonic_redis.errors import ConfigurationError, InvalidInput
from symfonic_redis.scope import ScopeLike

Durability = Literal["transient", "durable", "expired"]
"""How long a node should matter to consolidation: promote (`durable`), do not (`transient`), drop (`expired`)."""

STMSummaryMode = Literal["off", "extractive", "llm", "salient"]
"""How turns are summarized: not at all; by their first and last sentences; by a model; by what an agent needs to act.

In the layer itself `llm` is extractive: a layer owns no model."""

MIN_TTL, MAX_TTL = 0.001, 100 * 365 * 86_400
"""The shortest and the longest time to live, in seconds."""

_SHOWN = 40

_DURABILITIES = frozenset(get_args(Durability))


class MultiScopeIgnoredWarning(UserWarning):
    """A scope with `inherits_from` was read from a layer that never merges scopes."""


class MemoryLayer(StrEnum):
    """The layers of the reference system. This package keeps `WORKING` in a window and mirrors it."""

    SEMANTIC = "semantic"
    EPISODIC = "episodic"
    PROCEDURAL = "procedural"
    PROSPECTIVE = "prospective"
    WORKING = "working"


def coerce_durability(value: object) -> Durability:
    """Return `value` as a durability; `None` and `""` are `durable`.

    Raises:
        InvalidInput: (a `ValueError`) any other value, so that a typing error cannot pass a gate in silence.
    """
    if value is None or value == "":
        return "durable"
    if isinstance(value, str) and value in _DURABILITIES:
        return value  # type: ignore[return-value]  # mypy does not narrow a str by set membership
    raise InvalidInput(f"unknown durability {_short(value)}: use one of {', '.join(sorted(_DURABILITIES))}")


def _short(value: object) -> str:
    text = repr(value) if isinstance(value, str | int | float | bool) else type(value).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _not_empty(value: str) -> str:
    if not value:
        raise InvalidInput("it is empty: give it a text")
    return value


NonEmpty = Annotated[str, AfterValidator(_not_empty)]
"""A string of at least one character; pydantic's own check of the length refuses lone surrogates."""


def _now() -> datetime:
    return datetime.now(UTC)


def _new_id() -> str:
    return str(uuid.uuid4())


class MemoryEntry(BaseModel):
    """One turn, or any other row, as the window keeps it.

    `content` may be any string, lone surrogates included. `metadata` values may be anything the codec names:
    None, bool, int of any size, float, str, bytes, list, tuple, dict, datetime, UUID, Decimal, Enum (by value).
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    id: str = Field(default_factory=_new_id, description="Unique id; a random UUID unless given.")
    layer: MemoryLayer = Field(default=MemoryLayer.WORKING, description="The layer the entry belongs to.")
    tenant_id: NonEmpty = Field(description="The owner; must be the tenant of the scope it is pushed to.")
    content: str = Field(description="The text.")
    node_id: str | None = Field(default=None, description="A graph node the entry stands for.")
    score: float | None = Field(default=None, description="Relevance, set by retrieval elsewhere.")
    metadata: dict[str, object] = Field(default_factory=dict, description="Anything else; see the class.")
    importance: float = Field(default=5.0, ge=1.0, le=10.0, description="1 (low) to 10 (critical).")
    created_at: datetime = Field(default_factory=_now, description="When it was made; aware, UTC unless given.")

    @classmethod
    def turn(
        cls,
        scope: ScopeLike,
        *,
        speaker: str,
        turn_id: str,
        content: str,
        metadata: dict[str, object] | None = None,
        importance: float = 5.0,
    ) -> Self:
        """Return the entry of one conversation turn of `scope`.

        Args:
            scope: where it will be pushed; gives the tenant.
            speaker: who said it, such as `user` or `assistant`; stored as `metadata["speaker"]`.
            turn_id: the turn's id, the same for every row of one turn; stored as `metadata["turn_id"]`.
            content: what was said.
            metadata: more metadata; `speaker` and `turn_id` win over keys of these names.
            importance: 1 to 10.

        Raises:
            InvalidInput: (a `ValueError`) the turn id is no text or empty, or the speaker is no text.
        """
        return cls(
            tenant_id=scope.tenant_id,
            content=content,
            metadata=turn_metadata(metadata, speaker, turn_id),
            importance=importance,
        )


def turn_metadata(metadata: Mapping[str, object] | None, speaker: object, turn_id: object) -> dict[str, object]:
    """The metadata of a turn: `metadata`, then its speaker and its id, which win.

    Raises:
        InvalidInput: the turn id is no text or empty: a prompt leaves out a turn that has none. Or the speaker is no
            text, or the metadata no dict.
    """
    if not isinstance(turn_id, str) or not turn_id:
        raise InvalidInput("a turn's turn_id must be a text that is not empty: rows of one turn share it")
    if not isinstance(speaker, str):
        raise InvalidInput("a turn's speaker must be a text: name who said it, such as `user`")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidInput("a turn's metadata must be a dict with str keys: correct it")
    return {**(metadata or {}), "speaker": speaker, "turn_id": turn_id}


_FIELDS = frozenset(MemoryEntry.model_fields)
_set = object.__setattr__


def entry_of(values: dict[str, object]) -> MemoryEntry:
    """The entry with these values of all its fields, checked before: `model_construct` at a quarter of the cost."""
    entry = MemoryEntry.__new__(MemoryEntry)
    _set(entry, "__dict__", values)
    _set(entry, "__pydantic_fields_set__", set(_FIELDS))
    _set(entry, "__pydantic_extra__", None)
    _set(entry, "__pydantic_private__", None)
    return entry


class MemoryNode(BaseModel):
    """A row of the mirror, in the shape the reference system's graph backends exchange."""

    model_config = ConfigDict(hide_input_in_errors=True)

    id: str = Field(default_factory=_new_id, description="Unique id; a mirrored turn's is made by the server.")
    layer: MemoryLayer = Field(description="The layer the node belongs to.")
    tenant_id: NonEmpty = Field(description="The owner.")
    label: NonEmpty = Field(description="A short text: the first 80 characters of a turn.")
    properties: dict[str, object] = Field(default_factory=dict, description="Content, metadata, durability.")
    embedding: list[float] | None = Field(default=None, description="A vector, when somebody computed one.")
    created_at: datetime = Field(default_factory=_now, description="When it was written; a turn's by the server.")
    updated_at: datetime = Field(default_factory=_now, description="When it was last changed.")
    access_count: int = Field(default=0, ge=0, description="Direct reads.")
    spreading_access_count: int = Field(default=0, ge=0, description="Reads by graph traversal.")
    importance: float = Field(default=5.0, ge=1.0, le=10.0, description="1 (low) to 10 (critical).")

    @property
    def durability(self) -> Durability:
        """The node's durability; `durable` when unset or unknown."""
        try:
            return coerce_durability(self.properties.get("durability"))
        except InvalidInput:
            return "durable"

    def is_transient(self) -> bool:
        """Whether consolidation must not promote the node and may age it out soon."""
        return self.durability == "transient"

    def is_promotable(self) -> bool:
        """Whether consolidation may promote the node."""
        return self.durability == "durable"


class PushReceipt(NamedTuple):
    """What a push did.

    Attributes:
        node_ids: the mirrored nodes' ids, oldest first; empty without a mirror.
        window_length: how many turns the window holds afterwards.
        evicted: how many turns this write moved out of the window.
        duplicate: the write had been applied before (a redelivery under the same idempotency key); nothing changed.
        queued: nothing is stored yet: the turns wait in this worker, see `StandbyLayer`.
    """

    node_ids: tuple[str, ...]
    window_length: int
    evicted: int
    duplicate: bool
    queued: bool = False

    @property
    def node_id(self) -> str | None:
        """The newest mirrored node's id, or None."""
        return self.node_ids[-1] if self.node_ids else None


def check_ttl(seconds: float | None) -> int | None:
    """Return a time to live in whole milliseconds, as scripts take it; None stays None.

    Raises:
        ConfigurationError: it is not a positive, finite number of seconds.
    """
    if seconds is None:
        return None
    given: object = seconds  # an untyped caller may pass anything
    if isinstance(given, bool) or not isinstance(given, int | float) or not MIN_TTL <= given <= MAX_TTL:
        raise ConfigurationError("a ttl must be a positive number of seconds, at most 100 years: correct it")
    return int(seconds * 1000)
