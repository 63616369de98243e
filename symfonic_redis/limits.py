"""How much goes in one write."""

from __future__ import annotations

from collections.abc import Sequence

from symfonic_redis.errors import InvalidInput

MAX_BATCH = 10_000
"""The most rows of one write. A script blocks the server while it runs."""

MAX_BATCH_BYTES = 64 << 20
"""The most bytes of one write, 64 MiB. A server drops a client whose query grows too long."""

MAX_CHANGED = 1_000
"""How many names of one node may ever be changed; lua/node_update.lua holds to it."""

HARD_CAP = 10
"""A feed may grow to so many times its cap while a relay has not acknowledged its entries."""


def check_batch(rows: Sequence[bytes]) -> None:
    """Refuse rows that are too many or too long for one write.

    Raises:
        InvalidInput: they are more than `MAX_BATCH`, or longer than `MAX_BATCH_BYTES`.
    """
    if len(rows) == 1 and len(rows[0]) <= MAX_BATCH_BYTES:
        return  # the usual one
    if len(rows) > MAX_BATCH or sum(map(len, rows)) > MAX_BATCH_BYTES:
        raise InvalidInput(
            f"a write holds {len(rows)} rows of {sum(map(len, rows))} bytes; at most {MAX_BATCH} rows and "
            f"{MAX_BATCH_BYTES} bytes go in one: split it"
        )
