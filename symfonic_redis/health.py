"""What a deployment's servers are and whether they keep what they are given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, Field

from symfonic_redis.deployment import Deployment
from symfonic_redis.errors import ServerRefused

PINGS = 5


class Health(BaseModel):
    """The state of a deployment's servers. Fields the user may not ask for are `unknown`.

    Of a cluster each field is that of the master where it is worst.
    """

    endpoint: str = Field(description="Where it is, without credentials.")
    topology: str = Field(description="`standalone`, `cluster` or `sentinel`.")
    server: str = Field(description="`redis` or `valkey`.")
    version: str = Field(description="As the server gives it; the oldest.")
    role: str = Field(description="`master` or `slave`.")
    masters: int = Field(description="That share the data: more than one on a cluster.")
    replicas: int = Field(description="Connected replicas of all masters.")
    latency_ms: float = Field(description="The median of five PINGs, over pooled connections.")
    aof: str = Field(description="Append-only file: `on`, `off` or `unknown`.")
    fsync: str = Field(description="When it reaches the disk: `always`, `everysec`, `no` or `unknown`.")
    snapshots: str = Field(description="The last snapshot's state, as the server gives it.")
    eviction_policy: str = Field(description="`noeviction` keeps what it is given.")
    maxmemory: int = Field(description="Bytes; 0 for no limit; the least.")
    advice: list[str] = Field(description="What to change, one sentence each; empty when all is well.")


async def health(deployment: Deployment) -> Health:
    """Ask the servers. Cost: one INFO and one CONFIG GET to each master, and five PINGs.

    Raises:
        MemoryUnavailable: one is not reached within the deadline.
    """
    await deployment.open()
    loop = asyncio.get_running_loop()
    times = []
    for _ in range(PINGS):
        started = loop.time()
        with suppress(ServerRefused):  # a refusal takes a round trip too
            await deployment.call("health", "PING")
        times.append(loop.time() - started)
    infos = [_parse(raw) for raw in await _ask(deployment, "INFO")]
    syncs = [_setting(raw) for raw in await _ask(deployment, "CONFIG", "GET", "appendfsync")]
    aof = _worst(infos, "aof_enabled", "01", {"1": "on", "0": "off"})
    fsync = next((sync for sync in ("no", "everysec", "unknown", "always") if sync in syncs), "unknown")
    policies = [info.get("maxmemory_policy", "unknown") for info in infos]
    policy = next((policy for policy in policies if policy != "noeviction"), "noeviction")
    first = infos[0]
    own = first.get("redis_mode", first.get("server_mode", "unknown"))
    return Health(
        endpoint=deployment.endpoint,
        topology=own if deployment.topology == "standalone" else deployment.topology,
        server="valkey" if "valkey_version" in first else "redis" if first else "unknown",
        version=min((_version(info) for info in infos), key=_order),
        role=_worst(infos, "role", ("slave", "master")),
        masters=len(infos),
        replicas=sum(int(info.get("connected_slaves", "0")) for info in infos),
        latency_ms=round(1000 * sorted(times)[PINGS // 2], 3),
        aof=aof,
        fsync=fsync,
        snapshots=_worst(infos, "rdb_last_bgsave_status", ("err", "ok")),
        eviction_policy=policy,
        maxmemory=min((limit for info in infos if (limit := int(info.get("maxmemory", "0")))), default=0),
        advice=_advice(aof, fsync, policy, infos),
    )


async def _ask(deployment: Deployment, *command: str) -> list[Any]:
    try:
        return await deployment.call_everywhere("health", *command)
    except ServerRefused:
        return [b""]


def _advice(aof: str, fsync: str, policy: str, infos: Sequence[dict[str, str]]) -> list[str]:
    advice = []
    if aof == "off":
        advice.append("Turn the append-only file on (appendonly yes): without it a restart loses turns.")
    elif aof == "on" and fsync in ("no", "everysec"):
        span = "the last second" if fsync == "everysec" else "what the system has not written yet"
        advice.append(
            f"The append-only file reaches the disk by appendfsync {fsync}: a machine that fails loses {span}, unless "
            "a replica has it (min_replicas); appendfsync always loses nothing and waits for the disk at each write."
        )
    if any(info.get("aof_last_write_status") == "err" for info in infos):
        advice.append("The append-only file cannot be written: check the disk.")
    if policy not in ("noeviction", "unknown"):
        advice.append(
            f"The eviction policy {policy} may drop conversations, operation ids and tombstones under pressure, and "
            "with them the promise that a turn is stored once: use noeviction."
        )
    if any(info.get("role") == "slave" for info in infos):
        advice.append("This is a replica and takes no writes: connect to the master.")
    if len(infos) > 1 and any(info.get("connected_slaves") == "0" for info in infos):
        advice.append("A master of the cluster has no replica: what it serves is away while it is down; add one.")
    if not all(infos):
        advice.append("This user may not run INFO: grant it to see the server's state.")
    return advice


def _worst(
    infos: Sequence[dict[str, str]], name: str, order: Sequence[str], words: dict[str, str] | None = None
) -> str:
    """The worst value of a field, by an order from the worst on; one that is not in it is passed on."""
    values = [info.get(name, "unknown") for info in infos]
    value = next((value for value in (*order, *values) if value in values), "unknown")
    return value if words is None else words.get(value, "unknown")


def _version(info: dict[str, str]) -> str:
    return info.get("valkey_version", info.get("redis_version", "unknown"))


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))


def _setting(raw: Any) -> str:
    """The value in a reply to CONFIG GET: a map in version 3 of the protocol, a list in version 2."""
    values = list(raw.values()) if isinstance(raw, dict) else raw[1::2]
    return values[0].decode() if values else "unknown"


def _parse(raw: Any) -> dict[str, str]:
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line and not line.startswith("#"))
    return {name: value.strip() for name, value in pairs}
