"""All that a prompt takes from the working memory, in one round trip: the recency block and the summary before it."""

from __future__ import annotations

from typing import NamedTuple

from symfonic_redis.conversation import turns_of_entries
from symfonic_redis.errors import MemoryUnavailable
from symfonic_redis.evicted import RedisEvictedSource
from symfonic_redis.scope import ScopeLike
from symfonic_redis.summary_service import (
    STMSummaryPort,
    STMSummaryRequest,
    STMSummaryResult,
    WorkingMemorySummaryService,
    degraded_summary,
    validate_summary,
)
from symfonic_redis.window import WindowBlock, WorkingWindow, degraded_block


class Hydration(NamedTuple):
    """What goes into a prompt.

    Attributes:
        window: the last turns.
        summary: of the turns before them.
        older_gone: there were turns before those, and they are gone for good.
    """

    window: WindowBlock
    summary: STMSummaryResult
    older_gone: bool = False


async def hydrate(
    source: RedisEvictedSource, scope: ScopeLike, *, window: WorkingWindow, summary: STMSummaryPort | None
) -> Hydration:
    """Window and summary of exactly this scope, both of one moment: each turn is in one of them, none is in both.

    Args:
        source: is read once; the sources that `window` and `summary` were made with are not.
        scope: whose conversation.
        window: how the recency block is rendered. A turn that its limit or budget leaves out is in neither.
        summary: how the turns behind the window are summarized; None for no summary. One that is not a
            `WorkingMemorySummaryService` is asked as it asks to be, and reads what it needs by itself.

    When the memory is not available, both are empty and degraded.

    Cost: one round trip, one LRANGE; in mode `llm` what `WorkingMemorySummaryService.summarize` says besides.

    Raises:
        ConfigurationError: the summary has no async `summarize`.
        InvalidInput: the scope is malformed.
        CodecError: a row is damaged and the layer is strict.
        ServerRefused, KeyConflict: the server will not answer.
    """
    validate_summary(summary)
    try:
        memory = await source.read(scope)
    except MemoryUnavailable as error:
        return Hydration(degraded_block(error), degraded_summary(error))
    block = window.render(turns_of_entries(memory.window))
    if summary is None:
        found = STMSummaryResult()
    elif isinstance(summary, WorkingMemorySummaryService):
        found = await summary.summarize_turns(scope, memory.evicted)
    else:
        found = await summary.summarize(STMSummaryRequest(scope))
    return Hydration(block, found, memory.evicted.older_gone)
