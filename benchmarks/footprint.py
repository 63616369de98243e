"""Memory of the server for a conversation of ten turns, over the length of its encoded rows plus 600 B."""

from __future__ import annotations

from blocks import Row
from contenders import Contender, SilentError
from environments import TTL
from observed import Observer
from stage import FULL, OURS, Stage
from symfonic_layer import Peer

from symfonic_redis.rows import encode_entry
from symfonic_redis.sealing import PLAIN

TURNS = 10
SIZE = 300
ALLOWED = 600
"""Bytes of a conversation beyond its rows: its keys, its place in the index, its expiries."""

REST = "at rest"
AT_ONCE = 20
SHORT = 1.0
"""A deadline in seconds: the server soon forgets the operation ids, and what stays is measured."""

YARDSTICK = f"rows + {ALLOWED} B"


async def run(stage: Stage) -> list[Row]:
    observer = await stage.server()
    url, profile = observer.url, stage.profile
    brief = {"options": {"deadline": SHORT}}
    own = [
        ("mirror off", REST, {"ttl": TTL, **brief}),
        ("mirror off", "within a minute of its turns", {"ttl": TTL}),
        ("mirror on", REST, {**FULL, **brief}),
        ("mirror and feed", REST, {**FULL, **brief, "feed": 1_000}),
    ]
    allowed = TURNS * row_size() + ALLOWED
    rows = []
    for number, (name, case, options) in enumerate(own):
        one = await stage.local(f"{OURS}, {name}", "symfonic_layer", url, prefix=f"m{number}", **options)
        used = await of_conversations(observer, one, profile.footprint, rest=case == REST)
        rows.append(_row(case, one.name, used, allowed))
    for peer in await stage.peers(url):
        try:
            used = await of_conversations(observer, peer, profile.peer_footprint, rest=True)
        except SilentError as error:
            print(f"  left out: {error}", flush=True)
            continue
        rows.append(_row(REST, peer.name, used, allowed))
    return sorted(rows, key=lambda row: row.case)  # equal cases stay in order


async def of_conversations(observer: Observer, one: Contender, count: int, *, rest: bool) -> float:
    """Bytes of the server for each of `count` conversations."""
    await one.ask("append", conversation="first", count=1, size=SIZE)  # the script, and what exists but once
    await observer.flush()
    await one.ask("append", conversation="second", count=1, size=SIZE)
    before = await observer.memory_at_rest() if rest else await observer.memory()
    for start in range(0, count, AT_ONCE):
        names = [f"{one.name}{number:06d}" for number in range(start, min(start + AT_ONCE, count))]
        await one.ask("storm", conversations=names, each=TURNS, size=SIZE)
    after = await observer.memory_at_rest() if rest else await observer.memory()
    return (after - before) / count


def row_size() -> int:
    """Bytes of a turn of this measure, encoded."""
    message = Peer.message(None, "w0.0 " + "x" * (SIZE - 5))  # type: ignore[arg-type]  # it needs no self
    return len(encode_entry(message, limit=1 << 20, seal=PLAIN))


def _row(case: str, contender: str, used: float, allowed: float) -> Row:
    return Row(
        "memory",
        f"conversation of {TURNS} turns of {SIZE} B, {case}",
        contender,
        "memory",
        YARDSTICK,
        used / allowed,
        used / allowed,
        used / allowed,
        memory=used / TURNS,
        note=f"{used:.0f} B a conversation",
    )
