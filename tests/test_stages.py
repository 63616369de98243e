"""The three stages: each result tells itself from the others, nothing is filed under another scope, no turn is lost."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from own_server import everything_said

from symfonic_redis import (
    ConfigurationError,
    ExtractionResult,
    FlushReceipt,
    InvalidInput,
    MemoryRecord,
    MemoryUnavailable,
    OutOfMemory,
    TenantScope,
    WriteReceipt,
    consolidation_handler,
    lifecycle_handler,
    write_handler,
)

SECRET = "4111 1111 1111 1111"
OTHER = TenantScope.root("org", "globex")


class Writer:
    """Accepts, or does what it is told."""

    def __init__(self, does=None) -> None:
        self.requests = []
        self._does = does

    async def write(self, request):
        self.requests.append(request)
        if isinstance(self._does, BaseException):
            raise self._does
        if self._does is not None:
            return self._does
        return WriteReceipt(tuple(record.id for record in request.validate().records))


class Lifecycle:
    def __init__(self, does) -> None:
        self.scopes = []
        self._does = does

    async def flush(self, scope):
        self.scopes.append(scope)
        if isinstance(self._does, BaseException):
            raise self._does
        return self._does


class Extractor:
    def __init__(self, does=None) -> None:
        self.requests = []
        self._does = does

    async def extract(self, request):
        self.requests.append(request)
        if isinstance(self._does, BaseException):
            raise self._does
        return self._does(request) if callable(self._does) else self._does


def capability(**values):
    """A whole one, whose own scope is another tenant's."""
    return SimpleNamespace(
        **{
            "scope": OTHER,
            "writer": Writer(),
            "extractor": Extractor(),
            "lifecycle": Lifecycle(FlushReceipt()),
            "records_from": lambda context: context.records,
            **values,
        }
    )


def context(scope, *records, prompt="question", text="answer", tool_requests=(), **values):
    return SimpleNamespace(
        **{
            "request": SimpleNamespace(scope=scope, prompt=prompt),
            "turn": SimpleNamespace(text=text, tool_requests=tool_requests),
            "records": records,
            **values,
        }
    )


def fact(scope, content="fact", **values):
    return MemoryRecord(scope=scope, content=content, layer="semantic", **values)


def found(*records, **values):
    return lambda request: ExtractionResult(request.scope, records, **values)


# --- write ---


async def test_what_the_round_produced_is_written_under_the_turns_scope(scope):
    memory = capability()
    records = fact(scope, id="a"), fact(scope, id="b")
    result = await write_handler(memory)(context(scope, *records))
    assert result.changed
    assert (result.resolved.capability, result.resolved.value) == ("memory", ("a", "b"))
    assert result.resolved.provenance == scope.path
    assert (result.reason, result.counts) == ("", {"staged": 2, "written": 2})
    (request,) = memory.writer.requests
    assert (request.scope, request.records) == (scope, records)


async def test_the_capabilitys_scope_serves_a_turn_without_one():
    memory = capability(name="recall")
    record = fact(OTHER)
    for turnless in (SimpleNamespace(prompt="q"), SimpleNamespace(scope=None)):
        result = await write_handler(memory)(context(None, record, request=turnless))
        assert result.resolved.provenance == OTHER.path
        assert result.resolved.capability == "recall"


async def test_a_scope_that_cannot_tell_its_path_is_named_by_its_address():
    class Flat:
        """As the reference package's, with an empty sub-tenant."""

        tenant_id, sub_tenant_id = "acme", ""

        @property
        def path(self):
            raise ValueError

    scope = Flat()
    result = await write_handler(capability())(context(scope, fact(scope)))
    assert result.resolved.provenance == "tenant\x1facme"


async def test_the_three_results_of_writing_are_three(scope):
    record = fact(scope)
    nothing = await write_handler(capability())(context(scope))
    away = await write_handler(capability(writer=Writer(WriteReceipt(degraded=True))))(context(scope, record))
    raised = await write_handler(capability(writer=Writer(MemoryUnavailable(SECRET))))(context(scope, record))
    done = await write_handler(capability())(context(scope, record))
    assert [result.changed for result in (nothing, away, raised, done)] == [False, False, False, True]
    assert nothing.counts == {"staged": 0, "written": 0}
    assert away.counts == raised.counts == {"staged": 1, "written": 0}
    assert done.counts == {"staged": 1, "written": 1}
    assert len({nothing.reason, away.reason, done.reason}) == 3
    assert away.reason == raised.reason
    assert SECRET not in raised.reason


async def test_a_full_writer_says_why_nothing_was_written(scope):
    full = WriteReceipt(degraded=True, reason="256 records wait: flush the scope")
    result = await write_handler(capability(writer=Writer(full)))(context(scope, fact(scope)))
    assert result.reason == "256 records wait: flush the scope"
    again = WriteReceipt(reason="staged before", duplicate=True)
    result = await write_handler(capability(writer=Writer(again)))(context(scope, fact(scope)))
    assert (result.changed, result.reason) == (False, "staged before")


