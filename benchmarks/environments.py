"""The peers' own environments: their pins conflict with each other, so each has one.

They are made on first use under `BENCH_CACHE` (`.bench/` here unless set), one folder for each set of pins.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

CACHE = Path(os.environ.get("BENCH_CACHE", Path(__file__).resolve().parent.parent / ".bench"))
INSTALL_LIMIT = 600
"""Seconds for one installation."""


class Environment(NamedTuple):
    """A peer: its driver in peers/, what it is installed from, and the options of its driver."""

    name: str
    module: str
    pins: tuple[str, ...]
    options: dict[str, int]


TTL = 3600

PEERS = (
    Environment("openai-agents", "openai_agents_session", ("openai-agents[redis]==0.24.0", "redis==8.1.0"), {}),
    Environment(
        "llama-index", "llama_index_store", ("llama-index-storage-chat-store-redis==0.8.0", "redis==8.1.0"), {}
    ),
    Environment("langchain", "langchain_history", ("langchain-community==0.4.2", "redis==8.1.0"), {}),
    Environment(
        "agent-framework",
        "agent_framework_history",
        ("agent-framework-redis==1.0.0b261022", "redis==7.1.1"),
        {"window": 1_000},
    ),
    Environment("google-adk", "google_adk_session", ("google-adk==2.13.0", "redis==8.1.0"), {}),
    Environment("adk-community", "google_adk_community_session", ("google-adk-community==0.5.0", "redis==5.3.1"), {}),
)


def python_of(environment: Environment) -> str | None:
    """The interpreter of a peer's environment, made if need be; None, said in one line, when it cannot be installed."""
    tag = hashlib.sha256("\n".join((*environment.pins, sys.version)).encode()).hexdigest()[:8]
    folder = CACHE / f"{environment.name}-{tag}"
    python, ready, log = folder / "bin" / "python", folder / ".ready", CACHE / f"{environment.name}.log"
    if not ready.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        print(f"Installing {', '.join(environment.pins)} ...", flush=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *environment.pins]
        try:
            with log.open("wb") as output:
                for command in ([sys.executable, "-m", "venv", "--clear", str(folder)], install):
                    subprocess.run(command, check=True, stdout=output, stderr=output, timeout=INSTALL_LIMIT)
        except (subprocess.SubprocessError, OSError):
            print(f"Skipped: {environment.name} cannot be installed; see {log}", flush=True)
            return None
        ready.touch()
    return str(python)
