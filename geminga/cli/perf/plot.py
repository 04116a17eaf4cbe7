"""The samples of `geminga perf tail` and `catch-up` as a picture."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from geminga.cli.perf.course import Course

PLACES = (
    ("tail_bytes", "tail cache", "#4c9f70"),
    ("write_cache_bytes", "write cache", "#3b73b9"),
    ("read_cache_bytes", "read cache", "#e0a030"),
    ("log_bytes", "entry logs", "#c0392b"),
)
UNPLACED = ("unplaced_bytes", "bookie", "#8e6fb5")
MB = 1e6


def missing() -> str:
    """Why nothing can be drawn; empty if it can."""
    if importlib.util.find_spec("matplotlib") is None:
        return f"--png needs matplotlib (geminga[plot]): {sys.executable} -m pip install matplotlib"
    return ""


def draw(course: Course, path: Path, title: str, *, has_places: bool) -> None:
    """Write a PNG: both rates, where reads found their entries, and how many reads came to the bookie and to
    the disk; not `has_places`: the broker does not tell one place in its bookie from another.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    samples = course.samples
    times = [sample.at_s for sample in samples]

    def rates(values: list[float]) -> list[float]:
        return [value / sample.seconds for value, sample in zip(values, samples, strict=True)]

    figure, (above, middle, below) = pyplot.subplots(
        3, 1, figsize=(8, 8.5), sharex=True, height_ratios=(3, 3, 2), layout="constrained"
    )
    figure.suptitle(title)
    above.plot(times, rates([s.published_bytes / MB for s in samples]), label="published", color="#555555")
    above.plot(
        times,
        rates([s.consumed_bytes / MB for s in samples]),
        label="consumed",
        color="#4c9f70",
        linestyle="--",
    )
    above.set_ylabel("MB/s, of the client")
    places = PLACES if has_places else (PLACES[0], UNPLACED)
    stacks = [rates([getattr(s.served, name) / MB for s in samples]) for name, _, _ in places]
    middle.stackplot(
        times,
        stacks,
        labels=[f"from {place}" for _, place, _ in places],
        colors=[colour for _, _, colour in places],
    )
    middle.set_ylabel("MB/s, of the broker")
    below.plot(
        times,
        rates([s.served.bookie_entries for s in samples]),
        label="entries read from the bookie",
        color="#3b73b9",
    )
    if has_places:
        below.plot(
            times,
            rates([s.served.log_loads for s in samples]),
            label="reads from files, with read-ahead",
            color="#c0392b",
        )
    below.set_ylabel("a second")
    below.set_xlabel("seconds")
    for axes in (above, middle, below):
        # Room for the legend over the curves; something to see where all is 0.
        axes.set_ylim(0, max(1.4 * axes.get_ylim()[1], 1.0))
        axes.set_xlim(0, times[-1])
        axes.grid(alpha=0.3)
        if course.consuming_from_s:
            axes.axvline(course.consuming_from_s, color="#999999", linestyle=":")
        axes.legend(loc="upper left", fontsize="small")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
