"""Older turns as a short text, in whichever way is asked for: the one call that chooses the rule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from symfonic_redis.models import STMSummaryMode
from symfonic_redis.salient import salient
from symfonic_redis.summary import MAX_CHARS, extractive


@dataclass(frozen=True, slots=True)
class STMSummary:
    """A summary, and how it came about.

    Attributes:
        text: the summary; empty when there was nothing to summarize.
        mode_used: the rule that made it; `off` for no entries.
        entry_count: entries that went in; 0 in mode `off`.
        truncated: not all of it fitted into the length allowed.
    """

    text: str
    mode_used: STMSummaryMode
    entry_count: int
    truncated: bool = False


def summarize_entries(
    entries: Iterable[Any] | None,
    *,
    mode: STMSummaryMode,
    max_chars: int = MAX_CHARS,
    model_provider: object = None,  # noqa: ARG001 - the reference system's signature
    model_config: object = None,  # noqa: ARG001 - the same
) -> STMSummary:
    """Summarize entries by rule. Never raises, asks no model and no server.

    Args:
        entries: objects with `content`, oldest first; `metadata["speaker"]` is used where there is one.
        mode: `off` for nothing, `extractive` for the reference system's rule, `salient` for what an agent needs to
            act. `llm` is `extractive` here, as `mode_used` says: a synchronous call that waits for a model would stop
            every other task of the process. `WorkingMemorySummaryService` asks the model.
        max_chars: the longest text; 0 for no limit.
        model_provider: not used.
        model_config: not used.
    """
    given = [_readable(entry) for entry in entries or ()]
    if mode == "off" or not given:
        return STMSummary("", "off", 0)
    if mode == "salient":
        text, cut = salient(given, max_chars)
        return STMSummary(text, "salient", len(given), cut)
    text, cut = extractive(given, max_chars=max_chars)
    return STMSummary(text, "extractive", len(given), cut)


def _readable(entry: Any) -> Any:
    """The entry, or what can be read of it when it is not one."""
    content = getattr(entry, "content", None)
    if isinstance(content, str):
        return entry
    text = "" if content is None else str(content)
    return SimpleNamespace(content=text, metadata=getattr(entry, "metadata", None) or {})
