"""Ours against the original: the same calls give the same results, and each difference on purpose has its own test.

The original is `symfonic.memory.layers.working.WorkingLayer`, which keeps its windows in the process. `Parity` plays
random calls to it and to two workers of ours that share a real server, and compares after every call.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import os
import re
import uuid
import warnings
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
import redis.asyncio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    HumanMessageChunk,
    SystemMessage,
    ToolMessage,
)
from symfonic.agent.types import FrameworkTenantScope
from symfonic.core.scope import ScopeLevel as OriginalLevel
from symfonic.core.scope import TenantScope as OriginalScope
from symfonic.memory.backends.in_memory import InMemoryGraphBackend
from symfonic.memory.graph.store import GraphMemoryStore
from symfonic.memory.layers.working import WorkingLayer as OriginalLayer
from symfonic.memory.models.entry import MemoryEntry as OriginalEntry
from symfonic.memory.types import MemoryLayer as OriginalMemoryLayer

from symfonic_redis import (
    ConfigurationError,
    InvalidInput,
    MemoryEntry,
    MemoryLayer,
    MultiScopeIgnoredWarning,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    connect,
)
from symfonic_redis.keys import partition_of

EXAMPLES = 2000 if os.environ.get("HYPOTHESIS_PROFILE") == "ci" else 100
STEPS = 30

WORKING = OriginalMemoryLayer.WORKING

# --- the original, made comparable ---------------------------------------------------------------


def addressable(scope: Any) -> Any:
    """The scope, or the tenant alone when its sub-tenant is `""`."""
    if scope.path_override is None and scope.sub_tenant_id == "":
        return OriginalScope.root("tenant", scope.tenant_id)
    return scope


class FlatStore(GraphMemoryStore):
    """The original's graph store, except that it takes an empty sub-tenant for none.

    The original's window does so, but its store raises when it asks such a scope for its path, so that the layer
    mirrors nothing. Ours mirrors under the tenant; see `test_an_empty_sub_tenant_is_mirrored_under_its_tenant`.
    """

    async def add_node(self, scope, node):
        return await super().add_node(addressable(scope), node)

    async def query_nodes(self, scope, *args, **options):
        return await super().query_nodes(addressable(scope), *args, **options)

    async def delete_node(self, scope, node_id):
        await super().delete_node(addressable(scope), node_id)


class ExactStore(FlatStore):
    """It also shows the nodes of exactly one scope: the original prunes and clears what a query shows it.

    Its backend shows a child its parents' nodes, so a child's push prunes its parent's mirror. Ours on purpose never
    does; see `test_pruning_spares_the_parents_nodes` and `test_clearing_spares_the_parents_nodes`.
    """

    async def query_nodes(self, scope, *args, limit=None, **options):
        path = addressable(scope).scope_path
        found = await super().query_nodes(scope, *args, **options)
        return [node for node in found if node.properties["scope_path"] == path][:limit]


# --- comparing -----------------------------------------------------------------------------------

REHYDRATED = "resume_rehydrate"
RANDOM_TURN_ID = re.compile(r"[0-9a-f]{12}")


def strict(value: Any) -> Any:
    """A value such that `==` also sees types, order, NaN and the sign of zero. An Enum is its value, as ours gives it.

    A datetime is its wall time and its offset: the zone's name is not kept, and Python finds a time in a clock's
    repeated hour unequal to the same time under a plain offset.
    """
    match value:
        case Enum():
            return strict(value.value)
        case dict():
            return "dict", [(strict(key), strict(item)) for key, item in value.items()]
        case list() | tuple():
            return type(value).__name__, [strict(item) for item in value]
        case datetime():
            return "datetime", value.isoformat()
    return type(value).__name__, repr(value)


def entry_facts(entry: Any) -> Any:
    """Everything of a window's entry that must be equal on both sides."""
    metadata = dict(entry.metadata)
    made = entry.id, entry.created_at.isoformat()
    if metadata.get("source") == REHYDRATED:
        # Each side gives a replayed row an id and a time of its own, and a random turn id where the message has none.
        made = "", ""
        if isinstance(metadata["turn_id"], str) and RANDOM_TURN_ID.fullmatch(metadata["turn_id"]):
            metadata["turn_id"] = "random"
    return (
        *made,
        entry.content,
        entry.layer.value,
        entry.tenant_id,
        entry.node_id,
        strict(entry.score),
        strict(metadata),
        strict(float(entry.importance)),
    )


def node_facts(node: Any) -> Any:
    """Everything of a mirrored node but its id and its times, which each store gives it."""
    # The original's backend stamps this key on every node, over a metadata value of the same name.
    properties = {key: value for key, value in node.properties.items() if key != "scope_path"}
    return (
        node.layer.value,
        node.tenant_id,
        node.label,
        strict(properties),
        strict(node.importance),
        node.embedding,
        node.access_count,
        node.durability,
    )


async def outcome(call: Awaitable[Any]) -> tuple[str, Any]:
    """What a call did: its result, or that it refused its arguments."""
    try:
        return "returned", await call
    except ValueError:
        return "refused", None


# --- scopes --------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """One scope, of the original's class and of ours."""

    theirs: Any
    ours: TenantScope

    @property
    def address(self) -> str:
        return self.ours.scope_path


def by_path(kinds: list[str], ids: list[str], scope_class: type = OriginalScope) -> Pair:
    theirs = scope_class.from_path([OriginalLevel(kind=kind, id=id_) for kind, id_ in zip(kinds, ids, strict=False)])
    ours = TenantScope.root(kinds[0], ids[0])
    for kind, id_ in zip(kinds[1:], ids[1:], strict=False):
        ours = ours.child(kind, id_)
    return Pair(theirs, ours)


def flat(tenant: str, sub_tenant: str | None, scope_class: type = OriginalScope) -> Pair:
    return Pair(
        scope_class.from_request(tenant, sub_tenant_id=sub_tenant),
        TenantScope(tenant_id=tenant, sub_tenant_id=sub_tenant),
    )


HOSTILE_IDS = (
    "acme",
    "acme-corp",
    "a:b",
    "{a}",
    "}{",
    "*",
    "a*",
    "?[a-z]",
    "%3A",
    "%",
    "a/b",
    "a=b",
    "k=v/k=v",
    "\x00",
    "a\x00b",
    "\U0001f9d1\u200d\U0001f680",
    "\u202eabc",
    "\u200f",
    " a b ",
    "a\nb",
    "\\",
    "é",
    "e\u0301",
    "turns",
    "tenant",
    "../..",
    "None",
    "x" * 512,
    "é" * 256,
    "\U0001f680" * 128,
)
# Blank ids and the path's delimiter are refused by both, see `test_both_refuse_what_cannot_name_a_level`.
ids = st.sampled_from(HOSTILE_IDS) | st.text(
    st.sampled_from("ab01:{}*%/=\\ \x00\t\u200f\u202e\U0001f680é"), min_size=1, max_size=6
).filter(str.strip)
kinds = st.sampled_from(
    [
        ["tenant", "sub_tenant", "conversation", "thread"],  # the kinds of the flat form: the same address twice
        ["org", "brand", "conversation", "thread"],
        ["{org}", "brand:*", "\U0001f680", "a=b/c"],
    ]
)