@pytest.mark.parametrize("whose", [OTHER, TenantScope.root("org", "acme")], ids=["another tenant", "the parent"])
async def test_a_record_of_another_scope_is_refused_and_not_restamped(scope, whose):
    # The writer would take anything: the stage itself refuses.
    memory = capability(writer=Writer(WriteReceipt(("x",))))
    stray = fact(whose, SECRET)
    with pytest.raises(InvalidInput, match="another scope") as caught:
        await write_handler(memory)(context(scope, fact(scope), stray))
    assert memory.writer.requests == []
    assert stray.scope is whose
    assert SECRET not in everything_said(caught.value)


async def test_a_record_without_content_is_refused_where_it_is_made(scope):
    memory = capability(records_from=lambda context: [MemoryRecord(scope=context.request.scope, content="  ")])
    with pytest.raises(InvalidInput, match="no content"):
        await write_handler(memory)(context(scope))
    assert memory.writer.requests == []


async def test_a_refusal_of_the_server_is_not_an_outage(scope):
    memory = capability(writer=Writer(OutOfMemory("the server is full")))
    with pytest.raises(OutOfMemory):
        await write_handler(memory)(context(scope, fact(scope)))


# --- consolidation ---


async def test_what_the_turn_taught_is_extracted_once_and_staged(scope):
    memory = capability(extractor=Extractor(found(fact(scope, id="a"), dropped=("x", "y"))))
    result = await consolidation_handler(memory)(context(scope, prompt="q", text="a"))
    (request,) = memory.extractor.requests
    assert (request.scope, request.user_message, request.assistant_message) == (scope, "q", "a")
    assert (result.resolved.value, result.resolved.provenance) == (("a",), scope.path)
    assert result.counts == {"extracted": 1, "written": 1, "discarded": 2}


@pytest.mark.parametrize(
    "values",
    [{"tool_requests": ("call",)}, {"turn": None}, {"request": None}],
    ids=["a pending tool", "no turn", "no request"],
)
async def test_consolidation_waits_for_the_final_round(scope, values):
    memory = capability(extractor=Extractor(found(fact(scope))))
    result = await consolidation_handler(memory)(context(scope, **values))
    assert not result.changed
    assert memory.extractor.requests == []
    assert "final model round" in result.reason


async def test_every_result_of_consolidation_says_which_it_is(scope):
    keep = found(fact(scope), dropped=("x",))
    results = {
        name: await consolidation_handler(memory)(context(scope))
        for name, memory in {
            "nothing": capability(extractor=Extractor(found(dropped=("x",)))),
            "nothing, said so": capability(extractor=Extractor(found(reason="small talk"))),
            "extractor raised": capability(extractor=Extractor(RuntimeError(SECRET))),
            "extractor degraded": capability(extractor=Extractor(found(degraded=True))),
            "extractor returned nothing": capability(extractor=Extractor()),
            "store raised": capability(extractor=Extractor(keep), writer=Writer(ConnectionResetError(SECRET))),
            "store degraded": capability(extractor=Extractor(keep), writer=Writer(WriteReceipt(degraded=True))),
            "refused": capability(extractor=Extractor(keep), writer=Writer(InvalidInput(SECRET))),
        }.items()
    }
    assert not any(result.changed for result in results.values())
    reasons = {name: result.reason for name, result in results.items()}
    assert reasons == {
        "nothing": "nothing in the turn is worth keeping",
        "nothing, said so": "small talk",
        "extractor raised": "extraction degraded: RuntimeError",
        "extractor degraded": "extraction degraded: the extractor reported an outage",
        "extractor returned nothing": "extraction degraded: AttributeError",
        "store raised": "memory store degraded: ConnectionResetError",
        "store degraded": "memory store degraded",
        "refused": "records refused: InvalidInput",
    }
    assert results["nothing"].counts == {"extracted": 0, "written": 0, "discarded": 1}
    assert results["extractor raised"].counts == {"extracted": 0, "written": 0}
    assert results["store raised"].counts == {"extracted": 1, "written": 0}


async def test_a_request_or_a_turn_without_its_text_does_not_fail_the_turn(scope):
    memory = capability(extractor=Extractor(found(fact(scope))))
    for values in ({"request": SimpleNamespace(scope=scope)}, {"turn": SimpleNamespace()}):
        result = await consolidation_handler(memory)(context(scope, **values))
        assert result.reason == "extraction degraded: AttributeError"


async def test_an_extractor_that_hangs_is_given_up(scope):
    class Hangs:
        async def extract(self, request):
            await asyncio.sleep(3600)

    result = await consolidation_handler(capability(extractor=Hangs()), timeout=0.01)(context(scope))
    assert result.reason == "extraction degraded: TimeoutError"
    for wrong in (0, -1.0):
        with pytest.raises(ConfigurationError, match="timeout"):
            consolidation_handler(capability(), timeout=wrong)


@pytest.mark.parametrize("how", ["a record", "the whole result"])
async def test_what_was_found_for_another_scope_is_refused(scope, how):
    stray = fact(OTHER, SECRET)

    def find(request):
        return ExtractionResult(request.scope if how == "a record" else OTHER, (stray,))

    memory = capability(extractor=Extractor(find), writer=Writer(WriteReceipt(("x",))))
    result = await consolidation_handler(memory)(context(scope))
    assert result.reason.startswith("records refused: ")
    assert SECRET not in result.reason
    assert memory.writer.requests == []


