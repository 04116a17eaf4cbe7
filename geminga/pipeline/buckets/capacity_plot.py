"""The capacity table as a picture. Needs matplotlib (`geminga[plot]`)."""

from __future__ import annotations

import io
from collections.abc import Callable

from geminga.limits import MIB
from geminga.pipeline.buckets.capacity import ARTICLE_MESSAGES, Row

SERIES: list[tuple[str, str, Callable[[Row], float | None]]] = [
    ("heap of triples (24 B each)", "#8c8c8c", lambda row: row.heap_bytes / MIB),
    ("article, measured at 10,000,000, scaled", "#c9a227", lambda row: _article_mib(row)),
    ("bitmaps, as the article counts them", "#5b8db8", lambda row: row.bitmap_bytes / MIB),
    ("bitmaps with runs", "#9cc3e0", lambda row: row.run_bytes / MIB),
    ("Geminga's buckets, exact to the millisecond", "#2a7f4f", lambda row: row.bucket_bytes / MIB),
]


def _article_mib(row: Row) -> float | None:
    return row.article[1] * row.plan.messages / ARTICLE_MESSAGES if row.article else None


def png_of(rows: list[Row]) -> bytes:
    """Bars on a logarithmic axis, a group for each row; the article's formula as a line across its group."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(max(8.0, 2.2 * len(rows) + 3), 6))
    width = 0.85 / len(SERIES)
    for number, (label, color, value_of) in enumerate(SERIES):
        for group, row in enumerate(rows):
            value = value_of(row)
            if value:
                left = group + (number - (len(SERIES) - 1) / 2) * width
                axes.bar(left, value, width * 0.94, color=color, label=label)
                text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
                axes.text(left, value * 1.08, text, ha="center", va="bottom", fontsize=7.5, rotation=90)
                label = ""
    for group, row in enumerate(rows):
        if (theory := row.theory_bytes) is not None:
            ends = [group - 0.44, group + 0.44]
            label = "formula of the article" if group == 0 else ""
            axes.plot(ends, [theory / MIB] * 2, color="black", linewidth=1.1, linestyle="--", label=label)
    axes.set_yscale("log")
    axes.set_ylabel("MiB")
    axes.set_ylim(top=axes.get_ylim()[1] * 5)
    names = [
        f"{r.plan.delays}\n{r.plan.per_ms:g} msg/ms, {1 << r.plan.bits:,} ms\n{r.plan.messages:,} messages"
        for r in rows
    ]
    axes.set_xticks(range(len(rows)), names)
    axes.set_title("What an index of delayed messages weighs")
    # Below, where it hides no bar.
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=3, fontsize=8)
    figure.tight_layout()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    pyplot.close(figure)
    return picture.getvalue()
