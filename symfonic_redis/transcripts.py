"""Chat transcripts from a file of JSON lines, in the format that chat-completion services exchange.

A line is `{"conversation_id": str, "messages": [{"role": ..., "content": ...}, ...]}`. The turns of a conversation are
the messages of `user` and `assistant` that hold text; system and tool messages are none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symfonic_redis.errors import InvalidInput
from symfonic_redis.messages import text_of
from symfonic_redis.scope import MAX_ID_BYTES

_SPEAKERS = ("user", "assistant")


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: who, what, and an id that is unique in its conversation."""

    speaker: str
    content: str
    turn_id: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """One line of a transcript file."""

    id: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A line that could not be read, and why."""

    number: int
    reason: str


def read_transcripts(path: Path) -> tuple[list[Conversation], list[BrokenLine]]:
    """Read a file; broken lines are told apart, the rest is returned. Blank lines do not count as broken.

    Raises:
        InvalidInput: the file cannot be opened.
    """
    conversations: dict[str, Conversation] = {}
    broken: list[BrokenLine] = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    conversation = _conversation(line, number)
                except InvalidInput as error:
                    broken.append(BrokenLine(number, str(error)))
                    continue
                if conversation.id in conversations:
                    broken.append(BrokenLine(number, "its conversation_id was there already"))
                    continue
                conversations[conversation.id] = conversation
    except OSError as error:
        raise InvalidInput(f"the transcript file {path} cannot be read: {error.strerror}") from error
    return list(conversations.values()), broken


def _conversation(line: bytes, number: int) -> Conversation:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("not JSON") from error
    messages = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(messages, list):
        raise InvalidInput("no object with a list of messages")
    id_ = record.get("conversation_id", f"line-{number}")
    if not isinstance(id_, str) or not id_.strip() or "\x1f" in id_:
        raise InvalidInput("the conversation_id is no usable text")
    if len(id_.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
        raise InvalidInput(f"the conversation_id is longer than {MAX_ID_BYTES} bytes")
    turns = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidInput(f"message {index} is no object")
        turn = _turn(message, index)
        if turn is not None:
            turns.append(turn)
    return Conversation(id_, tuple(turns))


def _turn(message: dict[str, Any], index: int) -> Turn | None:
    speaker = message.get("role")
    if speaker not in _SPEAKERS:
        return None
    content = message.get("content")
    text = content if isinstance(content, str) else text_of(content)
    return Turn(speaker, text, f"m{index}") if text.strip() else None
