"""The stages that follow a model's answer: write what the turn said, consolidate what it taught, publish both.

Each handler takes the stage's context and returns a `StageResult`. A context has a `request`, and a `turn` once the
model has answered; of a request `scope` and `prompt` are read, of a turn `text` and `tool_requests`.

The turn's own scope wins over the capability's. A record's scope is never rewritten to match: a producer that names
another tenant is refused, not laundered. What a reason says of a failure is its type's name, for a message may quote
content. Cancellation passes through every handler, also one that a collaborator raises: a cancelled turn stays
cancelled.

A turn that may be delivered again names itself by `request.idempotency_key`, a text; empty or None for none. What it
writes is then staged once under that name, from whichever worker, and what it teaches once under that name followed by
`#consolidation`. One name is for one write: where each round of a turn is written, each needs a name of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from symfonic_redis.errors import InvalidInput, MemoryUnavailable
from symfonic_redis.guard import check_seconds, within
from symfonic_redis.ports import collection, ids_of, key_of, records_of, require_port, require_records_from
from symfonic_redis.records import ExtractionRequest, WriteRequest, same_scope
from symfonic_redis.results import ResolvedInput, StageResult, applied, no_change
from symfonic_redis.scope import scope_address

CAPABILITY = "memory"
"""The name under which a stage's result is filed, unless the capability has a `name` of its own."""

EXTRACTION_TIMEOUT = 60.0
"""Seconds that an extractor may take, unless said otherwise: the answer is there by then, and somebody waits for it."""

NO_REQUEST = "the stage's context has no turn request"
NO_SCOPE = "neither the turn nor the capability names a scope"
SCOPE_REFUSED = "the turn's scope is refused"
NOTHING_TO_RECORD = "the turn produced nothing to record"
NOTHING_WRITTEN = "the memory store was not reached; nothing was written"
NOT_ACCEPTED = "the writer accepted none of the records"
NOT_FINAL = "consolidation waits for the final model round"
NOTHING_TO_KEEP = "nothing in the turn is worth keeping"
EXTRACTION_DEGRADED = "extraction degraded"
STORE_DEGRADED = "memory store degraded"
RECORDS_REFUSED = "records refused"
NOTHING_STAGED = "nothing was staged to publish"
NOTHING_PUBLISHED = "the memory store was not reached; nothing was published"

_REASON_LENGTH = 300
_CONSOLIDATION = "#consolidation"

Handler: TypeAlias = Callable[[Any], Awaitable[StageResult[Any]]]
"""What a stage runs: takes the context, returns what came of it."""


def write_handler(capability: Any) -> Handler:
    """The stage that files what the round produced, under the turn's own scope.

    Three results: nothing to record and store unreachable change nothing, each with its reason; success names the ids
    that wait. Counts: `staged`, how many there were; `written`, how many were accepted.

    Args:
        capability: `records_from(context)` gives the records, or none; `writer` is a `MemoryWritePort`, such as
            `RedisMemoryWriter`; `scope` is used when the turn names none.

    Raises:
        ConfigurationError: a collaborator is missing. Said here, not in the middle of a live turn.

    The handler itself raises `InvalidInput` when a record is of another scope, or when what the turn names as its scope
    or idempotency key, or `records_from` as its records, is none; `ConfigurationError` when the writer answers no
    receipt; and what `records_from` and the writer raise. It sets the writer no time limit: ours has the deployment's.
    """
    require_records_from(capability)
    require_port(capability, "write_handler", "writer", "write", "request", "a RedisMemoryWriter")

    async def handle_write(context: Any) -> StageResult[Any]:
        request = getattr(context, "request", None)
        counts = {"staged": 0, "written": 0}
        if request is None:
            return no_change(NO_REQUEST)
        records = records_of(capability, context)
        if not records:
            return no_change(NOTHING_TO_RECORD, counts=counts)
        counts["staged"] = len(records)
        scope = _scope(request, capability)
        if scope is None:
            return no_change(NO_SCOPE, counts=counts)
        scope_address(scope)
        wanted = WriteRequest(scope, records, key_of(request)).validate()
        try:
            receipt = await capability.writer.write(wanted)
        except MemoryUnavailable:
            return no_change(NOTHING_WRITTEN, counts=counts)
        accepted, degraded = ids_of(receipt, "accepted"), bool(getattr(receipt, "degraded", False))
        if degraded or not accepted:
            return no_change(_told(receipt) or (NOTHING_WRITTEN if degraded else NOT_ACCEPTED), counts=counts)
        return _applied(capability, accepted, scope, {**counts, "written": len(accepted)})

    return handle_write