def neighbour(id_: str) -> str:
    """Another id that shares a prefix with this one."""
    return f"{id_}:" if len(id_.encode()) < 512 else id_[:-1]


@st.composite
def families(draw) -> list[Pair]:
    """A scope of 1 to 4 levels, its parents, siblings whose ids share a prefix with it, and flat scopes."""
    words = draw(kinds)
    path = draw(st.lists(ids, min_size=1, max_size=4))
    scope_class = draw(st.sampled_from([OriginalScope, FrameworkTenantScope]))
    tenant = path[0]
    family = [by_path(words, path[:depth], scope_class) for depth in range(len(path), 0, -1)]
    family.append(by_path(words, [*path[:-1], neighbour(path[-1])], scope_class))
    family.append(by_path(words, [neighbour(tenant), *path[1:]], scope_class))
    family.extend(flat(tenant, sub_tenant, scope_class) for sub_tenant in (None, "", path[-1]))
    return family


# --- entries -------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


class Mark(StrEnum):
    TRANSIENT = "transient"
    USER = "user"


def zones() -> list[Any]:
    found: list[Any] = [None, UTC, timezone(timedelta(hours=5, minutes=45)), timezone(-timedelta(seconds=1))]
    with contextlib.suppress(ZoneInfoNotFoundError):  # a machine without the time zone database
        found.append(ZoneInfo("Europe/Berlin"))
    return found


datetimes = st.datetimes(timezones=st.sampled_from(zones()))
any_text = st.text(st.characters(), max_size=8)  # lone surrogates too
integers = st.integers(-(10**40), 10**40) | st.sampled_from(
    [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1]
)
keys = any_text | st.integers(-5, 5) | st.sampled_from([None, True, 1.5, b"k", (1, "a"), 2**70, uuid.UUID(int=7)])
scalars = st.one_of(
    any_text,
    integers,
    st.floats(),
    st.sampled_from(
        [None, True, False, "", "\ud800", "\udfff x", *Colour, *Size, *Mark, Decimal("-0.10"), Decimal("NaN")]
    ),
    st.binary(max_size=6),
    datetimes,
    st.uuids(),
    st.decimals(),
)
values = scalars | st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
    ),
    max_leaves=4,
)
KNOWN_KEYS = (
    "content",
    "scope_path",
    "speaker",
    "turn_id",
    "source",
    "label",
    "layer",
    "importance",
    "tenant_id",
    "properties",
    "",
)
metadata = st.dictionaries(st.sampled_from(KNOWN_KEYS) | any_text, values, max_size=3)

sentences = st.lists(
    st.sampled_from(["One.", "Two! ", "Three?", "\n", "\r\n", " ", "\t", "and", "a.b", "…", "- ", "long " * 60]),
    max_size=6,
).map("".join)
contents = st.one_of(
    sentences,
    st.text(max_size=20),
    st.sampled_from(["", " ", "x" * 79, "x" * 80, "x" * 81, "\U0001f680" * 81, "\x00", "\ud800", "x" * 80 + "\udfff"]),
)
importances = st.floats(1, 10) | st.sampled_from([5, 1.0, 10.0])
# Out of range: pydantic checks at construction only, so an assignment may leave any of these.
wild_importances = st.sampled_from([0, -3.5, 10.000001, 99, float("inf"), -float("inf"), float("nan"), True])

entry_fields = st.fixed_dictionaries(
    {"content": contents},
    optional={
        "id": st.sampled_from(["", "t1", str(uuid.UUID(int=1)), str(uuid.UUID(int=0xAB << 100)).upper(), "x" * 36]),
        "layer": st.sampled_from([layer.value for layer in OriginalMemoryLayer]),
        "node_id": st.none() | st.sampled_from(["", "n-1"]),
        "score": st.none() | st.floats(),
        "metadata": metadata,
        "importance": importances,
        "created_at": datetimes,
    },
)

ABSENT: Any = object()
GOOD_MARKS = ("", "transient", "durable", "expired", Mark.TRANSIENT)
BAD_MARKS = ("forever", "Durable", " ", 0, False, [], b"durable", Mark.USER)
good_marks = st.sampled_from([ABSENT, ABSENT, None, *GOOD_MARKS])
bad_marks = st.sampled_from(BAD_MARKS)


class Draft(NamedTuple):
    """What an entry will be made of, for whichever tenant and of either class."""

    fields: dict[str, Any]
    mark: Any
    wild: Any

    def build(self, entry_class: type, tenant: str, *, plain_label: bool) -> Any:
        fields = {"layer": "working", **self.fields, "tenant_id": tenant}
        # The original's node refuses a lone surrogate in its label and mirrors nothing, with a warning in the log; see
        # `test_a_turn_whose_node_cannot_be_made_spoils_neither_window_nor_mirror`.
        label = fields["content"][:80]
        if plain_label and label.encode(errors="replace").decode() != label:
            fields["content"] = label.encode(errors="replace").decode() + fields["content"][80:]
        if self.mark is not ABSENT:
            fields["metadata"] = {**fields.get("metadata", {}), "durability": self.mark}
        entry = entry_class(**fields)
        if self.wild is not ABSENT:
            entry.importance = self.wild
        return entry


def drafts(allowed: st.SearchStrategy[Any]) -> st.SearchStrategy[Draft]:
    return st.builds(Draft, entry_fields, allowed, st.just(ABSENT) | wild_importances)


# --- messages ------------------------------------------------------------------------------------

