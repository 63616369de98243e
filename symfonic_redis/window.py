"""The recency block of a prompt: the last turns of a conversation, as text, within a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from symfonic_redis import telemetry
from symfonic_redis.conversation import ConversationSource, ConversationTurn, require_async, with_their_calls
from symfonic_redis.errors import ConfigurationError, MemoryUnavailable
from symfonic_redis.render import render_line
from symfonic_redis.scope import ScopeLike

LIMIT = 10
"""Turns of a block, unless said otherwise."""

OVERREACH = 4
"""So many times the limit is asked of the source when speakers are excluded, so that the limit can be filled."""

_LOST = "{} tool results are left out: the calls that they answer are not among the turns"

TokenCounter = Callable[[str], int]
"""Counts the tokens of a text, as the model's own tokenizer does."""


@dataclass(frozen=True, slots=True)
class WindowBlock:
    """The recency block of one prompt.

    Attributes:
        text: a line for each turn, oldest first, `user: Where is my order?`; empty when there is nothing to show.
        turns: the turns it shows, in the same order.
        tokens: of the text, by the caller's counter; None without one.
        degraded: the memory could not be read: the prompt goes without the block.
        reason: why turns are missing that were asked for; empty when none are.
    """

    text: str = ""
    turns: tuple[ConversationTurn, ...] = ()
    tokens: int | None = None
    degraded: bool = False
    reason: str = ""


class WorkingWindow:
    """Renders the last turns of a conversation for a prompt. It keeps no conversation: one serves all scopes.

    Args:
        source: where the turns come from.
        limit: turns in the block, at most.
        exclude: speakers that are left out; compared as they are. A turn that declares no speaker never is.
        max_tokens: tokens of the block, at most, whole turns, the newest kept; None for no budget.
        count_tokens: the counter; a budget needs one.
        render: a turn as a line of the block; else `speaker: text`, its further lines indented, so that a line which
            begins with a speaker's name was said by that speaker.

    Raises:
        ConfigurationError: the source has no async `recent`, an argument is out of range, or one of budget and
            counter is given without the other.
    """

    def __init__(
        self,
        source: ConversationSource,
        *,
        limit: int = LIMIT,
        exclude: Iterable[str] = (),
        max_tokens: int | None = None,
        count_tokens: TokenCounter | None = None,
        render: Callable[[ConversationTurn], str] | None = None,
    ) -> None:
        require_async(source, "recent", "a window needs a source with async recent(scope, limit)")
        _check(limit, "limit")
        if max_tokens is not None:
            _check(max_tokens, "max_tokens")
        if (max_tokens is None) != (count_tokens is None):
            raise ConfigurationError("max_tokens and count_tokens go together: pass both, or neither")
        for name, given in (("count_tokens", count_tokens), ("render", render)):
            if given is not None and not callable(given):
                raise ConfigurationError(f"{name} must be a function: pass one, or leave it away")
        excluded: object = exclude  # an untyped caller may pass anything
        if isinstance(excluded, str) or not isinstance(excluded, Iterable):
            raise ConfigurationError("exclude takes several speakers: pass a list, also for one")
        self._source = source
        self._limit = limit
        self._excluded = frozenset(exclude) - {""}
        self._max_tokens = max_tokens
        self._count_tokens = count_tokens
        self._render = render or (lambda turn: render_line(turn.speaker, turn.text))

    async def block(self, scope: ScopeLike) -> WindowBlock:
        """The block of exactly this scope.

        When the memory is not available, and in no other case, the block is empty, `degraded`, and counted: the turn
        goes on without it. Any other error is a mistake and is raised.

        Cost: that of one `recent` of the source; with a budget also some calls of the counter, about the logarithm
        of the limit.
        """
        reach = self._limit * OVERREACH if self._excluded else self._limit
        try:
            turns = await self._source.recent(scope, reach)
        except MemoryUnavailable as error:
            return degraded_block(error)
        return self.render(turns)

    def render(self, turns: Sequence[ConversationTurn]) -> WindowBlock:
        """The block of turns that were read already, oldest first. No server."""
        wanted = [index for index, turn in enumerate(turns) if turn.speaker not in self._excluded][-self._limit :]
        whole = self._newest(turns, wanted)
        if self._max_tokens is None or whole.tokens is None or whole.tokens <= self._max_tokens:
            return whole
        # The most of the newest that fit. The whole block is counted each time: the tokens of its lines do not add up.
        least, most, fitting = 0, len(wanted), WindowBlock(tokens=0)
        while most - least > 1:
            middle = (least + most) // 2
            block = self._newest(turns, wanted[-middle:])
            if (block.tokens or 0) > self._max_tokens:
                most = middle
            else:
                least, fitting = middle, block
        reason = f"the budget of {self._max_tokens} tokens holds {len(fitting.turns)} of {len(whole.turns)} turns"
        return replace(fitting, reason=reason)

    def _newest(self, turns: Sequence[ConversationTurn], wanted: Sequence[int]) -> WindowBlock:
        """The block of the turns at these places, without the tool results whose call is not among them."""
        kept = set(wanted)
        chosen = with_their_calls(turns, [index in kept for index in range(len(turns))])
        text = "\n".join(self._render(turn) for turn in chosen)
        tokens = None if self._count_tokens is None else self._count_tokens(text) if text else 0
        lost = len(wanted) - len(chosen)
        return WindowBlock(text, tuple(chosen), tokens, reason=_LOST.format(lost) if lost else "")


def degraded_block(error: MemoryUnavailable) -> WindowBlock:
    """The block of a prompt that goes without; it is counted."""
    telemetry.windows_degraded.add(1)
    return WindowBlock(degraded=True, reason=f"the working memory is not available ({type(error).__name__})")


def _check(value: int, name: str) -> None:
    given: object = value  # an untyped caller may pass anything
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ConfigurationError(f"{name} must be a whole number of at least 1: correct it")
