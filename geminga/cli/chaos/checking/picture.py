"""The course of a run as an SVG of three charts over one axis of time. Pure; needs no package."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from geminga.cli.chaos.checking.history import Doing, History
from geminga.cli.chaos.checking.lateness import firsts

WIDTH: Final = 860
LEFT: Final = 70
RIGHT: Final = 20
CHART: Final = 120
GAP: Final = 34
TOP: Final = 68
"""Above the first chart: three rows of numbers of marks, then its title and what its lines are."""
SLOTS: Final = 160
"""Of time: as many as can be told apart."""
MARKS_MAX: Final = 60
POINTS_SHOWN: Final = 40
_COLOURS: Final = ("#2f6fb3", "#c0562f", "#3f8f5f")
STYLE: Final = (
    "text{font:11px system-ui,sans-serif;fill:#4a5563}.grid{stroke:#dfe3e8}.axis{stroke:#8a94a0}"
    ".mark{stroke:#b3261e;stroke-dasharray:3 3}.event{stroke:#8a6fc0;stroke-dasharray:1 3}"
    ".line{fill:none;stroke-width:1.6}"
)


class Line(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]
    """(ms since the beginning, value)"""


class Chart(NamedTuple):
    title: str
    lines: Sequence[Line]


def picture(history: History) -> str:
    """Rates, what waits and in how many buckets, and lateness, with marks for what was done."""
    length_ms = max(history.ended_ms - history.began_ms, 1)
    charts = (
        Chart("messages a second", _rates(history, length_ms)),
        Chart("messages waiting", _waiting(history)),
        Chart("buckets", [Line("buckets", _course(history, "buckets"))]),
        Chart("late by, ms", _late(history, length_ms)),
    )
    height = TOP + len(charts) * (CHART + GAP) + 10
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="The course of the run"><style>{STYLE}</style>'
    ]
    drawn += [_marks(history, length_ms, len(charts))]
    for number, chart in enumerate(charts):
        drawn.append(_chart(chart, TOP + number * (CHART + GAP), length_ms))
    drawn.append("</svg>")
    return "".join(drawn)


def _rates(history: History, length_ms: int) -> list[Line]:
    confirmed = [one.receipt_ms for sent in history.sent for one in sent if one.receipt_ms]
    received = [one.at_ms for _, deliveries in history.subscriptions for one in deliveries]
    return [
        Line("confirmed", _per_second(confirmed, history.began_ms, length_ms)),
        Line("delivered", _per_second(received, history.began_ms, length_ms)),
    ]


def _per_second(times_ms: Sequence[int], began_ms: int, length_ms: int) -> list[tuple[float, float]]:
    slot_ms = max(length_ms / SLOTS, 50.0)
    counts = [0] * (math.ceil(length_ms / slot_ms) + 1)
    for at_ms in times_ms:
        counts[min(max(int((at_ms - began_ms) / slot_ms), 0), len(counts) - 1)] += 1
    return [((slot + 0.5) * slot_ms, count * 1000 / slot_ms) for slot, count in enumerate(counts[:-1])]


def _waiting(history: History) -> list[Line]:
    return [Line("backlog", _course(history, "backlog")), Line("delayed", _course(history, "delayed"))]


def _course(history: History, name: str) -> list[tuple[float, float]]:
    return [(sample.at_ms - history.began_ms, getattr(sample, name)) for sample in history.samples]


def _late(history: History, length_ms: int) -> list[Line]:
    slot_ms = max(length_ms / SLOTS, 50.0)
    slots: dict[int, list[int]] = {}
    for at_ms, late_ms, is_delayed in firsts(history):
        if is_delayed:
            slots.setdefault(int((at_ms - history.began_ms) / slot_ms), []).append(late_ms)
    found = [(slot, sorted(late)) for slot, late in sorted(slots.items())]
    return [
        Line("the latest", [((slot + 0.5) * slot_ms, late[-1]) for slot, late in found]),
        Line("median", [((slot + 0.5) * slot_ms, late[len(late) // 2]) for slot, late in found]),
    ]


def _x(at_ms: float, length_ms: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * min(max(at_ms / length_ms, 0.0), 1.0)


def _chart(chart: Chart, top: int, length_ms: int) -> str:
    highest = _round_up(max((y for line in chart.lines for _, y in line.points), default=0.0))
    bottom = top + CHART
    drawn = [f'<text x="{LEFT}" y="{top - 6}">{escape(chart.title)}</text>']
    for share in (0.0, 0.5, 1.0):
        y = bottom - CHART * share
        drawn.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{highest * share:,.6g}</text>')
    drawn.append(f'<path class="axis" d="M{LEFT} {bottom}H{WIDTH - RIGHT}"/>')
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, text = _x(length_ms * share, length_ms), f"{length_ms * share / 1000:.1f} s"
        drawn.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{text}</text>')
    for number, line in enumerate(chart.lines):
        colour = _COLOURS[number]
        at = LEFT + 160 + number * 110
        drawn.append(f'<path class="line" stroke="{colour}" d="M{at} {top - 10}h18"/>')
        drawn.append(f'<text x="{at + 22}" y="{top - 6}">{escape(line.name)}</text>')
        points = [(_x(x, length_ms), bottom - CHART * y / highest) for x, y in line.points]
        if points:
            course = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            drawn.append(f'<polyline class="line" stroke="{colour}" points="{course}"/>')
        if len(points) < POINTS_SHOWN:
            # A single point is no line, and a chart of few deliveries has only those.
            drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.6" fill="{colour}"/>' for x, y in points]
    return "".join(drawn)


def _round_up(value: float) -> float:
    """To 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    unit: float = 10.0 ** math.floor(math.log10(value))
    return next(unit * step for step in (1, 2, 5, 10) if unit * step >= value)


def shown_doings(history: History) -> list[Doing]:
    """What the picture marks, numbered from 1 in the report."""
    return history.doings[:MARKS_MAX]


def _marks(history: History, length_ms: int, charts: int) -> str:
    drawn = []
    before = -100.0
    row = 0
    for number, doing in enumerate(shown_doings(history), 1):
        x = _x(doing.at_ms - history.began_ms, length_ms)
        kind = "event" if doing.kind == "event" else "mark"
        # Numbers that would stand on each other take turns between three rows.
        row = (row + 1) % 3 if x - before < 16 else 0
        before = x
        title = f"<title>{escape(doing.text)}</title>"
        # Within the charts only: titles, and what a line means, stand between them.
        lines = "".join(f"M{x:.1f} {TOP + n * (CHART + GAP)}v{CHART}" for n in range(charts))
        drawn.append(f'<path class="{kind}" d="{lines}">{title}</path>')
        drawn.append(f'<text x="{x:.1f}" y="{TOP - 50 + row * 11}" text-anchor="middle">{number}</text>')
    return "".join(drawn)