words = st.sampled_from(["", " ", "\n", "hello", " hello ", "two words.", "\x00", "\U0001f680"])
blocks = words | st.sampled_from(
    [
        {"type": "text", "text": "block "},
        {"type": "text", "text": ""},
        {"type": "text"},
        {"type": "text", "text": 5},
        {"text": "no type"},
        {"type": "image_url", "image_url": {"url": "https://example.invalid/a.png"}},
        {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        {"type": "thinking", "thinking": "hm", "text": "shown"},
    ]
)
message_contents = words | st.lists(blocks, max_size=4)
message_ids = st.sampled_from([None, None, "", "m-1", "m:2", "\U0001f680"])


def named_message(name: str, **attributes: Any) -> Any:
    """An object that only its class's name tells."""
    return type(name, (), attributes)()


# Neither dicts of a user or an assistant, nor ducks with these roles, nor content None in a duck or a block: ours
# understands the first two and finds no text in the third, on purpose; see `test_content_none_is_no_text` and
# `test_messages_of_other_shapes_are_understood`.
duck_contents = message_contents | st.sampled_from(
    [7, 0, 1.5, True, {"text": "x"}, ("a", "b"), b"bytes", [5, "x", None]]
)
messages = st.one_of(
    st.builds(HumanMessage, content=message_contents, id=message_ids),
    st.builds(AIMessage, content=message_contents, id=message_ids),
    st.builds(SystemMessage, content=message_contents, id=message_ids),
    st.builds(ToolMessage, content=message_contents, id=message_ids, tool_call_id=st.just("call")),
    st.builds(FunctionMessage, content=words, name=st.just("f")),
    st.builds(ChatMessage, content=words, role=st.sampled_from(["critic", "User", ""])),
    st.builds(HumanMessageChunk, content=words),
    st.builds(AIMessageChunk, content=words),
    st.builds(
        SimpleNamespace,
        type=st.sampled_from(["human", "ai", "system", "tool", "remove", "", None, 3]),
        content=duck_contents,
        id=message_ids | st.sampled_from([7, 0]),
    ),
    st.builds(
        named_message,
        st.sampled_from(["HumanMessage", "AIMessage", "ToolMessage", "Message"]),
        type=st.sampled_from([None, "system", "human"]),
        content=duck_contents,
    ),
    st.sampled_from(
        [
            None,
            "hello",
            SimpleNamespace(type="human"),
            SimpleNamespace(content="x"),
            {"role": "system", "content": "x"},
            {"type": "tool", "content": "x"},
        ]
    ),
)
transcripts = st.lists(messages, max_size=8)

# --- rendering -----------------------------------------------------------------------------------

speakers = st.sampled_from(
    [ABSENT, ABSENT, "user", "assistant", "legacy", "Legacy", "", " ", 5, 0, None, True, ["user"], Mark.USER, "a: b"]
)
labelled = st.builds(
    lambda space, label, text: f"{space}{label}{text}",
    st.sampled_from(["", " ", "\n\t"]),
    st.sampled_from(
        ["AGENT_IDENTITY:", "agent_identity:", "SOUL:", "Soul: ", "\u017foul:", "SOUL", "SOUL:SOUL:", "x SOUL:"]
    ),
    words,
)
extras = st.one_of(
    words,
    st.sampled_from([None, 0, 7, True, [], ["a"], {}, Mark.USER, b"x"]),
    st.dictionaries(
        st.sampled_from(["a", "b", "password", "c", ""]) | st.integers(0, 3),
        words | st.sampled_from([1, None, ["x"]]),
        max_size=4,
    ),
)
prompt_metadata = st.builds(
    lambda speaker, shown: shown if speaker is ABSENT else {"speaker": speaker, **shown},
    speakers,
    st.fixed_dictionaries(
        {}, optional={"properties": extras, "role": extras, "name": extras, "description": extras, "other": extras}
    ),
)
prompt_contents = labelled | words | sentences
duck_entries = st.fixed_dictionaries(
    {},
    optional={
        "content": prompt_contents | st.sampled_from([None, 5, ["a"]]),
        "layer": st.sampled_from([WORKING, OriginalMemoryLayer.EPISODIC, "working", "own", None, 3]),
        "metadata": prompt_metadata | st.sampled_from([None, {}, ""]),
    },
).map(lambda attributes: SimpleNamespace(**attributes))
prompt_entries = duck_entries | st.builds(
    lambda content, layer, shown: OriginalEntry(tenant_id="t", layer=layer, content=content, metadata=shown),
    prompt_contents,
    st.sampled_from(list(OriginalMemoryLayer)),
    prompt_metadata,
)


def without_password(shown: dict[Any, Any]) -> dict[Any, Any]:
    return {key: value for key, value in shown.items() if key != "password"}


scrubbers = st.sampled_from([None, without_password, lambda shown: {}, lambda shown: {"scrubbed": "yes"}])

# --- the machine ---------------------------------------------------------------------------------


class Complaints(logging.Handler):
    """What either side logged as gone wrong: the original swallows its mirror's failures."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class Stage:
    """What all examples share: the server, a client, an event loop of their own."""

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.client = redis.asyncio.Redis.from_url(url)
        self.complaints = Complaints()
        for name in ("symfonic", "symfonic_redis"):
            logging.getLogger(name).addHandler(self.complaints)

    def run(self, call: Awaitable[Any]) -> Any:
        # Not `runner.run`: that swaps the signal handlers each time.
        return self.runner.get_loop().run_until_complete(call)

    def close(self) -> None:
        for name in ("symfonic", "symfonic_redis"):
            logging.getLogger(name).removeHandler(self.complaints)
        self.run(self.client.aclose())
        self.runner.close()


def step(method: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make an async rule a plain one."""

    @functools.wraps(method)
    def plain(self: Parity, **drawn: Any) -> None:
        self.run(method(self, **drawn))

    return plain


where = st.sampled_from([0] * 9 + [*range(1, 9)])
"""Which scope of the family, modulo its size. Often the same one, so that its window fills."""

native = st.booleans()
"""Whether ours gets its own scope, or the original's."""

worker = st.integers(0, 1)
"""Which of the two workers of ours is called; the other one is asked afterwards."""


class Parity(RuleBasedStateMachine):
    """Two workers of ours on a real server and one original, driven alike."""

    stage: ClassVar[Stage]

    def __init__(self) -> None:
        super().__init__()
        self.sound = True
        self.writes = 0  # since the last clear
        self.family: list[Pair] = []
        self.stage.complaints.records.clear()

    def run(self, call: Awaitable[None]) -> None:
        self.sound = False  # until the step is over: a failed example is not judged again when it is torn down
        self.stage.run(call)
        assert [record.getMessage() for record in self.stage.complaints.records] == []
        self.sound = True

    @initialize(
        family=families(),
        window=st.integers(1, 4),
        mirror=st.sampled_from(["stream", "stream", "foreign", "none"]),
        retention=st.sampled_from([None, 0, 1, 3, 7]),
        mode=st.sampled_from(["off", "extractive", "llm"]),
        evicted=st.sampled_from([50, 0, 1, 2]),
    )
    @step
    async def begin(self, *, family, window, mirror, retention, mode, evicted) -> None:
        self.family, self.window, self.mirror = family, window, mirror
        prefix = f"t{uuid.uuid4().hex[:12]}"
        self.deployments = [await connect(self.stage.client, prefix=prefix).open() for _ in range(2)]
        # The original's own backend, for the original and, apart, for ours when the mirror is foreign.
        theirs = InMemoryGraphBackend()
        foreign = InMemoryGraphBackend()
        options = {"stm_summary_mode": mode, "working_graph_retention": retention}
        self.their_graph = ExactStore(theirs)
        self.theirs = OriginalLayer(window, self.their_graph if mirror != "none" else None, **options)
        streams = [StreamGraphStore(deployment) for deployment in self.deployments]
        stores = {"stream": streams, "foreign": [FlatStore(foreign)] * 2, "none": [None] * 2}[mirror]
        self.our_graph = streams[0] if mirror == "stream" else ExactStore(foreign)
        self.ours = [
            WorkingLayer(deployment, window, store, evicted_retention=evicted, **options)
            for deployment, store in zip(self.deployments, stores, strict=True)
        ]
        for pair in family:
            assert pair.ours.ancestor_prefix_paths() == addressable(pair.theirs).ancestor_prefix_paths()
            assert pair.ours.tenant_id == pair.theirs.tenant_id

    def pair(self, where: int) -> Pair:
        return self.family[where % len(self.family)]

    def entries(self, draft: Draft, pair: Pair, *, own: bool) -> tuple[Any, Any]:
        """The entry for the original and for ours: the very same one, or one of our own class."""
        plain_label = self.mirror != "none"
        theirs = draft.build(OriginalEntry, pair.theirs.tenant_id, plain_label=plain_label)
        if not own:
            return theirs, theirs
        same = {"id": theirs.id, "created_at": theirs.created_at}
        fields = {**draft.fields, **same}
        return theirs, draft._replace(fields=fields).build(MemoryEntry, pair.theirs.tenant_id, plain_label=plain_label)

    async def check(self, pair: Pair, scope: Any, worker: int) -> int:
        """Compare window and mirror, through the given scope; return the window's length."""
        window = await self.ours[worker].get_context(scope)
        assert [entry_facts(entry) for entry in window] == [
            entry_facts(entry) for entry in await self.theirs.get_context(pair.theirs)
        ]
        if self.mirror != "none":
            nodes = await self.our_graph.query_nodes(scope, layer=MemoryLayer.WORKING)
            assert [node_facts(node) for node in nodes] == [
                node_facts(node) for node in await self.their_graph.query_nodes(pair.theirs, layer=WORKING)
            ]
            assert len({node.id for node in nodes}) == len(nodes)
        return len(window)

    async def check_other_way(self, pair: Pair, worker: int, *, native: bool) -> int:
        """Compare through the scope of the other class, on the other worker: all reach the same window."""
        return await self.check(pair, pair.theirs if native else pair.ours, 1 - worker)

    @rule(
        where=where,
        native=native,
        worker=worker,
        draft=drafts(good_marks),
        own=st.booleans(),
        durability=good_marks,
    )
    @step
    async def push(self, *, where, native, worker, draft, own, durability) -> None:
        await self.push_both(where=where, native=native, worker=worker, draft=draft, own=own, durability=durability)

    @rule(
        where=where,
        native=native,
        worker=worker,
        draft=drafts(bad_marks),
        own=st.booleans(),
        durability=good_marks | bad_marks,
    )
    @step
    async def push_misspelt(self, *, where, native, worker, draft, own, durability) -> None:
        """An unknown marker is refused, in the metadata only where no argument overrides it."""
        await self.push_both(where=where, native=native, worker=worker, draft=draft, own=own, durability=durability)

    async def push_both(self, *, where, native, worker, draft, own, durability) -> None:
        pair = self.pair(where)
        scope = pair.ours if native else pair.theirs
        theirs, ours = self.entries(draft, pair, own=own)
        options = {} if durability is ABSENT else {"durability": durability}
        before = len(await self.theirs.get_context(pair.theirs))
        expected, _ = await outcome(self.theirs.push(pair.theirs, theirs, **options))
        done, receipt = await outcome(self.ours[worker].push(scope, ours, **options))
        self.writes += 1
        assert done == expected
        length = await self.check_other_way(pair, worker, native=native)
        if receipt is not None:
            assert receipt[1:] == (length, before + 1 - length, False, False)
            assert len(receipt.node_ids) <= (self.mirror != "none")

    @rule(where=where, native=native, worker=worker, draft=drafts(good_marks))
    @step
    async def write(self, *, where, native, worker, draft) -> None:
        pair = self.pair(where)
        theirs, ours = self.entries(draft, pair, own=False)
        expected = await outcome(self.theirs.write(pair.theirs, theirs))
        assert await outcome(self.ours[worker].write(pair.ours if native else pair.theirs, ours)) == expected
        await self.check_other_way(pair, worker, native=native)

    @rule(
        where=where,
        native=native,
        worker=worker,
        batch=st.lists(drafts(good_marks), max_size=6),
        own=st.booleans(),
        durability=good_marks,
    )
    @step
    async def push_many(self, *, where, native, worker, batch, own, durability) -> None:
        """The original has no batch: it is so many pushes."""
        pair = self.pair(where)
        options = {} if durability is ABSENT else {"durability": durability}
        both = [self.entries(draft, pair, own=own) for draft in batch]
        for theirs, _ in both:
            await self.theirs.push(pair.theirs, theirs, **options)
        scope = pair.ours if native else pair.theirs
        receipt = await self.ours[worker].push_many(scope, [ours for _, ours in both], **options)
        self.writes += 1
        assert receipt.window_length == await self.check_other_way(pair, worker, native=native)
        if self.mirror == "stream" and batch:
            nodes = await self.our_graph.query_nodes(scope)
            assert list(receipt.node_ids) == [node.id for node in nodes][len(nodes) - len(receipt.node_ids) :]
            assert len(receipt.node_ids) == min(len(batch), len(nodes))

    @rule(
        where=where,
        native=native,
        worker=worker,
        top_k=st.sampled_from([5, 0, 1, 2, 3, 100, -1, -2, -100]),
        query=words,
        inherits=st.booleans(),
    )
    @step
    async def retrieve(self, *, where, native, worker, top_k, query, inherits) -> None:
        pair = self.pair(where)
        theirs = pair.theirs
        ours = pair.ours if native else pair.theirs
        if inherits:
            # Warnings are given once for a layer object, so always the same one is asked. Our own scope keeps an empty
            # sub-tenant as none, the original's key tells them apart: there ours gets the original's scope.
            worker = 0
            theirs = theirs.model_copy(update={"inherits_from": (OriginalScope.root("org", "elsewhere"),)})
            if native and theirs.sub_tenant_id != "":
                ours = ours.model_copy(update={"inherits_from": (TenantScope.root("org", "elsewhere"),)})
            else:
                ours = theirs
        found, warned = [], []
        for layer, scope in ((self.theirs, theirs), (self.ours[worker], ours)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found.append([entry_facts(entry) for entry in await layer.retrieve(scope, query, top_k)])
            warned.append([type(warning.message).__name__ for warning in caught])
        assert found[0] == found[1]
        assert warned[0] == warned[1]

    @rule(where=where, worker=worker, batch=st.lists(drafts(good_marks), max_size=5), own=st.booleans())
    @step
    async def summarize(self, *, where, worker, batch, own) -> None:
        pair = self.pair(where)
        window = await self.theirs.get_context(pair.theirs)
        assert await self.ours[worker].summarize(pair.ours, await self.ours[worker].get_context(pair.ours)) == (
            await self.theirs.summarize(pair.theirs, window)
        )
        both = [self.entries(draft, pair, own=own) for draft in batch]
        expected = await self.theirs.summarize(pair.theirs, [theirs for theirs, _ in both])
        assert await self.ours[worker].summarize(pair.ours, [ours for _, ours in both]) == expected

    @precondition(lambda self: self.writes > 0 and self.mirror != "none")
    @rule(where=where, native=native, worker=worker, position=st.integers(0, 7))
    @step
    async def delete(self, *, where, native, worker, position) -> None:
        pair = self.pair(where)
        scope = pair.ours if native else pair.theirs
        nodes = await self.our_graph.query_nodes(scope, layer=MemoryLayer.WORKING)
        their_nodes = await self.their_graph.query_nodes(pair.theirs, layer=WORKING)
        if nodes:
            position %= len(nodes)
            await self.theirs.delete(pair.theirs, their_nodes[position].id)
            await self.ours[worker].delete(scope, nodes[position].id)
        await self.check_other_way(pair, worker, native=native)

    @rule(where=where, native=native, worker=worker, node_id=ids | st.uuids().map(str), elsewhere=where)
    @step
    async def change_nothing(self, *, where, native, worker, node_id, elsewhere) -> None:
        """Links, and deletions of what this scope does not have."""
        pair, other = self.pair(where), self.pair(elsewhere)
        scope = pair.ours if native else pair.theirs
        for layer, same in ((self.theirs, pair.theirs), (self.ours[worker], scope)):
            assert await layer.link(same, node_id, node_id, "next") is None
            assert await layer.delete(same, node_id) is None
        if self.mirror == "stream" and other.address != pair.address:
            # A node of another scope is unknown here. The original deletes it through a child of that scope, see
            # `test_deleting_reaches_exactly_one_scope`, and is therefore not asked.
            for node in await self.our_graph.query_nodes(other.ours):
                await self.ours[worker].delete(scope, node.id)
            await self.check_other_way(other, worker, native=native)
        await self.check_other_way(pair, worker, native=native)

    @precondition(lambda self: self.writes > 2)
    @rule(where=where, native=native, worker=worker)
    @step
    async def clear(self, *, where, native, worker) -> None:
        pair = self.pair(where)
        self.writes = 0
        expected = await self.theirs.clear(pair.theirs)
        assert await self.ours[worker].clear(pair.ours if native else pair.theirs) is expected
        assert await self.check_other_way(pair, worker, native=native) == 0

    @rule(
        where=where,
        native=native,
        worker=worker,
        transcript=transcripts,
        max_turns=st.none() | st.integers(-2, 6),
        only_if_empty=st.booleans(),
    )
    @step
    async def rehydrate(self, *, where, native, worker, transcript, max_turns, only_if_empty) -> None:
        pair = self.pair(where)
        scope = pair.ours if native else pair.theirs
        layer = self.ours[worker]
        if only_if_empty and await self.theirs.get_context(pair.theirs):
            # Into an empty window only, on purpose: the original doubles a window that survived; see
            # `test_a_surviving_window_is_not_doubled`.
            assert await layer.rehydrate_from_messages(scope, transcript, max_turns=max_turns) == 0
        else:
            expected = await self.theirs.rehydrate_from_messages(pair.theirs, transcript, max_turns=max_turns)
            options = {} if only_if_empty else {"only_if_empty": False}
            done = await layer.rehydrate_from_messages(scope, transcript, max_turns=max_turns, **options)
            assert done == expected
        await self.check_other_way(pair, worker, native=native)

    @rule(worker=worker, entry=prompt_entries, scrubber=scrubbers)
    @step
    async def render(self, *, worker, entry, scrubber) -> None:
        expected = self.theirs.render_for_prompt(entry, scrubber)
        layer = getattr(entry, "layer", None)
        if isinstance(layer, Enum):
            # The original prints the enum's repr; see `test_the_layers_name_is_rendered`.
            assert expected.startswith(f"[{layer}] ")
            expected = expected.replace(f"[{layer}]", f"[{layer.value}]", 1)
        assert self.ours[worker].render_for_prompt(entry, scrubber) == expected

    @precondition(lambda self: self.writes > 0 and self.mirror != "none")
    @rule(
        where=where,
        native=native,
        position=st.integers(0, 7),
        by=st.sampled_from(["label", "label_prefix", "content", "importance", "speaker"]),
        cut=st.integers(0, 3),
        limit=st.none() | st.integers(0, 3),
        layer=st.sampled_from([None, MemoryLayer.WORKING, MemoryLayer.EPISODIC]),
    )
    @step
    async def query(self, *, where, native, position, by, cut, limit, layer) -> None:
        """The mirror's query, with what one of its nodes holds."""
        pair = self.pair(where)
        nodes = await self.their_graph.query_nodes(pair.theirs, layer=WORKING)
        options: dict[str, Any] = {"limit": limit}
        if nodes:
            node = nodes[position % len(nodes)]
            if by == "label":
                options["label"] = node.label
            elif by == "label_prefix":
                options["label_prefix"] = node.label[:cut]
            elif by == "importance":
                options["filters"] = {by: node.importance}
            elif by in node.properties:
                options["filters"] = {by: node.properties[by]}
        found = await self.our_graph.query_nodes(pair.ours if native else pair.theirs, layer=layer, **options)
        expected = await self.their_graph.query_nodes(
            pair.theirs, layer=layer and OriginalMemoryLayer(layer.value), **options
        )
        assert [node_facts(node) for node in found] == [node_facts(node) for node in expected]

    def teardown(self) -> None:
        if not self.family:
            return
        if self.sound:
            self.stage.run(self.check_all())
        self.stage.run(self.close())

    async def check_all(self) -> None:
        for pair in self.family:
            await self.check(pair, pair.ours, 0)

    async def close(self) -> None:
        for deployment in self.deployments:
            await deployment.aclose()


@pytest.fixture
def stage(valkey) -> Iterator[Stage]:
    stage = Stage(valkey.url)
    yield stage
    stage.close()


def test_random_calls_give_the_originals_results(stage):
    Parity.stage = stage
    run_state_machine_as_test(Parity, settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS))


# --- ours on purpose -----------------------------------------------------------------------------

ROOT = by_path(["org", "conversation"], ["acme"])
CHILD = by_path(["org", "conversation"], ["acme", "c-1"])
NUMBER_TOO_LONG = 10**5000  # Python refuses to write it out: `str` raises


def entry(content: str = "hello", *, tenant: str = "acme", **fields: Any) -> OriginalEntry:
    return OriginalEntry(layer="working", tenant_id=tenant, content=content, **fields)


def original_store() -> GraphMemoryStore:
    return GraphMemoryStore(InMemoryGraphBackend())


async def labels(store: Any, scope: Any) -> list[str]:
    return [node.label for node in await store.query_nodes(scope, layer=WORKING)]


async def window_of(layer: Any, scope: Any) -> list[Any]:
    return [entry_facts(found) for found in await layer.get_context(scope)]


@pytest.fixture
def graph(one_redis):
    return StreamGraphStore(one_redis)


async def test_querying_shows_exactly_one_scope(one_redis, graph):
    store = original_store()
    for layer, seen in ((OriginalLayer(graph_store=store), store), (WorkingLayer(one_redis, graph_store=graph), graph)):
        await layer.push(ROOT.theirs, entry("parent"))
        await layer.push(CHILD.theirs, entry("child"))
        assert await labels(seen, ROOT.theirs) == ["parent"]
    assert await labels(store, CHILD.theirs) == ["parent", "child"]
    assert await labels(graph, CHILD.theirs) == ["child"]


async def test_pruning_spares_the_parents_nodes(one_redis, graph):
    store = original_store()
    original = OriginalLayer(graph_store=store, working_graph_retention=1)
    ours = WorkingLayer(one_redis, graph_store=graph, working_graph_retention=1)
    for layer in (original, ours):
        await layer.push(ROOT.theirs, entry("parent"))
        await layer.push(CHILD.theirs, entry("child"))
    assert await labels(store, ROOT.theirs) == []
    assert await labels(graph, ROOT.theirs) == ["parent"]
    assert await labels(graph, CHILD.theirs) == ["child"]


async def test_clearing_spares_the_parents_nodes(one_redis, graph):
    store = original_store()
    for layer in (OriginalLayer(graph_store=store), WorkingLayer(one_redis, graph_store=graph)):
        await layer.push(ROOT.theirs, entry("parent"))
        await layer.push(CHILD.theirs, entry("child"))
        await layer.clear(CHILD.theirs)
        assert [found.content for found in await layer.get_context(ROOT.theirs)] == ["parent"]
        assert await layer.get_context(CHILD.theirs) == []
    assert await labels(store, ROOT.theirs) == []
    assert await labels(graph, ROOT.theirs) == ["parent"]
    assert await labels(graph, CHILD.theirs) == []


async def test_deleting_reaches_exactly_one_scope(one_redis, graph):
    store = original_store()
    for layer, seen in ((OriginalLayer(graph_store=store), store), (WorkingLayer(one_redis, graph_store=graph), graph)):
        await layer.push(ROOT.theirs, entry("parent"))
        [node] = await seen.query_nodes(ROOT.theirs)
        await layer.delete(CHILD.theirs, node.id)
    assert await labels(store, ROOT.theirs) == []
    assert await labels(graph, ROOT.theirs) == ["parent"]


@pytest.mark.parametrize("form", ["theirs", "ours"])
async def test_an_empty_sub_tenant_is_mirrored_under_its_tenant(one_redis, graph, form):
    empty = flat("acme", "")
    store = original_store()
    original, ours = OriginalLayer(graph_store=store), WorkingLayer(one_redis, graph_store=graph)
    said = entry()
    await original.push(empty.theirs, said)
    await ours.push(getattr(empty, form), said)
    alone = flat("acme", None).theirs
    assert await window_of(ours, alone) == await window_of(original, alone) != []
    assert await labels(store, alone) == []  # it logs that its store raised
    assert await labels(graph, alone) == await labels(graph, getattr(empty, form)) == ["hello"]


async def test_the_layers_name_is_rendered(one_redis):
    ours, original = WorkingLayer(one_redis), OriginalLayer()
    for metadata_, line in (({"speaker": "user"}, "user: hello"), ({"name": "n"}, "hello (name=n)")):
        said = entry(metadata=metadata_)
        assert original.render_for_prompt(said) == f"[MemoryLayer.WORKING] {line}"
        assert ours.render_for_prompt(said) == f"[working] {line}"
        assert ours.render_for_prompt(MemoryEntry(**said.model_dump())) == f"[working] {line}"


async def test_an_entry_of_another_tenant_is_refused(one_redis, graph):
    ours, original = WorkingLayer(one_redis, graph_store=graph), OriginalLayer()
    stray = entry(tenant="someone-else")
    await original.push(ROOT.theirs, stray)
    assert len(await original.get_context(ROOT.theirs)) == 1
    for push in (ours.push, ours.write):
        with pytest.raises(InvalidInput):
            await push(ROOT.theirs, stray)
    with pytest.raises(InvalidInput):
        await ours.push_many(ROOT.theirs, [entry(), stray])
    assert await ours.get_context(ROOT.theirs) == []
    assert await labels(graph, ROOT.theirs) == []


@pytest.mark.parametrize("max_entries", [0, -1])
async def test_a_window_of_no_entries_is_refused(one_redis, max_entries):
    OriginalLayer(max_entries)
    with pytest.raises(ConfigurationError):
        WorkingLayer(one_redis, max_entries)


async def test_a_negative_retention_is_refused(one_redis):
    OriginalLayer(working_graph_retention=-1)
    with pytest.raises(ConfigurationError):
        WorkingLayer(one_redis, working_graph_retention=-1)


async def test_a_surviving_window_is_not_doubled(one_redis):
    ours, original = WorkingLayer(one_redis), OriginalLayer()
    transcript = [HumanMessage("hello", id="m-1"), AIMessage("hi", id="m-2")]
    for layer in (ours, original):
        assert await layer.rehydrate_from_messages(ROOT.theirs, transcript) == 2
    assert await original.rehydrate_from_messages(ROOT.theirs, transcript) == 2
    assert await ours.rehydrate_from_messages(ROOT.theirs, transcript) == 0
    assert [found.content for found in await original.get_context(ROOT.theirs)] == ["hello", "hi"] * 2
    assert [found.content for found in await ours.get_context(ROOT.theirs)] == ["hello", "hi"]
    assert await ours.rehydrate_from_messages(ROOT.theirs, transcript, only_if_empty=False) == 2
    assert await window_of(ours, ROOT.theirs) == await window_of(original, ROOT.theirs)


async def test_a_replayed_row_has_an_id_and_a_time_of_its_own(one_redis):
    ours, original = WorkingLayer(one_redis), OriginalLayer()
    before = datetime.now(UTC)
    for layer in (ours, original):
        await layer.rehydrate_from_messages(ROOT.theirs, [HumanMessage("a"), HumanMessage("b")])
        first, second = await layer.get_context(ROOT.theirs)
        assert uuid.UUID(first.id) != uuid.UUID(second.id)
        assert before <= first.created_at <= second.created_at <= datetime.now(UTC)
        turns = [found.metadata["turn_id"] for found in (first, second)]
        assert turns[0] != turns[1]
        assert all(RANDOM_TURN_ID.fullmatch(turn) for turn in turns)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": "hello"}, ("user", "hello")),
        ({"role": "assistant", "content": [{"type": "text", "text": "hi"}]}, ("assistant", "hi")),
        ({"type": "human", "content": "hello"}, ("user", "hello")),
        ({"type": "ai", "content": "hi", "id": "m-1"}, ("assistant", "hi")),
        (ChatMessage("hello", role="user"), ("user", "hello")),
        (SimpleNamespace(role="assistant", content="hi"), ("assistant", "hi")),
        (SimpleNamespace(type="user", content="hello"), ("user", "hello")),
    ],
)
async def test_messages_of_other_shapes_are_understood(one_redis, message, expected):
    ours = WorkingLayer(one_redis)
    assert await OriginalLayer().rehydrate_from_messages(ROOT.theirs, [message]) == 0
    assert await ours.rehydrate_from_messages(ROOT.theirs, [message]) == 1
    [found] = await ours.get_context(ROOT.theirs)
    assert (found.metadata["speaker"], found.content) == expected


