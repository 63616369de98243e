"""Older turns as the few phrases an agent still needs, by rule: no model, no server.

The rule is ours. Each distinct value (`salient_values` finds them) is kept where it was said last, with the words
around it that say what it is, the heaviest first, until the text is full. `docs/salient.md` has the measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import pow, sqrt  # noqa: A004 - unlike the built-in `pow`, it always gives a float
from typing import Any

from symfonic_redis.salient_values import (
    CLOSES,
    COLONS,
    LONG,
    OPENS,
    PAUSES,
    PUNCTUATION,
    Forms,
    Found,
    Line,
    cut,
    plain,
    read,
    unclosed,
    unit,
)
from symfonic_redis.summary import MAX_CHARS

_SHARED = 1.4  # what two speakers said is what they talk about
_AGE = 0.3  # how much less the oldest turn weighs than the newest
_CROWD = 0.2  # the power by which the many ids of one turn, such as a list of offers, share its weight

_LEFT, _LEFT_CHARS, _RIGHT_CHARS = 3, 28, 14  # words and characters of context
_GAP = 3  # words between two pieces that are better said than left out
_GROUP = 9  # words of a number in groups, or of a date in words, with the values beside it
_BRACKETED = 5  # words to look for a bracket's other half
_QUESTION, _BARE = 4, 2  # words of a question that are quoted, of an answer that does not say what it answers
_SPEAKER_CHARS = 40
_READ, _READ_A_TURN, _READ_OF_TURN = 16_000, 320, 8000  # characters
_TRIED, _MISSES, _ROOM = 4000, 12, 6  # so that a huge dialogue takes a bounded time

_Span = tuple[int, int, int]  # a line's number, its words from, to before


def salient(entries: Iterable[Any], max_chars: int = MAX_CHARS) -> tuple[str, bool]:
    """Return bullets of what an agent will need of these turns, and whether some of it did not fit.

    A bullet is `- speaker: phrases`, one for each turn that has any, oldest first. Phrases of one line that do not
    touch are joined by an ellipsis, those of several lines by a semicolon. The same turns always give the same text.
    At most 8,000 characters of a turn are read, and of all turns 16,000, or 320 for each if those are more: short turns
    whole, of the long ones an equal share, three quarters of it from the front and the rest from the end.

    Args:
        entries: objects with `content` and `metadata["speaker"]`, oldest first.
        max_chars: the longest text; 0 for no limit, then every sentence with a value that was read is there whole.
    """
    turns = list(entries)
    texts = [getattr(turn, "content", None) or "" for turn in turns]
    limit = _share(list(map(len, texts)))
    dialogue = _Dialogue()
    for turn, text in zip(turns, texts, strict=True):
        dialogue.hear(_speaker(turn), cut(text, limit))
    bullets = _Bullets(dialogue, max_chars)
    if not max_chars:
        for number, line in enumerate(dialogue.lines):
            if line.found:
                bullets.add([(number, *line.sentences(one.start, one.stop)) for one in line.found])
        return bullets.text(), False
    missed = 0
    for value in dialogue.ranked()[:_TRIED]:
        if value.found.key not in bullets.covered:
            missed = 0 if any(map(bullets.add, _phrases(dialogue, value))) else missed + 1
        if missed > _MISSES or bullets.room < _ROOM:
            break
    bullets.complete()
    return bullets.text(), any(key not in bullets.covered for key in dialogue.values)


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


def _speaker(turn: Any) -> str:
    """Return who said a turn, on one line."""
    name = str((getattr(turn, "metadata", None) or {}).get("speaker") or "")[:_SPEAKER_CHARS]
    return " ".join(plain(name).split()) or "unknown"


@dataclass(slots=True)
class _Value:
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


@dataclass(slots=True)
class _Dialogue:
    """All turns, by lines."""

    speakers: list[str] = field(default_factory=list)
    crowds: list[int] = field(default_factory=list)  # by turn: how many of its values are ids
    lines: list[Line] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)  # by line: its turn
    heads: list[int] = field(default_factory=list)  # by line: the one that announces it, as "Your orders:" does, or -1
    asked: list[str] = field(default_factory=list)  # by line: the end of the question it answers, or nothing
    values: dict[str, _Value] = field(default_factory=dict)
    forms: Forms = field(default_factory=Forms)
    question: str = ""

    def hear(self, speaker: str, text: str) -> None:
        """Read the next turn."""
        turn, crowd, head = len(self.speakers), 0, -1
        asked = self.question if turn and speaker != self.speakers[-1] else ""
        self.question = ""
        self.speakers.append(speaker)
        for line in read(text, self.forms, answer=bool(asked)):
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
                    self.values[found.key] = _Value(found, number, turn, speaker)
            if line.asks:
                count = len(line.words)
                self.question = line.text(max(line.starts[-1], count - _QUESTION), count)
            elif line.words[-1].rstrip()[-1] in COLONS:
                head = number
        self.crowds.append(crowd)

    def ranked(self) -> list[_Value]:
        """Return the values, the heaviest first."""
        newest = len(self.speakers) - 1

        def weight(value: _Value) -> float:
            weight = value.found.weight * (_SHARED if value.shared else 1) / sqrt(value.times)
            weight *= 1 - _AGE * (newest - value.turn) / (newest + 1)
            return -weight / pow(max(1, self.crowds[value.turn]), _CROWD)

        return sorted(self.values.values(), key=weight)


def _phrases(dialogue: _Dialogue, value: _Value) -> Iterator[list[_Span]]:
    """Yield what to say of a value, the fuller first."""
    line, start, stop = dialogue.lines[value.line], value.found.start, value.found.stop
    first, end = _window(line, start, stop, _LEFT)
    head = dialogue.heads[value.line]
    if head >= 0 and (first, end) == (start, stop):
        above = dialogue.lines[head]
        count = len(above.words)
        yield [(head, max(above.starts[-1], count - _LEFT), count), (value.line, first, end)]
    yield [(value.line, first, end)]
    if first < start:
        yield [(value.line, *_window(line, start, stop, 1))]


def _window(line: Line, start: int, stop: int, left: int) -> tuple[int, int]:
    """Return the range of words that says what a value is: at most `left` before it, and what completes it."""
    words = line.words
    floor, ceiling = line.sentences(start, stop)
    numeric = any(map(str.isdigit, line.text(start, stop)))
    if numeric and len(line.found) > 1:
        start, stop = _grouped(line, start, stop)
    first, room = start, _LEFT_CHARS
    while first > floor and start - first < left:
        word = words[first - 1].rstrip()
        room -= len(word) + 1
        if room < 0 or (start - first > 1 and word[-1] in PAUSES):
            break
        first -= 1
    end, room = stop, _RIGHT_CHARS
    while end < ceiling and words[end - 1].rstrip()[-1] not in PAUSES + CLOSES:
        room -= len(words[end]) + 1
        if room < 0:
            # Not all that follows has room. After a number the next word may be its unit: "5 GB", "2 licences".
            end = stop + (numeric and unit(words[stop].rstrip()))
            break
        end += 1
    return _balanced(words, first, end, floor, ceiling)


def _grouped(line: Line, start: int, stop: int) -> tuple[int, int]:
    """Return the range, with the values that touch a number: the rest of a date or an address, groups of digits."""
    ends = {one.start: one.stop for one in line.found}
    while stop in ends and stop - start < _GROUP:
        stop = ends[stop]
    starts = {one.stop: one.start for one in line.found}
    while start in starts and stop - start < _GROUP and line.words[start - 1].rstrip()[-1] not in PAUSES + COLONS:
        start = starts[start]
    return start, stop


def _balanced(words: list[str], first: int, end: int, floor: int, ceiling: int) -> tuple[int, int]:
    """Return the range, taken to the other half of a bracket if that is near."""
    open_ = unclosed("".join(words[first:end]))
    if open_ > 0:
        near = range(end, min(ceiling, end + _BRACKETED))
        end = next((at + 1 for at in near if unclosed(words[at]) < 0), end)
    elif open_ < 0:
        near = range(first - 1, max(floor, first - _BRACKETED) - 1, -1)
        first = next((at for at in near if unclosed(words[at]) > 0), first)
    return first, end


class _Bullets:
    """The text as it grows."""

    def __init__(self, dialogue: _Dialogue, max_chars: int) -> None:
        self.dialogue = dialogue
        self.room = max_chars + 1 if max_chars else 1 << 62  # every bullet but the last has a line end
        self.covered: set[str] = set()
        self._kept: dict[int, list[tuple[int, int]]] = {}  # by line: its ranges of words
        self._parts: dict[int, dict[int, str]] = {}  # by turn, then by line
        self._sizes: dict[int, int] = {}

    def add(self, spans: list[_Span]) -> bool:
        """Keep these words of one turn, if there is room for all."""
        turn = self.dialogue.turns[spans[0][0]]
        kept: dict[int, list[tuple[int, int]]] = {}
        for number, first, end in spans:
            kept.setdefault(number, list(self._kept.get(number, ()))).append((first, end))
        parts = dict(self._parts.get(turn, ()))
        for number, ranges in kept.items():
            kept[number] = _merged(ranges)
            parts[number] = self._said(number, kept[number])
        size = len(self._bullet(turn, parts)) + 1
        room = self.room + self._sizes.get(turn, 0) - size
        if room < 0:
            return False
        self.room, self._sizes[turn], self._parts[turn] = room, size, parts
        for number, ranges in kept.items():
            self._kept[number] = ranges
            for start, stop, key, _ in self.dialogue.lines[number].found:
                if any(first <= start and stop <= end for first, end in ranges):
                    self.covered.add(key)
        return True

    def complete(self) -> None:
        """Use what room is left for the rest of the sentences, the newest first."""
        for number in sorted(self._kept, reverse=True):
            line = self.dialogue.lines[number]
            for first, end in self._kept[number]:
                whole = line.sentences(first, end)
                if self.room >= _ROOM and whole != (first, end):
                    self.add([(number, *whole)])

    def text(self) -> str:
        """Return all bullets, the oldest turn first."""
        return "\n".join(self._bullet(turn, self._parts[turn]) for turn in sorted(self._parts))

    def _bullet(self, turn: int, parts: dict[int, str]) -> str:
        text = f"- {self.dialogue.speakers[turn]}: "
        joint = ""
        for number in sorted(parts):
            text += joint + parts[number]
            joint = " " if text[-1] in PUNCTUATION else "; "
        return text

    def _said(self, number: int, ranges: list[tuple[int, int]]) -> str:
        """Return what is kept of a line, with its number in the list, or with the question it answers."""
        line = self.dialogue.lines[number]
        text = " … ".join(_tidy(line.text(first, end)) for first, end in ranges)
        if line.mark and ranges[0][0] == 0:
            return f"{line.mark} {text}"
        asked = self.dialogue.asked[number]
        if asked and len(line.words) <= _BARE and ranges == [(0, len(line.words))]:
            return f"({asked}) {text}"
        return text


def _tidy(text: str) -> str:
    """Return the text without a pause at its end, and without half a bracket around it."""
    text = text.rstrip(PAUSES + " ") or text
    open_ = unclosed(text)
    if open_ < 0 and text[-1] in CLOSES:
        return text[:-1] or text
    if open_ > 0 and text[0] in OPENS:
        return text[1:] or text
    return text


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges in order, those that nearly touch as one."""
    merged: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if merged and first - merged[-1][1] <= _GAP:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((first, end))
    return merged
