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
    RedisMemoryLifecycle,
    RedisMemoryWriter,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
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
    for wrong in (0, -1.0, "5", True, [5], float("nan"), float("inf")):
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


class Waits:
    """Every collaborator at once. It waits; a stubborn one goes on when it is cancelled, until it is released."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.stubborn = stubborn
        self.started, self.cancelled, self.release = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def write(self, request):
        self.started.set()
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                if not self.stubborn:
                    raise

    extract = flush = write


CALLED = {**EVERY, "consolidation's write": (consolidation_handler, "writer")}
every_call = pytest.mark.parametrize(("handler", "collaborator"), list(CALLED.values()), ids=list(CALLED))


@every_call
async def test_cancellation_reaches_the_collaborator_and_passes_through(scope, handler, collaborator):
    double = Waits()
    memory = capability(**{"extractor": Extractor(found(fact(scope))), collaborator: double})
    task = asyncio.create_task(handler(memory)(context(scope, fact(scope))))
    await double.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert double.cancelled.is_set()


@every_call
async def test_a_cancellation_that_a_collaborator_raises_passes_through(scope, handler, collaborator):
    stopped = asyncio.CancelledError()
    double = {"writer": Writer, "extractor": Extractor, "lifecycle": Lifecycle}[collaborator](stopped)
    memory = capability(**{"extractor": Extractor(found(fact(scope))), collaborator: double})
    with pytest.raises(asyncio.CancelledError):
        await handler(memory)(context(scope, fact(scope)))


async def test_a_cancelled_turn_does_not_wait_for_an_extractor_that_goes_on(scope):
    double = Waits(stubborn=True)
    task = asyncio.create_task(consolidation_handler(capability(extractor=double))(context(scope)))
    await double.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert double.cancelled.is_set()
    double.release.set()
    await asyncio.sleep(0)


async def test_an_extractor_that_swallows_its_cancellation_does_not_outlast_its_time(scope):
    double = Waits(stubborn=True)
    result = await consolidation_handler(capability(extractor=double), timeout=0.01)(context(scope))
    assert result.reason == "extraction degraded: TimeoutError"
    assert double.cancelled.is_set()
    double.release.set()
    await asyncio.sleep(0)


# --- a turn that is delivered again ---


async def test_a_turn_that_names_itself_is_written_and_consolidated_once(one_redis, scope):
    layer = WorkingLayer(one_redis)
    writer = RedisMemoryWriter(layer)
    memory = capability(writer=writer, lifecycle=RedisMemoryLifecycle(layer), extractor=Extractor(found(fact(scope))))
    said = []
    for _ in range(2):
        turn = context(scope, MemoryRecord.turn(scope, speaker="user", turn_id="t", content="question"))
        turn.request.idempotency_key = "job-42"
        said += [await stage(memory)(turn) for stage in (write_handler, consolidation_handler, lifecycle_handler)]
    assert [result.changed for result in said] == [True, True, True, False, False, False]
    assert said[3].reason == said[4].reason == "records were staged under this idempotency key before"
    assert [entry.content for entry in await layer.get_context(scope)] == ["question"]
    assert len(await StreamGraphStore(one_redis).query_nodes(scope, "semantic")) == 1


@pytest.mark.parametrize(("key", "written", "taught"), [("", "", ""), (None, "", ""), ("j", "j", "j#consolidation")])
async def test_the_name_of_a_turn_is_passed_on(scope, key, written, taught):
    memory = capability(extractor=Extractor(found(fact(scope))))
    turn = context(scope, fact(scope))
    turn.request.idempotency_key = key
    for stage in (write_handler, consolidation_handler):
        assert (await stage(memory)(turn)).changed
    assert [request.idempotency_key for request in memory.writer.requests] == [written, taught]


@pytest.mark.parametrize("key", [5, b"job", ["job"]])
async def test_a_name_that_is_no_text_is_refused_and_not_overlooked(scope, key):
    memory = capability(extractor=Extractor(found(fact(scope))))
    turn = context(scope, fact(scope))
    turn.request.idempotency_key = key
    with pytest.raises(InvalidInput, match="idempotency_key"):
        await write_handler(memory)(turn)
    assert (await consolidation_handler(memory)(turn)).reason == "records refused: InvalidInput"
    assert memory.writer.requests == []


# --- wrong types ---


async def made_async(context):
    return []


async def made_by_and_by(context):
    yield context


class AsyncCall:
    async def __call__(self, context):
        return []


@pytest.mark.parametrize("records_from", [made_async, made_by_and_by, AsyncCall(), 5])
def test_records_that_must_be_awaited_are_refused_before_any_turn(records_from):
    with pytest.raises(ConfigurationError, match="plain function"):
        write_handler(capability(records_from=records_from))


@pytest.mark.parametrize("made", [5, True, "text", b"x", {"a": 1}, object(), 0, ""])
async def test_records_that_are_no_collection_are_refused(scope, made):
    with pytest.raises(InvalidInput, match=f"records_from returned a {type(made).__name__}"):
        await write_handler(capability(records_from=lambda context: made))(context(scope))


async def test_a_plain_function_that_returns_a_coroutine_is_told(scope):
    def hides_it(context):
        return made_async(context)

    with pytest.raises(InvalidInput, match="returned a coroutine"):
        await write_handler(capability(records_from=hides_it))(context(scope))


async def test_what_records_from_raises_is_the_callers(scope):
    def broken(context):
        yield fact(scope)
        raise TypeError("theirs")

    with pytest.raises(TypeError, match="theirs"):
        await write_handler(capability(records_from=broken))(context(scope))


ODD = [None, 5, "x", object(), SimpleNamespace(accepted=5, committed=5), SimpleNamespace(accepted="id", committed="id")]


@pytest.mark.parametrize("receipt", ODD)
async def test_an_answer_that_is_no_receipt_is_told(scope, receipt):
    class Odd:
        async def write(self, request):
            return receipt

        flush = write

    memory = capability(writer=Odd(), lifecycle=Odd(), extractor=Extractor(found(fact(scope))))
    for stage in (write_handler, lifecycle_handler):
        with pytest.raises(ConfigurationError, match="is no receipt"):
            await stage(memory)(context(scope, fact(scope)))
    result = await consolidation_handler(memory)(context(scope))
    assert result.reason == "memory store degraded: ConfigurationError"


async def test_a_receipt_of_no_ids_at_all_is_none(scope):
    empty = SimpleNamespace(accepted=None, committed=None)
    memory = capability(writer=Writer(empty), lifecycle=Lifecycle(empty), extractor=Extractor(found(fact(scope))))
    said = [
        await stage(memory)(context(scope, fact(scope)))
        for stage in (write_handler, consolidation_handler, lifecycle_handler)
    ]
    assert [result.changed for result in said] == [False, False, False]


@pytest.mark.parametrize("wrong", ["", 5, "acme", object(), SimpleNamespace(tenant_id="", scope_path="")])
async def test_a_scope_that_is_none_is_refused_and_not_replaced(wrong):
    memory = capability(extractor=Extractor(found()))
    for stage in (write_handler, lifecycle_handler):
        with pytest.raises(InvalidInput):
            await stage(memory)(context(wrong, fact(OTHER)))
    result = await consolidation_handler(memory)(context(wrong))
    assert result.reason == "the turn's scope is refused: InvalidInput"
    assert not memory.writer.requests + memory.extractor.requests + memory.lifecycle.scopes


@pytest.mark.parametrize("answer", [None, 5, "x", SimpleNamespace(records=5), SimpleNamespace(records=(), dropped=5)])
async def test_an_extractor_that_answers_nonsense_does_not_fail_the_turn(scope, answer):
    result = await consolidation_handler(capability(extractor=Extractor(answer)))(context(scope))
    assert result.reason.startswith("extraction degraded: ")


async def test_an_answer_of_another_class_may_hand_over_a_generator(scope):
    answer = SimpleNamespace(records=(one for one in (fact(scope, id="a"),)))
    result = await consolidation_handler(capability(extractor=Extractor(answer)))(context(scope))
    assert (result.resolved.value, result.counts) == (("a",), {"extracted": 1, "written": 1, "discarded": 0})


async def test_what_is_published_may_be_more_than_the_window_shows(one_redis, scope):
    layer = WorkingLayer(one_redis, 4, evicted_retention=0)
    memory = capability(writer=RedisMemoryWriter(layer), lifecycle=RedisMemoryLifecycle(layer))
    turns = [MemoryRecord.turn(scope, speaker="user", turn_id=str(n), content=str(n)) for n in range(100)]
    await write_handler(memory)(context(scope, *turns))
    result = await lifecycle_handler(memory)(context(scope))
    assert (len(result.resolved.value), result.counts) == (100, {"published": 100})
    assert len(await layer.get_context(scope)) == 4


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


# --- what must not pass construction, or be taken for records ---


@pytest.mark.parametrize(
    ("handler", "attribute"),
    [(write_handler, "writer"), (consolidation_handler, "extractor"), (lifecycle_handler, "lifecycle")],
)
def test_a_class_in_place_of_an_object_is_refused(handler, attribute):
    class Methods:
        async def write(self, request): ...

        async def extract(self, request): ...

        async def flush(self, scope): ...

    with pytest.raises(ConfigurationError, match=attribute):
        handler(capability(**{attribute: Methods}))


@pytest.mark.parametrize("records", ["abc", {"a": 1}, 5], ids=str)
async def test_an_extractor_that_returns_no_list_has_failed(scope, records):
    memory = capability(extractor=Extractor(lambda request: SimpleNamespace(records=records, dropped=())))
    result = await consolidation_handler(memory)(context(scope))
    assert result.reason.startswith("extraction degraded: InvalidInput")
    assert memory.writer.requests == []
