"""The example of whole turns is run: by two processes, on the embedded server, with each kind of model."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*options: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "examples/agent_turn.py", *options],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize("model", ["scripted", "langchain"])
def test_two_processes_serve_the_turns_of_one_conversation(model):
    if model == "langchain" and importlib.util.find_spec("langchain_core") is None:
        pytest.skip("langchain-core is not installed")
    lines = run(*(["--langchain"] if model == "langchain" else []))
    turns = [re.fullmatch(r"turn (\d), pod ([AB]) \(process (\d+)\)", line) for line in lines]
    turns = [found.groups() for found in turns if found]
    assert [(number, pod) for number, pod, _ in turns] == [("1", "A"), ("2", "B"), ("3", "A"), ("4", "B"), ("5", "A")]
    assert len({pid for *_, pid in turns}) == 2
    # Told to pod B in turn 2 and out of the window since: pod A has it from the summary.
    assert lines[lines.index("  user: Which order was it?") + 1] == (
        "  assistant: It was order A-1042. (with a summary)"
    )
    published = [line for line in lines if "publish" in line]
    assert published == [f"  publish: {{'published': {number}}}" for number in (3, 3, 2, 2, 2)]
    assert [line for line in lines if "consolidate" in line][2:] == [
        "  consolidate: nothing in the turn is worth keeping"
    ] * 3
    assert lines[-2:] == [
        "known for good, profile: likes to be called Ada",
        "known for good, semantic: has order A-1042",
    ]


def test_it_uses_a_server_of_yours(valkey):
    assert run(valkey.url)[-1] == "known for good, semantic: has order A-1042"
