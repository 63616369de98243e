"""Spans and metrics through the OpenTelemetry API; without an SDK they are no-ops.

Names follow the semantic conventions for database clients. No attribute ever holds content, an id of a scope, or a
key: they would leak, and their cardinality would drown a metrics store.
"""

from __future__ import annotations

from time import perf_counter
from types import TracebackType
from typing import Self

from opentelemetry import metrics, trace
from opentelemetry.trace import SpanKind, Status, StatusCode

NAME = "symfonic_redis"

_tracer = trace.get_tracer(NAME)
_meter = metrics.get_meter(NAME)

_duration = _meter.create_histogram(
    "db.client.operation.duration", unit="s", description="Time of one call, retries included."
)
turns_pushed = _meter.create_counter("symfonic.turns.pushed", unit="{turn}", description="Turns stored.")
turns_evicted = _meter.create_counter("symfonic.turns.evicted", unit="{turn}", description="Turns out of the window.")
duplicates = _meter.create_counter(
    "symfonic.duplicates", unit="{write}", description="Writes that had been applied before."
)
retries = _meter.create_counter("symfonic.retries", unit="{attempt}", description="Attempts after the first.")
rows_damaged = _meter.create_counter("symfonic.rows.damaged", unit="{row}", description="Rows skipped on reading.")
windows_degraded = _meter.create_counter(
    "symfonic.windows.degraded", unit="{prompt}", description="Prompts without their recency block."
)
summaries_degraded = _meter.create_counter(
    "symfonic.summaries.degraded", unit="{summary}", description="Summaries that are not what was asked for."
)
pushes_queued = _meter.create_counter(
    "symfonic.pushes.queued", unit="{push}", description="Pushes that waited in a worker while the server was away."
)
pushes_replayed = _meter.create_counter(
    "symfonic.pushes.replayed", unit="{push}", description="Pushes that had waited and are stored now."
)
pushes_lost = _meter.create_counter(
    "symfonic.pushes.lost", unit="{push}", description="Pushes that waited and were given up."
)
windows_stale = _meter.create_counter(
    "symfonic.windows.stale", unit="{read}", description="Windows served as they were last read."
)
windows_found = _meter.create_counter(
    "symfonic.windows.hits", unit="{read}", description="Tracked windows served without a round trip."
)
windows_missed = _meter.create_counter(
    "symfonic.windows.misses", unit="{read}", description="Tracked reads that asked the server."
)
windows_invalidated = _meter.create_counter(
    "symfonic.windows.invalidations", unit="{change}", description="Changes of tracked windows that a server told of."
)
window_length = _meter.create_histogram("symfonic.window.length", unit="{turn}", description="Window after a push.")
mirror_length = _meter.create_histogram("symfonic.mirror.length", unit="{node}", description="Mirror after a push.")


class Operation:
    """One call as a span and a duration: `with Operation("push", attributes): ...`.

    Args:
        name: what is done, such as `push`.
        attributes: of the deployment, such as `server.address`; shared by spans and metrics, never changed.
    """

    __slots__ = ("_attributes", "_current", "_name", "_span", "_started")

    def __init__(self, name: str, attributes: dict[str, str | int]) -> None:
        self._name = name
        self._attributes = {**attributes, "db.operation.name": name}

    def __enter__(self) -> Self:
        self._started = perf_counter()
        self._span = _tracer.start_span(self._name, kind=SpanKind.CLIENT, attributes=self._attributes)
        # Only a span that somebody records is made current: attaching a context costs more than all the rest.
        self._current = None
        if self._span.is_recording():
            self._current = trace.use_span(self._span, record_exception=False, set_status_on_exception=False)
            self._current.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        attributes = self._attributes
        if kind is not None:
            # The class alone: messages hold no content, but a span is no place to rely on that.
            attributes["error.type"] = kind.__qualname__
            self._span.set_attribute("error.type", kind.__qualname__)
            self._span.set_status(Status(StatusCode.ERROR))
        if self._current is not None:
            self._current.__exit__(None, None, None)
        self._span.end()
        _duration.record(perf_counter() - self._started, attributes)
