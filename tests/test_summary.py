"""The extractive summary, and that it is the reference package's to the byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transcript_file import real_transcripts

from symfonic_redis.messages import turns_of
from symfonic_redis.summary import MAX_CHARS, extractive

LIMITS = (0, 1, 20, 200, 1000)
PIECES = st.sampled_from(
    ["One.", "Two!", "Is it?", " ", "\n", "\r\n", "\t", "\u00a0", "\u2028", "…", ".", "3.5", "é", "- "]
)
TEXTS = st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join) | st.text(max_size=60)


def entries_of(*contents: str | None) -> list[SimpleNamespace]:
    return [SimpleNamespace(content=content) for content in contents]


@pytest.mark.parametrize(
    ("content", "bullet"),
    [
        ("One.", "- One."),
        ("One. Two! Is it three?", "- One. … Is it three?"),
        ("first line\nlast line", "- first line … last line"),
        ("  a \t b  ", "- a b"),
        ("Yes. Yes.", "- Yes."),
        ("Version 3.5 works", "- Version 3.5 works"),
        ("Wait...what", "- Wait...what"),
    ],
)
def test_an_entry_is_its_first_and_its_last_sentence(content, bullet):
    assert extractive(entries_of(content)) == (bullet, False)


def test_an_entry_without_text_is_left_out():
    assert extractive(entries_of("", None, " \n ")) == ("", False)
    assert extractive([]) == ("", False)


def test_a_bullet_that_was_there_is_left_out():
    assert extractive(entries_of("One.", "Two.", "One.", "  One.  ")) == ("- One.\n- Two.", False)


def test_a_text_is_cut_at_whole_bullets():
    entries = entries_of("One.", "Two.")
    assert extractive(entries, max_chars=13) == ("- One.\n- Two.", False)
    assert extractive(entries, max_chars=12) == ("- One.", True)
    assert extractive(entries, max_chars=6) == ("", True)
    assert extractive(entries, max_chars=0) == ("- One.\n- Two.", False)


def test_a_text_has_a_thousand_characters_unless_said_otherwise():
    assert MAX_CHARS == 1000
    text, cut = extractive(entries_of(*(f"Number {n}." for n in range(500))))
    assert cut
    assert len(text) <= 1000


def reference():
    reason = "the reference package symfonic-core is not installed"
    return pytest.importorskip("symfonic.memory.working.stm_summary", reason=reason).summarize_entries


@given(st.lists(TEXTS, max_size=8))
def test_any_texts_are_summarized_as_the_reference_package_does(texts):
    for limit in LIMITS:
        expected = reference()(entries_of(*texts), mode="extractive", max_chars=limit)
        assert extractive(entries_of(*texts), max_chars=limit) == (expected.text, expected.truncated)


def transcripts() -> Iterator[list[SimpleNamespace]]:
    """The conversations of the file, each as its turns."""
    path = real_transcripts()
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield entries_of(*(content for content, _ in turns_of(json.loads(line)["messages"])))


def test_every_window_of_the_transcripts_is_summarized_as_the_reference_package_does():
    summarize = reference()
    windows = 0
    for turns in transcripts():
        for end in range(1, len(turns) + 1):
            window = turns[max(0, end - 10) : end]
            for limit in (200, 1000):
                expected = summarize(window, mode="extractive", max_chars=limit)
                assert extractive(window, max_chars=limit) == (expected.text, expected.truncated)
            windows += 1
    assert windows > 120
