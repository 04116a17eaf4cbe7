"""The process itself: memory, processor time and descriptors, by the names that all Prometheus clients give.

This module imports prometheus-client, which takes longer than a start of the broker may: only the first
scrape imports it, off the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector

from geminga.admin.metrics.figures import Figure

_COLLECTOR = ProcessCollector(registry=CollectorRegistry())


def process_figures() -> Iterator[Figure]:
    """Reads a few files of /proc; nothing where there is none."""
    for metric in _COLLECTOR.collect():
        for sample in metric.samples:
            yield Figure(
                sample.name, metric.documentation, [(dict(sample.labels), sample.value)], metric.type
            )
