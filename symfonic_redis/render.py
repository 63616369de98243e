"""An entry as one line of a prompt."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

Scrubber = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes a metadata dict, returns what of it may be shown."""

_LABELS = ("AGENT_IDENTITY:", "SOUL:")
_EXTRA_KEYS = ("description", "name", "role", "properties")
_MAX_EXTRAS = 5


def render_entry(entry: Any, scrubber: Scrubber | None = None) -> str:
    """Return `[layer] speaker: content`, or the older form when no speaker is known.

    The older form is `[layer] content (k=v, ...)`: up to five extras from `description`, `name`, `role` and
    `properties`, each a string or a dict whose string items count; a leading machine label is dropped.

    Args:
        entry: anything with `content`, `layer` and `metadata`; what is missing is left away.
        scrubber: applied to a metadata dict before any of it is shown.
    """
    metadata = getattr(entry, "metadata", None) or {}
    speaker = metadata.get("speaker")
    if isinstance(speaker, str) and speaker not in {"", "legacy"}:
        return f"[{_layer_name(entry, 'working')}] {speaker}: {getattr(entry, 'content', '')}"
    line = f"[{_layer_name(entry, 'unknown')}] {_without_label(str(getattr(entry, 'content', entry)))}"
    extras: list[str] = []
    for key in _EXTRA_KEYS:
        value = metadata.get(key)
        if isinstance(value, str) and value:
            extras.append(f"{key}={value}")
        elif isinstance(value, dict) and value:
            shown = scrubber(value) if scrubber is not None else value
            extras.extend(f"{name}={item}" for name, item in shown.items() if isinstance(item, str))
    return f"{line} ({', '.join(extras[:_MAX_EXTRAS])})" if extras else line


def render_line(speaker: str, text: str) -> str:
    """One turn as `speaker: text`, its further lines indented; `- text` when no speaker is known.

    So a line that begins with a speaker's name was said by that speaker, whatever a text holds.
    """
    name = " ".join(speaker.split())
    lines = f"{name}: {text}" if name else f"- {text}"
    return "\n  ".join(lines.splitlines()).rstrip()


def _layer_name(entry: Any, default: str) -> str:
    layer = getattr(entry, "layer", default)
    return str(layer.value if isinstance(layer, Enum) else layer)


def _without_label(content: str) -> str:
    start = content.lstrip()
    for label in _LABELS:
        if start.upper().startswith(label):
            return start[len(label) :].lstrip()
    return content
