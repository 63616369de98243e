"""Records, requests and receipts: what is refused when it is made, and what every one of them keeps."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from types import SimpleNamespace

import pytest
from own_server import everything_said
from symfonic.memory.types import MemoryLayer as TheirLayer
from symfonic.memory.types import TenantScope as TheirScope

from symfonic_redis import (
    ExtractionRequest,
    ExtractionResult,
    FlushReceipt,
    InvalidInput,
    MemoryEntry,
    MemoryLayer,
    MemoryRecord,
    ResolvedInput,
    StageResult,
    TenantScope,
    WriteReceipt,
    WriteRequest,
    applied,
    no_change,
)
from symfonic_redis.keys import scope_keys
from symfonic_redis.pending import decode_record, encode_record
from symfonic_redis.records import HOMES, record_of, request_of, same_scope
from symfonic_redis.sealing import PLAIN

SECRET = "4111 1111 1111 1111"


def test_a_record_is_a_working_record_unless_said_otherwise(scope):
    record = MemoryRecord(scope=scope, content="hello")
    assert (record.layer, record.home, record.importance, record.durability) == ("working", "working", 5.0, None)
    assert record.metadata == {}
    assert record.created_at.tzinfo is UTC
    assert record.id != MemoryRecord(scope=scope, content="hello").id


def test_a_turn_names_its_speaker(scope):
    record = MemoryRecord.turn(scope, speaker="user", turn_id="t1", content="hi", metadata={"a": 1, "speaker": "x"})
    assert record.metadata == {"a": 1, "speaker": "user", "turn_id": "t1"}


@pytest.mark.parametrize("make", [MemoryRecord.turn, MemoryEntry.turn], ids=["record", "entry"])
@pytest.mark.parametrize(
    "wrong",
    [{"turn_id": None}, {"turn_id": 7}, {"turn_id": ""}, {"speaker": None}, {"speaker": b"u"}, {"metadata": 5}],
    ids=str,
)
def test_a_turn_that_no_prompt_would_show_is_refused(scope, make, wrong):
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        make(scope, **{"speaker": "user", "turn_id": "t1", "content": "hi", **wrong})


@pytest.mark.parametrize("make", [MemoryRecord.turn, MemoryEntry.turn], ids=["record", "entry"])
def test_a_turn_may_have_no_other_metadata(scope, make):
    made = make(scope, speaker="", turn_id="t1", content="hi", metadata=None)
    assert made.metadata == {"speaker": "", "turn_id": "t1"}


@pytest.mark.parametrize("records", [5, object(), MemoryRecord], ids=["number", "object", "class"])
def test_records_that_are_no_list_are_refused(scope, records):
    with pytest.raises(InvalidInput, match="pass a list"):
        WriteRequest(scope, records)


@pytest.mark.parametrize("request_", [None, 5, SimpleNamespace(scope=1), SimpleNamespace(records=())], ids=str)
def test_what_is_no_request_is_refused(request_):
    with pytest.raises(InvalidInput, match="pass a WriteRequest"):
        request_of(request_)


@pytest.mark.parametrize(
    "layer", [MemoryLayer.SEMANTIC, TheirLayer.SEMANTIC, "semantic"], ids=["ours", "theirs", "text"]
)
def test_a_layer_may_be_named_by_anybodys_enum(scope, layer):
    record = MemoryRecord(scope=scope, content="x", layer=layer)
    assert record.layer == "semantic"
    assert type(record.layer) is str
    assert record.home is MemoryLayer.SEMANTIC


def test_a_profile_is_kept_with_the_semantic_layer_and_under_its_own_name(scope):
    record = MemoryRecord(scope=scope, content="x", layer="profile")
    assert (record.layer, record.home) == ("profile", MemoryLayer.SEMANTIC)
    assert set(HOMES) == {layer.value for layer in MemoryLayer} | {"profile"}


class Odd(Enum):
    LAYER = "workign"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"scope": None}, "tenant_id and scope_path"),
        ({"scope": SimpleNamespace(tenant_id="a", scope_path="")}, "empty"),
        ({"scope": "acme"}, "tenant_id and scope_path"),
        ({"content": ""}, "no content"),
        ({"content": " \n\t"}, "no content"),
        ({"content": None}, "no content"),
        ({"content": b"bytes"}, "no content"),
        ({"layer": "workign"}, "layer is unknown"),
        ({"layer": Odd.LAYER}, "layer is unknown"),
        ({"layer": None}, "layer is unknown"),
        ({"layer": ["working"]}, "layer is unknown"),
        ({"metadata": None}, "metadata"),
        ({"metadata": {1: "x"}}, "metadata"),
        ({"metadata": [("a", 1)]}, "metadata"),
        ({"metadata": {"durability": "for ever"}}, "unknown durability"),
        ({"durability": "durabel"}, "unknown durability"),
        ({"id": ""}, "id must be a text"),
        ({"id": 7}, "id must be a text"),
        ({"id": "x" * 513}, "more than 512 bytes"),
        ({"importance": 0}, "from 1 to 10"),
        ({"importance": 10.5}, "from 1 to 10"),
        ({"importance": float("nan")}, "from 1 to 10"),
        ({"importance": True}, "from 1 to 10"),
        ({"importance": "5"}, "from 1 to 10"),
        ({"created_at": "2026-01-01"}, "created_at"),
    ],
)
def test_what_a_record_refuses_when_it_is_made(scope, values, says):
    with pytest.raises(InvalidInput, match=says) as caught:
        MemoryRecord(**{"scope": scope, "content": SECRET, **values})
    assert isinstance(caught.value, ValueError)
    assert SECRET not in everything_said(caught.value)


def test_a_durability_is_the_arguments_then_the_metadatas_then_none(scope):
    def made(**values):
        record = MemoryRecord(scope=scope, content="x", **values)
        assert record.metadata.get("durability") == record.durability
        return record.durability

    assert made() is None
    assert made(metadata={"durability": "transient"}) == "transient"
    assert made(metadata={"durability": "transient"}, durability="expired") == "expired"
    assert made(durability="") == "durable"


def test_a_record_keeps_its_own_copy_of_the_metadata(scope):
    metadata = {"a": 1}
    record = MemoryRecord(scope=scope, content="x", metadata=metadata, durability="durable")
    metadata["b"] = 2
    assert record.metadata == {"a": 1, "durability": "durable"}
    assert "durability" not in metadata


def test_a_record_cannot_be_given_another_scope(scope):
    record = MemoryRecord(scope=scope, content="x")
    with pytest.raises(AttributeError):
        record.scope = TenantScope.root("org", "other")


def test_another_packages_scope_is_a_scope(scope):
    record = MemoryRecord(scope=TheirScope.root("org", "acme"), content="x")
    assert same_scope(record.scope, TenantScope.root("org", "acme"))
    assert not same_scope(record.scope, scope)


def test_a_request_takes_any_iterable_and_refuses_another_scopes_record(scope):
    mine, other = MemoryRecord(scope=scope, content="x"), TenantScope.root("org", "acme")
    request = WriteRequest(scope, (one for one in [mine]))
    assert request.validate() is request
    assert request.records == (mine,)
    theirs = MemoryRecord(scope=other, content=SECRET)
    with pytest.raises(InvalidInput, match="another scope") as caught:
        WriteRequest(scope, [mine, theirs]).validate()
    assert SECRET not in everything_said(caught.value)
    assert theirs.scope is other  # as it was
    assert WriteRequest(scope).validate().records == ()


def test_the_same_address_is_the_same_scope_whatever_else_differs(scope):
    labelled = scope.model_copy(update={"namespace": "other", "inherits_from": (TenantScope.root("org", "acme"),)})
    assert WriteRequest(scope, [MemoryRecord(scope=labelled, content="x")]).validate()


def test_a_found_record_of_another_scope_is_refused_by_the_results_own_request(scope):
    other = MemoryRecord(scope=scope.child("part", "1"), content="x")
    assert ExtractionResult(scope).write_request() == WriteRequest(scope)
    with pytest.raises(InvalidInput):
        ExtractionResult(scope, (other,)).write_request()


def test_anything_with_a_records_attributes_is_one(scope):
    record = record_of(SimpleNamespace(scope=scope, content="x", layer="semantic", importance=7))
    assert (record.scope, record.layer, record.importance) == (scope, "semantic", 7)
    for lacking in (SimpleNamespace(scope=scope), SimpleNamespace(content="x"), SECRET, None):
        with pytest.raises(InvalidInput, match="pass a MemoryRecord") as caught:
            record_of(lacking)
        assert SECRET not in everything_said(caught.value)


def test_receipts_and_results_are_plain(scope):
    assert WriteReceipt() == WriteReceipt((), degraded=False, reason="", duplicate=False)
    assert FlushReceipt() == FlushReceipt((), degraded=False, reason="", node_ids=())
    assert ExtractionRequest(scope, "q", "a").user_message == "q"
    done = applied(ResolvedInput("memory", ("id",), scope.path), counts={"written": 1})
    assert done.changed
    assert (done.reason, done.counts) == ("", {"written": 1})
    nothing = no_change("why", counts={"written": 0})
    assert nothing == StageResult(None, "why", {"written": 0})
    assert not nothing.changed
    assert no_change("why").counts == {}


@pytest.mark.parametrize("layer", sorted(HOMES))
def test_what_waits_says_the_record_again(scope, layer):
    keys = scope_keys("p", scope)
    record = MemoryRecord(
        scope=scope,
        content="text \ud800 \n second line\x00",
        layer=layer,
        metadata={"speaker": "user", "n": 1 << 70, "at": datetime(2026, 1, 2, tzinfo=UTC), "b": b"\n\x00"},
        id="job 42: ünïcode\n{x}",
        importance=7.5,
        durability="transient",
    )
    item = encode_record(record, "acme", limit=10_000, seal=PLAIN)
    assert decode_record(item, keys, scope, seal=PLAIN) == record
    head = item.partition(b"\n")[0].split(b" ")
    assert head[:2] == [b"1", HOMES[layer].encode()]
    assert len(head) == 4


@pytest.mark.parametrize("name", ["content", "record_id", "record_layer"])
def test_a_name_that_a_node_needs_for_itself_is_refused(scope, name):
    record = MemoryRecord(scope=scope, content="x", layer="semantic", metadata={name: SECRET})
    with pytest.raises(InvalidInput, match=f"key {name}") as caught:
        encode_record(record, "acme", limit=1000, seal=PLAIN)
    assert SECRET not in everything_said(caught.value)
    turn = MemoryRecord(scope=scope, content="x", metadata={name: "y"})
    assert (
        decode_record(encode_record(turn, "acme", limit=1000, seal=PLAIN), scope_keys("p", scope), scope, seal=PLAIN)
        == turn
    )


@pytest.mark.parametrize("layer", ["working", "semantic"])
@pytest.mark.parametrize("values", [{"metadata": {"tags": {"a set"}}}, {"content": "x" * 2000}])
def test_what_cannot_be_stored_is_refused(scope, layer, values):
    record = MemoryRecord(**{"scope": scope, "content": "x", "layer": layer, **values})
    with pytest.raises(InvalidInput):
        encode_record(record, "acme", limit=1000, seal=PLAIN)


def test_an_extractor_may_hand_over_a_generator(scope):
    record = MemoryRecord(scope=scope, layer="semantic", content="fact")
    result = ExtractionResult(scope, (one for one in [record]))
    assert result.records == (record,)
    assert result.write_request().records == (record,)
