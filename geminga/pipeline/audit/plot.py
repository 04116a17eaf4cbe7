"""An audit as a picture. Needs matplotlib (`geminga[plot]`)."""

from __future__ import annotations

import io
from collections import Counter
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from geminga.pipeline.audit.report import WRONG, Report

COLORS: Final = {
    "lost": "#b2182b",
    "duplicated": "#ef8a62",
    "reordered": "#c9a227",
    "early": "#67a9cf",
    "late": "#2166ac",
    "unknown": "#8c8c8c",
}
SUBSCRIPTIONS_MAX: Final = 10
"""With a line of their own: those that were delivered most."""
BAR: Final = timedelta(seconds=50)
BARS_MAX: Final = 300
"""Side by side in the width of the picture."""


def png_of(report: Report) -> bytes:
    """By minute, one below the other: deliveries, findings of all subscriptions, and how late 99 % came at
    most.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = report.minutes.to_pylist()
    figure, (above, middle, below) = pyplot.subplots(3, 1, figsize=(11, 9), sharex=True)
    for name in _largest(report.totals):
        own = [row for row in rows if (row["topic"], row["subscription"]) == name]
        minutes = [row["minute"] for row in own]
        label = f"{name[0].removeprefix('persistent://')}, {name[1] or 'no subscription'}"
        above.plot(minutes, [row["dispatched"] for row in own], label=label, marker=".")
        below.plot(minutes, [_late_ms(row) for row in own], label=label, marker=".")
    wrong = {what: Counter[datetime]() for what in WRONG}
    for row in rows:
        for what in WRONG:
            wrong[what][row["minute"]] += row[what]
    minutes = sorted({row["minute"] for row in rows})
    bottom = [0] * len(minutes)
    # Nearly a minute, and never too thin to be seen, as a minute of a year would be.
    width = max(BAR, (minutes[-1] - minutes[0]) / BARS_MAX) if minutes else BAR
    for what, counts in wrong.items():
        heights = [counts[minute] for minute in minutes]
        middle.bar(minutes, heights, width, bottom, color=COLORS[what], label=what)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    for panel in (above, middle, below):
        panel.set_ylim(bottom=0)
        if not panel.has_data() or panel.get_ylim()[1] < 1:
            panel.set_ylim(0, 1)
    above.set_ylabel("first deliveries")
    middle.set_ylabel("wrong")
    below.set_ylabel("99 % are at most so late, ms")
    middle.legend(ncol=len(WRONG), fontsize=8, loc="upper right")
    if above.lines:
        above.legend(fontsize=8)
    above.set_title(f"{report.wrong:,} positions are wrong" if report.wrong else "Nothing is wrong")
    figure.autofmt_xdate()
    figure.tight_layout()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    pyplot.close(figure)
    return picture.getvalue()


def _largest(totals: pa.Table) -> list[tuple[str, str]]:
    """None without a delivery: a line along the axis says nothing."""
    rows = sorted(totals.to_pylist(), key=lambda row: -row["dispatched"])
    rows = [row for row in rows if row["dispatched"]]
    return [(row["topic"], row["subscription"]) for row in rows[:SUBSCRIPTIONS_MAX]]


def _late_ms(row: dict[str, Any]) -> float:
    known = [row[name] for name in ("late_p99_ms", "wait_p99_ms") if row[name] is not None]
    return max(known, default=float("nan"))
