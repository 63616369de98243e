"""Summaries of evicted turns: by rule, by a model, and what stands in when the model does not serve."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from exported import exported
from hypothesis import given
from hypothesis import strategies as st
from own_server import until
from transcript_file import real_transcripts

from symfonic_redis import (
    ConfigurationError,
    LegacyConversationSource,
    MemoryEntry,
    MemoryUnavailable,
    RedisEvictedSource,
    SharedSummaryCache,
    STMSummary,
    STMSummaryPort,
    STMSummaryRequest,
    STMSummaryResult,
    TenantScope,
    WorkingLayer,
    WorkingMemorySummaryService,
    connect,
    summarize_entries,
    validate_summary,
)
from symfonic_redis.messages import turns_of
from symfonic_redis.summary import extractive
from symfonic_redis.summary_model import MODEL_THREADS, PROMPT_CHARS, TURN_CHARS

SCOPE = TenantScope.root("org", "acme")
SECRET = "a sentence that nobody may see"
SLOW = 60.0


class Source:
    """Evicted turns as they were given, or a failure."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.scopes: list[object] = []

    async def evicted(self, scope):
        self.scopes.append(scope)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class Model:
    """A chat model, and its own provider, that answers with whatever it is given."""

    def __init__(self, answer: object = None) -> None:
        self.answer = answer
        self.prompts: list[object] = []
        self.configs: list[object] = []

    def get_chat_model(self, config):
        self.configs.append(config)
        return self

    async def ainvoke(self, prompt):
        self.prompts.append(prompt)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def entries(*contents: object, speaker: str = "user") -> list[SimpleNamespace]:
    return [
        SimpleNamespace(id=f"e{number}", content=content, metadata={"speaker": speaker, "turn_id": f"t{number}"})
        for number, content in enumerate(contents)
    ]


TURNS = entries("My id is mia_li_3668. I want to fly. Today.", "The fare is $121.")
EXTRACT = "- My id is mia_li_3668. … Today.\n- The fare is $121."


async def summary(source: object = None, **options: object) -> STMSummaryResult:
    service = WorkingMemorySummaryService(Source(TURNS) if source is None else source, **options)
    return await service.summarize(STMSummaryRequest(SCOPE, 3))


def by_model(answer: object, **options: object):
    return summary(mode="llm", model_provider=answer if hasattr(answer, "get_chat_model") else Model(answer), **options)


# --- by rule ---


async def test_the_evicted_turns_of_a_real_conversation_are_summarized(redis, scope):
    layer = WorkingLayer(redis, 2)
    service = WorkingMemorySummaryService(RedisEvictedSource(layer))
    assert isinstance(service, STMSummaryPort)
    validate_summary(service)
    assert await service.summarize(STMSummaryRequest(scope)) == STMSummaryResult()
    revisions = [""]
    for number in range(5):
        content = f"Number {number}. Middle. End {number}."
        await layer.push(scope, MemoryEntry.turn(scope, speaker="user", turn_id="t", content=content))
        result = await service.summarize(STMSummaryRequest(scope))
        bullets = [f"- Number {left}. … End {left}." for left in range(max(0, number - 1))]
        assert (result.text, result.degraded, result.reason) == ("\n".join(bullets), False, "")
        assert (await service.summarize(STMSummaryRequest(scope))) == result
        revisions.append(result.revision)
    assert len(set(revisions)) == 4  # none evicted, then one, two, three


async def test_a_summary_is_bound_to_the_scope_that_asks():
    source = Source(TURNS)
    service = WorkingMemorySummaryService(source)
    other = SCOPE.child("conversation", "c")
    await asyncio.gather(service.summarize(STMSummaryRequest(SCOPE)), service.summarize(STMSummaryRequest(other)))
    assert source.scopes == [SCOPE, other]


