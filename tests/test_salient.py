"""The salient summary: what it keeps, in what words, that nothing breaks it, and how much it holds."""

from __future__ import annotations

import random
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from recall import entries, own_dialogues, recall, transcripts
from transcript_file import real_transcripts

from symfonic_redis import salient_dialogue
from symfonic_redis.salient import salient
from symfonic_redis.summary import extractive

OWN = own_dialogues()
SPEAKERS = st.sampled_from(["user", "assistant", "", None, "Zoë 7", "a\nb", "\ud800"])
PIECES = st.sampled_from(
    [
        "A-1",
        "$5 ",
        "Anna ",
        "is ",
        "? ",
        ". ",
        "\n- ",
        "2. ",
        "(",
        ")",
        '"',
        "“",
        "```\n",
        "**",
        ": ",
        "; ",
        "東京",
        "は",
    ]
)
CONTENTS = (
    st.none()
    | st.text(max_size=80)
    | st.text(st.characters(), max_size=40)  # lone surrogates too
    | st.text("?!.,;:()[]\"'`*-| \n\x00\x1f\u2028", max_size=40)
    | st.lists(PIECES | st.text(max_size=4), max_size=40).map("".join)
)
TURNS = st.lists(
    st.builds(lambda speaker, text: SimpleNamespace(content=text, metadata={"speaker": speaker}), SPEAKERS, CONTENTS),
    max_size=8,
)


def told(*dialogue, max_chars=1000):
    return salient(entries(list(dialogue)), max_chars)


def by_rule(turns, chars):
    return extractive(turns, max_chars=chars)[0]


def of_value(turns, chars):
    return salient(turns, chars)[0]


# --- what it says --------------------------------------------------------------------------------


def test_a_bullet_names_its_speaker_and_says_what_its_values_are():
    text, cut = told(
        (
            "user",
            "Hello there! I would love to get some help today if I may. My customer number is KX-20417, thank you.",
        ),
        (
            "assistant",
            "Thanks so much for waiting. I have found it and everything looks good. The refund is $49.90 in total.",
        ),
        max_chars=90,
    )
    assert text == "- user: customer number is KX-20417\n- assistant: The refund is $49.90 in total."
    assert not cut


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("It is in No. 5, Main St. 12 today. All is well.", "It is in No. 5, Main St. 12 today."),
        ("It costs 3.5 kg. Fine. It is ok.", "It costs 3.5 kg."),
        ("Dr. Smith signed it. Fine.", "Dr. Smith signed it."),
        ("Am 3. Mai 2024 z. B. in Bonn. gut.", "Am 3. Mai 2024 z. B. in Bonn. gut."),
        ("番号はA-12です。了解しました。", "番号はA-12です。"),
        ("رقم الملف MR-20451؟", "رقم الملف MR-20451؟"),
        ("मेरा ऑर्डर OD12345 है। ठीक।", "मेरा ऑर्डर OD12345 है।"),
        ("Заказ № 88123. да", "Заказ № 88123. да"),
    ],
)
def test_a_sentence_ends_where_a_reader_would_end_it(content, said):
    assert told(("user", content), max_chars=0)[0].startswith(f"- user: {said}")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("Your orders:\n\n- A1B2C3\n- D4E5F6", "Your orders: A1B2C3; D4E5F6"),
        ("1. **Lamp**\n   - Item ID: 4385534692", "1. Lamp; Item ID: 4385534692"),
        ("| Bolt | M8-40 |", "Bolt | M8-40"),
        ("```\nx = y_1 ** 2 ** 3\n- not_a: list\n```", "x = y_1 ** 2 ** 3; - not_a: list"),
        ("Set `DB_POOL_MAX` and 2**3**4.", "Set `DB_POOL_MAX` and 2**3**4."),
        ('He said "leave it at the back door".', 'He said "leave it at the back door".'),
        ("see https://x.example/a?b=1&c=(2)", "see https://x.example/a?b=1&c=(2)"),
    ],
)
def test_lists_and_code_survive(content, said):
    assert told(("user", content))[0] == f"- user: {said}"


def test_a_bare_answer_is_told_with_its_question():
    text, _ = told(("assistant", "Fine. Could you tell me your user ID?"), ("user", "noor_5521"), max_chars=50)
    assert "- user: (me your user ID?) noor_5521" in text