@pytest.mark.parametrize("content", [None, [{"type": "text", "text": None}]])
async def test_content_none_is_no_text(one_redis, content):
    ours, original = WorkingLayer(one_redis), OriginalLayer()
    message = SimpleNamespace(type="ai", content=content)
    assert await original.rehydrate_from_messages(ROOT.theirs, [message]) == 1
    assert [found.content for found in await original.get_context(ROOT.theirs)] == ["None"]
    assert await ours.rehydrate_from_messages(ROOT.theirs, [message]) == 0


async def test_what_no_server_can_hold_is_refused(one_redis):
    """The original keeps any object: its window never leaves the process."""
    ours, original = WorkingLayer(one_redis), OriginalLayer()
    for metadata_ in ({"a": object()}, {"a": {1, 2}}, {"a": date(2024, 1, 1)}, {"a": "x" * (1 << 20)}):
        await original.push(ROOT.theirs, entry(metadata=metadata_))
        with pytest.raises(InvalidInput):
            await ours.push(ROOT.theirs, entry(metadata=metadata_))
    assert await ours.get_context(ROOT.theirs) == []


async def test_an_enum_comes_back_as_its_value_and_is_mirrored_as_its_text(one_redis, graph):
    ours = WorkingLayer(one_redis, graph_store=graph)
    given = {"a": Colour.RED, "b": [Colour.RED], "c": Size.SMALL, "d": Mark.USER}
    await ours.push(ROOT.theirs, entry(metadata=given))
    [found] = await ours.get_context(ROOT.theirs)
    assert strict(found.metadata) == strict({"a": "red", "b": ["red"], "c": 1, "d": "user"})
    [node] = await graph.query_nodes(ROOT.theirs)
    assert node.properties == {"content": "hello", **{key: str(value) for key, value in given.items()}}


