"""The measurements run: each measure in a profile that does next to nothing. No figure is looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("symfonic", reason="symfonic-core, one of the contenders, is not installed")

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"

# The options of `later.py` may not be there yet: another one in their place shows that its loops work.
LATER = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
import contenders, later
from profiles import PROFILES
from stage import Stage, servers
later.FEATURES = (("strict pushes", "strict", "append", True), ("strict reads", "strict", "read", False))
rows = asyncio.run(Stage(PROFILES["smoke"], servers()["valkey"], peers=False).apart(later.run))
print(*sorted({(row.measure, row.figure, row.contender, row.against) for row in rows if row.ratio}), sep="\\n")
"""


def ran(*command: object) -> str:
    words = [sys.executable, *map(str, command)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert not done.returncode, done.stderr
    return done.stdout


def test_every_measure_runs_and_what_is_kept_by_hand_stays(tmp_path):
    log = (BENCHMARKS / "results" / "log.md").read_text("utf-8")
    (tmp_path / "log.md").write_text(log, "utf-8")
    smoke = ("--profile", "smoke", "--server", "valkey", "--no-peers", "--out", tmp_path)
    assert "left out" not in ran(BENCHMARKS / "run.py", *smoke)
    text = (tmp_path / "results.md").read_text("utf-8")
    headings = {line[3:].split(":")[0] for line in text.splitlines() if line.startswith("## ")}
    names = ran("-c", f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import contenders, results; "
                "print(*results.NAMES.values(), sep=chr(10))").splitlines()  # fmt: skip
    tool = {"The server's ceiling"}  # only where redis-benchmark is
    assert {"In short", *names} - tool <= headings
    assert (tmp_path / "log.md").read_text("utf-8") == log


def test_an_option_is_measured_off_against_on():
    assert ran("-c", LATER, BENCHMARKS).splitlines() == [
        str((what, figure, f"strict={on}", "strict=False"))
        for what, figures in (("strict pushes", ("client time", "p50", "throughput")), ("strict reads", ("p50",)))
        for figure in figures
        for on in (False, True)
    ]


@pytest.mark.parametrize("name", ["memory.py", "encryption.py"])
def test_a_measurement_apart_from_the_run_runs(valkey, name):
    assert "valkey_version" in ran(BENCHMARKS / name, valkey.url)
