"""Windows that a worker keeps, and until when they may be served. A plain data structure: no server, no clock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import inf

from symfonic_redis.drafts import Draft

WINDOW_BYTES = 800
"""What a window takes besides its rows, about."""

ROW_BYTES = 900
"""What a row takes besides twice its own length, about: once as it is stored, once as an entry's attributes."""


class Source:
    """A connection over which a server says what it has changed.

    Attributes:
        trusted: the time until which what was read over it may be served.
    """

    __slots__ = ("trusted",)

    def __init__(self) -> None:
        self.trusted = -inf


class Load:
    """A read under way. It is worth keeping only while nothing was said of its key since it was sent."""

    __slots__ = ("key", "length", "sent", "source")

    def __init__(self, source: Source, key: str, length: int, sent: float) -> None:
        self.source, self.key, self.length, self.sent = source, key, length, sent


class Window:
    """Rows as they were read.

    Attributes:
        rows: newest first.
        length: how many were asked for; fewer rows are the whole list.
        ends: the time at which the server lets the list expire.
        source: the connection it was read over.
        drafts: the same as entries to be copied, oldest first, once somebody has decoded them.
        weight: what it takes in memory, about, in bytes.
    """

    __slots__ = ("drafts", "ends", "length", "rows", "source", "weight")

    def __init__(self, load: Load, rows: list[bytes], ends: float) -> None:
        self.rows, self.length, self.ends, self.source = rows, load.length, ends, load.source
        self.drafts: list[Draft] | None = None
        self.weight = WINDOW_BYTES + sum(2 * len(row) + ROW_BYTES for row in rows)


class Windows:
    """Windows by their key, those read longest ago given up first.

    Args:
        most: windows.
        most_bytes: what they may take, about.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, Window] = OrderedDict()
        self._loads: dict[str, list[Load]] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: str, length: int, now: float) -> Window | None:
        """A window that has the newest `length` rows and may be served now."""
        window = self._kept.get(key)
        # One whose source is silent stays: it is right again when the source is heard.
        if window is None or now >= window.source.trusted or length > window.length == len(window.rows):
            return None
        if now >= window.ends:
            self._remove(key)
            return None
        self._kept.move_to_end(key)
        return window

    def begin(self, source: Source, key: str, length: int, now: float) -> Load:
        """Note that a read is sent now; `settle` or `abandon` must follow."""
        load = Load(source, key, length, now)
        self._loads.setdefault(key, []).append(load)
        return load

    def settle(self, load: Load, rows: list[bytes], ttl: int) -> None:
        """Keep what was read, unless its key was changed since the read was sent.

        Args:
            load: the read.
            rows: its rows.
            ttl: what PTTL said behind it: milliseconds, -1 for ever, -2 for a list that is not there.
        """
        if not self.abandon(load) or (rows and ttl == -2):  # noqa: PLR2004 - as the server says it
            return
        window = Window(load, rows, inf if ttl < 0 else load.sent + ttl / 1000)
        self._remove(load.key)
        if window.weight > self._most_bytes:
            return
        self._kept[load.key] = window
        self.bytes += window.weight
        while len(self._kept) > self._most or self.bytes > self._most_bytes:
            self._remove(next(iter(self._kept)))

    def abandon(self, load: Load) -> bool:
        """Note that a read is over; return whether what it brought may be kept."""
        loads = self._loads.get(load.key)
        if loads is None or load not in loads:
            return False
        loads.remove(load)
        if not loads:
            del self._loads[load.key]
        return True

    def evict(self, keys: Sequence[str]) -> None:
        """Forget the windows of keys that were changed, or are about to be, also those that are being read."""
        for key in keys:
            self._remove(key)
            self._loads.pop(key, None)

    def drop(self, source: Source) -> None:
        """Forget all that was read over a connection, or is being read."""
        for key in [key for key, window in self._kept.items() if window.source is source]:
            self._remove(key)
        for key in [key for key, loads in self._loads.items() if loads[0].source is source]:
            del self._loads[key]

    def _remove(self, key: str) -> None:
        window = self._kept.pop(key, None)
        if window is not None:
            self.bytes -= window.weight