def consolidation_handler(capability: Any, *, timeout: float | None = EXTRACTION_TIMEOUT) -> Handler:
    """The stage that extracts what the turn taught, once, after the final model round, and stages it.

    It never fails the turn: the user is owed the answer that the model has given. Every result says which it is:
    nothing to keep (in the extractor's own words, when it gives some), extraction degraded, store degraded, records
    refused, or success. Counts: `extracted`, `written`, and, where the extractor did its work, `discarded`, which it
    dropped.

    Args:
        capability: `extractor` is a `MemoryExtractionPort`, `writer` a `MemoryWritePort`; `scope` is used when the turn
            names none.
        timeout: seconds that the extractor may take, then it is cancelled, and left behind if it goes on; None for no
            limit. It runs on the event loop: one that blocks instead of awaiting stops the loop, and no limit helps.

    Raises:
        ConfigurationError: a collaborator is missing, or the time is not a positive, finite number.

    Cost: one call of the extractor, and one write when it finds something.
    """
    require_port(
        capability,
        "consolidation_handler",
        "extractor",
        "extract",
        "request",
        "one that returns an ExtractionResult",
    )
    require_port(capability, "consolidation_handler", "writer", "write", "request", "a RedisMemoryWriter")
    if timeout is not None:
        check_seconds("timeout", timeout)

    async def handle_consolidation(context: Any) -> StageResult[Any]:
        turn = getattr(context, "turn", None)
        request = getattr(context, "request", None)
        if request is None or turn is None or getattr(turn, "tool_requests", None):
            return no_change(NOT_FINAL)
        counts = {"extracted": 0, "written": 0}
        scope = _scope(request, capability)
        refused = _refusal(scope)
        if refused:
            return no_change(refused, counts=counts)
        try:
            asked = ExtractionRequest(scope, request.prompt, turn.text)
            result = await within(capability.extractor.extract(asked), timeout)
            records, discarded = collection(result.records, "extract"), len(getattr(result, "dropped", ()) or ())
        except Exception as failure:  # noqa: BLE001 - a side effect, not the turn
            return no_change(_named(EXTRACTION_DEGRADED, failure), counts=counts)
        if getattr(result, "degraded", False):
            return no_change(f"{EXTRACTION_DEGRADED}: the extractor reported an outage", counts=counts)
        if not records:
            return no_change(_told(result) or NOTHING_TO_KEEP, counts={**counts, "discarded": discarded})
        found = WriteRequest(getattr(result, "scope", scope), records)
        return await _keep(capability, request, found, scope, discarded)

    return handle_consolidation


