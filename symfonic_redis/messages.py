"""Chat messages of other libraries as turns: LangChain's objects, OpenAI's dicts, anything of either shape."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

_SPEAKERS = {
    "human": "user",
    "user": "user",
    "HumanMessage": "user",
    "ai": "assistant",
    "assistant": "assistant",
    "AIMessage": "assistant",
}

Turn = tuple[str, dict[str, object]]
"""Content and metadata of a turn."""


def turns_of(messages: Iterable[Any]) -> list[Turn]:
    """The messages of the user and of the assistant that hold text, in their order.

    The metadata are `speaker`, `turn_id` (the message's own id, else 12 random hex digits) and
    `source="resume_rehydrate"`. System, tool and unknown messages are left out.
    """
    turns: list[Turn] = []
    for message in messages:
        speaker = _speaker_of(message)
        text = text_of(_get(message, "content")) if speaker else ""
        if speaker and text:
            turn_id = _get(message, "id") or uuid.uuid4().hex[:12]
            turns.append((text, {"speaker": speaker, "turn_id": turn_id, "source": "resume_rehydrate"}))
    return turns


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or a list of blocks of which the text ones count."""
    if content is None:
        return ""
    if isinstance(content, list):
        blocks = (block if isinstance(block, str) else _block_text(block) for block in content)
        return "".join(blocks).strip()
    return str(content).strip()


def _block_text(block: Any) -> str:
    text = block.get("text") if isinstance(block, dict) else None
    return "" if text is None else str(text)


def _speaker_of(message: Any) -> str | None:
    for name in (_get(message, "type"), _get(message, "role"), type(message).__name__):
        if isinstance(name, str) and name in _SPEAKERS:
            return _SPEAKERS[name]
    return None


def _get(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, dict) else getattr(message, name, None)
