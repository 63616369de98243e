"""All turns of a dialogue, read within a bound, with what each value in them weighs."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from math import pow, sqrt  # noqa: A004 - unlike the built-in `pow`, it always gives a float
from typing import Any

from symfonic_redis.salient_values import Found, Line, read
from symfonic_redis.salient_words import COLONS, LONG, Forms, plain

_SHARED = 1.4  # what two speakers said is what they talk about
_AGE = 0.3  # how much less the oldest turn weighs than the newest
_CROWD = 0.2  # the power by which the many ids of one turn, such as a list of offers, share its weight
_QUESTION = 4  # words of a question that are quoted
_SPEAKER_CHARS = 40

# Characters that are read: of all turns, or of each if those are more; of one turn.
_READ, _READ_A_TURN, _READ_OF_TURN = 12_000, 240, 8000
_LETTER_OR_DIGIT = re.compile(r"[^\W_]").search
_SEAMS = " \n\u3002"  # where a long text may be cut


@dataclass(slots=True)
class Value:
    """Where a value was said last, and how that mention weighs."""

    found: Found
    line: int
    turn: int
    speaker: str
    times: int = 1  # within that turn: what a list repeats in each item tells nothing
    shared: bool = False

    def again(self, found: Found, line: int, turn: int, speaker: str) -> None:
        """Note a later mention."""
        if turn == self.turn:
            self.times += 1
            if found.weight <= self.found.weight:
                return
        else:
            self.times = 1
            self.shared = self.shared or speaker != self.speaker
        self.found, self.line, self.turn = found, line, turn


class Dialogue:
    """All turns, by lines."""

    def __init__(self, entries: Iterable[Any]) -> None:
        self.speakers: list[str] = []
        self.lines: list[Line] = []
        self.turns: list[int] = []  # by line: its turn
        self.heads: list[int] = []  # by line: the one that announces it, as "Your orders:" does, or -1
        self.asked: list[str] = []  # by line: the end of the question it answers, or nothing
        self.values: dict[str, Value] = {}
        self._crowds: list[int] = []  # by turn: how many of its values are ids
        self._forms = Forms()
        self._question = ""
        turns = list(entries)
        texts = [getattr(turn, "content", None) or "" for turn in turns]
        limit = _share(list(map(len, texts)))
        for turn, text in zip(turns, texts, strict=True):
            self._hear(_speaker(turn), _cut(text, limit))

    def _hear(self, speaker: str, text: str) -> None:
        """Read the next turn."""
        turn, crowd, head = len(self.speakers), 0, -1
        asked = self._question if turn and speaker != self.speakers[-1] else ""
        self._question = ""
        self.speakers.append(speaker)
        for line in read(text, self._forms, answer=bool(asked)):
            number = len(self.lines)
            self.lines.append(line)
            self.turns.append(turn)
            self.heads.append(head)
            self.asked.append(asked)
            asked = ""
            for found in line.found:
                crowd += found.weight >= LONG
                if value := self.values.get(found.key):
                    value.again(found, number, turn, speaker)
                else:
                    self.values[found.key] = Value(found, number, turn, speaker)
            if line.asks:
                count = len(line.words)
                self._question = line.text(max(line.starts[-1], count - _QUESTION), count)
            elif line.words[-1].rstrip()[-1] in COLONS:
                head = number
        self._crowds.append(crowd)

    def sentences(self, turn: int) -> list[tuple[int, int, int]]:
        """Return a turn's sentences that have words: a line's number, its words from, to before."""
        spans: list[tuple[int, int, int]] = []
        for number in range(bisect_left(self.turns, turn), bisect_right(self.turns, turn)):
            line = self.lines[number]
            for first, end in zip(line.starts, [*line.starts[1:], len(line.words)], strict=True):
                if any(map(_LETTER_OR_DIGIT, line.words[first:end])):
                    spans.append((number, first, end))
        return spans

    def ranked(self) -> list[Value]:
        """Return the values, the heaviest first."""
        newest = len(self.speakers) - 1

        def weight(value: Value) -> float:
            weight = value.found.weight * (_SHARED if value.shared else 1) / sqrt(value.times)
            weight *= 1 - _AGE * (newest - value.turn) / (newest + 1)
            return -weight / pow(max(1, self._crowds[value.turn]), _CROWD)

        return sorted(self.values.values(), key=weight)


def _share(sizes: list[int]) -> int:
    """Return how many characters to read of a turn, so that all turns of these sizes keep within what a call may read.

    What the short ones leave goes to the long ones.
    """
    room = max(_READ, _READ_A_TURN * len(sizes))
    left = len(sizes)
    for size in sorted(sizes):
        if size * left > room:
            return min(_READ_OF_TURN, room // left)
        room, left = room - size, left - 1
    return _READ_OF_TURN


def _cut(text: str, limit: int) -> str:
    """Return the text, or three quarters of the limit from its front and the rest from its end."""
    if len(text) <= limit:
        return text
    # A word that is cut in two would be another value.
    tail = max(1, limit // 4)
    front, back = text[: limit - tail], text[-tail:]
    front = front[: 1 + max(map(front.rfind, _SEAMS)) or len(front)]
    return f"{front}\n{back[max(0, *map(back.find, _SEAMS)) :]}"


def _speaker(turn: Any) -> str:
    """Return who said a turn, on one line."""
    name = str((getattr(turn, "metadata", None) or {}).get("speaker") or "")[:_SPEAKER_CHARS]
    return " ".join(plain(name).split()) or "unknown"
