"""Worker processes: started, killed, replaced; a replay counts right through all of it."""

from __future__ import annotations

import asyncio
import os

import pytest
from transcript_file import SAMPLE

from symfonic_redis import InvalidInput, MemoryUnavailable, TenantScope
from symfonic_redis.fleet import Fleet, Worker, WorkerDied
from symfonic_redis.replay import replay
from symfonic_redis.transcripts import Conversation, Turn, read_transcripts

BASE = TenantScope.root("org", "acme")


@pytest.fixture
def settings(one_redis):
    return {
        "url": one_redis.url,
        "prefix": one_redis.prefix,
        "deadline": 5.0,
        "max_entries": 3,
        "mirror": False,
        "ttl": None,
    }


def alive(worker: Worker) -> bool:
    try:
        os.kill(worker.pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_worker_that_died_is_replaced_by_one_however_many_ask(settings):
    async with Fleet(2, settings) as fleet:
        dead = fleet.workers[0]
        dead.kill()
        with pytest.raises(WorkerDied):
            await dead.context("org=acme")
        successors = await asyncio.gather(*(fleet.replace(dead) for _ in range(5)))
        assert sum(one is not None for one in successors) == 1
        assert (len(fleet.workers), fleet.retired) == (2, [dead])
        workers = list(fleet.workers)
    assert not any(alive(worker) for worker in [*workers, dead])


@pytest.mark.parametrize("change", [{"url": "redis://127.0.0.1:1/0", "deadline": 0.2}, {"url": "nonsense://"}])
async def test_a_worker_that_cannot_start_says_why_in_one_sentence(settings, change):
    with pytest.raises(MemoryUnavailable, match=r"could not start: .*(unavailable|unknown)"):
        async with Fleet(2, {**settings, **change}):
            pass


async def test_a_module_of_the_current_folder_stands_in_for_nothing(settings, tmp_path, monkeypatch):
    (tmp_path / "redis.py").write_text("raise RuntimeError('not the library')")
    monkeypatch.chdir(tmp_path)
    async with Fleet(1, settings) as fleet:
        assert await fleet.workers[0].context("org=acme") == []


async def test_a_turn_that_is_refused_is_the_callers_error(settings):
    async with Fleet(1, settings) as fleet:
        with pytest.raises(InvalidInput, match="over the limit"):
            await fleet.deliver(0, "org=acme", Turn("user", "x" * (1 << 20), "t1"), "key")
        receipt, _ = await fleet.deliver(0, "org=acme", Turn("user", "short", "t2"), "other")
        assert receipt["window"] == 1


async def test_a_replay_whose_workers_are_killed_ends_right_and_counts_right(one_redis, monkeypatch):
    conversations = [
        Conversation(f"c{number}", tuple(Turn("user", f"{number}:{turn}", f"t{turn}") for turn in range(40)))
        for number in range(12)
    ]
    fleets: list[Fleet] = []
    original = Fleet.__aenter__

    async def noticed(fleet):
        fleets.append(fleet)
        return await original(fleet)

    monkeypatch.setattr(Fleet, "__aenter__", noticed)
    turns = 0

    def kill_now_and_then():
        nonlocal turns
        turns += 1
        if turns % 100 == 0:
            fleets[0].workers[turns // 100 % 3].kill()

    report = await replay(one_redis, conversations, BASE, workers=3, window=10, ttl=60, on_turn=kill_now_and_then)
    assert report.correct
    assert [outcome.evicted for outcome in report.outcomes] == [30] * 12
    assert sum(outcome.redelivered for outcome in report.outcomes) > 0
    assert sum(report.served.values()) == report.pushed == 480
    assert len(fleets[0].retired) == 4
    assert not any(alive(worker) for worker in [*fleets[0].workers, *fleets[0].retired])


async def test_a_conversation_with_a_turn_that_is_refused_ends_there_and_the_others_go_on(one_redis):
    conversations, _ = read_transcripts(SAMPLE)
    long = Conversation("long", (Turn("user", "short", "t1"), Turn("user", "x" * (1 << 20), "t2")))
    report = await replay(one_redis, [long, *conversations], BASE, workers=2, window=10, ttl=60)
    assert [outcome.correct for outcome in report.outcomes] == [False, True, True, True]
    assert "over the limit" in report.outcomes[0].refused
    assert report.outcomes[0].pushed == 1
