"""The recency block of a prompt: the last turns of a conversation, as text, within a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from symfonic_redis import telemetry
from symfonic_redis.conversation import ConversationSource, ConversationTurn, chains, require_async
from symfonic_redis.errors import ConfigurationError, MemoryUnavailable
from symfonic_redis.guard import is_async
from symfonic_redis.render import render_line
from symfonic_redis.scope import ScopeLike

LIMIT = 10
"""Turns of a block, unless said otherwise."""

OVERREACH = 4
"""So many times the limit is asked of the source: some speakers are left out, and a result needs its call."""

_LOST = "{} tool results are left out: the calls that they answer are not among the turns, or have no room"
_EXCLUDED = "{} of the turns that were read are of speakers who are left out"

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
        functions: tuple[tuple[str, object], ...] = (("count_tokens", count_tokens), ("render", render))
        for name, given in functions:
            if given is not None and (not callable(given) or is_async(given)):
                raise ConfigurationError(f"{name} must be a plain function: pass one, or leave it away")
        speakers: object = exclude  # an untyped caller may pass anything
        several = isinstance(speakers, Iterable) and not isinstance(speakers, str)
        names = list(exclude) if several else [speakers]
        if not several or not all(isinstance(name, str) for name in names):
            raise ConfigurationError("exclude takes the names of speakers: pass a list, also for one")
        self._source = source
        self._limit = limit
        self._excluded = frozenset(names) - {""}
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
        try:
            turns = await self._source.recent(scope, self._limit * OVERREACH)
        except MemoryUnavailable as error:
            return degraded_block(error)
        return self.render(turns)

    def render(self, turns: Sequence[ConversationTurn]) -> WindowBlock:
        """The block of turns that were read already, oldest first. No server."""
        groups, reason = self._groups(turns)
        whole = self._block(turns, groups, reason)
        if self._max_tokens is None or whole.tokens is None or whole.tokens <= self._max_tokens:
            return whole
        # The most of the newest that fit. The whole block is counted each time: the tokens of its lines do not add up.
        least, most, fitting = 0, len(groups), WindowBlock(tokens=0)
        while most - least > 1:
            middle = (least + most) // 2
            block = self._block(turns, groups[:middle], "")
            if (block.tokens or 0) > self._max_tokens:
                most = middle
            else:
                least, fitting = middle, block
        reason = f"the budget of {self._max_tokens} tokens holds {len(fitting.turns)} of {len(whole.turns)} turns"
        return replace(fitting, reason=reason)

    def _groups(self, turns: Sequence[ConversationTurn]) -> tuple[list[list[int]], str]:
        """The turns to show by their places, newest first; and why some are missing.

        A result brings its call along, also from farther back than the limit, and what was said between the two.
        """
        groups: list[list[int]] = []
        shown: set[int] = set()
        unanswered: set[int] = set()  # calls whose result has no room: the block begins behind them
        for index, needed in reversed(list(enumerate(chains(turns)))):
            if len(shown) >= self._limit or (index in unanswered and index not in shown):
                break
            if index in shown or not needed:
                continue
            if any(turns[place].speaker in self._excluded for place in needed):
                continue
            between = [place for place in range(needed[0], index) if not turns[place].tool_call_id]
            wanted = {*needed, *(place for place in between if turns[place].speaker not in self._excluded)}
            if len(shown | wanted) > self._limit:
                unanswered.update(needed)
                continue
            groups.append(sorted(wanted - shown))
            shown |= wanted
        missing = [turns[place] for place in range(min(shown, default=0), len(turns)) if place not in shown]
        lost = sum(bool(turn.tool_call_id) and turn.speaker not in self._excluded for turn in missing)
        if lost:
            return groups, _LOST.format(lost)
        left_out = sum(turn.speaker in self._excluded for turn in turns)
        return groups, _EXCLUDED.format(left_out) if left_out and len(shown) < self._limit else ""

    def _block(self, turns: Sequence[ConversationTurn], groups: Sequence[Sequence[int]], reason: str) -> WindowBlock:
        chosen = tuple(turns[place] for place in sorted(place for group in groups for place in group))
        text = "\n".join(self._render(turn) for turn in chosen)
        if self._count_tokens is None:
            return WindowBlock(text, chosen, reason=reason)
        tokens: object = self._count_tokens(text) if text else 0
        if isinstance(tokens, bool) or not isinstance(tokens, int):
            raise ConfigurationError(f"count_tokens returned a {type(tokens).__name__}: it must return a whole number")
        return WindowBlock(text, chosen, tokens, reason=reason)


def degraded_block(error: MemoryUnavailable) -> WindowBlock:
    """The block of a prompt that goes without; it is counted."""
    telemetry.windows_degraded.add(1)
    return WindowBlock(degraded=True, reason=f"the working memory is not available ({type(error).__name__})")


def _check(value: int, name: str) -> None:
    given: object = value  # an untyped caller may pass anything
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ConfigurationError(f"{name} must be a whole number of at least 1: correct it")
