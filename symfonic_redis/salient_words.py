"""What a word is by its form alone: no model, and no word list but the negations of a few languages.

A word may be a value when it has digits, a capital, or a sign inside it. In a script without capitals every longer word
may be one.
"""

from __future__ import annotations

import re

# What a value weighs. Ids come first: nobody can guess one back, while a name is often said again.
ID = 8.0  # letters with digits, an address, a path, a long number
LONG = 4.0
"""The weight of a number of four or five digits. What weighs as much or more can be found by nothing but itself."""
_AMOUNT = 3.0  # a number with a currency sign or a per cent sign, a short code
QUOTED = 3.0
CAPITALS = 3.0
_NAME = 2.4  # a capital inside a sentence; a compound word
PHRASE = 2.0  # the whole of a list item, of what follows a label, of a short answer
_NUMBER = 1.6  # any other number
WORD = 1.0  # a word of a script without capitals

_LONGEST = 120  # characters of a value
_ID_DIGITS, _LONG_DIGITS, _CODE_CHARS = 6, 4, 4
_ABBREVIATION, _ELISION, _INITIAL = 3, 4, 2  # characters of "No.", of "I'll", of what is no acronym
_UNIT_CHARS, _SMALL_WORD = 10, 4

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
HAN = "\u3005\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
KATAKANA = "\u30a0-\u30ff\uff66-\uff9f"
HIRAGANA = "\u3041-\u309f"
WIDE = HAN + KATAKANA + HIRAGANA
_DIGIT, _LETTER = re.compile(r"\d"), re.compile(r"[^\W\d_]")
_ONLY_HIRAGANA = re.compile(f"[{HIRAGANA}]+")  # particles and endings
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_LONE = re.compile("[\ud800-\udfff]")
_UNIT = re.compile(r"\d{1,4}[^\W\d_]{1,4}")  # 20th, 5kg
_CLOCK = re.compile(r"\d{1,2}(?:[:.]\d\d){1,2}")
_COMPOUND = re.compile(r"[^\W\d_][-/][^\W\d_]")
_SIGNED = re.compile(r"[^\W_][_@\\=][^\W_]|://|[^\W\d_]\.[^\W\d_]{2}|/\w+/")
_CAMEL = re.compile(r"[^\W\d_][a-z][A-Z]")
_NEGATION = re.compile(
    r"[^\w]*(?:"
    r"\w+n['\u2019]t|dont|cant|didnt|doesnt|isnt|not|no(?!\.)|never|none|cannot|without|nothing|neither|nor"  # English
    # Those of other languages not in capitals: SIN is an airport, NE a state.
    r"|(?-i:[Nn]ichts?|[Kk]ein\w{0,2}|[Nn]ie|niemals|[Oo]hne|niet|geen"  # German, Dutch
    r"|ne|n['\u2019]\w+|pas|jamais|[Aa]ucune?|[Ss]ans|[Nn]on|senza"  # French, Italian
    r"|[Nn]unca|[Nn]ing[uú]n\w?|[Ss]in|[Nn][aã]o|[Ss]em"  # Spanish, Portuguese
    r"|[Нн]\u0435т?|[Бб]\u0435з|никогда|नहीं|لا|لم|لن|ليست?|بدون)"
    # "No, it is AB-12" says nothing against what follows, and "No. 5" is a number.
    rf")[^\w{PAUSES}{COLONS}]*$"
    # In a run of characters a negation is one of them, in Japanese endings the end.
    rf"|(?![不没沒][{PAUSES}])[^\s\w]*[{HAN}]*[不没沒未无無]"
    rf"|[{HIRAGANA}]*(?:ない|なかった|なく|(?<!すみ)ません(?:でした)?)(?:が|から|ので|けど|し|か)?(?![{HIRAGANA}])",
    re.IGNORECASE,
)


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


def _look(word: str) -> _Form | None:
    """Return what a word is by its form alone; None for a plain one."""
    core = core_of(word)
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
        weight, closer = max(weight, QUOTED if core else 0), ""
    return (weight, capital, ends, mark, closer) if weight or closer or mark != " " else None


def _weigh(core: str) -> tuple[float, bool]:
    """Return what a word without the punctuation around it weighs, and whether it is a name by its capital."""
    if not core.isalpha():
        return _weigh_mixed(core)
    if core.islower():
        return 0, False
    if len(core) > _INITIAL and _CAMEL.search(core):
        return ID, False
    if core[0].isupper():
        acronym = len(core) > _INITIAL and core.isupper()
        return (CAPITALS if acronym else _NAME, True) if len(core) > 1 else (0, False)
    return _weigh_caseless(core), False


def _weigh_mixed(core: str) -> tuple[float, bool]:
    if _DIGIT.search(core):
        return _weigh_number(core), False
    if _SIGNED.search(core) or _CAMEL.search(core):
        return ID, False
    if core[0].isupper():
        name = len(core) > 1 and not (len(core) <= _ELISION and core[1] in "'\u2019")  # "I'll" is none, "O'Brien" is
        return (CAPITALS if len(core) > _INITIAL and core.isupper() else _NAME) if name else 0, name
    if _COMPOUND.search(core):
        return _NAME, False
    return _weigh_caseless(core) if _LETTER.search(core) else 0, False


def _weigh_caseless(core: str) -> float:
    caseless = len(core) > 1 and core.lower() == core.upper()
    return WORD if caseless and not _ONLY_HIRAGANA.fullmatch(core) else 0


def _weigh_number(core: str) -> float:
    digits, letters = len(_DIGIT.findall(core)), bool(_LETTER.search(core))
    sign = core.lstrip("+-")[:1] in _SIGNS or core[-1] in _SIGNS
    if _UNIT.fullmatch(core) or (not letters and (digits < _LONG_DIGITS or _CLOCK.fullmatch(core))):
        return _AMOUNT if sign else _NUMBER
    if sign or len(core) < _CODE_CHARS:
        return _AMOUNT
    return ID if letters or digits >= _ID_DIGITS else LONG


def core_of(text: str) -> str:
    """Return the text without the punctuation around it."""
    return text if text.isalnum() else text.strip(_EDGE)


def plain(text: str) -> str:
    """Return the text without line ends and control characters, and such that it can be encoded."""
    return text if text.isprintable() else _LONE.sub("\ufffd", _CONTROL.sub(" ", text))


def unit(word: str) -> bool:
    """Return whether a word after a number may be its unit, and not merely the next small word."""
    return word[0] in _SIGNS or (1 < len(word) <= _UNIT_CHARS and (len(word) > _SMALL_WORD or not word.islower()))


def negations(words: list[str]) -> list[int]:
    """Return which of the words are negations, in order."""
    match = _NEGATION.match
    return [at for at, word in enumerate(words) if match(word)]


def ending(word: str) -> bool:
    """Return whether a word is a Japanese ending."""
    return bool(_ONLY_HIRAGANA.match(word))


def unclosed(text: str) -> int:
    """Return how many brackets are opened and not closed, below 0 for the reverse."""
    if text.isascii():
        return text.count("(") + text.count("[") - text.count(")") - text.count("]")
    return sum(map(text.count, OPENS)) - sum(map(text.count, CLOSES))