async def test_a_revision_changes_exactly_when_the_evicted_turns_do(scope):
    async def revision(turns: object, **options: object) -> str:
        return (await summary(Source(turns), **options)).revision

    first = await revision(TURNS)
    assert len(first) == 32
    assert await revision(list(TURNS)) == first
    assert await revision(tuple(TURNS), max_chars=5) == first
    assert await revision(TURNS, mode="llm", model_provider=Model("- x")) == first
    assert await revision(TURNS, mode="llm", model_provider=Model(ValueError())) == first
    changed = [
        TURNS[:1],
        TURNS[1:],
        TURNS[::-1],
        [*TURNS, *entries("x")],
        entries("My id is mia_li_3668. I want to fly. Today.", "The fare is $122."),
        entries(TURNS[0].content, TURNS[1].content, speaker="assistant"),
        [SimpleNamespace(**{**vars(TURNS[0]), "id": "other"}), TURNS[1]],
        entries(TURNS[0].content + TURNS[1].content, ""),
    ]
    revisions = [await revision(turns) for turns in changed]
    assert len({first, *revisions}) == 1 + len(changed)
    # Entries as Redis gives them back have the revision of those that were pushed.
    entry = MemoryEntry.turn(scope, speaker="user", turn_id="t", content="x")
    assert await revision([entry]) == await revision([entry.model_copy(deep=True)])


async def test_mode_off_reads_nothing():
    source = Source(TURNS)
    assert await summary(source, mode="off") == STMSummaryResult()
    assert source.scopes == []


async def test_mode_salient_keeps_to_its_length():
    result = await summary(mode="salient", max_chars=60)
    assert "mia_li_3668" in result.text
    assert len(result.text) <= 60
    assert not result.degraded


@pytest.mark.parametrize("nothing", [None, [], ()])
async def test_nothing_evicted_is_no_summary_and_no_model_call(nothing):
    model = Model("- x")
    assert await summary(Source(nothing), mode="llm", model_provider=model) == STMSummaryResult()
    result = await summary(Source(entries("", None, " ")), mode="llm", model_provider=model)
    assert (result.text, result.degraded) == ("", False)
    assert model.prompts == []


@pytest.mark.parametrize("failure", [MemoryUnavailable(SECRET), ValueError(SECRET), KeyError(SECRET), 5])
async def test_a_source_that_fails_gives_no_summary_and_says_so(failure):
    with exported() as seen:
        result = await summary(Source(failure))
        assert (result.text, result.revision, result.degraded) == ("", "", True)
        assert SECRET not in result.reason
        assert type(failure).__name__ in result.reason or failure == 5
        assert seen.total("symfonic.summaries.degraded") == 1


async def test_cancellation_passes_through_a_source_that_has_it_from_its_caller():
    class Waits:
        started, cancelled = asyncio.Event(), False

        async def evicted(self, scope):
            self.started.set()
            try:
                await asyncio.sleep(SLOW)
            except asyncio.CancelledError:
                self.cancelled = True
                raise

    source = Waits()
    task = asyncio.create_task(summary(source))
    await source.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.cancelled


async def test_a_cancellation_that_the_source_raises_passes_through():
    with pytest.raises(asyncio.CancelledError):
        await summary(Source(asyncio.CancelledError()))


@pytest.mark.parametrize("request_", [None, 5, "x", SimpleNamespace(), SimpleNamespace(scope=None)])
async def test_a_request_without_a_scope_gives_no_summary_and_says_so(request_):
    source = Source(TURNS)
    with exported() as seen:
        result = await WorkingMemorySummaryService(source).summarize(request_)
        assert (result.text, result.degraded, result.reason) == ("", True, "the request names no scope")
        assert seen.total("symfonic.summaries.degraded") == 1
    assert source.scopes == []


class Unreadable:
    """Another package's object, of which nothing can be read."""

    @property
    def content(self):
        raise ValueError(SECRET)

    @property
    def metadata(self):
        raise KeyError(SECRET)


def endless():
    yield TURNS[0]
    raise ValueError(SECRET)


@pytest.mark.parametrize("mode", ["extractive", "salient", "llm"])
@pytest.mark.parametrize("turns", [5, True, [Unreadable()], "endless"])
async def test_turns_that_cannot_be_read_raise_nothing(mode, turns):
    service = WorkingMemorySummaryService(Source([]), mode=mode, model_provider=Model("- x"))
    result = await service.summarize_turns(SCOPE, endless() if turns == "endless" else turns)
    assert (result.text, result.degraded) == ("", True)
    assert SECRET not in result.reason
    assert await service.summarize_turns(SCOPE, None) == STMSummaryResult()


# --- by a model ---


