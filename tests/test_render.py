"""An entry as a line of a prompt."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symfonic_redis import MemoryEntry, MemoryLayer
from symfonic_redis.render import render_entry


def entry_of(content: str = "hello", layer: MemoryLayer = MemoryLayer.WORKING, **metadata: object) -> MemoryEntry:
    return MemoryEntry(tenant_id="acme", content=content, layer=layer, metadata=metadata)


def test_a_turn_shows_its_layer_and_its_speaker():
    assert render_entry(entry_of(speaker="user")) == "[working] user: hello"
    assert render_entry(entry_of(layer=MemoryLayer.EPISODIC, speaker="Zoë B.")) == "[episodic] Zoë B.: hello"


def test_a_turn_with_a_speaker_shows_nothing_else():
    entry = entry_of("SOUL: hello", speaker="user", description="d", name="n")
    assert render_entry(entry) == "[working] user: SOUL: hello"


@pytest.mark.parametrize("speaker", [None, "", "legacy", 7, ["user"]], ids=repr)
def test_without_a_speaker_the_older_form_is_shown(speaker):
    assert render_entry(entry_of(speaker=speaker, name="n")) == "[working] hello (name=n)"


def test_the_layer_never_shows_as_a_member_of_an_enum():
    for layer in MemoryLayer:
        for metadata in ({}, {"speaker": "user"}):
            assert render_entry(entry_of(layer=layer, **metadata)).startswith(f"[{layer.value}] ")


def test_extras_come_in_a_fixed_order():
    entry = entry_of(properties={"p": "4", "q": "5"}, role="3", name="2", description="1", other="never")
    assert render_entry(entry) == "[working] hello (description=1, name=2, role=3, p=4, q=5)"


def test_at_most_five_extras_are_shown():
    entry = entry_of(description="1", properties={str(n): "x" for n in range(9)})
    assert render_entry(entry) == "[working] hello (description=1, 0=x, 1=x, 2=x, 3=x)"


@pytest.mark.parametrize("value", ["", None, 7, [], ["x"], {}, {"a": 1, "b": None}, b"x", True], ids=repr)
def test_an_extra_that_is_no_text_is_left_away(value):
    assert render_entry(entry_of(description=value)) == "[working] hello"


def test_the_text_items_of_a_dict_are_shown_wherever_it_stands():
    assert render_entry(entry_of(name={"first": "A", "age": 7, "last": ""})) == "[working] hello (first=A, last=)"


def test_the_scrubber_sees_every_dict_and_nothing_else():
    seen = []

    def scrub(value):
        seen.append(value)
        return {key: item for key, item in value.items() if key != "token"}

    entry = entry_of(description="token", role={"token": "t", "a": "1"}, properties={"token": "t", "b": "2"})
    assert render_entry(entry, scrub) == "[working] hello (description=token, a=1, b=2)"
    assert seen == [{"token": "t", "a": "1"}, {"token": "t", "b": "2"}]
    assert entry.metadata["role"] == {"token": "t", "a": "1"}


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("AGENT_IDENTITY: I am", "I am"),
        ("agent_identity:I am", "I am"),
        ("  Soul:   I am  ", "I am  "),
        ("SOUL:", ""),
        ("SOUL: SOUL: x", "SOUL: x"),
        ("My SOUL: x", "My SOUL: x"),
        ("  hello", "  hello"),
        ("", ""),
        ("one\ntwo", "one\ntwo"),
    ],
)
def test_a_leading_machine_label_is_dropped(content, shown):
    assert render_entry(entry_of(content)) == f"[working] {shown}"


def test_a_label_whose_upper_case_is_longer_is_no_label():
    assert render_entry(entry_of("ßoul: x")) == "[working] ßoul: x"


def test_whatever_has_no_layer_is_of_an_unknown_one():
    assert render_entry(SimpleNamespace(content="hello")) == "[unknown] hello"
    assert render_entry(SimpleNamespace(content="hello", metadata={"speaker": "user"})) == "[working] user: hello"
    assert render_entry(SimpleNamespace(content="hello", layer="semantic", metadata=None)) == "[semantic] hello"


VALUES = st.none() | st.text() | st.integers() | st.dictionaries(st.text(), st.text() | st.integers())
METADATA = st.dictionaries(st.sampled_from(["speaker", "description", "name", "role", "properties", "other"]), VALUES)
CONTENT = st.text() | st.tuples(st.sampled_from(["soul:", " AGENT_IDENTITY: ", "Soul :"]), st.text()).map("".join)


@given(CONTENT, METADATA)
def test_the_reference_package_renders_the_same_but_for_the_layer(content, metadata):
    reason = "the reference package symfonic-core is not installed"
    theirs = pytest.importorskip("symfonic.memory.layers.working", reason=reason).WorkingLayer()
    entry = SimpleNamespace(content=content, layer="working", metadata=metadata)
    for scrubber in (None, lambda value: dict(list(value.items())[:1])):
        assert render_entry(entry, scrubber) == theirs.render_for_prompt(entry, scrubber)
