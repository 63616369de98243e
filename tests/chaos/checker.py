"""Holds what is stored against what was acknowledged. It asks no server: it is given both, and is tested by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from chaos.history import History, Turns
from chaos.turns import content_of, parse

Wrong = Literal["lost", "double", "disorder", "leak", "refused", "invented", "receipt", "window", "evicted", "read"]
"""What can be wrong.

lost: acknowledged and not stored. double: stored twice. disorder: stored after a later one. leak: of another
conversation. refused: stored though every write of it was refused, or was never valid. invented: nobody wrote it.
receipt: the acknowledgement named another entry, or told of a duplicate though there was one write. window, evicted:
not the tail of the stream. read: a worker was shown what it must not see.
"""


class Violation(NamedTuple):
    wrong: Wrong
    name: str
    detail: str


@dataclass
class Stored:
    """What one conversation has at the end: the contents, oldest first.

    Attributes:
        stream: stream id and content of every turn.
        window: contents.
        evicted: contents, those behind the window.
        older_gone: whether still older ones are told to be gone.
    """

    stream: list[tuple[str, str]] = field(default_factory=list)
    window: list[str] = field(default_factory=list)
    evicted: list[str] = field(default_factory=list)
    older_gone: bool = False


def check(name: str, turns: Turns, stored: Stored, *, window: int, evicted: int) -> list[Violation]:
    """What is wrong with one conversation.

    Args:
        name: the conversation.
        turns: what was tried of it.
        stored: what it has.
        window: turns a window holds.
        evicted: turns kept behind it.
    """
    found = [*_sequence(name, turns, stored.stream), *_receipts(name, turns, stored.stream)]
    contents = [content for _, content in stored.stream]
    end = len(contents)
    if stored.window != contents[max(0, end - window) :]:
        found.append(Violation("window", name, f"it is {_short(stored.window)}, the stream ends {_short(contents)}"))
    behind = contents[max(0, end - window - evicted) : max(0, end - window)]
    if stored.evicted != behind:
        found.append(Violation("evicted", name, f"they are {_short(stored.evicted)}, the stream has {_short(behind)}"))
    elif stored.older_gone != (end > window + evicted):
        found.append(Violation("evicted", name, f"of {end} turns older_gone is {stored.older_gone}"))
    return found


def check_reads(history: History) -> list[Violation]:
    """What the workers themselves saw."""
    return [Violation("read", name, text) for name, text in history.seen]


def view_faults(name: str, contents: Sequence[str], *, through: int = 0) -> list[str]:
    """What is wrong with a window, or window and evicted turns, that a worker was shown, oldest first.

    Args:
        name: whose conversation was asked for.
        contents: what came.
        through: the highest number that had been acknowledged when it was asked for.
    """
    faults, before = [], None
    for content in contents:
        found = parse(content)
        if found is None or found[0] != name:
            faults.append(f"foreign {content[:40]}")
        elif found[1] < 1:
            faults.append(f"refused {found[1]}")
        else:
            if before is not None and found[1] != before + 1:
                faults.append(f"order {found[1]} after {before}")
            before = found[1]
    if (before or 0) < through:
        faults.append(f"stale: ends at {before}, {through} was acknowledged")
    return faults


def _sequence(name: str, turns: Turns, stream: list[tuple[str, str]]) -> list[Violation]:
    found: list[Violation] = []
    there: set[int] = set()
    highest = 0
    for at, content in stream:
        named = parse(content)
        if named is None or named[0] != name:
            found.append(Violation("leak", name, f"{at} holds {content[:40]!r}"))
            continue
        number = named[1]
        if number in there:
            found.append(Violation("double", name, f"{number} again at {at}"))
            continue
        there.add(number)
        if number not in turns.doubtful:
            found.append(Violation("invented", name, f"{number} at {at}"))
        elif number < 1 or (turns.doubtful[number] < 1 and number not in turns.acknowledged):
            found.append(Violation("refused", name, f"{number} at {at}"))
        elif number < highest:
            found.append(Violation("disorder", name, f"{number} at {at}, after {highest}"))
        highest = max(highest, number)
    # A number below one is no turn: it was acknowledged though it had to be refused.
    lost = sorted(turns.acknowledged - there)
    found += [Violation("lost", name, str(number)) for number in lost]
    return found


def _receipts(name: str, turns: Turns, stream: list[tuple[str, str]]) -> list[Violation]:
    holds = dict(stream)
    wrong = [
        f"{number} was acknowledged as {node}, which holds {holds[node]!r}"
        for number, node in turns.nodes.items()
        if node in holds and holds[node] != content_of(name, number)
    ]
    # A retry within one call is told from another call's by its operation id, whatever the idempotency key says.
    alone = (number for number in turns.duplicates if turns.doubtful[number] == 1)
    wrong += [f"{number} was called a duplicate, and was written once" for number in alone]
    return [Violation("receipt", name, detail) for detail in wrong]


def _short(contents: Sequence[str]) -> str:
    return ", ".join(contents[-3:]) or "empty"