async def test_a_models_answer_is_the_summary():
    model = Model("- flies today\n- id mia_li_3668")
    result = await by_model(model, model_config={"model": "small"})
    assert (result.text, result.degraded, result.reason) == ("- flies today\n- id mia_li_3668", False, "")
    assert model.configs == [{"model": "small"}]
    (prompt,) = model.prompts
    assert isinstance(prompt, str)
    assert "user: My id is mia_li_3668. I want to fly. Today.\nuser: The fare is $121." in prompt
    assert "1000 characters" in prompt


@pytest.mark.parametrize("answer", ["  - x \n", SimpleNamespace(content=" - x"), SimpleNamespace(content=["- ", "x"])])
async def test_an_answer_may_be_a_text_or_a_message(answer):
    assert (await by_model(answer)).text == "- x"


async def test_langchains_chat_models_work_unchanged():
    fake = pytest.importorskip("langchain_core.language_models.fake_chat_models", reason="langchain is not installed")
    messages = pytest.importorskip("langchain_core.messages")
    model = fake.FakeListChatModel(responses=["- from a list"])
    assert (await by_model(SimpleNamespace(get_chat_model=lambda config: model))).text == "- from a list"
    blocks = messages.AIMessage(content=[{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "- block"}])
    model = fake.GenericFakeChatModel(messages=iter([blocks]))
    assert (await by_model(SimpleNamespace(get_chat_model=lambda config: model))).text == "- block"


async def test_any_object_of_that_shape_works():
    model = AsyncMock()
    model.ainvoke.return_value = "- mocked"
    assert (await by_model(SimpleNamespace(get_chat_model=lambda _: model))).text == "- mocked"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ValueError(SECRET), "the model failed (ValueError); this is extractive"),
        (TimeoutError(SECRET), "the model failed (TimeoutError); this is extractive"),
        (None, "the model answered no text; this is extractive"),
        ("", "the model answered no text; this is extractive"),
        (" \n\t", "the model answered no text; this is extractive"),
        (SimpleNamespace(content=None), "the model answered no text; this is extractive"),
        (SimpleNamespace(content=[]), "the model answered no text; this is extractive"),
        (SimpleNamespace(content=[{"type": "image"}]), "the model answered no text; this is extractive"),
        (5, "the model answered no text; this is extractive"),
    ],
)
async def test_a_model_that_does_not_serve_is_replaced_and_the_result_says_so(answer, reason):
    with exported() as seen:
        result = await by_model(answer)
        assert (result.text, result.degraded, result.reason) == (EXTRACT, True, reason)
        assert seen.total("symfonic.summaries.degraded") == 1


async def test_a_provider_that_fails_is_replaced():
    def broken(_):
        raise RuntimeError(SECRET)

    result = await by_model(SimpleNamespace(get_chat_model=broken))
    assert (result.text, result.reason) == (EXTRACT, "the model failed (RuntimeError); this is extractive")
    result = await by_model(SimpleNamespace(get_chat_model=lambda _: SimpleNamespace(ainvoke=lambda _: "- not async")))
    assert (result.text, result.reason) == (EXTRACT, "the model failed (TypeError); this is extractive")


async def test_a_model_that_cancels_itself_is_a_model_that_failed():
    result = await by_model(asyncio.CancelledError())
    assert (result.text, result.reason) == (EXTRACT, "the model answered no text; this is extractive")


async def test_a_provider_that_hangs_stops_no_turn_and_its_threads_do_not_pile_up():
    gate, calls = threading.Event(), []

    def blocks(config):
        calls.append(config)
        gate.wait()
        return Model("- late")

    service = WorkingMemorySummaryService(
        Source(TURNS), mode="llm", model_provider=SimpleNamespace(get_chat_model=blocks), model_timeout=0.05
    )
    results = await asyncio.gather(*(service.summarize(STMSummaryRequest(SCOPE)) for _ in range(MODEL_THREADS + 5)))
    reasons = Counter(result.reason for result in results)
    assert reasons == {
        "the model failed (TimeoutError); this is extractive": MODEL_THREADS,
        "the model failed (TooManyThreadsError); this is extractive": 5,
    }
    assert {result.text for result in results} == {EXTRACT}
    assert len(calls) == MODEL_THREADS
    gate.set()

    async def serves() -> bool:
        return (await service.summarize(STMSummaryRequest(SCOPE))).text == "- late"

    await until(serves)