def test_the_newest_mention_is_the_one_that_is_kept():
    text, _ = told(
        ("user", "The code AB-1234 was sent to me."),
        ("assistant", "I see."),
        ("user", "Please cancel the code AB-1234 now."),
        max_chars=45,
    )
    assert text == "- user: Please cancel the code AB-1234 now."


DENIALS = [
    (
        70,
        "As far as I see there are not enough economy seats available on flight HAT139 this week",
        "not enough economy seats available on flight HAT139",
    ),
    (60, "I am so sorry but I really don't remember the reservation ID any more", "don't remember the reservation ID"),
    (
        60,
        "It seems I just don\u2019t remember the reservation ID right now, sorry",
        "don\u2019t remember the reservation ID",
    ),
    (
        60,
        "I see that the travel insurance was not added to your reservation PEP4E0 at the time of booking",
        "not added to your reservation PEP4E0",
    ),
    (
        60,
        "We could not yet for all that we tried find the parcel AB-1234 that was sent",
        "not … find the parcel AB-1234",
    ),
    (45, "As of today flight HAT139 is never available to the members of the club", "HAT139 is never available"),
    (
        60,
        "Es tut mir leid aber ich habe das Paket AB-1234 bis heute nicht erhalten und warte noch darauf",
        "Paket AB-1234 bis heute nicht erhalten",
    ),
    (
        60,
        "es gibt keine freien plätze mehr für heute abend im zug ab-1234 nach dort hin",
        "keine … abend im zug ab-1234",
    ),
    (
        60,
        "Je regrette mais je n\u2019ai pas encore reçu le colis AB-1234 de la semaine passée",
        "pas encore reçu le colis AB-12",
    ),
    (60, "hasta la fecha nunca me ha llegado a casa el pedido AB-1234 que hice", "nunca … casa el pedido AB-1234"),
    (60, "fino a oggi non ho mai ricevuto a casa il pacco AB-1234 che avevo ordinato", "non … casa il pacco AB-1234"),
    (
        60,
        "до сих пор не получил я в своём городе посылку AB-1234 которую давно уже заказал",
        "не получил я в своём городе посылку AB-1234",
    ),
    (30, "您好我到现在为止还没有收到\uff0c关于订单AB-1234的任何消息以及退款通知请尽快处理", "还没有收到\uff0c关于订单"),
    (30, "注文AB-1234はまだ届いていませんので至急確認をお願いします", "注文AB-1234はまだ届いていません"),
    (30, "昨日までに届かない荷物の番号は確かにAB-1234だと思いますのでよろしくお願いします", "届かない荷物の番号は"),
    (50, "إلى حد الآن لم أستلم من المتجر الطلب رقم AB-1234 الذي دفعت ثمنه قبل أسبوعين", "لم أستلم من المتجر الطلب رقم"),
]


@pytest.mark.parametrize(("room", "content", "said"), DENIALS)
def test_a_negation_is_kept_with_what_it_denies(room, content, said):
    text, _ = told(("u", content), max_chars=room)
    assert said in text
    assert content not in text, "there would be room for all"


@pytest.mark.parametrize(("room", "content", "said"), DENIALS)
@pytest.mark.parametrize("less", [5, 10, 20, 30])
def test_no_room_for_a_negation_leaves_out_what_it_denies(room, content, said, less):
    text, cut = told(("u", content), max_chars=room - less)
    if re.search("AB-1234|HAT139|PEP4E0|ID", text, re.IGNORECASE):
        assert re.search("n['\u2019]t|not|never|nicht|keine|pas|nunca|non|не|没|ません|ない|لم", text)
    else:
        assert cut


@pytest.mark.parametrize(
    "content",
    [
        "No, for all that I know today the number is AB-1234 of the two that I have",
        "Order no: as far as I know today the number is AB-1234 of the two that I have",
        "No. 5 of those that are on the list here the number is AB-1234 of the two that I have",
        "I came from SIN by way of two other towns and the number is AB-1234 of the two that I have",
        "I do not know. As far as I can tell the number is AB-1234 of the two that I have",
        "The number is AB-1234, the one of the two that I do not want to give back",
    ],
)
def test_what_denies_something_else_stays_out(content):
    text, _ = told(("u", content), max_chars=30)
    assert re.fullmatch(r"- u: ([Tt]he )?number is AB-1234", text) or text == "- u: the number is AB-1234 of"


