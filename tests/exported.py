"""What a test's calls export as spans and metrics."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from unittest import mock

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from symfonic_redis import telemetry


class Seen:
    """What was exported."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.traces = TracerProvider()
        self.traces.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meters = MeterProvider([self._reader])

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if name in (None, span.name)]

    def points(self, name: str) -> list:
        data = self._reader.get_metrics_data()
        found = [
            metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
        ]
        return [point for metric in found for point in metric.data.data_points]

    def total(self, name: str, **attributes: object) -> float:
        """The sum of a counter, or of what a histogram recorded, over the points with these attributes."""
        wanted = {key.replace("_", "."): value for key, value in attributes.items()}.items()
        points = [point for point in self.points(name) if wanted <= dict(point.attributes).items()]
        return sum(point.value if hasattr(point, "value") else point.sum for point in points)

    def count(self, name: str, **attributes: object) -> int:
        wanted = {key.replace("_", "."): value for key, value in attributes.items()}.items()
        return sum(point.count for point in self.points(name) if wanted <= dict(point.attributes).items())

    def everything(self) -> str:
        data = self._reader.get_metrics_data()
        return "\n".join([*(span.to_json() for span in self.spans()), data.to_json() if data else ""])


@contextlib.contextmanager
def exported() -> Iterator[Seen]:
    """Providers of one test alone: the API lets a process set its own only once, so the module is loaded anew."""
    seen = Seen()
    before = dict(vars(telemetry))
    with (
        mock.patch.object(trace, "get_tracer", seen.traces.get_tracer),
        mock.patch.object(metrics, "get_meter", seen.meters.get_meter),
    ):
        importlib.reload(telemetry)
    yield seen
    # What was there: other tests may have imported an instrument by its name.
    vars(telemetry).update(before)
    seen.traces.shutdown()
    seen.meters.shutdown()