@pytest.mark.parametrize(
    "answer", ["x" * (1 << 20), "- a line\n" * (1 << 17), [{"type": "text", "text": "y " * (1 << 19)}]]
)
async def test_an_answer_of_a_megabyte_is_cut(answer):
    content = answer if isinstance(answer, str) else SimpleNamespace(content=answer)
    result = await by_model(content, max_chars=200)
    assert 190 <= len(result.text) <= 200
    assert not result.degraded
    if "line" in answer:
        assert set(result.text.split("\n")) == {"- a line"}


@given(st.text("ab \n", max_size=40), st.integers(1, 50))
def test_a_text_is_cut_where_it_hurts_least(text, limit):
    from symfonic_redis.summary_model import shortened  # noqa: PLC0415 - a detail, tested where it is used

    cut = shortened(text, limit)
    assert len(cut) <= limit
    assert text.startswith(cut)
    assert cut == text or len(text) > limit


async def test_what_a_model_reads_is_bounded_and_the_newest_stays():
    long = entries(*(f"{number} {'x' * 50_000}" for number in range(400)))
    model = Model("- x")
    await summary(Source(long), mode="llm", model_provider=model)
    (prompt,) = model.prompts
    assert len(prompt) < PROMPT_CHARS + 2_000
    assert "user: 399 x" in prompt
    assert "user: 0 x" not in prompt
    assert f"{'x' * (TURN_CHARS - 10)}" in prompt


