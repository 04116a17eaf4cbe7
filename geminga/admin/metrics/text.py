"""The two formats of a page: Prometheus' text format 0.0.4, and OpenMetrics 1.0.

The samples are written alike, so a dashboard finds the same names whichever a scraper asks for. The heads
differ. OpenMetrics has a counter's name without the `_total` of its samples; a counter without that ending is
none there. Pulsar declares all of its counters as gauges, so Geminga does in 0.0.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

PULSARS_COUNTERS: Final = frozenset(
    f"pulsar_{name}"
    for name in (
        "in_messages_total",
        "in_bytes_total",
        "out_messages_total",
        "out_bytes_total",
        "storage_backlog_quota_exceeded_evictions_total",
        "broker_in_bytes_total",
        "broker_out_bytes_total",
        "broker_storage_backlog_quota_exceeded_evictions_total",
        "ml_cache_inserted_entries_total",
        "ml_cache_evicted_entries_total",
    )
)
"""Gauges in the text format, as on the real broker."""
TOTAL: Final = "_total"


class Format(NamedTuple):
    is_open_metrics: bool

    @property
    def content_type(self) -> str:
        if self.is_open_metrics:
            return "application/openmetrics-text; version=1.0.0; charset=utf-8"
        return "text/plain; version=0.0.4; charset=utf-8"

    @property
    def end(self) -> str:
        return "# EOF\n" if self.is_open_metrics else ""

    def head(self, name: str, text: str, kind: str) -> str:
        """The HELP and the TYPE of a family."""
        described = text.replace("\\", "\\\\").replace("\n", "\\n")
        if self.is_open_metrics:
            described = described.replace('"', '\\"')
            if kind == "counter" or name in PULSARS_COUNTERS:
                kind = "counter" if name.endswith(TOTAL) else "gauge"
                name = name.removesuffix(TOTAL)
        return f"# HELP {name} {described}\n# TYPE {name} {kind}\n"


PLAIN: Final = Format(is_open_metrics=False)
OPEN_METRICS: Final = Format(is_open_metrics=True)


def line(name: str, labels: str, value: float) -> str:
    return f"{name}{{{labels}}} {number(value)}\n" if labels else f"{name} {number(value)}\n"


def number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


def labels_text(labels: Mapping[str, str]) -> str:
    """Without the braces."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
