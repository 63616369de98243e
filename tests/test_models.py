"""Entries, nodes, receipts and the small checks beside them."""

from __future__ import annotations

import math
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from symfonic_redis import (
    ConfigurationError,
    Durability,
    InvalidInput,
    MemoryEntry,
    MemoryLayer,
    MemoryNode,
    PushReceipt,
    TenantScope,
    coerce_durability,
)
from symfonic_redis.models import check_ttl


@pytest.mark.parametrize("value", ["transient", "durable", "expired"])
def test_a_known_durability_is_itself(value):
    assert coerce_durability(value) == value


@pytest.mark.parametrize("value", [None, ""])
def test_no_durability_is_durable(value):
    assert coerce_durability(value) == "durable"


@pytest.mark.parametrize("value", ["Durable", " durable", "eternal", 0, False, b"durable", ["durable"], object()])
def test_an_unknown_durability_is_a_value_error(value):
    with pytest.raises(ValueError, match="durable, expired, transient") as refused:
        coerce_durability(value)
    assert isinstance(refused.value, InvalidInput)


def test_a_long_durability_is_not_quoted_whole():
    with pytest.raises(InvalidInput) as refused:
        coerce_durability("x" * 10_000)
    assert len(str(refused.value)) < 200


def test_the_durabilities_are_the_reference_packages():
    reason = "the reference package symfonic-core is not installed"
    theirs = pytest.importorskip("symfonic.memory.durability", reason=reason)
    assert Durability == theirs.Durability


def test_the_layers_are_the_reference_packages():
    theirs = pytest.importorskip("symfonic.memory.types", reason="the reference package symfonic-core is not installed")
    assert {layer.name: layer.value for layer in MemoryLayer} == {
        layer.name: layer.value for layer in theirs.MemoryLayer
    }
    assert str(MemoryLayer.WORKING) == "working"


def test_an_entry_has_the_fields_of_the_reference_package():
    reason = "the reference package symfonic-core is not installed"
    theirs = pytest.importorskip("symfonic.memory.models.entry", reason=reason)
    assert set(MemoryEntry.model_fields) == set(theirs.MemoryEntry.model_fields)


def test_an_entry_needs_a_tenant_and_a_content_only():
    before = datetime.now(UTC)
    entry = MemoryEntry(tenant_id="acme", content="hello")
    assert str(uuid.UUID(entry.id)) == entry.id
    assert (entry.layer, entry.importance, entry.metadata) == (MemoryLayer.WORKING, 5.0, {})
    assert (entry.node_id, entry.score) == (None, None)
    assert before <= entry.created_at <= datetime.now(UTC)
    assert entry.created_at.utcoffset() == timedelta(0)
    assert MemoryEntry(tenant_id="acme", content="hello").id != entry.id


@pytest.mark.parametrize("content", ["", " ", "\x00", "😀", "\ud800", "x" * 100_000], ids=ascii)
def test_any_text_is_a_content(content):
    entry = MemoryEntry(tenant_id="acme", content=content, metadata={content: content})
    assert entry.content == content
    assert entry.metadata == {content: content}


@pytest.mark.parametrize("tenant", ["\ud800", "😀", " x "], ids=ascii)
def test_any_tenant_that_a_scope_takes_an_entry_takes(tenant):
    scope = TenantScope.root("org", tenant)
    assert MemoryEntry.turn(scope, speaker="user", turn_id="t1", content="hello").tenant_id == tenant


@pytest.mark.parametrize(
    "values",
    [
        {"tenant_id": ""},
        {"tenant_id": None},
        {"content": None},
        {"importance": 0.99},
        {"importance": 10.01},
        {"importance": math.nan},
        {"metadata": None},
        {"metadata": {1: "x"}},
        {"layer": "unknown"},
        {"created_at": "yesterday"},
    ],
    ids=str,
)
def test_an_entry_that_makes_no_sense_is_refused_without_quoting_it(values):
    with pytest.raises(ValueError) as refused:
        MemoryEntry(**{"tenant_id": "acme", "content": "a secret", **values})
    assert "secret" not in str(refused.value)
    assert "input_value" not in str(refused.value)


def test_a_turn_names_its_speaker_and_its_id(scope):
    entry = MemoryEntry.turn(
        scope,
        speaker="user",
        turn_id="t1",
        content="hello",
        metadata={"speaker": "other", "turn_id": "t0", "lang": "en"},
        importance=7,
    )
    assert entry.tenant_id == "acme"
    assert entry.metadata == {"speaker": "user", "turn_id": "t1", "lang": "en"}
    assert (entry.content, entry.importance, entry.layer) == ("hello", 7, MemoryLayer.WORKING)


def test_a_turn_leaves_the_metadata_it_was_given_alone(scope):
    given = {"lang": "en"}
    MemoryEntry.turn(scope, speaker="user", turn_id="t1", content="hello", metadata=given).metadata["x"] = 1
    assert given == {"lang": "en"}


def node_of(**properties: object) -> MemoryNode:
    return MemoryNode(layer=MemoryLayer.WORKING, tenant_id="acme", label="hello", properties=properties)


@pytest.mark.parametrize(
    ("properties", "durability", "transient", "promotable"),
    [
        ({}, "durable", False, True),
        ({"durability": None}, "durable", False, True),
        ({"durability": "durable"}, "durable", False, True),
        ({"durability": "transient"}, "transient", True, False),
        ({"durability": "expired"}, "expired", False, False),
        ({"durability": "nonsense"}, "durable", False, True),
        ({"durability": ["transient"]}, "durable", False, True),
    ],
    ids=str,
)
def test_the_durability_of_a_node(properties, durability, transient, promotable):
    node = node_of(**properties)
    assert (node.durability, node.is_transient(), node.is_promotable()) == (durability, transient, promotable)


def test_a_node_takes_any_text_as_its_label():
    node = MemoryNode(layer="working", tenant_id="acme", label="\ud800", properties={"\ud800": "\udfff"})
    assert node.label == "\ud800"


@pytest.mark.parametrize(
    "values",
    [
        {"label": ""},
        {"tenant_id": ""},
        {"importance": 0},
        {"access_count": -1},
        {"spreading_access_count": -1},
        {"layer": "unknown"},
    ],
    ids=str,
)
def test_a_node_that_makes_no_sense_is_refused(values):
    with pytest.raises(ValueError):
        MemoryNode(**{"layer": "working", "tenant_id": "acme", "label": "x", **values})


def test_a_receipt_names_the_newest_node():
    assert PushReceipt(("a", "b"), 2, 0, duplicate=False).node_id == "b"
    assert PushReceipt((), 2, 0, duplicate=False).node_id is None


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [(None, None), (1, 1000), (0.001, 1), (1.5, 1500), (86_400, 86_400_000), (0.29, 290), (3.001, 3001)],
)
def test_a_time_to_live_in_seconds_is_kept_in_milliseconds(seconds, milliseconds):
    assert check_ttl(seconds) == milliseconds


@pytest.mark.parametrize("seconds", [0, -1, 0.0001, math.nan, math.inf, -math.inf, 1e12, True, "60", timedelta(1)])
def test_a_time_to_live_that_makes_no_sense_is_refused(seconds):
    with pytest.raises(ConfigurationError, match="ttl"):
        check_ttl(seconds)
