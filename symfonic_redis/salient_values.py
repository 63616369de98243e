"""What in a turn is a value, by its form alone: no model, no word list of any language.

A value has digits, a capital inside a sentence, a sign inside a word, or quotation marks around it. In a script without
capitals every longer word may be one. So may a line that is nothing but an answer, or what follows a label.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import NamedTuple

from symfonic_redis.salient_words import (
    ASKS,
    CAPITALS,
    COLONS,
    HAN,
    HIRAGANA,
    KATAKANA,
    LONG,
    PHRASE,
    QUOTED,
    WIDE,
    WORD,
    Forms,
    core_of,
    negations,
    plain,
)

_REPLY = 1.0  # the weight of the first sentence of an answer without a value, such as a yes
_ASKED = 0.6  # how much of its weight is left in a question, where nothing is settled yet

_BLOB = 1000  # characters of a word that is data, not text
_LABEL_WORDS, _LABELLED_WORDS, _ITEM_WORDS, _REPLY_WORDS, _QUOTED_WORDS = 4, 5, 4, 12, 8

_JOINED = re.compile(f"[{WIDE}]")
_BEFORE, _AFTER = "\uff08「『【《〈\uff3b", "。\uff01\uff1f\uff0e｡\uff0c、\uff1b\uff1a\uff09」』】》〉\uff3d"
_RUN = re.compile(
    f"[{_BEFORE}]*(?:[{HAN}]+|[{KATAKANA}]+|[{HIRAGANA}]+|[^\\s{_BEFORE}{_AFTER}{WIDE}]+)?"
    # What belongs to the character before it: accents, joiners, variation selectors.
    f"[\u0300-\u036f\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef]*[{_AFTER}]*\\s*"
)
_MARKER = re.compile(r"\s*(?:(?:[-*+•‣·\u2013—>|]|#{1,6})\s+)*(?:(\(?(?:\d{1,3}|[A-Za-z])[.)])\s+(?=.*[^\W_]))?")
_BOLD = re.compile(r"(?<!\w)\*\*(?=\S)([^*]+)(?<=\S)\*\*(?!\w)")


class Found(NamedTuple):
    """A value in a line: its words from `start` to before `stop`."""

    start: int
    stop: int
    key: str
    weight: float


class Line:
    """A line of a turn, in words. Those of a script without spaces carry the spaces that follow them."""

    __slots__ = ("_nots", "asks", "found", "glue", "mark", "starts", "words")

    def __init__(self, words: list[str], glue: str, mark: str) -> None:
        self.words, self.glue = words, glue
        self.mark = mark  # its number in a list, such as "2."
        self.starts = [0]  # where its sentences begin
        self.asks = False  # whether its last sentence is a question
        self.found: list[Found] = []  # in order
        self._nots: list[int] | None = None  # which words are negations, once that was asked

    def text(self, start: int, stop: int) -> str:
        """Return these words as they were said, but with single spaces."""
        return self.glue.join(self.words[start:stop]).strip()

    def sentences(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of whole sentences that holds the words from `start` to `stop`."""
        if len(self.starts) == 1:
            return 0, len(self.words)
        after = bisect_left(self.starts, stop)
        end = self.starts[after] if after < len(self.starts) else len(self.words)
        return self.starts[bisect_right(self.starts, start) - 1], end

    def negation(self, floor: int, stop: int) -> int:
        """Return which word from `floor` to before `stop` is the last negation, or -1."""
        if self._nots is None:
            self._nots = negations(self.words)
        at = bisect_left(self._nots, stop) - 1
        return self._nots[at] if at >= 0 and self._nots[at] >= floor else -1


def read(text: str, forms: Forms, *, answer: bool) -> Iterator[Line]:
    """Yield a text's lines that have words, with their values. `answer`: the turn before it asked something."""
    code = False
    for raw in text.splitlines():
        body = raw.strip()
        if not body:
            continue
        if body.startswith("```"):
            code = not code
            continue
        mark, size = "", len(body)
        if not code:
            if not (body[0].isalpha() and body[1:2].isalnum()) and (prefix := _MARKER.match(body)):
                mark, body = prefix[1] or "", body[prefix.end() :]
            if "**" in body:
                body = _BOLD.sub(_inside, body)
        words, glue = _words(plain(body))
        if words:
            line = Line(words, glue, mark)
            _find(line, forms)
            if answer or len(body) < size:
                _find_phrase(line, answer=answer)
            answer = False
            yield line