# --- alike, beside the machine -------------------------------------------------------------------


@pytest.mark.parametrize("id_", ["", " ", "\t\n", "a\x1fb"])
async def test_both_refuse_what_cannot_name_a_level(one_redis, id_):
    for scope_class in (OriginalScope, TenantScope):
        with pytest.raises(ValueError):
            scope_class.root("org", id_)
        with pytest.raises(ValueError):
            scope_class.root("org", "acme").child("conversation", id_)
    if id_:
        # The original's flat form notices only when it is used.
        unusable = OriginalScope.from_request("acme", sub_tenant_id=id_)
        for layer in (OriginalLayer(), WorkingLayer(one_redis)):
            with pytest.raises(ValueError):
                await layer.push(unusable, entry())


@pytest.mark.parametrize("separator", ["/", ":", "%2F", "%1F"])
async def test_an_id_that_spells_a_deeper_scope_does_not_reach_it(one_redis, graph, separator):
    """In the same partition, where only the encoding of ids keeps the two apart."""

    def both(lengths: tuple[int, int]) -> tuple[Pair, Pair]:
        deeper = ["c", "thread", "x" * lengths[0], "leaf", "y" * lengths[1]]
        words_ = ["org", "conversation", "thread", "leaf"]
        return by_path(words_, ["acme", separator.join(deeper)]), by_path(words_, ["acme", *deeper[::2]])

    # Lengths, not values: CRC32 tells two texts that differ in the same places apart whatever else they hold.
    forger, victim = next(
        pairs
        for pairs in map(both, itertools.product(range(1, 100), repeat=2))
        if len({partition_of(pair.address) for pair in pairs}) == 1
    )
    ours, original = WorkingLayer(one_redis, graph_store=graph), OriginalLayer()
    for layer in (original, ours):
        await layer.push(victim.theirs, entry("secret"))
        assert await layer.get_context(forger.theirs) == []
        await layer.clear(forger.theirs)
        assert [found.content for found in await layer.get_context(victim.theirs)] == ["secret"]
    assert await labels(graph, victim.theirs) == ["secret"]


