"""What in a turn is a value, by its form alone: no model, no word list of any language.

A value has digits, a capital inside a sentence, a sign inside a word, or quotation marks around it. In a script without
capitals every longer word may be one. So may a line that is nothing but an answer, or what follows a label.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import NamedTuple

# What a value weighs. Ids come first: nobody can guess one back, while a name is often said again.
_ID = 8.0  # letters with digits, an address, a path, a long number
LONG = 4.0
"""The weight of a number of four or five digits. What weighs as much or more can be found by nothing but itself."""
_AMOUNT = 3.0  # a number with a currency sign or a per cent sign, a short code
_QUOTED = 3.0
_CAPITALS = 3.0
_NAME = 2.4  # a capital inside a sentence
_PHRASE = 2.0  # the whole of a list item, of what follows a label, of a short answer; a compound word
_NUMBER = 1.6  # any other number
_REPLY = 1.0  # the first sentence of an answer without a value, such as a yes
_WORD = 1.0  # a word of a script without capitals
_PAIRED = 1.2  # how much more a name of two words weighs: each
_ASKED = 0.6  # how much of it is left in a question, where nothing is settled yet

_LONGEST = 120  # characters of a value
_BLOB = 1000  # characters of a word that is data, not text
_ID_DIGITS, _LONG_DIGITS, _CODE_CHARS = 6, 4, 4
_ABBREVIATION, _ELISION = 3, 4  # characters of "No.", of "I'll"
_UNIT_CHARS, _SMALL_WORD = 10, 4
_LABEL_WORDS, _LABELLED_WORDS, _ITEM_WORDS, _REPLY_WORDS, _QUOTED_WORDS = 4, 5, 4, 12, 8

# Punctuation of many scripts. What looks like another character is written by its number.
ASKS = "?\uff1f؟፧\u037e"
_STOPS = f".!…。\uff01\uff0e｡\u06d4।॥።\u0589{ASKS}"
PAUSES = ",;|\uff0c、\uff1b،؛፣፤"
COLONS = ":\uff1a፡"
PUNCTUATION = _STOPS + PAUSES + COLONS
OPENS, CLOSES = "(\uff08[\uff3b「『【《〈", ")\uff09]\uff3d」』】》〉"
_QUOTES = {'"': '"', "“": "”", "«": "»", "»": "«", "„": "“", "`": "`", "\u2018": "\u2019"}
_MARKS = CLOSES + "".join(_QUOTES) + "”\u2019'*"
_EDGE = f"{OPENS}{_MARKS}{PUNCTUATION}{{}}<>¿¡ "
_SIGNS = "%‰°$¢£¤¥\uffe5\uff04" + "".join(map(chr, range(0x20A0, 0x20C1)))  # the block of currencies

# Chinese and Japanese put no space between words: there a change of script is where a word ends.
_HAN = "\u3005\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_KATAKANA = "\u30a0-\u30ff\uff66-\uff9f"
_HIRAGANA = "\u3041-\u309f"
_WIDE = _HAN + _KATAKANA + _HIRAGANA
_JOINED = re.compile(f"[{_WIDE}]")
_BEFORE, _AFTER = "\uff08「『【《〈\uff3b", "。\uff01\uff1f\uff0e｡\uff0c、\uff1b\uff1a\uff09」』】》〉\uff3d"
_RUN = re.compile(
    f"[{_BEFORE}]*(?:[{_HAN}]+|[{_KATAKANA}]+|[{_HIRAGANA}]+|[^\\s{_BEFORE}{_AFTER}{_WIDE}]+)?"
    # What belongs to the character before it: accents, joiners, variation selectors.
    f"[\u0300-\u036f\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef]*[{_AFTER}]*\\s*"
)
_DIGIT, _LETTER = re.compile(r"\d"), re.compile(r"[^\W\d_]")
_ONLY_HIRAGANA = re.compile(f"[{_HIRAGANA}]+")  # particles and endings
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_LONE = re.compile("[\ud800-\udfff]")
_MARKER = re.compile(r"\s*(?:(?:[-*+•‣·\u2013—>|]|#{1,6})\s+)*(?:(\(?(?:\d{1,3}|[A-Za-z])[.)])\s+)?")
_BOLD = re.compile(r"(?<!\w)\*\*(?=\S)([^*]+)(?<=\S)\*\*(?!\w)")
_UNIT = re.compile(r"\d{1,4}[^\W\d_]{1,4}")  # 20th, 5kg
_CLOCK = re.compile(r"\d{1,2}(?:[:.]\d\d){1,2}")
_COMPOUND = re.compile(r"[^\W\d_][-/][^\W\d_]")
_SIGNED = re.compile(r"[^\W_][_@\\=][^\W_]|://|[^\W\d_]\.[^\W\d_]{2}|/\w+/|[^\W\d_][a-z][A-Z]")


class Found(NamedTuple):
    """A value in a line: its words from `start` to before `stop`."""

    start: int
    stop: int
    key: str
    weight: float


class Line:
    """A line of a turn, in words. Those of a script without spaces carry the spaces that follow them."""

    __slots__ = ("asks", "found", "glue", "mark", "starts", "words")

    def __init__(self, words: list[str], glue: str, mark: str) -> None:
        self.words, self.glue = words, glue
        self.mark = mark  # its number in a list, such as "2."
        self.starts = [0]  # where its sentences begin
        self.asks = False  # whether its last sentence is a question
        self.found: list[Found] = []  # in order

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


_Form = tuple[float, bool, int, str, str]
"""What the form of a word says, whatever stands around it.

