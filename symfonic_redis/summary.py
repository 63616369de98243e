"""Older turns as a short text, by rule: no model, no server."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

MAX_CHARS = 1000
"""How long a summary is unless said otherwise."""

_BREAKS = re.compile(r"(?<=[.!?])\s+|\n+")
_SPACE = re.compile(r"\s+")


def extractive(entries: Iterable[Any], *, max_chars: int = MAX_CHARS) -> tuple[str, bool]:
    """Return bullets of each entry's first and last sentence, and whether some did not fit.

    A sentence ends after `.`, `!` or `?` before white space, and at a line's end. The two are joined by an ellipsis,
    or are one when equal. A bullet that was there already is dropped. This is the reference system's rule.

    Args:
        entries: objects with `content`, oldest first.
        max_chars: the longest text, cut at whole bullets; 0 for no limit.
    """
    bullets: dict[str, None] = {}
    for entry in entries:
        sentences = [part.strip() for part in _BREAKS.split((entry.content or "").strip())]
        sentences = [part for part in sentences if part]
        if sentences:
            first, last = sentences[0], sentences[-1]
            summary = first if first == last else f"{first} … {last}"
            bullets[f"- {_SPACE.sub(' ', summary).strip()}"] = None
    text = "\n".join(bullets)
    if not max_chars or len(text) <= max_chars:
        return text, False
    kept: list[str] = []
    room = max_chars
    for bullet in bullets:
        # The reference counts a line end for every bullet, the last one too.
        room -= len(bullet) + 1
        if room < 0:
            break
        kept.append(bullet)
    return "\n".join(kept), True
