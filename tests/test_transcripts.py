"""Reading transcript files, whole and broken."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transcript_file import SAMPLE

from symfonic_redis.errors import InvalidInput
from symfonic_redis.transcripts import Turn, read_transcripts


def line(id_="c", messages=()):
    return json.dumps({"conversation_id": id_, "messages": list(messages)})


def written(tmp_path, *lines):
    path = tmp_path / "chats.jsonl"
    path.write_bytes(b"\n".join(one if isinstance(one, bytes) else one.encode() for one in lines))
    return path


def test_only_what_user_and_assistant_said_is_a_turn(tmp_path):
    messages = [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "  hi  "},
        {"role": "assistant", "content": None, "tool_calls": [{}]},
        {"role": "tool", "content": "result"},
        {"role": "assistant", "content": [{"type": "text", "text": "hello"}, {"type": "image"}]},
        {"role": "user", "content": " \n "},
    ]
    (conversation,), broken = read_transcripts(written(tmp_path, line("c", messages)))
    assert conversation.turns == (Turn("user", "  hi  ", "m1"), Turn("assistant", "hello", "m4"))
    assert broken == []


def test_broken_lines_are_told_by_number_and_the_rest_is_read(tmp_path):
    good = {"role": "user", "content": "hi"}
    path = written(
        tmp_path,
        line("a", [good]),
        "",
        '{"conversation_id": "b", "messages": [',
        '["no", "object"]',
        b'{"conversation_id": "\xff", "messages": []}',
        '{"conversation_id": 7, "messages": []}',
        '{"conversation_id": "", "messages": []}',
        '{"conversation_id": "m"}',
        '{"conversation_id": "n", "messages": ["text"]}',
        line("x" * 513),
        line("x\x1fy"),
        line("a", [good]),
        json.dumps({"messages": [good]}),
        "[" * 100_000,
        line("z", [good]),
    )
    conversations, broken = read_transcripts(path)
    assert [conversation.id for conversation in conversations] == ["a", "line-13", "z"]
    assert [one.number for one in broken] == [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14]


def test_a_missing_file_is_one_clear_sentence(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        read_transcripts(tmp_path / "none.jsonl")


@given(st.lists(st.binary(max_size=60) | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(repr)))
def test_whatever_a_file_holds_is_read_or_told(tmp_path_factory, lines):
    path = written(tmp_path_factory.mktemp("fuzz"), *lines)
    conversations, broken = read_transcripts(path)
    assert conversations == []
    assert len(broken) == sum(bool(one.strip()) for one in path.read_bytes().split(b"\n"))


def test_the_example_has_three_conversations():
    conversations, broken = read_transcripts(SAMPLE)
    assert [(one.id, len(one.turns)) for one in conversations] == [
        ("renewal-1", 14),
        ("hours-2", 4),
        ("lost-card-3", 6),
    ]
    assert broken == []
