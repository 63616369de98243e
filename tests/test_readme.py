"""What the README and the examples say is run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT.joinpath("README.md").read_text("utf-8")


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_prints_what_its_comment_says():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert run("-c", code).strip() == re.search(r"print\(.*# (\[working\].*)", code)[1]


def test_the_quickstart_runs():
    lines = run("examples/quickstart.py").splitlines()
    assert lines[5] == "turn 6: window 4, evicted 1"
    assert lines[6] == "the last job, delivered again: duplicate=True"
    assert lines[7:] == [f"[working] user: message {number}" for number in (3, 4, 5, 6)]


@pytest.mark.parametrize("command", re.findall(r"^symfonic-redis (.*)$", README, re.MULTILINE))
def test_each_command_line_runs(command):
    assert "order correct" in run("-m", "symfonic_redis.cli", *command.split())


def test_each_make_target_exists():
    makefile = ROOT.joinpath("Makefile").read_text("utf-8")
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert targets == ["demo", "test", "chaos"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_each_file_it_names_exists():
    for name in re.findall(r"`((?:docs|lua|examples)/[\w./-]*|[A-Z]+(?:\.md)?)`", README):
        if "/" in name or name.endswith(".md") or name == "LICENSE":
            assert ROOT.joinpath(name).exists(), name