async def _keep(capability: Any, request: Any, found: WriteRequest, scope: Any, discarded: int) -> StageResult[Any]:
    """Stage what was extracted, under the turn's scope or not at all."""
    counts = {"extracted": len(found.records), "written": 0}
    try:
        if not same_scope(found.scope, scope):
            return no_change(f"{RECORDS_REFUSED}: another scope than the turn's", counts=counts)
        key = key_of(request)
        wanted = WriteRequest(scope, found.records, key and f"{key}{_CONSOLIDATION}").validate()
        receipt = await capability.writer.write(wanted)
        accepted, degraded = ids_of(receipt, "accepted"), bool(getattr(receipt, "degraded", False))
    except InvalidInput as failure:
        return no_change(_named(RECORDS_REFUSED, failure), counts=counts)
    except Exception as failure:  # noqa: BLE001 - as above
        return no_change(_named(STORE_DEGRADED, failure), counts=counts)
    if degraded:
        told = _told(receipt)
        return no_change(f"{STORE_DEGRADED}: {told}"[:_REASON_LENGTH] if told else STORE_DEGRADED, counts=counts)
    if not accepted:
        return no_change(_told(receipt) or NOT_ACCEPTED, counts=counts)
    return _applied(capability, accepted, scope, {**counts, "written": len(accepted), "discarded": discarded})


def lifecycle_handler(capability: Any) -> Handler:
    """The stage that publishes what waits in this turn's scope, and in no other.

    Three results: published, with the count; nothing was staged; store unreachable. Count: `published`. It counts and
    names all that this call published: turns that another call staged, and more turns than the window goes on to show,
    as of 100 that are published into a window of 4.

    Args:
        capability: `lifecycle` is a `MemoryLifecyclePort`, such as `RedisMemoryLifecycle`; `scope` is used when the
            turn names none.

    Raises:
        ConfigurationError: a collaborator is missing.

    The handler itself raises `InvalidInput` when the turn's scope is none, `ConfigurationError` when the lifecycle
    answers no receipt, and what the lifecycle raises, but not `MemoryUnavailable`.
    """
    require_port(capability, "lifecycle_handler", "lifecycle", "flush", "scope", "a RedisMemoryLifecycle")

    async def handle_lifecycle(context: Any) -> StageResult[Any]:
        request = getattr(context, "request", None)
        counts = {"published": 0}
        if request is None:
            return no_change(NO_REQUEST)
        scope = _scope(request, capability)
        if scope is None:
            return no_change(NO_SCOPE, counts=counts)
        scope_address(scope)
        try:
            receipt = await capability.lifecycle.flush(scope)
        except MemoryUnavailable:
            return no_change(NOTHING_PUBLISHED, counts=counts)
        if getattr(receipt, "degraded", False):
            return no_change(NOTHING_PUBLISHED, counts=counts)
        committed = ids_of(receipt, "committed")
        if not committed:
            return no_change(NOTHING_STAGED, counts=counts)
        return _applied(capability, committed, scope, {"published": len(committed)})

    return handle_lifecycle


def _scope(request: Any, capability: Any) -> Any:
    # Only a turn without one: what is malformed is refused, not filed under the capability's.
    scope = getattr(request, "scope", None)
    return getattr(capability, "scope", None) if scope is None else scope


def _refusal(scope: Any) -> str:
    """Why nothing can be filed under a scope; empty when it can."""
    if scope is None:
        return NO_SCOPE
    try:
        scope_address(scope)
    except InvalidInput as failure:
        return _named(SCOPE_REFUSED, failure)
    return ""


def _applied(capability: Any, value: tuple[Any, ...], scope: Any, counts: dict[str, int]) -> StageResult[Any]:
    name = getattr(capability, "name", None)
    resolved = ResolvedInput(
        capability=name if isinstance(name, str) and name else CAPABILITY,
        value=value,
        provenance=_path(scope),
    )
    return applied(resolved, counts=counts)


def _path(scope: Any) -> object:
    try:
        path: object = getattr(scope, "path", None)
    except ValueError:
        path = None  # the reference package's scope with an empty sub-tenant cannot tell its own
    return scope_address(scope)[1] if path is None else path


def _told(said: Any) -> str:
    """The reason that a collaborator gives on purpose."""
    reason = getattr(said, "reason", "")
    return reason[:_REASON_LENGTH] if isinstance(reason, str) else ""


def _named(what: str, failure: Exception) -> str:
    return f"{what}: {type(failure).__name__}"[:_REASON_LENGTH]