PLAIN = [
    ("user", "i want to cancel my trip to the coast. it was booked last week."),
    ("assistant", "do you want it in cash or as a voucher, and shall i go on?"),
    ("user", "okay. please go ahead and cancel it, in cash."),
    ("assistant", "done, it is cancelled."),
]


def test_turns_without_values_are_told_too():
    assert told(("user", "Yes, go ahead and cancel it.")) == ("- user: Yes, go ahead and cancel it.", False)
    whole = "\n".join(f"- {speaker}: {content}" for speaker, content in PLAIN)
    assert told(*PLAIN) == (whole, False)
    assert told(*PLAIN, ("user", "..."), ("user", "")) == (whole, False), "no words are nothing to tell"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("oui, annulez-le s'il vous plaît.", "oui, annulez-le s'il vous plaît."),
        ("sí, por favor cancélalo todo. gracias.", "sí, por favor cancélalo todo."),
        ("да, отмените всё. спасибо.", "да, отмените всё."),
        ("はい。", "はい。"),
    ],
)
def test_a_decision_is_told_in_any_language(content, said):
    assert said in told(("assistant", "shall i?"), ("user", content))[0]


def test_the_newest_come_first_beside_what_has_values():
    text, cut = told(*PLAIN, ("user", "Take AB-1234."), max_chars=115)
    assert text.split("\n") == [
        "- user: okay. please go ahead and cancel it, in cash.",
        *(f"- {one[0]}: {one[1]}" for one in [PLAIN[3], ("user", "Take AB-1234.")]),
    ]
    assert cut, "two turns have no bullet"


def test_each_turn_gets_a_sentence_before_one_gets_more():
    turns = [
        ("user", "please stop all of it! and then rest!"),
        ("user", "okay! please start all of it! and then rest!"),
    ]
    text, cut = told(*turns, max_chars=66)
    assert text == "- user: please stop all of it!\n- user: please start all of it!"
    assert not cut


def test_no_limit_tells_the_first_and_the_last_sentence_of_a_turn_without_values():
    text, cut = told(("user", "please stop it! " + "i mean all of it! " * 9 + "thank you so much."), max_chars=0)
    assert text == "- user: please stop it! … thank you so much."
    assert not cut


@given(st.lists(st.text("ab .?\n", max_size=60), max_size=6), st.sampled_from([0, 1000]))
@example(["a. ?"], 0)  # no item of a list
def test_words_never_give_nothing(contents, max_chars):
    text, cut = told(*[("user", content) for content in contents], max_chars=max_chars)
    assert text.count("- user: ") == sum("a" in content or "b" in content for content in contents)
    assert not cut


def test_what_does_not_fit_is_told():
    turns = [("user", f"Take item number A-{n}00{n} please.") for n in range(9)]
    assert told(*turns, max_chars=100)[1]
    assert not told(*turns, max_chars=1000)[1]
    assert not told(*turns, max_chars=0)[1]
    assert told(*turns, max_chars=1) == ("", True)


def test_nothing_gives_nothing():
    assert told() == ("", False)
    assert told(("user", ""), ("user", " \n"), ("user", "...")) == ("", False)
    assert salient([SimpleNamespace(content=None, metadata=None), SimpleNamespace()]) == ("", False)


def test_no_speaker_is_unknown_and_a_strange_one_stays_on_its_line():
    turns = [SimpleNamespace(content="Pay $5.", metadata=m) for m in (None, {}, {"speaker": "a\n- b"}, {"speaker": 7})]
    text, _ = salient(turns, 0)
    assert text.split("\n") == ["- unknown: Pay $5.", "- unknown: Pay $5.", "- a - b: Pay $5.", "- 7: Pay $5."]


# --- what nothing breaks -------------------------------------------------------------------------


