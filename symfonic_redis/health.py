"""What a deployment's server is and whether it keeps what it is given."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from pydantic import BaseModel, Field

from symfonic_redis.connection import Deployment
from symfonic_redis.errors import ServerRefused

PINGS = 5


class Health(BaseModel):
    """The state of a deployment's server. Fields the user may not ask for are `unknown`."""

    endpoint: str = Field(description="Where it is, without credentials.")
    topology: str = Field(description="`standalone`, `cluster` or `sentinel`, as the server calls itself.")
    server: str = Field(description="`redis` or `valkey`.")
    version: str = Field(description="As the server gives it.")
    role: str = Field(description="`master` or `slave`.")
    replicas: int = Field(description="Connected replicas.")
    latency_ms: float = Field(description="The median of five PINGs, over a pooled connection.")
    aof: str = Field(description="Append-only file: `on`, `off` or `unknown`.")
    snapshots: str = Field(description="The last snapshot's state, as the server gives it.")
    eviction_policy: str = Field(description="`noeviction` keeps what it is given.")
    maxmemory: int = Field(description="Bytes; 0 for no limit.")
    advice: list[str] = Field(description="What to change, one sentence each; empty when all is well.")


async def health(deployment: Deployment) -> Health:
    """Ask the server. Cost: one INFO and five PINGs.

    Raises:
        MemoryUnavailable: it is not reached within the deadline.
    """
    await deployment.open()
    loop = asyncio.get_running_loop()
    times = []
    for _ in range(PINGS):
        started = loop.time()
        with suppress(ServerRefused):  # a refusal takes a round trip too
            await deployment.call("health", "PING")
        times.append(loop.time() - started)
    try:
        raw = await deployment.call("health", "INFO")
    except ServerRefused:
        raw = b""
    info = _parse(raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw))
    aof = {"1": "on", "0": "off"}.get(info.get("aof_enabled", ""), "unknown")
    policy = info.get("maxmemory_policy", "unknown")
    return Health(
        endpoint=deployment.endpoint,
        topology=info.get("redis_mode", info.get("server_mode", "unknown")),
        server="valkey" if "valkey_version" in info else "redis" if info else "unknown",
        version=info.get("valkey_version", info.get("redis_version", "unknown")),
        role=info.get("role", "unknown"),
        replicas=int(info.get("connected_slaves", "0")),
        latency_ms=round(1000 * sorted(times)[PINGS // 2], 3),
        aof=aof,
        snapshots=info.get("rdb_last_bgsave_status", "unknown"),
        eviction_policy=policy,
        maxmemory=int(info.get("maxmemory", "0")),
        advice=_advice(aof, policy, info),
    )


def _advice(aof: str, policy: str, info: dict[str, str]) -> list[str]:
    advice = []
    if aof == "off":
        advice.append("Turn the append-only file on (appendonly yes): without it a restart loses turns.")
    if info.get("aof_last_write_status") == "err":
        advice.append("The append-only file cannot be written: check the disk.")
    if policy not in ("noeviction", "unknown"):
        advice.append(
            f"The eviction policy {policy} may drop conversations, operation ids and tombstones under pressure, and "
            "with them the promise that a turn is stored once: use noeviction."
        )
    if info.get("role") == "slave":
        advice.append("This is a replica and takes no writes: connect to the master.")
    if not info:
        advice.append("This user may not run INFO: grant it to see the server's state.")
    return advice


def _parse(text: str) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line and not line.startswith("#"))
    return {name: value.strip() for name, value in pairs}
