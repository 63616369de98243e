"""How much a run does."""

from __future__ import annotations

from typing import NamedTuple


class Profile(NamedTuple):
    """Numbers of a run.

    Attributes:
        blocks: how often each contender has its turn; figures are medians over them.
        calls: calls of a block.
        payload: bytes of a turn's text.
        tasks: concurrent tasks of a crowd; `each` appends of each of them in a block.
        writers: writers on one conversation in a storm; `storm_each` appends of each, `storm_blocks` times.
        conversations: how many are on the servers that are compared.
        windows, payloads, workers: cases.
        footprint: conversations of which the memory is measured; of each peer `peer_footprint`.
        ceiling: requests of redis-benchmark.
    """

    blocks: int
    calls: int
    tasks: int
    each: int
    writers: int
    storm_each: int
    storm_blocks: int
    conversations: tuple[int, ...]
    windows: tuple[int, ...]
    payloads: tuple[int, ...]
    workers: tuple[int, ...]
    footprint: int
    peer_footprint: int
    ceiling: int
    payload: int = 300


PROFILES = {
    # Shows that all parts work; its figures mean nothing.
    "smoke": Profile(2, 10, 4, 3, 4, 3, 1, (1, 50), (10,), (100,), (1, 2), 50, 10, 500),
    # At most about ten minutes on two cores.
    "short": Profile(
        15,
        100,
        64,
        10,
        16,
        10,
        3,
        (1, 1_000, 1_000_000),
        (10, 100, 1_000),
        (100, 1_000, 10_000, 100_000),
        (1, 4, 16),
        5_000,
        200,
        30_000,
    ),
    "long": Profile(
        60,
        300,
        64,
        30,
        16,
        20,
        7,
        (1, 1_000, 30_000, 1_000_000),
        (10, 30, 100, 300, 1_000),
        (100, 300, 1_000, 10_000, 100_000),
        (1, 2, 4, 8, 16),
        20_000,
        1_000,
        100_000,
    ),
}
