"""A small chaos run that holds, and one that must not: the claim is not kept by looking away."""

from __future__ import annotations

from typing import ClassVar

import pytest
from chaos.run import Plan, run
from chaos.topology import Topology

PLAN = Plan(pushes=600, workers=2, conversations=20, share=0.1, kill_every=3600, every=4, seed=1, server="valkey")


class Forgetful(Topology):
    """A server that keeps nothing on disk; like any, it is killed once more before the comparison."""

    durable: ClassVar[tuple[str, ...]] = ()


@pytest.mark.parametrize("kind", [Topology, Forgetful])
async def test_what_was_acknowledged_is_compared_with_what_survived(kind):
    outcome = await run(PLAN, kind, lambda _: None)
    assert not outcome.crashes
    assert outcome.history.acknowledged == 600
    assert outcome.history.attempts > 0
    assert outcome.requests["lose"] > 0
    if kind is Topology:
        assert outcome.held, outcome.violations
        assert outcome.stored == 600
    else:
        assert not outcome.held
        assert {one.wrong for one in outcome.violations} == {"lost"}
        assert len(outcome.violations) == 600
