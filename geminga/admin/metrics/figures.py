"""One metric of the process as a whole, with its samples: made by the modules here, and written by
`exposition.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from geminga.durations import Summary

Samples = Sequence[tuple[dict[str, str], float]]


class Figure(NamedTuple):
    """`kind` is Prometheus' type."""

    name: str
    help: str
    samples: Samples
    kind: str = "gauge"
    parts: Sequence[tuple[str, dict[str, str], float]] = ()
    """Samples whose name has an ending: `_count`, `_sum`, `_bucket`."""


def one(name: str, text: str, value: float, **labels: str) -> Figure:
    return Figure(name, text, [(labels, float(value))])


def counter(name: str, text: str, value: float, **labels: str) -> Figure:
    return Figure(name, text, [(labels, float(value))], "counter")


def summary(
    name: str, text: str, found: Summary, quantiles: Sequence[str], labels: dict[str, str] | None = None
) -> Figure:
    """In milliseconds."""
    labels = labels or {}
    return Figure(
        name,
        text,
        [({**labels, "quantile": each}, found.quantile_ms(float(each))) for each in quantiles],
        "summary",
        [("_count", labels, float(found.events)), ("_sum", labels, found.total_ms)],
    )


def histogram(name: str, text: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> Figure:
    """`counts` are not cumulative, and have one more for what is above all bounds."""
    buckets: list[tuple[str, dict[str, str], float]] = [
        ("_bucket", {"le": str(bound)}, float(count))
        for bound, count in zip([*map(float, bounds), "+Inf"], accumulate(counts), strict=True)
    ]
    whole: list[tuple[str, dict[str, str], float]] = [("_sum", {}, total), ("_count", {}, float(sum(counts)))]
    return Figure(name, text, [], "histogram", [*buckets, *whole])
