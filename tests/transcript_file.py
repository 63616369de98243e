"""Where the real transcripts are, for the tests that use them when they are there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "examples" / "support_chat.jsonl"


def real_transcripts() -> Path:
    """The file of real transcripts; skips the test, and says so, where there is none."""
    path = Path(os.environ.get("SYMFONIC_TRANSCRIPTS", ROOT.parent / "shared" / "data" / "agent_transcripts.jsonl"))
    if not path.exists():
        pytest.skip("the real transcripts are not here: set SYMFONIC_TRANSCRIPTS to a file of them to run this")
    return path