@given(TURNS, st.sampled_from([0, 1, 10, 40, 200, 1000]) | st.integers(0, 300))
def test_any_text_gives_bullets_within_the_limit_and_always_the_same(turns, max_chars):
    text, cut = salient(turns, max_chars)
    assert (text, cut) == salient(turns, max_chars)
    assert not max_chars or len(text) <= max_chars
    assert not (cut and not max_chars)
    text.encode()
    names = {" ".join(str(one.metadata["speaker"] or "unknown").replace("\ud800", "\ufffd").split()) for one in turns}
    for line in text.split("\n") if text else ():
        assert any(line.startswith(f"- {name}: ") for name in names)
    assert text.isprintable() or set(filter(lambda sign: not sign.isprintable(), text)).isdisjoint("\r\t\0\x1b\u2028")


WHOLE = ["👨‍👩‍👧‍👦", "e\u0301", "か\u3099", "葛\U000e0100", "नि", "🇯🇵", "AB-12", "ミナト", "。", " ", "\n", "Zürich "]


@given(st.lists(st.sampled_from(WHOLE), max_size=60).map("".join), st.integers(1, 120))
def test_no_grapheme_is_cut(content, max_chars):
    text, _ = told(("user", content), max_chars=max_chars)
    rest = re.sub(
        "|".join(map(re.escape, [*(one.strip() or one for one in WHOLE), "か", "葛"])), "", text[len("- user: ") :]
    )
    assert rest.strip(" …;") == ""


VALUES = st.from_regex(r"\A[A-Z]{2}-[0-9]{4,8}\Z")


@given(st.lists(VALUES, min_size=1, max_size=30, unique=True), st.integers(10, 200))
def test_no_value_is_cut(values, max_chars):
    text, cut = told(("user", "Take " + ", ".join(values) + " please."), max_chars=max_chars)
    assert set(re.findall(r"[A-Z]{2}-\d+", text)) <= set(values)
    assert cut or all(value in text for value in values)


@pytest.mark.parametrize(
    "content",
    [
        "x" * 1_000_000,
        "A-1 " * 250_000,
        "東" * 1_000_000,
        "「" * 1_000_000,
        "\n" * 1_000_000,
        "(" * 1_000_000,
        "-/" * 500_000,
    ],
)
@pytest.mark.parametrize("max_chars", [0, 1000])
def test_a_megabyte_in_one_turn_takes_a_bounded_time(content, max_chars):
    begun = time.process_time()
    text, _ = told(("user", content), ("user", content[::-1]), max_chars=max_chars)
    assert len(text) <= (max_chars or 20_000)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("max_chars", [0, 1000, 50_000])
def test_a_thousand_turns_take_a_bounded_time(max_chars):
    turns = [turn for dialogue in OWN.values() for turn in dialogue] * 20
    begun = time.process_time()
    told(*turns[:1000], max_chars=max_chars)
    assert time.process_time() - begun < 5


HOSTILE = {
    "unicode": lambda dice: chr(dice.choice([dice.randrange(33, 0xD000), dice.randrange(0x10000, 0x20000)])),
    "no space": lambda dice: dice.choice("xyz"),
    "digits and punctuation": lambda dice: f"{dice.randrange(10)}{dice.choice('.,;:-/')}",
    "Chinese": lambda dice: chr(dice.randrange(0x4E00, 0x9FFF)),
    "kanji and kana": lambda dice: chr(dice.randrange(0x4E00, 0x9FFF)) + chr(dice.randrange(0x3041, 0x3097)),
    "short lines": lambda dice: f"{dice.choice('ABC12')}{dice.randrange(99)}\n",
    "short ids": lambda dice: f"{dice.choice('ABCDEF')}{dice.randrange(999)} ",
    "quotations": lambda dice: dice.choice('"“«`') + dice.choice("abA1 "),
    "brackets": lambda dice: dice.choice("([{ aA1"),
    "questions": lambda dice: f"{dice.choice('ABC')}{dice.randrange(99)}? ",
    "bold": lambda _: "**a ",
    "labels": lambda dice: f"a{dice.choice('bcd')}: x\n",
    "code": lambda dice: f"if x_{dice.randrange(999)} == foo.bar({dice.randrange(99)}): return a[0]\n",
}


def hostile(kind, turns, chars):
    dice = random.Random(kind)
    text = "".join(HOSTILE[kind](dice) for _ in range(chars))
    return entries([("ua"[turn % 2], text[turn % 7 : chars]) for turn in range(turns)])


