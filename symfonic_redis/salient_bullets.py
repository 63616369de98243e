"""The text of a summary as it grows: a bullet for each turn, in the dialogue's order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from symfonic_redis.salient_dialogue import Dialogue
from symfonic_redis.salient_values import Line
from symfonic_redis.salient_words import CLOSES, OPENS, PAUSES, PUNCTUATION, unclosed

Span = tuple[int, int, int]
"""A line's number, its words from, to before."""

ROOM = 6
"""In fewer characters nothing is said."""

_GAP = 3  # words between two pieces that are better said than left out
_REACH = 15  # words from before which no value reaches into a piece: the longest value, and the gap
_BARE = 2  # words of an answer that does not say what it answers
_TRIED = 12  # sentences of a turn, so that many short ones take a bounded time


class _Bullet:
    """What is kept of one turn, and how long that is."""

    __slots__ = ("_joined", "_last", "head", "parts", "size")

    def __init__(self, speaker: str) -> None:
        self.head = f"- {speaker}: "
        self.parts: dict[int, str] = {}  # by line
        self.size = 0  # with the line end; 0 for nothing kept
        self._last = -1  # the last line that is kept
        self._joined = 0  # characters of all parts, each with the joint after it

    def put(self, parts: dict[int, str], room: int) -> int | None:
        """Take these lines' new texts, if they need no more than `room` characters; return how many they need."""
        joined = self._joined
        for number, part in parts.items():
            before = self.parts.get(number)
            joined += len(part) + len(_joint(part)) - (len(before) + len(_joint(before)) if before else 0)
        last = max(self._last, *parts)
        size = len(self.head) + joined - len(_joint(parts.get(last) or self.parts[last])) + 1
        need = size - self.size
        if need > room:
            return None
        self.parts.update(parts)
        self.size, self._joined, self._last = size, joined, last
        return need

    def text(self) -> str:
        """Return the line, without its end."""
        parts = [self.parts[number] for number in sorted(self.parts)]
        return self.head + "".join([part + _joint(part) for part in parts[:-1]]) + parts[-1]


def _joint(part: str) -> str:
    """Return what stands between a part and the next one."""
    return " " if part[-1] in PUNCTUATION else "; "


class Bullets:
    """The text as it grows."""

    def __init__(self, dialogue: Dialogue, max_chars: int) -> None:
        self.dialogue = dialogue
        self.room = max_chars + 1 if max_chars else 1 << 62  # every bullet but the last has a line end
        self.covered: set[str] = set()
        self._kept: dict[int, list[tuple[int, int]]] = {}  # by line: its ranges of words
        self._bullets: dict[int, _Bullet] = {}  # by turn

    def add(self, spans: list[Span]) -> bool:
        """Keep these words of one turn, if there is room for all."""
        turn = self.dialogue.turns[spans[0][0]]
        kept: dict[int, list[tuple[int, int]]] = {}
        for number, first, end in spans:
            kept.setdefault(number, list(self._kept.get(number, ()))).append((first, end))
        for number, ranges in kept.items():
            kept[number] = _merged(ranges)
        bullet = self._bullets.get(turn) or _Bullet(self.dialogue.speakers[turn])
        need = bullet.put({number: self._said(number, ranges) for number, ranges in kept.items()}, self.room)
        if need is None:
            return False
        self.room -= need
        self._bullets[turn] = bullet
        self._kept.update(kept)
        for number, first, end in spans:
            self.covered.update(_keys(self.dialogue.lines[number], first, end, kept[number]))
        return True

    def silent(self) -> Iterator[tuple[int, list[Span]]]:
        """Yield each turn that has words and no bullet, the newest first, with its sentences."""
        for turn in reversed(range(len(self.dialogue.speakers))):
            if turn not in self._bullets and (spans := self.dialogue.sentences(turn)):
                yield turn, spans

    def fill(self) -> bool:
        """Use what room is left for a sentence of each turn without a bullet, then for the rest of what is kept.

        Return whether each turn with words has a bullet now.
        """
        if self.room < ROOM:
            return next(self.silent(), None) is None
        turns = dict(self.silent())
        # "Okay." and "Thank you." say little: what is longer comes before them.
        tried = [sorted(spans[:_TRIED], key=lambda span: span[2] - span[1] <= _BARE) for spans in turns.values()]
        for spans in tried:
            any(self._fits(span) and self.add([span]) for span in spans)
        self.complete()
        for spans in tried:
            for span in spans:
                if self._fits(span):
                    self.add([span])
        return turns.keys() <= self._bullets.keys()

    def _fits(self, span: Span) -> bool:
        """Return whether a sentence may fit, at less cost than to try it."""
        number, first, end = span
        return self.room >= max(ROOM, len(self.dialogue.lines[number].text(first, end)))

    def complete(self) -> None:
        """Use what room is left for the rest of the sentences, the newest first."""
        for number in sorted(self._kept, reverse=True):
            line = self.dialogue.lines[number]
            for first, end in self._kept[number]:
                whole = line.sentences(first, end)
                if self.room >= ROOM and whole != (first, end):
                    self.add([(number, *whole)])

    def text(self) -> str:
        """Return all bullets, the oldest turn first."""
        return "\n".join(self._bullets[turn].text() for turn in sorted(self._bullets))

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


def _keys(line: Line, first: int, end: int, ranges: list[tuple[int, int]]) -> Iterator[str]:
    """Yield the values that the ranges of a line hold at or about the words from `first` to before `end`."""
    found = line.found
    for at in range(bisect_left(found, (first - _REACH,)), bisect_left(found, (end + _GAP,))):
        start, stop, key, _ = found[at]
        within = bisect_right(ranges, (start, len(line.words))) - 1
        if within >= 0 and stop <= ranges[within][1]:
            yield key


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