async def test_only_ours_bounds_ids_and_depth(one_redis):
    long, deep = ["x" * 513], [str(number) for number in range(17)]
    for path in (long, deep):
        theirs = OriginalScope.from_path([OriginalLevel(kind=f"k{at}", id=id_) for at, id_ in enumerate(path)])
        await OriginalLayer().push(theirs, entry(tenant=path[0]))
        with pytest.raises(InvalidInput):
            await WorkingLayer(one_redis).push(theirs, entry(tenant=path[0]))


async def test_the_warning_is_given_once_for_a_tenant_and_sub_tenant(one_redis):
    heir = CHILD.theirs.model_copy(update={"inherits_from": (OriginalScope.root("org", "elsewhere"),)})
    ours = WorkingLayer(one_redis)
    with pytest.warns(MultiScopeIgnoredWarning):
        await ours.retrieve(heir, "")
    await ours.retrieve(heir, "")  # a second warning would be an error
    await ours.push(heir, entry())
    await ours.get_context(heir)


@pytest.mark.parametrize(
    "value",
    [("a", 1), 2**70, uuid.UUID(int=7), Decimal("0.10"), datetime(2024, 1, 1, tzinfo=UTC), Colour.RED],
    ids=lambda value: type(value).__name__,
)
async def test_an_enum_of_any_storable_value_is_kept_by_value(one_redis, value):
    member = Enum("Holder", {"MEMBER": value}).MEMBER
    ours = WorkingLayer(one_redis)
    await ours.push(ROOT.theirs, entry(metadata={"plain": value, "member": member}))
    [found] = await ours.get_context(ROOT.theirs)
    assert strict(found.metadata["plain"]) == strict(found.metadata["member"]) == strict(value)


