"""The worker processes, and which of them writes which conversations."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from chaos.history import History, Tail
from chaos.worker import Task


class Member:
    """A worker process, what it leases, and what it has said."""

    def __init__(self, task: Task) -> None:
        self.leases: set[str] = set()
        self.tail = Tail(Path(task.journal))
        self._log = Path(task.journal).with_suffix(".log")
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "chaos.worker", json.dumps(asdict(task))],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                cwd=Path(__file__).parent.parent,
            )

    def tell(self, *lines: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it ended by itself: `listen` finds out
            self._process.stdin.write("".join(f"{line}\n" for line in lines))
            self._process.stdin.flush()

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it left meanwhile
            os.kill(self._process.pid, number)
        if number == signal.SIGKILL:
            self._process.wait(10)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def crash(self) -> str:
        """The end of what it printed, when it ended by itself and not well."""
        if self._process.poll() in (None, 0, -signal.SIGKILL):
            return ""
        return self._log.read_text("utf-8", "replace")[-2000:]

    def close(self) -> None:
        if not self.ended:
            self.signal(signal.SIGCONT)
            self._process.kill()
        self._process.communicate(timeout=10)


class Crew:
    """All workers of a run.

    Args:
        task: of each; the journals are put beside the one it names.
        size: how many there are at a time.
        history: takes in what they say.
    """

    def __init__(self, task: Task, size: int, history: History) -> None:
        self._task = task
        self._history = history
        self._hired = 0
        self.members: list[Member] = []
        self.leaving: list[Member] = []
        self.crashes: list[str] = []
        for _ in range(size):
            self._hire()
        self._lease(f"c{number}" for number in range(task.conversations))

    @property
    def done(self) -> bool:
        turns = self._history.turns
        return all(turns[f"c{number}"].through >= self._task.turns for number in range(self._task.conversations))

    def listen(self) -> None:
        """Take in what all have said, and replace those that ended by themselves."""
        for member in [*self.members, *self.leaving]:
            self._history.add(member.tail.lines())
        for member in [one for one in self.members if one.ended]:
            self.crashes.append(member.crash or "a worker left by itself")
            self._replace(member)
        for member in [one for one in self.leaving if one.ended]:
            self._history.add(member.tail.lines())
            if member.crash:
                self.crashes.append(member.crash)
            member.close()
            self.leaving.remove(member)

    def kill(self, member: Member) -> None:
        """SIGKILL a worker; others take its conversations over."""
        member.signal(signal.SIGKILL)
        self._replace(member)

    def overtake(self, member: Member) -> None:
        """Stop a worker and give its conversations to others. When it goes on, it finds out late that it must leave."""
        member.signal(signal.SIGSTOP)
        member.tell("leave")
        self.leaving.append(member)
        self._replace(member)

    def leave(self) -> None:
        for member in self.members:
            member.tell("leave")
        self.leaving += self.members
        self.members = []

    def close(self) -> None:
        for member in [*self.members, *self.leaving]:
            member.close()

    def _hire(self) -> None:
        self._hired += 1
        journal = Path(self._task.journal).with_name(f"worker-{self._hired}.history")
        self.members.append(Member(replace(self._task, journal=str(journal))))

    def _replace(self, member: Member) -> None:
        self._history.add(member.tail.lines())
        self.members.remove(member)
        if member not in self.leaving:
            member.close()
        self._hire()
        self._lease(member.leases)

    def _lease(self, names: Iterable[str]) -> None:
        """Share conversations out. Each goes on after the last turn that is known to be acknowledged."""
        open_ones = [name for name in names if self._history.turns[name].through < self._task.turns]
        for place, member in enumerate(self.members):
            mine = open_ones[place :: len(self.members)]
            member.leases |= set(mine)
            member.tell(*(f"take {name} {self._history.turns[name].through + 1}" for name in mine))
