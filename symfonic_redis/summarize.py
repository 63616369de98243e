"""Older turns as a short text, in whichever way is asked for: the one call that chooses the rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from symfonic_redis.conversation import speaker_of
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
        entries: objects with `content`, oldest first; `metadata["speaker"]` is used where there is one. One that cannot
            be read has no content; when they cannot be gone through, those before count.
        mode: `off` for nothing, `extractive` for the reference system's rule, `salient` for what an agent needs to
            act. `llm` is `extractive` here, as `mode_used` says: a synchronous call that waits for a model would stop
            every other task of the process. `WorkingMemorySummaryService` asks the model.
        max_chars: the longest text; 0 for no limit. What is no whole number is taken for 1,000.
        model_provider: not used.
        model_config: not used.
    """
    given = [_readable(entry) for entry in _through(entries)]
    if mode == "off" or not given:
        return STMSummary("", "off", 0)
    limit: object = max_chars  # an untyped caller may pass anything
    chars = limit if isinstance(limit, int) else MAX_CHARS
    if mode == "salient":
        text, cut = salient(given, chars)
        return STMSummary(text, "salient", len(given), cut)
    text, cut = extractive(given, max_chars=chars)
    return STMSummary(text, "extractive", len(given), cut)


def _through(entries: object) -> Iterator[Any]:
    """The entries as far as they can be gone through; none where they cannot."""
    with suppress(Exception):
        yield from entries  # type: ignore[misc]  # anything, and what it raises is the answer


def _readable(entry: Any) -> SimpleNamespace:
    """What can be read of an entry, or of what is none."""
    content, speaker = "", ""
    with suppress(Exception):  # another package's object: reading an attribute may raise
        found = getattr(entry, "content", None)
        content = "" if found is None else str(found)
        speaker = speaker_of(entry)
    return SimpleNamespace(content=content, metadata={"speaker": speaker})