def unmakeable() -> list[Any]:
    """Entries that both windows hold, and of which the original's node cannot be made."""
    return [
        pytest.param(entry("\ud800"), id="a lone surrogate in the label"),
        pytest.param(entry(metadata={"n": NUMBER_TOO_LONG}), id="a number too long for str"),
        pytest.param(entry(metadata={"n": [NUMBER_TOO_LONG]}), id="the same in a list"),
    ]


@pytest.mark.parametrize("foreign", [False, True], ids=["stream", "foreign"])
@pytest.mark.parametrize("odd", unmakeable())
async def test_a_turn_whose_node_cannot_be_made_spoils_neither_window_nor_mirror(one_redis, graph, odd, foreign):
    """The original logs that it was not mirrored. Ours may mirror it, or log it too."""
    store = original_store() if foreign else graph
    original, ours = OriginalLayer(graph_store=original_store()), WorkingLayer(one_redis, graph_store=store)
    before, after = entry("before"), entry("after")
    for layer in (original, ours):
        for said in (before, odd, after):
            await layer.push(ROOT.theirs, said)
    contents_ = [(found.id, found.content, found.metadata) for found in await original.get_context(ROOT.theirs)]
    assert [(found.id, found.content, found.metadata) for found in await ours.get_context(ROOT.theirs)] == contents_
    shown = await labels(store, ROOT.theirs)
    assert [label for label in shown if label in ("before", "after")] == ["before", "after"]
    await ours.clear(ROOT.theirs)
    assert await labels(store, ROOT.theirs) == []


@pytest.mark.parametrize("foreign", [False, True], ids=["stream", "foreign"])
async def test_a_metadata_key_that_is_no_string_does_not_spoil_the_mirror(one_redis, graph, foreign):
    """Pydantic checks keys at construction only. The entry may be refused; once stored, it may hurt nobody."""
    store = original_store() if foreign else graph
    ours = WorkingLayer(one_redis, graph_store=store)
    await ours.push(ROOT.theirs, entry("before"))
    odd = entry("odd")
    odd.metadata[1] = "one"
    done, _ = await outcome(ours.push(ROOT.theirs, odd))
    window = [found.content for found in await ours.get_context(ROOT.theirs)]
    assert window == (["before"] if done == "refused" else ["before", "odd"])
    assert (await labels(store, ROOT.theirs))[:1] == ["before"]