Its weight, 0 for no value; whether it is a name by its capital; whether it ends a sentence: 0 no, 1 perhaps, by a full
stop, 2 surely; its last punctuation mark, or a space; what closes the quotation it opens, or nothing.
"""


class Forms(dict[str, _Form | None]):
    """The forms of a dialogue's words, each word looked at once; None for a plain one."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[_Form, _Form] = {}  # one object for each, so that the garbage collector has little to see

    def __missing__(self, word: str) -> _Form | None:
        form = _look(word)
        form = self[word] = self._known.setdefault(form, form) if form else None
        return form


def plain(text: str) -> str:
    """Return the text without line ends and control characters, and such that it can be encoded."""
    return text if text.isprintable() else _LONE.sub("\ufffd", _CONTROL.sub(" ", text))


def unit(word: str) -> bool:
    """Return whether a word after a number may be its unit, and not merely the next small word."""
    return word[0] in _SIGNS or (1 < len(word) <= _UNIT_CHARS and (len(word) > _SMALL_WORD or not word.islower()))


def unclosed(text: str) -> int:
    """Return how many brackets are opened and not closed, below 0 for the reverse."""
    if text.isascii():
        return text.count("(") + text.count("[") - text.count(")") - text.count("]")
    return sum(map(text.count, OPENS)) - sum(map(text.count, CLOSES))


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


def _look(word: str) -> _Form | None:
    """Return what a word is by its form alone; None for a plain one."""
    core = _core(word)
    weight, capital = _weigh(core) if 0 < len(core) <= _LONGEST else (0.0, False)
    if core is word:
        return (weight, capital, 0, " ", "") if weight else None
    word = word.strip()
    mark = word.rstrip(_MARKS)[-1:] or word[-1:]
    if mark not in PUNCTUATION:
        mark = " "
    ends = 2 if mark in _STOPS else 0
    if mark == ".":
        # "3." may be an ordinal, "z.B." and "No." are abbreviations: where in doubt, the sentence goes on.
        brief = core.istitle() if len(core) == _ABBREVIATION else core.isdigit() or core.istitle()
        initial = len(core) == 1 and core.isalpha()
        ends = 0 if "." in core or initial or (brief and len(core) <= _ABBREVIATION) else 1
    closer = _QUOTES.get(word[:1], "")
    if closer and closer in word[1:]:
        weight, closer = max(weight, _QUOTED if core else 0), ""
    return (weight, capital, ends, mark, closer) if weight or closer or mark != " " else None


def _weigh(core: str) -> tuple[float, bool]:
    """Return what a word without the punctuation around it weighs, and whether it is a name by its capital."""
    if core.isalpha():
        if core.islower():
            return 0, False
        if core.istitle() and core[0].isupper():
            return (_NAME, True) if len(core) > 1 else (0, False)
    elif _DIGIT.search(core):
        return _weigh_number(core), False
    if _SIGNED.search(core):
        return _ID, False
    if core[0].isupper():
        name = len(core) > 1 and not (len(core) <= _ELISION and core[1] in "'\u2019")  # "I'll" is none, "O'Brien" is
        return (_CAPITALS if len(core) > 2 and core.isupper() else _NAME) if name else 0, name  # noqa: PLR2004 - two letters are no acronym
    if _COMPOUND.search(core):
        return _PHRASE, False
    caseless = len(core) > 1 and core.lower() == core.upper() and _LETTER.search(core)
    return _WORD if caseless and not _ONLY_HIRAGANA.fullmatch(core) else 0, False


def _weigh_number(core: str) -> float:
    digits, letters = len(_DIGIT.findall(core)), bool(_LETTER.search(core))
    sign = core.lstrip("+-")[:1] in _SIGNS or core[-1] in _SIGNS
    if _UNIT.fullmatch(core) or (not letters and (digits < _LONG_DIGITS or _CLOCK.fullmatch(core))):
        return _AMOUNT if sign else _NUMBER
    if sign or len(core) < _CODE_CHARS:
        return _AMOUNT
    return _ID if letters or digits >= _ID_DIGITS else LONG


def _find(line: Line, forms: Forms) -> None:
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
            if at > first or weight == _CAPITALS:
                found.append(Found(at, at + 1, _key(word), weight * _PAIRED if paired else weight))
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
        # What stands before a colon at the front is the name of the value, and is none.
        found[:] = [one for one in found if one.start > colon or one.weight >= LONG]
        strong = any(one.start > colon and one.weight > _WORD for one in found)
        if not strong and len(words) - colon - 1 <= _LABELLED_WORDS:
            _add(line, colon + 1, len(words), _PHRASE)


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
            _add(line, at, stop + 1, _QUOTED)
            return


def _find_phrase(line: Line, *, answer: bool) -> None:
    """Take a short list item, bold line or answer as a whole where no word of it stands out."""
    count = len(line.words)
    first = line.starts[1] if len(line.starts) > 1 else count
    if count <= _ITEM_WORDS and all(one.weight <= _WORD for one in line.found):
        _add(line, 0, count, _PHRASE)
    elif answer and not line.found and first <= _REPLY_WORDS:
        _add(line, 0, first, _REPLY)


def _add(line: Line, start: int, stop: int, weight: float) -> None:
    if key := _key(line.text(start, stop)):
        insort(line.found, Found(start, stop, key, weight))


def _key(text: str) -> str:
    return _core(text).casefold()


def _core(text: str) -> str:
    """Return the text without the punctuation around it."""
    return text if text.isalnum() else text.strip(_EDGE)
