"""A conversation as turns: what a prompt's recency block is made of, whatever keeps it.

A turn says who spoke, what was said, and in which turn of the dialogue. All three are read from what was stored and
none is ever made up: a row that does not say which turn it belongs to is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from symfonic_redis.errors import ConfigurationError, MemoryUnavailable, SymfonicRedisError
from symfonic_redis.guard import is_async
from symfonic_redis.scope import ScopeLike


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """One utterance of a conversation.

    Attributes:
        turn_id: of the turn it belongs to; the rows of one turn, such as question and answer, share it.
        speaker: who said it, such as `user`; empty when the row does not say.
        text: what was said.
        turn: its position in what the layer returned, 0 for the oldest. Rows that were left out have one too.
        tool_calls: ids of the tool calls it makes.
        tool_call_id: id of the tool call that it answers; empty when it is no tool's result.
    """

    turn_id: str
    speaker: str
    text: str
    turn: int = 0
    tool_calls: tuple[str, ...] = ()
    tool_call_id: str = ""


@runtime_checkable
class ConversationSource(Protocol):
    """Anything that can tell the last turns of a scope's conversation."""

    async def recent(self, scope: ScopeLike, limit: int) -> Sequence[ConversationTurn]:
        """The last `limit` turns of exactly this scope, oldest first; none for a limit of 0 or less.

        Raises:
            MemoryUnavailable: they cannot be read now.
        """
        ...


class LegacyConversationSource:
    """The turns of a working layer: ours, the reference system's own, or any with `async get_context(scope)`.

    Args:
        layer: the layer.

    Raises:
        ConfigurationError: the layer has no async `get_context`.
    """

    def __init__(self, layer: Any) -> None:
        require_async(layer, "get_context", "a conversation source needs a layer with async get_context(scope)")
        self._layer = layer

    async def recent(self, scope: ScopeLike, limit: int) -> Sequence[ConversationTurn]:
        """The last `limit` turns of exactly this scope, oldest first, of those that say which turn they belong to.

        The limit counts turns that are returned: rows without a turn id do not use it up.

        Cost: that of the layer's `get_context`, for ours one LRANGE; nothing for a limit of 0 or less.

        Raises:
            MemoryUnavailable: the layer failed, in whichever way.
        """
        if limit <= 0:
            return ()
        try:
            turns = turns_of_entries(await self._layer.get_context(scope) or ())
        except MemoryUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever layer it is; the window knows this one failure
            # The class alone, and only an error of ours is chained: another's message may quote the conversation.
            raise MemoryUnavailable(
                f"the working layer could not be read ({type(error).__name__}); check that it can be reached"
            ) from (error if isinstance(error, SymfonicRedisError) else None)
        return turns[-limit:]


def turns_of_entries(entries: Iterable[Any]) -> tuple[ConversationTurn, ...]:
    """The entries of a window as turns, oldest first, without those that have no `turn_id`.

    Metadata says the rest: `turn_id` and `speaker`; `tool_calls`, a list of ids or of objects with an `id` as chat
    completions have them; `tool_call_id` of a tool's result.
    """
    turns = []
    for position, entry in enumerate(entries):
        metadata = getattr(entry, "metadata", None)
        if not isinstance(metadata, Mapping):
            continue
        turn_id = metadata.get("turn_id")
        if not isinstance(turn_id, str) or not turn_id:
            # Not repaired with the entry's own id: question and answer share a turn id, so that would split a turn.
            continue
        content = getattr(entry, "content", None)
        answers = metadata.get("tool_call_id")
        turns.append(
            ConversationTurn(
                turn_id=turn_id,
                speaker=speaker_of(entry),
                text="" if content is None else str(content),
                turn=position,
                tool_calls=_call_ids(metadata.get("tool_calls")),
                tool_call_id=answers if isinstance(answers, str) else "",
            )
        )
    return tuple(turns)


def speaker_of(entry: Any) -> str:
    """Who said an entry; empty when its metadata do not say."""
    metadata = getattr(entry, "metadata", None)
    return str(metadata.get("speaker") or "") if isinstance(metadata, Mapping) else ""


def chains(turns: Sequence[ConversationTurn]) -> list[list[int]]:
    """For each turn the places of what must be shown with it: itself, and of a tool's result the call that it answers.

    A result answers the last call of its id before it: some models give the same id again and again. What makes that
    call may be a result itself, and needs its own. Empty for a result whose call is not among the turns.
    """
    calls: dict[str, int] = {}
    found: list[list[int]] = []
    for index, turn in enumerate(turns):
        call = calls.get(turn.tool_call_id, -1) if turn.tool_call_id else index
        found.append([index] if call == index else [*found[call], index] if call >= 0 and found[call] else [])
        calls.update(dict.fromkeys(turn.tool_calls, index))
    return found


def require_async(collaborator: object, method: str, otherwise: str) -> None:
    """Refuse a collaborator that would fail in the middle of a turn: one without an async `method`.

    Raises:
        ConfigurationError: with the sentence `otherwise`, which says what is needed.
    """
    if isinstance(collaborator, type):
        raise ConfigurationError(f"{otherwise}: pass an object, not the class {collaborator.__name__}")
    if not is_async(getattr(collaborator, method, None)):
        raise ConfigurationError(f"{otherwise}: a {type(collaborator).__name__} has none")


def _call_ids(calls: object) -> tuple[str, ...]:
    if not isinstance(calls, list | tuple):
        return ()
    ids = (call.get("id") if isinstance(call, Mapping) else call for call in calls)
    return tuple(one for one in ids if isinstance(one, str) and one)
