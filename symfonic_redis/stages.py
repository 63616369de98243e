"""The stages that follow a model's answer: write what the turn said, consolidate what it taught, publish both.

Each handler takes the stage's context and returns a `StageResult`. A context has a `request`, and a `turn` once the
model has answered; of a request `scope` and `prompt` are read, of a turn `text` and `tool_requests`.

The turn's own scope wins over the capability's. A record's scope is never rewritten to match: a producer that names
another tenant is refused, not laundered. What a reason says of a failure is its type's name, for a message may quote
content. Cancellation passes through every handler: a cancelled turn stays cancelled.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from symfonic_redis.errors import ConfigurationError, InvalidInput, MemoryUnavailable
from symfonic_redis.records import ExtractionRequest, WriteRequest, same_scope
from symfonic_redis.results import ResolvedInput, StageResult, applied, no_change
from symfonic_redis.scope import scope_address

CAPABILITY = "memory"
"""The name under which a stage's result is filed, unless the capability has a `name` of its own."""

EXTRACTION_TIMEOUT = 60.0
"""Seconds that an extractor may take, unless said otherwise: the answer is there by then, and somebody waits for it."""

NO_REQUEST = "the stage's context has no turn request"
NO_SCOPE = "neither the turn nor the capability names a scope"
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

    The handler itself raises `InvalidInput` when a record is of another scope, and what the writer raises.
    """
    _require_records_from(capability)
    _require(capability, "write_handler", "writer", "write", "request", "a RedisMemoryWriter")

    async def handle_write(context: Any) -> StageResult[Any]:
        request = getattr(context, "request", None)
        counts = {"staged": 0, "written": 0}
        if request is None:
            return no_change(NO_REQUEST)
        records = tuple(capability.records_from(context) or ())
        if not records:
            return no_change(NOTHING_TO_RECORD, counts=counts)
        counts["staged"] = len(records)
        scope = _scope(request, capability)
        if scope is None:
            return no_change(NO_SCOPE, counts=counts)
        wanted = WriteRequest(scope, records).validate()
        try:
            receipt = await capability.writer.write(wanted)
        except MemoryUnavailable:
            return no_change(NOTHING_WRITTEN, counts=counts)
        accepted = tuple(receipt.accepted)
        if receipt.degraded or not accepted:
            return no_change(_told(receipt) or (NOTHING_WRITTEN if receipt.degraded else NOT_ACCEPTED), counts=counts)
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
        timeout: seconds that the extractor may take; None for no limit.

    Raises:
        ConfigurationError: a collaborator is missing, or the time is not positive.

    Cost: one call of the extractor, and one write when it finds something.
    """
    _require(
        capability,
        "consolidation_handler",
        "extractor",
        "extract",
        "request",
        "one that returns an ExtractionResult",
    )
    _require(capability, "consolidation_handler", "writer", "write", "request", "a RedisMemoryWriter")
    if timeout is not None and not timeout > 0:
        raise ConfigurationError("an extraction's timeout must be a positive number of seconds, or None: correct it")

    async def handle_consolidation(context: Any) -> StageResult[Any]:
        turn = getattr(context, "turn", None)
        request = getattr(context, "request", None)
        if request is None or turn is None or getattr(turn, "tool_requests", None):
            return no_change(NOT_FINAL)
        counts = {"extracted": 0, "written": 0}
        scope = _scope(request, capability)
        if scope is None:
            return no_change(NO_SCOPE, counts=counts)
        try:
            asked = ExtractionRequest(scope, request.prompt, turn.text)
            async with asyncio.timeout(timeout):
                result = await capability.extractor.extract(asked)
            records, discarded = tuple(result.records or ()), len(getattr(result, "dropped", ()) or ())
        except Exception as failure:  # noqa: BLE001 - a side effect, not the turn
            return no_change(_named(EXTRACTION_DEGRADED, failure), counts=counts)
        if getattr(result, "degraded", False):
            return no_change(f"{EXTRACTION_DEGRADED}: the extractor reported an outage", counts=counts)
        if not records:
            return no_change(_told(result) or NOTHING_TO_KEEP, counts={**counts, "discarded": discarded})
        return await _keep(capability, result, scope, discarded)

    return handle_consolidation


async def _keep(capability: Any, result: Any, scope: Any, discarded: int) -> StageResult[Any]:
    """Stage what was extracted, under the turn's scope or not at all."""
    counts = {"extracted": len(result.records), "written": 0}
    try:
        wanted = result.write_request()
        stated = [getattr(one, "scope", scope) for one in (wanted, *result.records)]
        if not all(same_scope(one, scope) for one in stated):
            return no_change(f"{RECORDS_REFUSED}: another scope than the turn's", counts=counts)
        receipt = await capability.writer.write(wanted)
        accepted = tuple(receipt.accepted or ())
        degraded = bool(getattr(receipt, "degraded", False))
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

    Three results: published, with the count; nothing was staged; store unreachable. Count: `published`.

    Args:
        capability: `lifecycle` is a `MemoryLifecyclePort`, such as `RedisMemoryLifecycle`; `scope` is used when the
            turn names none.

    Raises:
        ConfigurationError: a collaborator is missing.

    The handler itself raises what the lifecycle raises, but not `MemoryUnavailable`.
    """
    _require(capability, "lifecycle_handler", "lifecycle", "flush", "scope", "a RedisMemoryLifecycle")

    async def handle_lifecycle(context: Any) -> StageResult[Any]:
        request = getattr(context, "request", None)
        counts = {"published": 0}
        if request is None:
            return no_change(NO_REQUEST)
        scope = _scope(request, capability)
        if scope is None:
            return no_change(NO_SCOPE, counts=counts)
        try:
            receipt = await capability.lifecycle.flush(scope)
        except MemoryUnavailable:
            return no_change(NOTHING_PUBLISHED, counts=counts)
        if getattr(receipt, "degraded", False):
            return no_change(NOTHING_PUBLISHED, counts=counts)
        committed = tuple(getattr(receipt, "committed", ()) or ())
        if not committed:
            return no_change(NOTHING_STAGED, counts=counts)
        return _applied(capability, committed, scope, {"published": len(committed)})

    return handle_lifecycle


def _scope(request: Any, capability: Any) -> Any:
    return getattr(request, "scope", None) or getattr(capability, "scope", None)


def _applied(capability: Any, value: Sequence[Any], scope: Any, counts: dict[str, int]) -> StageResult[Any]:
    name = getattr(capability, "name", None)
    resolved = ResolvedInput(
        capability=name if isinstance(name, str) and name else CAPABILITY,
        value=tuple(value),
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


def _require(  # noqa: PLR0917 - the parts of one sentence
    capability: Any, handler: str, attribute: str, method: str, argument: str, example: str
) -> None:
    collaborator = getattr(capability, attribute, None)
    found = getattr(collaborator, method, None)
    if callable(found) and inspect.iscoroutinefunction(inspect.unwrap(found)):
        return
    raise ConfigurationError(
        f"{handler} needs a capability whose {attribute} has an async {method}({argument}): pass {example}"
    )


def _require_records_from(capability: Any) -> None:
    found = getattr(capability, "records_from", None)
    if not callable(found) or inspect.iscoroutinefunction(found):
        raise ConfigurationError(
            "write_handler needs a capability whose records_from(context) returns the turn's records: pass a plain "
            "function that makes MemoryRecords"
        )
