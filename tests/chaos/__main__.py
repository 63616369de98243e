"""`python -m chaos`: carry a run out, print what came of it, exit 1 when a claim does not hold."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections import Counter

from chaos.cluster import Cluster
from chaos.run import Outcome, Plan, run
from chaos.sentinels import Sentinels
from chaos.topology import Failover, Topology

TOPOLOGIES: dict[str, type[Topology]] = {
    "single": Topology,
    "failover": Failover,
    "sentinel": Sentinels,
    "cluster": Cluster,
}
SHOWN = 20
"""Violations printed."""


def report(topology: str, plan: Plan, outcome: Outcome) -> str:
    """The table of a run."""
    history, events = outcome.history, outcome.events
    wrong = Counter(violation.wrong for violation in outcome.violations)
    harmed = ", ".join(f"{name} {count}" for name, count in sorted(outcome.requests.items()) if name != "requests")
    rows = [
        ("topology", f"{topology}, {plan.server}, {plan.workers} workers, {plan.conversations} conversations"),
        ("turns acknowledged", f"{history.acknowledged:,} of {plan.turns * plan.conversations:,}"),
        ("turns stored", f"{outcome.stored:,}"),
        ("writes", ", ".join(f"{name} {count:,}" for name, count in history.kinds.most_common())),
        ("retries", f"{history.attempts:,} by the package, {outcome.repeats:,} by the workers"),
        ("outcomes", ", ".join(f"{name} {count:,}" for name, count in history.outcomes.most_common())),
        ("requests", f"{outcome.requests.get('requests', 0):,}; {harmed}"),
        ("events", ", ".join(f"{event} {count}" for event, count in sorted(events.items()))),
        ("reads compared", f"{history.reads:,}"),
        ("turns a second", f"{history.acknowledged / max(outcome.seconds, 0.001):,.0f} ({outcome.seconds:.0f} s)"),
        ("masters down", f"{outcome.down:.0f} s"),
        ("losses", str(wrong.pop("lost", 0))),
        ("doubles", str(wrong.pop("double", 0))),
        ("disorder", str(wrong.pop("disorder", 0))),
        ("leaks", str(wrong.pop("leak", 0))),
        ("window or evicted", str(wrong.pop("window", 0) + wrong.pop("evicted", 0))),
        ("other violations", ", ".join(f"{name} {count}" for name, count in wrong.items()) or "0"),
        ("crashes", str(len(outcome.crashes))),
        ("compared in", f"{outcome.checking:.0f} s"),
    ]
    if outcome.stalled:
        rows.append(("STALLED", "nothing was acknowledged for a long time"))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    lines += [f"{one.wrong} in {one.name}: {one.detail}" for one in outcome.violations[:SHOWN]]
    return "\n".join([*lines, *outcome.crashes[:3], "HELD" if outcome.held else "BROKEN"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    option = parser.add_argument
    option("--topology", choices=[*TOPOLOGIES, "all"], default="single")
    option("--pushes", type=int, default=30_000, help="turns in all, over all conversations")
    option("--workers", type=int, default=4)
    option("--conversations", type=int, default=200)
    option("--share", type=float, default=0.02, help="of the requests that the proxy mistreats; half lose the reply")
    option("--kill-every", type=float, default=5, help="seconds from a recovered master to its next kill")
    option("--every", type=float, default=2, help="seconds between other events of servers, and of workers")
    option("--seed", type=int, default=1)
    option("--server", default="valkey", help="valkey, redis, redis-6.2 or redis-8.2")
    option("--keep", default="", help="an empty folder in which the workers' journals stay")
    # As by Ctrl-C: the servers are stopped.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    given = vars(parser.parse_args())
    chosen = given.pop("topology")
    held = True
    for topology in TOPOLOGIES if chosen == "all" else (chosen,):
        plan = Plan(**given)
        print(f"--- {topology}, seed {plan.seed}", flush=True)  # noqa: T201 - a command prints
        outcome = asyncio.run(run(plan, TOPOLOGIES[topology], lambda line: print(line, flush=True)))  # noqa: T201 - the same
        print(report(topology, plan, outcome), flush=True)  # noqa: T201 - the same
        held = held and outcome.held
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