def _inside(bold: re.Match[str]) -> str:
    return bold[1]


def _words(body: str) -> tuple[list[str], str]:
    """Return the words, and what joins them."""
    if body.isascii() or not _JOINED.search(body):
        words, glue = body.split(), " "
    else:
        words, glue = [run for run in _RUN.findall(body.strip()) if run], ""
    if len(body) > _BLOB:
        words = [word if len(word) <= _BLOB else "…" for word in words]
    return words, glue


def _find(line: Line, forms: Forms) -> None:  # noqa: C901 - one pass: a call for each word would cost half as much again
    """Find a line's sentences, and the words and quotations of it that are values."""
    words, found = line.words, line.found
    colon, since, first, named = -1, 0, 0, -1
    for at, word in enumerate(words):
        if word.islower() and word.isalpha():
            continue  # most words, and no value by their form
        form = forms[word]
        if form is None:
            continue
        weight, capital, ends, mark, closer = form
        if capital:
            # A word has a capital too where it stands first in a sentence. Two of them are a name.
            paired = named == at - 1 >= first
            if paired and named == first:
                found.append(Found(first, at, _key(words[first]), weight))
            if at > first or weight == CAPITALS:
                found.append(Found(at, at + 1, _key(word), weight))
            if mark == " ":
                named = at
        elif weight:
            found.append(Found(at, at + 1, _key(word), weight))
        if closer:
            _find_quotation(line, at, closer)
        if ends:
            since = _end(line, at, ends, mark, since)
            first = line.starts[-1]
        elif mark in COLONS and colon < 0 and at < _LABEL_WORDS:
            colon = at
    if 0 <= colon < len(words) - 1:
        _find_labelled(line, colon)


def _find_labelled(line: Line, colon: int) -> None:
    """Take what follows a label as a whole, where nothing in it stands out."""
    # What stands before a colon at the front is the name of the value, and is none.
    line.found[:] = [one for one in line.found if one.start > colon or one.weight >= LONG]
    strong = any(one.start > colon and one.weight > WORD for one in line.found)
    if not strong and len(line.words) - colon - 1 <= _LABELLED_WORDS:
        _add(line, colon + 1, len(line.words), PHRASE)


def _end(line: Line, at: int, ends: int, mark: str, since: int) -> int:
    """End the sentence whose values begin with number `since`, if it ends here; return the next one's number."""
    line.asks = mark in ASKS
    if line.asks:
        line.found[since:] = [one._replace(weight=one.weight * _ASKED) for one in line.found[since:]]
    after = line.words[at + 1][0] if at + 1 < len(line.words) else ""
    # What follows a full stop small or as a number goes on: "approx. five", "No. 5".
    if after and (ends > 1 or not (after.islower() or after.isdigit())):
        line.starts.append(at + 1)
        line.asks = False
        return len(line.found)
    return since


def _find_quotation(line: Line, at: int, closer: str) -> None:
    """Take what the quotation mark at a word opens, if it is short."""
    for stop in range(at + 1, min(len(line.words), at + _QUOTED_WORDS)):
        if closer in line.words[stop]:
            _add(line, at, stop + 1, QUOTED)
            return


def _find_phrase(line: Line, *, answer: bool) -> None:
    """Take a short list item, bold line or answer as a whole where no word of it stands out."""
    count = len(line.words)
    first = line.starts[1] if len(line.starts) > 1 else count
    if count <= _ITEM_WORDS and all(one.weight <= WORD for one in line.found):
        _add(line, 0, count, PHRASE)
    elif answer and not line.found and first <= _REPLY_WORDS:
        _add(line, 0, first, _REPLY)


def _add(line: Line, start: int, stop: int, weight: float) -> None:
    if key := _key(line.text(start, stop)):
        insort(line.found, Found(start, stop, key, weight))


def _key(text: str) -> str:
    return core_of(text).casefold()