async def test_a_failure_with_an_endless_name_gives_a_short_reason(scope):
    endless = type("E" * 5000, (Exception,), {})
    for memory in (
        capability(extractor=Extractor(endless())),
        capability(extractor=Extractor(found(fact(scope))), writer=Writer(endless())),
        capability(extractor=Extractor(found(reason="x" * 1_000_000))),
    ):
        assert len((await consolidation_handler(memory)(context(scope))).reason) == 300


# --- lifecycle ---


async def test_the_three_results_of_publishing_are_three(scope):
    done = capability(lifecycle=Lifecycle(FlushReceipt(("a", "b"))))
    result = await lifecycle_handler(done)(context(scope))
    assert (result.resolved.value, result.resolved.provenance) == (("a", "b"), scope.path)
    assert result.counts == {"published": 2}
    assert done.lifecycle.scopes == [scope]  # and not the capability's
    nothing = await lifecycle_handler(capability())(context(scope))
    away = await lifecycle_handler(capability(lifecycle=Lifecycle(FlushReceipt(degraded=True))))(context(scope))
    raised = await lifecycle_handler(capability(lifecycle=Lifecycle(MemoryUnavailable(SECRET))))(context(scope))
    assert nothing.counts == away.counts == raised.counts == {"published": 0}
    assert away.reason == raised.reason != nothing.reason
    assert not any(one.changed for one in (nothing, away, raised))


# --- every stage ---

EVERY = {
    "write": (write_handler, "writer"),
    "consolidation": (consolidation_handler, "extractor"),
    "lifecycle": (lifecycle_handler, "lifecycle"),
}


@pytest.mark.parametrize("stage", list(EVERY))
async def test_cancellation_passes_through(scope, stage):
    handler, collaborator = EVERY[stage]
    stopped = asyncio.CancelledError()
    double = {"writer": Writer, "extractor": Extractor, "lifecycle": Lifecycle}[collaborator](stopped)
    with pytest.raises(asyncio.CancelledError):
        await handler(capability(**{collaborator: double}))(context(scope, fact(scope)))


async def test_cancellation_while_what_was_found_is_staged_passes_through_too(scope):
    memory = capability(extractor=Extractor(found(fact(scope))), writer=Writer(asyncio.CancelledError()))
    with pytest.raises(asyncio.CancelledError):
        await consolidation_handler(memory)(context(scope))


@pytest.mark.parametrize("stage", list(EVERY))
async def test_a_context_without_a_request_changes_nothing(scope, stage):
    memory = capability()
    for bare in (context(scope, request=None), SimpleNamespace(), None):
        result = await EVERY[stage][0](memory)(bare)
        assert not result.changed
        assert result.reason
    assert not memory.writer.requests + memory.extractor.requests + memory.lifecycle.scopes


@pytest.mark.parametrize("stage", list(EVERY))
async def test_without_any_scope_nothing_is_filed_anywhere(scope, stage):
    memory = capability(scope=None)
    result = await EVERY[stage][0](memory)(context(None, fact(scope)))
    assert "scope" in result.reason
    assert not memory.writer.requests + memory.extractor.requests + memory.lifecycle.scopes


def not_async(request):
    return WriteReceipt()


@pytest.mark.parametrize(
    ("handler", "values", "says"),
    [
        (write_handler, {"writer": None}, r"writer has an async write\(request\): pass a RedisMemoryWriter"),
        (write_handler, {"writer": SimpleNamespace(write=not_async)}, "async write"),
        (write_handler, {"writer": SimpleNamespace(write="x")}, "async write"),
        (write_handler, {"records_from": None}, r"records_from\(context\)"),
        (write_handler, {"records_from": AsyncMock()}, "plain function"),
        (consolidation_handler, {"extractor": None}, r"async extract\(request\): pass one that"),
        (consolidation_handler, {"writer": None}, "async write"),
        (lifecycle_handler, {"lifecycle": None}, r"async flush\(scope\): pass a RedisMemoryLifecycle"),
        (lifecycle_handler, {"lifecycle": Writer()}, "async flush"),
    ],
)
def test_a_missing_collaborator_is_refused_before_any_turn(handler, values, says):
    with pytest.raises(ConfigurationError, match=says):
        handler(capability(**values))
    name = next(iter(values))
    lacking = capability()
    delattr(lacking, name)
    with pytest.raises(ConfigurationError, match=f"{handler.__name__} needs a capability whose {name}"):
        handler(lacking)


def test_no_capability_at_all_is_refused():
    for handler, _ in EVERY.values():
        with pytest.raises(ConfigurationError, match="needs a capability whose"):
            handler(None)


async def test_a_double_or_a_wrapped_method_is_async_enough(scope):
    writer = SimpleNamespace(write=AsyncMock(return_value=WriteReceipt(("a",))))
    assert (await write_handler(capability(writer=writer))(context(scope, fact(scope)))).changed
