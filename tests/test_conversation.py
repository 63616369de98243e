"""Turns of a conversation, read from our layer, from the reference package's, and from layers that misbehave."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from transcript_file import real_transcripts

from symfonic_redis import (
    ConfigurationError,
    ConversationSource,
    ConversationTurn,
    InvalidInput,
    LegacyConversationSource,
    MemoryEntry,
    MemoryUnavailable,
    TenantScope,
    WorkingLayer,
)

SECRET = "a sentence that nobody may see"


class Layer:
    """A layer that returns what it was given, or raises it."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked = 0

    async def get_context(self, scope):
        self.asked += 1
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def row(turn_id: object, speaker: object = "user", content: object = "text") -> SimpleNamespace:
    return SimpleNamespace(id="row", content=content, metadata={"turn_id": turn_id, "speaker": speaker})


async def recent(answer: object, limit: int = 10) -> tuple[ConversationTurn, ...]:
    return tuple(await LegacyConversationSource(Layer(answer)).recent(TenantScope.root("org", "acme"), limit))


async def test_the_turns_of_our_layer_are_read_oldest_first(redis, scope, turn):
    layer = WorkingLayer(redis, max_entries=3)
    await layer.push_many(scope, [turn(), turn(speaker="assistant"), turn(), turn()])
    source = LegacyConversationSource(layer)
    assert isinstance(source, ConversationSource)
    turns = await source.recent(scope, 10)
    assert turns == (
        ConversationTurn("t2", "assistant", "turn 2", 0),
        ConversationTurn("t3", "user", "turn 3", 1),
        ConversationTurn("t4", "user", "turn 4", 2),
    )
    assert await source.recent(scope, 2) == turns[1:]
    assert await source.recent(TenantScope.root("org", "acme"), 10) == ()


async def test_the_turns_of_the_original_layer_are_read_under_our_own_scopes():
    reason = "the reference package symfonic-core is not installed"
    original = pytest.importorskip("symfonic.memory.layers.working", reason=reason).WorkingLayer(max_entries=2)
    entry = pytest.importorskip("symfonic.memory.models.entry", reason=reason).MemoryEntry
    source = LegacyConversationSource(original)
    for scope in (
        TenantScope.root("org", "acme").child("conversation", "c-1"),
        TenantScope(tenant_id="acme", sub_tenant_id="b"),
        TenantScope(tenant_id="acme", sub_tenant_id=""),
    ):
        for number in range(3):
            metadata = {"speaker": "user", "turn_id": f"t{number}"}
            await original.push(
                scope, entry(layer="working", tenant_id="acme", content=f"turn {number}", metadata=metadata)
            )
        assert await source.recent(scope, 5) == (
            ConversationTurn("t1", "user", "turn 1", 0),
            ConversationTurn("t2", "user", "turn 2", 1),
        )
    assert await source.recent(TenantScope.root("org", "other"), 5) == ()


async def test_both_layers_give_the_same_turns_of_the_real_transcripts(one_redis, scope):
    reason = "the reference package symfonic-core is not installed"
    original_class = pytest.importorskip("symfonic.memory.layers.working", reason=reason).WorkingLayer
    with real_transcripts().open(encoding="utf-8") as lines:
        conversations = [json.loads(line)["messages"] for line in lines]
    for number, messages in enumerate(conversations[:20]):
        here = scope.child("chat", str(number))
        ours, original = WorkingLayer(one_redis), original_class(10)
        entries = [
            MemoryEntry.turn(here, speaker=message["role"], turn_id=f"m{index}", content=message["content"] or "")
            for index, message in enumerate(messages)
        ]
        await ours.push_many(here, entries)
        for entry in entries:
            await original.push(here, entry)
        for limit in (0, 1, 4, 10, 50):
            expected = await LegacyConversationSource(original).recent(here, limit)
            assert await LegacyConversationSource(ours).recent(here, limit) == expected
            assert len(expected) == min(limit, 10, len(messages))


async def test_a_row_without_a_turn_id_is_left_out_and_its_place_is_not_given_away():
    rows = [row("a"), row(None), row(""), row(7), row("b"), SimpleNamespace(content="x"), row("b", "assistant")]
    turns = await recent(rows)
    assert [(turn.turn_id, turn.turn) for turn in turns] == [("a", 0), ("b", 4), ("b", 6)]
    # The limit counts what is returned, not what was looked at.
    assert [turn.turn for turn in await recent(rows, 2)] == [4, 6]


async def test_a_missing_speaker_stays_missing():
    without = SimpleNamespace(content="x", metadata={"turn_id": "t"})
    turns = await recent([without, row("t", None), row("t", ""), row("t", "legacy")])
    assert [turn.speaker for turn in turns] == ["", "", "", "legacy"]


async def test_a_missing_text_is_empty():
    assert [turn.text for turn in await recent([row("t", content=None), row("t", content=5)])] == ["", "5"]
    assert [turn.text for turn in await recent([SimpleNamespace(metadata={"turn_id": "t"})])] == [""]


async def test_the_ids_of_tool_calls_come_along():
    calls = [{"id": "c1", "type": "function"}, "c2", {"id": 5}, {"name": "x"}, None, ""]
    rows = [
        SimpleNamespace(content="", metadata={"turn_id": "t", "tool_calls": calls}),
        SimpleNamespace(content="", metadata={"turn_id": "t", "tool_calls": "c3"}),
        SimpleNamespace(content="{}", metadata={"turn_id": "t", "tool_call_id": "c1"}),
        SimpleNamespace(content="{}", metadata={"turn_id": "t", "tool_call_id": 5}),
    ]
    turns = await recent(rows)
    assert [turn.tool_calls for turn in turns] == [("c1", "c2"), (), (), ()]
    assert [turn.tool_call_id for turn in turns] == ["", "", "c1", ""]


@pytest.mark.parametrize("limit", [0, -1, -100])
async def test_no_limit_means_no_turn_and_no_read(limit):
    layer = Layer([row("a")])
    assert await LegacyConversationSource(layer).recent(TenantScope.root("org", "acme"), limit) == ()
    assert layer.asked == 0


@pytest.mark.parametrize("answer", [None, [], ()])
async def test_nothing_is_no_turn(answer):
    assert await recent(answer) == ()


@pytest.mark.parametrize(
    "failure", [ValueError(SECRET), OSError(SECRET), TimeoutError(), InvalidInput("x"), 5, object()]
)
async def test_every_failure_of_the_layer_is_one_and_quotes_nothing(failure):
    with pytest.raises(MemoryUnavailable) as caught:
        await recent(failure)
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__
    assert SECRET not in str(caught.value.__cause__)


async def test_an_unavailable_memory_is_passed_through_as_it_is():
    unavailable = MemoryUnavailable("it is down")
    with pytest.raises(MemoryUnavailable) as caught:
        await recent(unavailable)
    assert caught.value is unavailable


async def test_cancellation_passes_through():
    with pytest.raises(asyncio.CancelledError):
        await recent(asyncio.CancelledError())


@pytest.mark.parametrize("layer", [None, object(), "layer", SimpleNamespace(get_context=lambda scope: [])])
def test_what_is_no_layer_is_refused_at_once(layer):
    with pytest.raises(ConfigurationError, match="get_context"):
        LegacyConversationSource(layer)