def work(turns, max_chars):
    """How many lines of the rule's own code a summary runs: what a busy machine does not change."""
    steps = 0

    def count(frame, event, _):
        nonlocal steps
        if not Path(frame.f_code.co_filename).name.startswith("salient"):
            return None
        steps += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        salient(turns, max_chars)
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize("kind", HOSTILE)
def test_fifty_long_turns_of_odd_text_take_a_bounded_work(kind):
    steps = work(hostile(kind, 50, 8000), 1000)
    assert steps < 250_000
    assert work(hostile(kind, 50, 16_000), 1000) < 1.3 * steps + 1000, "what is longer is not read"
    assert work(hostile(kind, 100, 8000), 1000) < 2.2 * steps + 1000, "twice the turns take twice the work"
    assert work(hostile(kind, 50, 8000), 0) < 500_000


@given(st.lists(st.integers(0, 20_000), max_size=120))
def test_what_a_call_reads_is_bounded_and_short_turns_are_read_whole(sizes):
    with pytest.MonkeyPatch.context() as patch:
        read = []
        patch.setattr(salient_dialogue, "read", lambda text, _, answer: read.append(len(text)) or ())
        salient(entries([("user", "ab " * (size // 3)) for size in sizes]))
    asked = [size // 3 * 3 for size in sizes]
    seams = len(sizes)  # a line end stands where a turn is cut
    assert sum(read) <= max(12_000, 240 * len(sizes)) + seams
    assert all(one <= 8001 for one in read)
    assert all(got == size for got, size in zip(read, asked, strict=True) if size <= 240)


def test_of_a_long_turn_the_front_and_the_end_are_read():
    text, _ = told(("user", f"Front AB-1001. {'so it goes on and on ' * 5000} Back AB-2002."), max_chars=0)
    assert "AB-1001" in text
    assert "AB-2002" in text


# --- how much it holds ---------------------------------------------------------------------------

SETTINGS = [(4, 300), (4, 500), (6, 500), (10, 500), (10, 1000)]


@pytest.mark.parametrize(
    ("setting", "least"),
    list(zip(SETTINGS, [(0.96, 0.95), (0.98, 0.97), (0.99, 0.99), (1.0, 1.0), (1.0, 1.0)], strict=True)),
)
def test_recall_on_real_transcripts(setting, least):
    dialogues = transcripts(real_transcripts())
    held, before = recall(dialogues, of_value, *setting), recall(dialogues, by_rule, *setting)
    assert held >= least
    assert held[1] >= least[1]
    assert held[0] >= before[0]
    assert held[1] >= before[1]


@pytest.mark.parametrize(
    ("setting", "least"),
    list(zip(SETTINGS, [(0.85, 0.82), (0.97, 0.91), (0.97, 0.91), (1.0, 1.0), (1.0, 1.0)], strict=True)),
)
def test_recall_on_dialogues_of_other_domains_and_languages(setting, least):
    held, before = (recall(list(OWN.values()), summary, *setting) for summary in (of_value, by_rule))
    assert held[0] >= max(least[0], before[0])
    assert held[1] >= max(least[1], before[1])


CROWDED = [("support", 4, 500), ("support", 6, 500)]  # the ids of its logs take the room of two names


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", OWN)
def test_recall_of_each_dialogue_is_never_below_the_rule(name, setting):
    held, before = (recall([OWN[name]], summary, *setting) for summary in (of_value, by_rule))
    assert held[0] >= before[0]
    assert held[1] >= before[1] or (name, *setting) in CROWDED


@pytest.mark.parametrize("name", OWN)
def test_every_value_of_a_dialogue_fits_into_a_thousand_characters(name):
    assert recall([OWN[name]], of_value, 4, 1000) >= (0.99, 0.99)
    assert recall([OWN[name]], of_value, 10, 1000) == pytest.approx((1, 1))


@settings(max_examples=30)
@given(st.sampled_from(sorted(OWN)), st.integers(20, 600))
def test_a_phrase_is_in_the_dialogues_own_words(name, max_chars):
    turns = [turn for turn in OWN[name] if turn[0] != "call"]
    text, _ = told(*turns, max_chars=max_chars)
    said = "\n".join(content for _, content in turns)
    for line in filter(None, text.split("\n")):
        for word in line.partition(": ")[2].split():
            assert word.strip("()…;") in said
