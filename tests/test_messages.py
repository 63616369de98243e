"""Chat messages of other libraries as turns."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from symfonic_redis.messages import text_of, turns_of


def shown(messages: list[object]) -> list[tuple[object, str]]:
    return [(metadata["speaker"], content) for content, metadata in turns_of(messages)]


class HumanMessage:
    def __init__(self, content: object) -> None:
        self.content = content


class AIMessage(HumanMessage):
    pass


class ToolMessage(HumanMessage):
    pass


@pytest.mark.parametrize(
    ("message", "speaker"),
    [
        (SimpleNamespace(type="human", content="hello"), "user"),
        (SimpleNamespace(type="ai", content="hello"), "assistant"),
        (HumanMessage("hello"), "user"),
        (AIMessage("hello"), "assistant"),
        ({"role": "user", "content": "hello"}, "user"),
        ({"role": "assistant", "content": "hello"}, "assistant"),
        ({"type": "human", "content": "hello"}, "user"),
        ({"type": "ai", "content": "hello"}, "assistant"),
        (SimpleNamespace(role="user", content="hello"), "user"),
    ],
    ids=str,
)
def test_the_user_and_the_assistant_are_turns(message, speaker):
    ((content, metadata),) = turns_of([message])
    assert content == "hello"
    assert metadata["speaker"] == speaker
    assert metadata["source"] == "resume_rehydrate"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "system", "content": "hello"},
        {"role": "tool", "content": "hello", "tool_call_id": "x"},
        {"role": "developer", "content": "hello"},
        {"content": "hello"},
        {"role": None, "content": "hello"},
        {"role": ["user"], "content": "hello"},
        SimpleNamespace(type="system", content="hello"),
        SimpleNamespace(type="tool", content="hello"),
        ToolMessage("hello"),
        "hello",
        None,
        7,
    ],
    ids=str,
)
def test_anybody_else_is_left_out(message):
    assert turns_of([message]) == []


@pytest.mark.parametrize("content", [None, "", "  \n", [], [""], [{"type": "image_url", "image_url": {}}], [{}], [7]])
def test_a_message_without_text_is_left_out(content):
    assert turns_of([{"role": "assistant", "content": content, "tool_calls": [{}]}]) == []


def test_a_message_without_content_is_left_out():
    assert turns_of([{"role": "user"}, SimpleNamespace(type="human")]) == []


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("  hello \n", "hello"),
        (["hel", "lo"], "hello"),
        ([{"type": "text", "text": "hel"}, {"type": "image_url", "image_url": {"url": "x"}}, "lo"], "hello"),
        ([{"text": " hello "}], "hello"),
        (7, "7"),
    ],
    ids=str,
)
def test_the_text_of_a_content(content, text):
    assert text_of(content) == text


def test_a_text_block_without_a_text_is_no_text():
    assert text_of([{"type": "text", "text": None}]) == ""


def test_turns_keep_their_order():
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": None, "tool_calls": [{}]},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    assert shown(messages) == [("user", "one"), ("assistant", "two"), ("user", "three")]
    assert shown(iter(messages)) == shown(messages)


@pytest.mark.parametrize("id_", ["m-1", 7])
def test_a_message_keeps_its_id(id_):
    for message in ({"role": "user", "content": "x", "id": id_}, SimpleNamespace(type="human", content="x", id=id_)):
        assert turns_of([message])[0][1]["turn_id"] == id_


def test_a_message_without_an_id_gets_one_of_twelve_hex_digits():
    messages = [{"role": "user", "content": "x", **more} for more in ({}, {"id": None}, {"id": ""})]
    ids = [metadata["turn_id"] for _, metadata in turns_of(messages)]
    assert all(re.fullmatch("[0-9a-f]{12}", str(id_)) for id_ in ids)
    assert len(set(ids)) == 3


def test_the_messages_of_langchain_are_turns():
    reason = "langchain-core is not installed"
    messages = pytest.importorskip("langchain_core.messages", reason=reason)
    given = [
        messages.SystemMessage("be kind"),
        messages.HumanMessage("one", id="m-1"),
        messages.AIMessage([{"type": "text", "text": "two"}]),
        messages.ToolMessage("42", tool_call_id="x"),
        messages.AIMessage(""),
    ]
    assert shown(given) == [("user", "one"), ("assistant", "two")]
    assert turns_of(given)[0][1]["turn_id"] == "m-1"
