"""The checker of the chaos runs: of each kind of fault that is forged it finds that kind alone, in a clean run none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from chaos.checker import Stored, check, check_reads, view_faults
from chaos.history import History, Journal, Tail
from chaos.turns import Step, content_of, parse, step_of
from hypothesis import assume, given
from hypothesis import strategies as st

NAME, WINDOW, EVICTED = "c1", 4, 6


class Run:
    """A conversation of which all went well: `lines` of its worker, and what is `stored`. To be forged."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lines = []
        for number in range(1, size + 1):
            self.lines += f"S c1 {number} 1 push 0.5", f"E c1 {number} 1 ok 0.6 {_at(number)}"
        # Refused for a while, then stored; and one that never could be.
        self.lines += "S c1 1 1 push 0.1", "E c1 1 1 OutOfMemory 0.2 -"
        self.lines += "S c1 -1 1 bad 0.1", "E c1 -1 1 InvalidInput 0.2 -"
        self.stored = Stored()
        self.store([content_of(NAME, number) for number in range(1, size + 1)])

    def store(self, contents: list[str]) -> None:
        """Let a stream hold `contents`, and window and evicted turns be its tail."""
        self.stored.stream = [(_at(place), content) for place, content in enumerate(contents, 1)]
        self.follow()

    def follow(self) -> None:
        contents = [content for _, content in self.stored.stream]
        end = len(contents)
        self.stored.window = contents[max(0, end - WINDOW) :]
        self.stored.evicted = contents[max(0, end - WINDOW - EVICTED) : max(0, end - WINDOW)]
        self.stored.older_gone = end > WINDOW + EVICTED

    def wrong(self) -> list[str]:
        turns = History(self.lines).turns[NAME]
        return [one.wrong for one in check(NAME, turns, self.stored, window=WINDOW, evicted=EVICTED)]


def _at(number: int) -> str:
    return f"1700000000000-{number}"


def _lose(run: Run, place: int) -> None:
    del run.stored.stream[place]
    run.follow()


def _double(run: Run, place: int) -> None:
    run.stored.stream.append(("1700000000001-0", run.stored.stream[place][1]))
    run.follow()


def _swap(run: Run, place: int) -> None:
    stream = run.stored.stream
    place = min(place, run.size - 2)
    # With their ids: the receipts are right, the order is not.
    stream[place], stream[place + 1] = stream[place + 1], stream[place]
    run.follow()


def _leak(run: Run, place: int) -> None:
    run.stored.stream.insert(place, ("1699999999999-0", content_of("c11", place + 1)))
    run.follow()


def _foreign(run: Run, place: int) -> None:
    run.stored.stream.insert(place, ("1699999999999-0", "nothing that a worker writes"))
    run.follow()


def _keep_refused(run: Run, place: int) -> None:
    run.lines += f"S c1 {run.size + 1} 1 push 0.7", f"E c1 {run.size + 1} 1 OutOfMemory 0.8 -"
    run.stored.stream.append(("1700000000001-0", content_of(NAME, run.size + 1)))
    run.follow()


def _keep_bad(run: Run, place: int) -> None:
    run.stored.stream.append(("1700000000001-0", content_of(NAME, -1)))
    run.follow()


def _acknowledge_refused(run: Run, place: int) -> None:
    run.lines += f"S c1 {run.size + 1} 1 push 0.7", f"E c1 {run.size + 1} 1 ok 0.8 -"


def _acknowledge_bad(run: Run, place: int) -> None:
    run.lines += "S c1 -2 1 bad 0.7", "E c1 -2 1 ok 0.8 -"


def _invent(run: Run, place: int) -> None:
    run.stored.stream.append(("1700000000001-0", content_of(NAME, run.size + 1)))
    run.follow()


def _exchange_receipts(run: Run, place: int) -> None:
    run.lines[2 * place + 1] = f"E c1 {place + 1} 1 ok 0.6 {_at((place + 1) % run.size + 1)}"


def _call_duplicate(run: Run, place: int) -> None:
    # Not the first, of which a refusal is noted: any other was written once.
    number = max(2, place + 1)
    run.lines[2 * number - 1] = f"E c1 {number} 1 duplicate 0.6 -"


def _shift_window(run: Run, place: int) -> None:
    run.stored.window = [content for _, content in run.stored.stream][-WINDOW - 1 : -1]


def _shorten_window(run: Run, place: int) -> None:
    del run.stored.window[place % len(run.stored.window)]


def _tear_evicted(run: Run, place: int) -> None:
    assume(run.stored.evicted)
    del run.stored.evicted[place % len(run.stored.evicted)]


def _hide_older(run: Run, place: int) -> None:
    run.stored.older_gone = not run.stored.older_gone


