"""What each worker says of its writes: a line before and a line after, in a file that survives the worker.

::

    S c17 42 1 push 81.204             a write begins: conversation, first number, how many, how, monotonic seconds
    E c17 42 1 ok 81.205 1733-0        it ended: stored; the stream id of its first node, or - when not told
    E c17 42 1 OutOfMemory 81.205 -    it ended: the error's class
    A push 81.204                      the package made another attempt of its own
    R 81.204                           a read was compared
    V c17 order 9 after 11             a read showed what it must not
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from chaos.turns import Step

OK, DUPLICATE = "ok", "duplicate"

REFUSED = frozenset({"OutOfMemory", "PersistenceFailed", "AccessDenied", "InvalidInput", "KeyConflict", "ScopeClosed"})
"""Errors that promise that nothing was written. After any other the turn may be stored or not."""


class Journal:
    """Appends lines to a worker's own file, each with one write to the kernel: a SIGKILL of the worker loses none."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def start(self, name: str, step: Step) -> None:
        self._say(f"S {name} {step.first} {step.count} {step.kind} {time.monotonic():.3f}")

    def end(self, name: str, step: Step, outcome: str, node: str = "-") -> None:
        self._say(f"E {name} {step.first} {step.count} {outcome} {time.monotonic():.3f} {node}")

    def again(self, operation: str) -> None:
        self._say(f"A {operation} {time.monotonic():.3f}")

    def read(self) -> None:
        self._say(f"R {time.monotonic():.3f}")

    def violation(self, name: str, text: str) -> None:
        self._say(f"V {name} {text}")

    def _say(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())


class Turns:
    """What was tried of one conversation.

    Attributes:
        doubtful: number -> how many writes of it were not refused for good; more than none may have stored it.
        acknowledged: the numbers that are promised to be stored.
        nodes: number -> the stream id that the receipt gave.
        duplicates: the first numbers of writes that were answered as made before, by another call.
        through: the highest number acknowledged.
    """

    __slots__ = ("acknowledged", "doubtful", "duplicates", "nodes", "through")

    def __init__(self) -> None:
        self.doubtful: dict[int, int] = {}
        self.acknowledged: set[int] = set()
        self.nodes: dict[int, str] = {}
        self.duplicates: set[int] = set()
        self.through = 0


class History:
    """All that the workers said, in whichever order their files are read."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self.turns: defaultdict[str, Turns] = defaultdict(Turns)
        self.outcomes: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.attempts = 0
        self.reads = 0
        self.seen: list[tuple[str, str]] = []
        self.add(lines)

    @property
    def acknowledged(self) -> int:
        return sum(len(turns.acknowledged) for turns in self.turns.values())

    def add(self, lines: Iterable[str]) -> None:
        for line in lines:
            mark, name, *rest = line.split(" ", 6)
            if mark == "S":
                doubtful = self.turns[name].doubtful
                for number in _numbers(rest):
                    doubtful[number] = doubtful.get(number, 0) + 1
                self.kinds[rest[2]] += 1
            elif mark == "E":
                self._ended(self.turns[name], rest)
            elif mark == "A":
                self.attempts += 1
            elif mark == "R":
                self.reads += 1
            else:
                self.seen.append((name, " ".join(rest)))

    def _ended(self, turns: Turns, rest: list[str]) -> None:
        outcome, node = rest[2], rest[4]
        self.outcomes[outcome] += 1
        if outcome in (OK, DUPLICATE):
            numbers = _numbers(rest)
            turns.acknowledged.update(numbers)
            turns.through = max(turns.through, numbers[-1])
            if outcome == DUPLICATE:
                turns.duplicates.add(numbers[0])
            if node != "-":
                turns.nodes[numbers[0]] = node
        elif outcome in REFUSED:
            for number in _numbers(rest):
                turns.doubtful[number] -= 1


class Tail:
    """Follows a file that grows: `lines` gives the whole lines that were added since it was last asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def lines(self) -> list[str]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            whole = file.read().rpartition(b"\n")[0]
        self._at += len(whole) + 1 if whole else 0
        return whole.decode().split("\n") if whole else []


def _numbers(rest: list[str]) -> range:
    first = int(rest[0])
    return range(first, first + int(rest[1]))
