"""Older turns as the few phrases an agent still needs, by rule: no model, no server.

The rule is ours. Each distinct value (`salient_values` finds them, `salient_dialogue` weighs them) is kept where it was
said last, with the words around it that say what it is, the heaviest first, until the text is full. `docs/salient.md`
has the measurements.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any

from symfonic_redis.salient_bullets import ROOM, Bullets, Span
from symfonic_redis.salient_dialogue import Dialogue, Value
from symfonic_redis.salient_values import Line
from symfonic_redis.salient_words import CLOSES, COLONS, PAUSES, ending, unclosed, unit
from symfonic_redis.summary import MAX_CHARS

_LEFT, _LEFT_CHARS, _RIGHT_CHARS = 3, 28, 14  # words and characters of context
_GROUP = 9  # words of a number in groups, or of a date in words, with the values beside it
_DENIED = 5  # words after a value to look for its negation, as in "AB-12 was never sent"
_BRACKETED = 5  # words to look for a bracket's other half
_TRIED, _MISSES = 4000, 12  # so that a huge dialogue takes a bounded time


def salient(entries: Iterable[Any], max_chars: int = MAX_CHARS) -> tuple[str, bool]:
    """Return bullets of what an agent will need of these turns, and whether some of it did not fit.

    A bullet is `- speaker: phrases`, one for each turn that has any, oldest first. Phrases of one line that do not
    touch are joined by an ellipsis, those of several lines by a semicolon. The same turns always give the same text.
    At most 8,000 characters of a turn are read, and of all turns 12,000, or 240 for each if those are more: short turns
    whole, of the long ones an equal share, three quarters of it from the front and the rest from the end.

    Args:
        entries: objects with `content` and `metadata["speaker"]`, oldest first.
        max_chars: the longest text; 0 for no limit, then every sentence with a value that was read is there whole.
    """
    dialogue = Dialogue(entries)
    bullets = Bullets(dialogue, max_chars)
    if not max_chars:
        for number, line in enumerate(dialogue.lines):
            if line.found:
                bullets.add(list({(number, *line.sentences(one.start, one.stop)) for one in line.found}))
        for _, spans in list(bullets.silent()):
            bullets.add([spans[0], spans[-1]])
        return bullets.text(), False
    missed = 0
    for value in dialogue.ranked()[:_TRIED]:
        if value.found.key not in bullets.covered:
            missed = 0 if any(map(bullets.add, _phrases(dialogue, value))) else missed + 1
        if missed > _MISSES or bullets.room < ROOM:
            break
    told = bullets.fill()
    return bullets.text(), not told or any(key not in bullets.covered for key in dialogue.values)


def _phrases(dialogue: Dialogue, value: Value) -> Iterator[list[Span]]:
    """Yield what to say of a value, the fuller first."""
    line, start, stop = dialogue.lines[value.line], value.found.start, value.found.stop
    first, end = _window(line, start, stop, _LEFT)
    head = dialogue.heads[value.line]
    if head >= 0 and (first, end) == (start, stop):
        above = dialogue.lines[head]
        count = len(above.words)
        yield [(head, max(above.starts[-1], count - _LEFT), count), *_denied(value.line, line, first, end)]
    yield _denied(value.line, line, first, end)
    if first < start:
        yield _denied(value.line, line, *_window(line, start, stop, 1))


def _denied(number: int, line: Line, first: int, end: int) -> list[Span]:
    """Return the phrase with the negation of its sentence: without it, it would say the reverse."""
    floor, ceiling = line.sentences(first, end)
    at = line.negation(floor, end)
    if at >= first:
        return [(number, first, end)]
    if at >= 0:
        # A Japanese ending says nothing without the word it ends.
        return [(number, at - (at > floor and ending(line.words[at])), at + 1), (number, first, end)]
    at = line.negation(end, min(ceiling, end + _DENIED))
    if at >= 0 and not any(word.rstrip()[-1] in PAUSES for word in line.words[end - 1 : at]):
        end = min(ceiling, at + 2)
    return [(number, first, end)]


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
    found = line.found
    at = bisect_left(found, (stop,))
    while at < len(found) and found[at].start == stop and stop - start < _GROUP:
        stop = found[at].stop
        at = bisect_left(found, (stop,))
    at = bisect_left(found, (start,)) - 1
    while at >= 0 and found[at].stop == start and stop - start < _GROUP:
        if line.words[start - 1].rstrip()[-1] in PAUSES + COLONS:
            break
        start = found[at].start
        at = bisect_left(found, (start,)) - 1
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