class Hanging:
    """A model that never answers; `stubborn` does not even stop when it is cancelled."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.stubborn = stubborn
        self.started = asyncio.Event()
        self.cancelled = False
        self.release = asyncio.Event()

    def get_chat_model(self, config):
        return self

    async def ainvoke(self, prompt):
        self.started.set()
        try:
            await asyncio.sleep(SLOW)
        except asyncio.CancelledError:
            self.cancelled = True
            if not self.stubborn:
                raise
            await self.release.wait()
            raise ValueError(SECRET) from None


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_model_that_hangs_is_cancelled_and_replaced(stubborn):
    model = Hanging(stubborn=stubborn)
    result = await by_model(model, model_timeout=0.05)
    assert (result.text, result.reason) == (EXTRACT, "the model failed (TimeoutError); this is extractive")
    assert model.cancelled
    model.release.set()
    await asyncio.sleep(0)


async def test_cancellation_reaches_the_model_and_the_caller():
    model = Hanging()
    task = asyncio.create_task(by_model(model))
    await model.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.cancelled


# --- refused at construction ---


class Sync:
    def evicted(self, scope):
        return []

    def summarize(self, request):
        return None


class AsyncProvider:
    async def get_chat_model(self, config):
        return Model("- x")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source": object()}, r"RedisEvictedSource\(layer\)"),
        ({"source": None}, "evicted"),
        ({"source": Sync()}, "async evicted"),
        ({"mode": "clever"}, "off, extractive, llm, salient"),
        ({"mode": None}, "mode"),
        ({"mode": []}, "mode"),
        ({"max_chars": 0}, "max_chars"),
        ({"max_chars": -1}, "max_chars"),
        ({"max_chars": True}, "max_chars"),
        ({"max_chars": "9"}, "max_chars"),
        ({"mode": "llm"}, "model_provider"),
        ({"mode": "llm", "model_provider": object()}, "get_chat_model"),
        ({"mode": "llm", "model_provider": AsyncMock()}, "a plain function, not an async one"),
        ({"mode": "llm", "model_provider": AsyncProvider()}, "a plain function, not an async one"),
        ({"cache": "redis://localhost"}, "pass a SharedSummaryCache"),
        ({"model_timeout": None}, "model_timeout"),
        ({"model_timeout": 0}, "model_timeout"),
        ({"model_timeout": float("nan")}, "model_timeout"),
        ({"model_timeout": float("inf")}, "model_timeout"),
        ({"model_timeout": "5"}, "model_timeout"),
    ],
)
def test_a_wrong_argument_is_refused_at_once(options, said):
    source = options.pop("source") if "source" in options else Source(TURNS)
    with pytest.raises(ConfigurationError, match=said):
        WorkingMemorySummaryService(source, **options)


def test_a_source_of_recent_turns_is_refused():
    layer = WorkingLayer(connect("fake://"))
    with pytest.raises(ConfigurationError, match="LegacyConversationSource has none"):
        WorkingMemorySummaryService(LegacyConversationSource(layer))


def test_a_lease_shorter_than_the_model_may_take_is_refused():
    cache = SharedSummaryCache(connect("fake://"), lease=5)
    with pytest.raises(ConfigurationError, match="lease"):
        WorkingMemorySummaryService(Source([]), mode="llm", model_provider=Model(), model_timeout=5, cache=cache)


def test_a_summary_collaborator_is_validated():
    validate_summary(None)
    validate_summary(WorkingMemorySummaryService(Source([])))
    validate_summary(AsyncMock())
    for wrong in (object(), Sync(), "summary", SimpleNamespace(summarize=5)):
        with pytest.raises(ConfigurationError, match="summarize"):
            validate_summary(wrong)


# --- summarize_entries ---


def test_entries_are_summarized_by_the_rule_that_is_asked_for():
    assert summarize_entries(TURNS, mode="off") == STMSummary("", "off", 0)
    assert summarize_entries([], mode="extractive") == STMSummary("", "off", 0)
    assert summarize_entries(TURNS, mode="extractive") == STMSummary(EXTRACT, "extractive", 2)
    assert summarize_entries(TURNS, mode="extractive", max_chars=40) == STMSummary(
        "- My id is mia_li_3668. … Today.", "extractive", 2, truncated=True
    )
    salient = summarize_entries(TURNS, mode="salient", max_chars=30)
    assert (salient.mode_used, salient.entry_count) == ("salient", 2)
    assert len(salient.text) <= 30


def test_of_entries_that_cannot_be_gone_through_those_before_count():
    assert summarize_entries(endless(), mode="extractive") == summarize_entries(TURNS[:1], mode="extractive")
    assert summarize_entries([Unreadable(), TURNS[1]], mode="extractive") == STMSummary(
        "- The fare is $121.", "extractive", 2
    )


def test_no_model_is_asked_by_a_synchronous_call():
    model = Model("- x")
    found = summarize_entries(TURNS, mode="llm", model_provider=model, model_config={})
    assert found == STMSummary(EXTRACT, "extractive", 2)
    assert model.prompts == []


@pytest.mark.parametrize("mode", ["off", "extractive", "llm", "salient", "unknown", None])
@pytest.mark.parametrize(
    "things",
    [
        None,
        [None],
        ["text", 5],
        [SimpleNamespace(content=5)],
        [SimpleNamespace(content=None, metadata=None)],
        [SimpleNamespace(content="\ud800 x. y", metadata={"speaker": 5})],
        iter(entries("a.", "b.")),
        5,
        True,
        object(),
        "text",
        {"content": "x"},
        [Unreadable()],
        "endless",
    ],
)
def test_summarizing_raises_nothing(mode, things):
    for limit in (1000, 1, 0, -1, None, "x", 2.5, []):
        given_ = endless() if things == "endless" else things
        assert isinstance(summarize_entries(given_, mode=mode, max_chars=limit).text, str)


async def test_the_layer_summarizes_by_its_mode(one_redis, scope):
    for mode in ("extractive", "llm", "salient", "off"):
        layer = WorkingLayer(one_redis, stm_summary_mode=mode)
        assert await layer.summarize(scope, TURNS) == summarize_entries(TURNS, mode=mode).text


def test_every_window_of_the_transcripts_is_summarized_as_the_reference_package_does():
    reason = "the reference package symfonic-core is not installed"
    reference = pytest.importorskip("symfonic.memory.working.stm_summary", reason=reason).summarize_entries
    windows = 0
    with real_transcripts().open(encoding="utf-8") as lines:
        for line in lines:
            turns = [SimpleNamespace(content=content) for content, _ in turns_of(json.loads(line)["messages"])]
            for end in range(1, len(turns) + 1):
                # What is behind a window of 10 and, for short conversations too, the window itself.
                for part in (turns[max(0, end - 10) : end], turns[: max(0, end - 10)]):
                    for limit in (200, 1000, 0):
                        expected = reference(part, mode="extractive", max_chars=limit)
                        found = summarize_entries(part, mode="extractive", max_chars=limit)
                        assert found.text.encode() == expected.text.encode()
                        assert (found.mode_used, found.entry_count, found.truncated) == (
                            expected.mode_used,
                            expected.entry_count,
                            expected.truncated,
                        )
                        windows += 1
    assert windows > 9_000


def test_the_rule_is_the_one_that_is_measured():
    assert summarize_entries(TURNS, mode="extractive").text == extractive(TURNS)[0]
