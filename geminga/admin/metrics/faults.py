"""Faults that are injected on purpose: nothing without `--chaos`, or before the first rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from geminga.admin.metrics.figures import Figure

Counts = Sequence[tuple[str, str, int]]


def fault_figures(in_force: Counts, hits: Counts) -> Iterator[Figure]:
    """Both by place and kind."""
    if in_force:
        yield Figure("geminga_fault_rules", "Rules of faults that are in force", _samples(in_force))
    if hits:
        text = "Operations that a rule of faults has hit"
        yield Figure("geminga_fault_hits_total", text, _samples(hits), "counter")


def _samples(counts: Counts) -> list[tuple[dict[str, str], float]]:
    return [({"place": place, "kind": kind}, float(count)) for place, kind, count in counts]
