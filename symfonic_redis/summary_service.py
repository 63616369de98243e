"""The summary of the turns that a prompt no longer shows, for one scope at a time. It keeps nothing in the worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from threading import BoundedSemaphore
from typing import Any, Protocol, get_args, runtime_checkable

from symfonic_redis import telemetry
from symfonic_redis.conversation import require_async, speaker_of
from symfonic_redis.errors import ConfigurationError
from symfonic_redis.evicted import EvictedWorkingSource
from symfonic_redis.guard import check_seconds
from symfonic_redis.models import STMSummaryMode
from symfonic_redis.scope import ScopeLike
from symfonic_redis.summarize import summarize_entries
from symfonic_redis.summary import MAX_CHARS
from symfonic_redis.summary_cache import SharedSummaryCache
from symfonic_redis.summary_model import MODEL_THREADS, UnusableAnswerError, ask, check_provider, prompt_of

MODEL_TIMEOUT = 10.0
"""Seconds a model may take for a summary. A turn of the agent waits for it."""


@dataclass(frozen=True, slots=True)
class STMSummaryRequest:
    """What to summarize.

    Attributes:
        scope: whose evicted turns.
        turn: the number of the turn that asks; carried for the caller's sake.
    """

    scope: ScopeLike
    turn: int = 0


@dataclass(frozen=True, slots=True)
class STMSummaryResult:
    """The summary of one scope.

    Attributes:
        text: the summary; empty when nothing was evicted.
        revision: of the evicted turns, 32 hex digits: the same as long as they are the same, whatever the text. Empty
            when nothing was evicted, when they could not be read, and in mode `off`.
        degraded: the text is not what was asked for: another one stands in, or none.
        reason: why it is degraded, by the failure's type name; never content.
    """

    text: str = ""
    revision: str = ""
    degraded: bool = False
    reason: str = ""


@runtime_checkable
class STMSummaryPort(Protocol):
    """Anything that summarizes a scope's evicted turns."""

    async def summarize(self, request: STMSummaryRequest) -> STMSummaryResult:
        """The summary of the request's scope. It keeps no state between calls and does not raise."""
        ...