FORGERIES: list[tuple[Callable[[Run, int], None], str]] = [
    (_lose, "lost"),
    (_double, "double"),
    (_swap, "disorder"),
    (_leak, "leak"),
    (_foreign, "leak"),
    (_keep_refused, "refused"),
    (_keep_bad, "refused"),
    (_acknowledge_refused, "lost"),
    (_acknowledge_bad, "lost"),
    (_invent, "invented"),
    (_exchange_receipts, "receipt"),
    (_call_duplicate, "receipt"),
    (_shift_window, "window"),
    (_shorten_window, "window"),
    (_tear_evicted, "evicted"),
    (_hide_older, "evicted"),
]


@given(st.integers(1, 30))
def test_a_clean_run_passes(size):
    assert Run(size).wrong() == []


@pytest.mark.parametrize(("forge", "wrong"), FORGERIES, ids=lambda one: getattr(one, "__name__", ""))
@given(st.data())
def test_each_forged_fault_is_found_and_nothing_else(forge, wrong, data):
    run = Run(data.draw(st.integers(2, 30), "size"))
    forge(run, data.draw(st.integers(0, run.size - 1), "place"))
    assert run.wrong() == [wrong]


@given(st.integers(1, 20), st.data())
def test_a_turn_without_an_answer_may_be_there_or_not(size, data):
    run = Run(size)
    run.lines.append(f"S c1 {size + 1} 1 push 0.9")
    if data.draw(st.booleans()):
        run.lines.append(f"E c1 {size + 1} 1 MemoryUnavailable 0.9 -")
    # Another worker's attempt was refused, which says nothing of the first.
    run.lines += f"S c1 {size + 1} 1 push 0.9", f"E c1 {size + 1} 1 OutOfMemory 0.9 -"
    assert run.wrong() == []
    run.store([content_of(NAME, number) for number in range(1, size + 2)])
    assert run.wrong() == []


def test_a_duplicate_of_a_write_without_an_answer_is_right():
    run = Run(3)
    run.lines += "S c1 4 1 push 0.9", "S c1 4 1 push 1.9", "E c1 4 1 duplicate 2.0 -"
    run.store([content_of(NAME, number) for number in range(1, 5)])
    assert run.wrong() == []


@pytest.mark.parametrize(
    ("contents", "through", "fault"),
    [
        (["c1 3", "c1 5"], 0, "order 5 after 3"),
        (["c1 3", "c1 3"], 0, "order 3 after 3"),
        (["c1 4", "c1 3"], 0, "order 3 after 4"),
        (["c11 3", "c1 4"], 0, "foreign c11 3"),
        (["c1 -1", "c1 4"], 0, "refused -1"),
        (["c1 3", "c1 4"], 5, "stale: ends at 4, 5 was acknowledged"),
        ([], 1, "stale: ends at None, 1 was acknowledged"),
        (["c1 3", "c1 4"], 4, None),
        ([], 0, None),
    ],
)
def test_what_a_reader_must_not_see(contents, through, fault):
    assert view_faults(NAME, contents, through=through) == ([fault] if fault else [])


def test_what_a_reader_saw_is_a_violation():
    assert check_reads(History(["V c1 order 9 after 11"])) == [("read", "c1", "order 9 after 11")]


def test_a_journal_is_read_back_whole_and_while_it_grows(tmp_path):
    path = tmp_path / "one.history"
    tail = Tail(path)
    assert tail.lines() == []
    journal = Journal(str(path))
    journal.start(NAME, Step("many", 1, 3))
    journal.again("push")
    journal.end(NAME, Step("many", 1, 3), "ok", "5-0")
    history = History(tail.lines())
    with path.open("a") as file:
        file.write("S c1 4 1 pu")
        file.flush()
        assert tail.lines() == []
        file.write("sh 0.1\n")
    journal.read()
    journal.violation(NAME, "order 9 after 11")
    history.add(tail.lines())
    turns = history.turns[NAME]
    assert (turns.acknowledged, turns.nodes, turns.through) == ({1, 2, 3}, {1: "5-0"}, 3)
    assert turns.doubtful == {1: 1, 2: 1, 3: 1, 4: 1}
    assert (history.attempts, history.reads, history.seen) == (1, 1, [(NAME, "order 9 after 11")])


@given(st.integers(1, 99), st.integers(1, 10_000))
def test_whoever_takes_over_sends_the_same_step_again(number, first):
    name, last = f"c{number}", 10_000
    step = step_of(name, first, last)
    assert step == step_of(name, first, last)
    assert step.first == first
    assert first <= step.last <= last
    assert parse(content_of(name, first)) == (name, first)


def test_most_turns_are_pushed_one_by_one():
    kinds = {"push": 0, "many": 0, "stage": 0}
    number = 1
    while number <= 20_000:
        step = step_of(NAME, number, 20_000)
        kinds[step.kind] += step.count
        number = step.last + 1
    assert kinds["push"] > 10_000
    assert kinds["many"] > 1_000
    assert kinds["stage"] > 400
