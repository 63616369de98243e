"""Noise: contenders take turns in blocks, each time in another order, and are compared within a block.

A machine that is slow for a while is slow for all contenders of a block. So the ratio is taken block by block; the
figure is the median of these ratios, and its spread the quartiles.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from contenders import SilentError


class Block(NamedTuple):
    """What one contender did in one block; what was not measured is None.

    Attributes:
        seconds: of each call.
        per_second: calls a second.
        server_us: the server's time for one call.
        received, sent: bytes that the server got and gave for one call.
        cpu_us: microseconds that the client's process worked for one call.
    """

    seconds: Sequence[float] = ()
    per_second: float | None = None
    server_us: float | None = None
    received: float | None = None
    sent: float | None = None
    cpu_us: float | None = None

    @property
    def p50(self) -> float | None:
        return statistics.median(self.seconds) * 1e6 if self.seconds else None


class Row(NamedTuple):
    """One line of the results: a contender in a case of a measure.

    Attributes:
        measure, case, contender: what it is of.
        figure: what the ratio compares: `p50`, `throughput`, `server time`, `client time`, `memory` or `bytes`.
        against: which contender, or which case, is 1.
        ratio: the median over the blocks; `low` and `high` its quartiles.
        p50_us, p99_us, per_second, server_us, received, sent, memory, cpu_us: the absolute figures of this run, for a
            turn.
        note: what else there is to say.
    """

    measure: str
    case: str
    contender: str
    figure: str
    against: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    per_second: float | None = None
    server_us: float | None = None
    received: float | None = None
    sent: float | None = None
    memory: float | None = None
    cpu_us: float | None = None
    note: str = ""


_Key = TypeVar("_Key", bound=Any)


async def take_turns(
    contenders: Sequence[_Key], blocks: int, work: Callable[[_Key, int], Awaitable[Block]]
) -> dict[str, list[Block]]:
    """Let each contender do `work(contender, block)` in each block; block -1 is the warm-up, and not kept.

    Each has a `name`. One that fails is left out from there on, and that is printed.
    """
    done: dict[str, list[Block]] = {one.name: [] for one in contenders}
    out: set[str] = set()
    shuffle = random.Random(1).sample
    order = list(contenders)
    for number in range(-1, blocks):
        # Each order is followed by its reverse, so nobody always comes first, nor after the same one.
        order = order[::-1] if number % 2 == 0 else shuffle(order, len(order))
        for one in order:
            if one.name in out:
                continue
            try:
                block = await work(one, number)
            except SilentError as error:
                print(f"  left out: {error}", flush=True)
                out.add(one.name)
                continue
            if number >= 0:
                done[one.name].append(block)
    return {name: found for name, found in done.items() if name not in out}


def ratio(ours: Iterable[float | None], theirs: Iterable[float | None]) -> tuple[float, float, float] | tuple[()]:
    """Median and quartiles of the ratios block by block; nothing when there are none."""
    # A server's clock may show nothing at all in a short block.
    found = sorted(a / b for a, b in zip(ours, theirs, strict=False) if a is not None and b)
    if not found:
        return ()
    if len(found) == 1:
        return found[0], found[0], found[0]
    low, middle, high = statistics.quantiles(found, n=4, method="inclusive")
    return middle, low, high


def figure_of(block: Block, figure: str) -> float | None:
    """A block's figure under its name in `Row.figure`."""
    received, sent = block.received, block.sent
    return {
        "p50": block.p50,
        "throughput": block.per_second,
        "server time": block.server_us,
        "client time": block.cpu_us,
        "bytes": None if received is None or sent is None else received + sent,
    }[figure]


def row(
    measure: str,
    case: str,
    contender: str,
    blocks: Sequence[Block],
    floor: Sequence[Block],
    *,
    figure: str,
    against: str,
    note: str = "",
) -> Row:
    """A contender's blocks as a line of the results, over the blocks of `against`."""
    found = ratio((figure_of(block, figure) for block in blocks), (figure_of(block, figure) for block in floor))
    seconds = sorted(second for block in blocks for second in block.seconds)
    return Row(
        measure,
        case,
        contender,
        figure,
        against,
        *(found or (None, None, None)),
        p50_us=_median(block.p50 for block in blocks),
        p99_us=seconds[int(0.99 * (len(seconds) - 1))] * 1e6 if seconds else None,
        per_second=_median(block.per_second for block in blocks),
        server_us=_median(block.server_us for block in blocks),
        received=_median(block.received for block in blocks),
        sent=_median(block.sent for block in blocks),
        cpu_us=_median(block.cpu_us for block in blocks),
        note=note,
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