class WorkingMemorySummaryService:
    """Summarizes the evicted turns of whichever scope is asked for. Safe for any number of concurrent tasks.

    Args:
        source: where the evicted turns come from, such as `RedisEvictedSource(layer)`.
        mode: `off`; `extractive`, the first and last sentence of each turn; `salient`, what an agent needs to act;
            `llm`, by a model.
        max_chars: the longest text.
        model_provider: for mode `llm`: an object whose `get_chat_model(config)` returns a chat model with
            `async ainvoke(prompt)`, such as any of LangChain's. The provider is called for each summary, in a thread,
            as it may block: on credentials, on an import. The model is called on the event loop, with one string; an
            `ainvoke` that blocks instead of awaiting stops the loop, and nothing here can help that.
        model_config: what is passed to `get_chat_model`.
        model_timeout: seconds that provider and model may take together; then the model is cancelled, the provider left
            behind, and the extractive text stands in. While 32 calls of the provider have not returned no other begins.
        cache: for mode `llm`: share each summary with all workers. The other modes cost less than asking it. It keeps
            summaries of turns of its own deployment only; any other scope gets the extractive text.

    Raises:
        ConfigurationError: a collaborator is missing or has not the method that is called, or an argument is out of
            range.
    """

    def __init__(
        self,
        source: EvictedWorkingSource,
        *,
        mode: STMSummaryMode = "extractive",
        max_chars: int = MAX_CHARS,
        model_provider: Any | None = None,
        model_config: Any | None = None,
        model_timeout: float = MODEL_TIMEOUT,
        cache: SharedSummaryCache | None = None,
    ) -> None:
        require_async(
            source,
            "evicted",
            "a summary needs a source with async evicted(scope), such as RedisEvictedSource(layer), as recent turns do "
            "not say what the window let go",
        )
        if mode not in get_args(STMSummaryMode):
            raise ConfigurationError(f"an unknown summary mode: use one of {', '.join(get_args(STMSummaryMode))}")
        _check_chars(max_chars)
        check_seconds("model_timeout", model_timeout)
        if mode == "llm":
            check_provider(model_provider)
        given: object = cache  # an untyped caller may pass anything
        if given is not None and not isinstance(given, SharedSummaryCache):
            raise ConfigurationError(f"a {type(given).__name__} is no cache: pass a SharedSummaryCache, or None")
        if cache is not None and cache.lease <= model_timeout:
            raise ConfigurationError(
                "the cache's lease must be longer than model_timeout, or two workers would write at once: raise it"
            )
        self._source = source
        self._mode: STMSummaryMode = mode
        self._max_chars = max_chars
        self._provider = model_provider
        self._config = model_config
        self._timeout = model_timeout
        self._cache = cache
        self._room = BoundedSemaphore(MODEL_THREADS)

    async def summarize(self, request: STMSummaryRequest) -> STMSummaryResult:
        """The summary of what the request's scope has evicted. Raises nothing; cancellation passes through.

        A source that fails gives an empty text, a model that fails, hangs or answers nothing the extractive one; both
        are `degraded`, with a reason, and counted.

        Cost: one read of the source, nothing in mode `off`. In mode `llm` one model call, or with a cache one round
        trip, and for the worker that writes the summary a model call and another round trip.
        """
        if self._mode == "off":
            return STMSummaryResult()
        scope = getattr(request, "scope", None)
        if scope is None:
            return _degraded("the request names no scope")
        try:
            turns = await self._source.evicted(scope)
        except Exception as error:  # noqa: BLE001 - whatever it is, the agent's turn must go on
            return degraded_summary(error)
        return await self.summarize_turns(scope, turns)

    async def summarize_turns(self, scope: ScopeLike, turns: Iterable[Any] | None) -> STMSummaryResult:
        """The summary of evicted turns of a scope that were read already. As `summarize`, but for the read."""
        if self._mode == "off":
            return STMSummaryResult()
        try:
            given = list(() if turns is None else turns)
            marks = [_mark(turn) for turn in given]
            prompt = prompt_of(given, self._max_chars) if self._mode == "llm" else ""
        except Exception as error:  # noqa: BLE001 - as above
            return degraded_summary(error)
        if not given:
            return STMSummaryResult()
        revision = _digest(marks, 16)
        if prompt:  # turns without a word give none
            return await self._by_model(scope, given, marks, revision, prompt)
        return STMSummaryResult(self._by_rule(given), revision)

    def _by_rule(self, turns: Sequence[Any]) -> str:
        return summarize_entries(turns, mode=self._mode, max_chars=self._max_chars).text

    async def _by_model(
        self, scope: ScopeLike, turns: Sequence[Any], marks: Sequence[str], revision: str, prompt: str
    ) -> STMSummaryResult:
        if self._cache is None:
            return await self._asked(prompt, turns, revision)
        try:
            claim = await self._cache.claim(scope, revision, marks, max_chars=self._max_chars)
        except Exception as error:  # noqa: BLE001 - as above; and without the lease every worker would ask the model
            return self._stand_in(turns, revision, f"the shared summary could not be read ({_kind(error)})")
        if claim.text is not None:
            return STMSummaryResult(claim.text, revision)
        if claim.gone:
            # Erased or expired since they were read, or never in the cache's deployment: nothing would be kept.
            return self._stand_in(turns, revision, "the scope's turns are not on the cache's server")
        if claim.token is None:
            return self._stand_in(turns, revision, "another worker writes this summary now", claim.previous)
        result = await self._asked(prompt, turns, revision)
        if not result.degraded:
            # The text is there: that it could not be kept is nothing to this turn.
            with suppress(Exception):
                await self._cache.keep(
                    scope, revision, marks, result.text, token=claim.token, max_chars=self._max_chars
                )
        return result

    async def _asked(self, prompt: str, turns: Sequence[Any], revision: str) -> STMSummaryResult:
        try:
            text = await ask(
                self._provider,
                self._config,
                prompt,
                seconds=self._timeout,
                max_chars=self._max_chars,
                room=self._room,
            )
        except UnusableAnswerError:
            return self._stand_in(turns, revision, "the model answered no text")
        except Exception as error:  # noqa: BLE001 - as above
            return self._stand_in(turns, revision, f"the model failed ({_kind(error)})")
        return STMSummaryResult(text, revision)

    def _stand_in(
        self, turns: Sequence[Any], revision: str, reason: str, previous: str | None = None
    ) -> STMSummaryResult:
        telemetry.summaries_degraded.add(1)
        if previous is not None:
            return STMSummaryResult(previous, revision, degraded=True, reason=f"{reason}; this is the one before")
        return STMSummaryResult(self._by_rule(turns), revision, degraded=True, reason=f"{reason}; this is extractive")


def validate_summary(summary: Any) -> None:
    """Refuse a summary collaborator that would fail in the middle of a turn. None is none, and passes.

    Raises:
        ConfigurationError: it has no async `summarize`.
    """
    if summary is not None:
        require_async(
            summary,
            "summarize",
            "a summary needs async summarize(STMSummaryRequest) -> STMSummaryResult, see WorkingMemorySummaryService",
        )


def degraded_summary(error: Exception) -> STMSummaryResult:
    """The summary when the evicted turns could not be read: none; it is counted."""
    return _degraded(f"the evicted turns could not be read ({_kind(error)})")


def _degraded(reason: str) -> STMSummaryResult:
    telemetry.summaries_degraded.add(1)
    return STMSummaryResult(degraded=True, reason=reason)


def _mark(turn: Any) -> str:
    """Stands for a turn: its id, its turn, who said it and what."""
    metadata = getattr(turn, "metadata", None)
    turn_id = metadata.get("turn_id", "") if isinstance(metadata, dict) else ""
    return _digest((getattr(turn, "id", ""), turn_id, speaker_of(turn), getattr(turn, "content", "")), 8)


def _digest(parts: Iterable[object], size: int) -> str:
    digest = blake2b(digest_size=size)
    for part in parts:
        data = str(part).encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data))  # or two parts could pass for one
        digest.update(data)
    return digest.hexdigest()


def _kind(error: Exception) -> str:
    return type(error).__name__


def _check_chars(max_chars: object) -> None:
    if isinstance(max_chars, bool) or not isinstance(max_chars, int) or max_chars < 1:
        raise ConfigurationError("max_chars must be a whole number of at least 1: correct it")