async def test_no_messages_at_all_are_none_to_replay(one_redis):
    for layer in (OriginalLayer(), WorkingLayer(one_redis)):
        assert await layer.rehydrate_from_messages(ROOT.theirs, None) == 0
        assert await layer.rehydrate_from_messages(ROOT.theirs, []) == 0


async def test_a_scrubber_is_used_whatever_its_truth(one_redis):
    class Scrubber(list):
        """Callable, and empty, hence false."""

        def __call__(self, shown):
            return without_password(shown)

    said = entry(metadata={"properties": {"password": "hunter2", "name": "n"}})
    assert OriginalLayer().render_for_prompt(said, Scrubber()).endswith(" hello (name=n)")
    assert WorkingLayer(one_redis).render_for_prompt(said, Scrubber()) == "[working] hello (name=n)"


@pytest.mark.parametrize(
    "filters", [{"durability": "durable"}, {"durability": "transient"}, {"durability": "None"}, {"missing": None}]
)
async def test_a_filter_finds_what_the_originals_finds(one_redis, graph, filters):
    """`durability` is an attribute of a node, which an unmarked one answers with `durable`."""
    store = original_store()
    for layer in (OriginalLayer(graph_store=store), WorkingLayer(one_redis, graph_store=graph)):
        await layer.push(ROOT.theirs, entry("unmarked"))
        await layer.push(ROOT.theirs, entry("none", metadata={"durability": None}))
        await layer.push(ROOT.theirs, entry("durable"), durability="durable")
        await layer.push(ROOT.theirs, entry("transient"), durability="transient")
    expected = [node.label for node in await store.query_nodes(ROOT.theirs, layer=WORKING, filters=filters)]
    assert [node.label for node in await graph.query_nodes(ROOT.theirs, layer=WORKING, filters=filters)] == expected


# --- a graph store that is not ours --------------------------------------------------------------


@pytest.mark.parametrize("retention", [None, 0, 1, 3])
async def test_a_foreign_store_gets_the_originals_nodes(one_redis, retention):
    theirs, ours = original_store(), original_store()
    options = {"working_graph_retention": retention}
    layers = (OriginalLayer(2, theirs, **options), WorkingLayer(one_redis, 2, ours, **options))
    for number in range(5):
        said = entry(f"turn {number}", metadata={"speaker": Mark.USER, "n": number}, importance=number + 1)
        for layer in layers:
            await layer.push(CHILD.theirs, said, durability="transient" if number % 2 else None)
    nodes = await ours.query_nodes(CHILD.theirs, layer=WORKING)
    expected = await theirs.query_nodes(CHILD.theirs, layer=WORKING)
    assert [node_facts(node) for node in nodes] == [node_facts(node) for node in expected]
    assert [node.properties["scope_path"] for node in nodes] == [node.properties["scope_path"] for node in expected]
    assert len(nodes) == min(5, 5 if retention is None else retention)
    if nodes:
        await layers[0].delete(CHILD.theirs, expected[0].id)
        await layers[1].delete(CHILD.theirs, nodes[0].id)
        assert await labels(ours, CHILD.theirs) == await labels(theirs, CHILD.theirs)
    for layer in layers:
        await layer.clear(CHILD.theirs)
    assert await labels(ours, CHILD.theirs) == await labels(theirs, CHILD.theirs) == []


@pytest.mark.parametrize("form", ["theirs", "ours"])
async def test_a_foreign_store_is_pruned_and_cleared_in_exactly_one_scope(one_redis, form):
    parent, child = getattr(ROOT, form), getattr(CHILD, form)
    store = original_store()
    ours = WorkingLayer(one_redis, graph_store=store, working_graph_retention=1)
    for said in ("one", "two"):
        await ours.push(parent, entry(f"parent {said}"))
        await ours.push(child, entry(f"child {said}"))
    assert await labels(store, parent) == ["parent two"]
    assert await labels(store, child) == ["parent two", "child two"]  # its query shows the parent's too
    await ours.clear(child)
    assert await labels(store, child) == ["parent two"]
    assert [found.content for found in await ours.get_context(parent)] == ["parent one", "parent two"]


async def test_a_receipt_names_the_nodes_of_a_foreign_store(one_redis, valkey):
    """A stream store of another deployment is foreign too, and names its nodes itself."""
    store = original_store()
    async with connect(valkey.url, prefix=f"t{uuid.uuid4().hex[:12]}") as elsewhere:
        for graph_store in (store, StreamGraphStore(elsewhere)):
            ours = WorkingLayer(one_redis, graph_store=graph_store)
            receipt = await ours.push_many(CHILD.ours, [entry("one"), entry("two")])
            assert list(receipt.node_ids) == [node.id for node in await graph_store.query_nodes(CHILD.ours)]


METHODS = ("add_node", "query_nodes", "delete_node")


def broken_store(broken: str, manner: str) -> Any:
    """The original's store with one method that raises when awaited, raises when called, or is not there."""

    async def raise_later(*args: Any, **options: Any) -> None:
        raise RuntimeError("the graph is down")

    def raise_now(*args: Any, **options: Any) -> None:
        raise RuntimeError("the graph is down")

    store = original_store()
    methods = {name: getattr(store, name) for name in METHODS}
    if manner == "missing":
        del methods[broken]
    else:
        methods[broken] = raise_later if manner == "async" else raise_now
    return SimpleNamespace(**methods)


@pytest.mark.parametrize("manner", ["async", "sync", "missing"])
@pytest.mark.parametrize("broken", METHODS)
async def test_a_foreign_stores_failures_are_logged_not_raised(one_redis, caplog, broken, manner):
    original = OriginalLayer(2, broken_store(broken, manner), working_graph_retention=1)
    ours = WorkingLayer(one_redis, 2, broken_store(broken, manner), working_graph_retention=1)
    for number in range(3):
        said = entry(f"turn {number}")
        for layer in (original, ours):
            await layer.push(ROOT.theirs, said)
    assert await window_of(ours, ROOT.theirs) == await window_of(original, ROOT.theirs)
    for layer in (original, ours):
        await layer.delete(ROOT.theirs, "unknown")
        await layer.clear(ROOT.theirs)
        assert await layer.get_context(ROOT.theirs) == []
    logged = [record for record in caplog.records if record.name.startswith("symfonic_redis")]
    assert logged
    assert all(record.levelno == logging.WARNING for record in logged)


async def test_a_foreign_stores_cancellation_is_not_swallowed(one_redis):
    async def add_node(scope, node):
        raise asyncio.CancelledError

    for layer in (
        OriginalLayer(graph_store=SimpleNamespace(add_node=add_node)),
        WorkingLayer(one_redis, graph_store=SimpleNamespace(add_node=add_node)),
    ):
        with pytest.raises(asyncio.CancelledError):
            await layer.push(ROOT.theirs, entry())
        assert len(await layer.get_context(ROOT.theirs)) == 1
