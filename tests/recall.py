"""Argument recall: of what a tool call needs and was said before, the share the prompt would still hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Summary = Callable[[list[Any], int], str]
Dialogue = list[tuple[str, str]]

CALL = "call"
"""The speaker that stands for a tool call; its text holds the argument values, one a line."""


def own_dialogues() -> dict[str, Dialogue]:
    """Dialogues of other domains and languages than the real transcripts, written for these tests."""
    return json.loads(Path(__file__).with_name("salient_dialogues.json").read_text("utf-8"))


def transcripts(path: Path) -> list[Dialogue]:
    """A file of conversations in the OpenAI chat format, as dialogues."""
    return [list(_told(json.loads(line)["messages"])) for line in path.read_text("utf-8").splitlines()]


def _told(messages: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for message in messages:
        for call in message.get("tool_calls") or ():
            try:
                yield CALL, "\n".join(_values(json.loads(call["function"]["arguments"])))
            except ValueError:
                continue
        if message["role"] in {"user", "assistant"} and (message.get("content") or "").strip():
            yield message["role"], message["content"]


def _values(arguments: Any) -> Iterator[str]:
    if isinstance(arguments, dict | list):
        for value in arguments.values() if isinstance(arguments, dict) else arguments:
            yield from _values(value)
    elif isinstance(arguments, str) and len(arguments) >= 3 and "\n" not in arguments:
        yield arguments


def entries(dialogue: Dialogue) -> list[SimpleNamespace]:
    return [SimpleNamespace(content=text, metadata={"speaker": speaker}) for speaker, text in dialogue]


def recall(dialogues: list[Dialogue], summary: Summary, window: int, chars: int) -> tuple[float, float]:
    """The share of values with a digit, and of values without, in the last `window` turns or the summary before."""
    total, held = [0, 0], [0, 0]
    for dialogue in dialogues:
        turns: list[SimpleNamespace] = []
        for speaker, text in dialogue:
            if speaker != CALL:
                turns += entries([(speaker, text)])
                continue
            evicted = turns[:-window]
            known = "\n".join([summary(evicted, chars) if evicted else "", *(turn.content for turn in turns[-window:])])
            said = "\n".join(turn.content for turn in turns).lower()
            for value in filter(None, text.lower().split("\n")):
                if value in said:
                    kind = not any("0" <= sign <= "9" for sign in value)
                    total[kind] += 1
                    held[kind] += value in known.lower()
    return held[0] / max(1, total[0]), held[1] / max(1, total[1])
