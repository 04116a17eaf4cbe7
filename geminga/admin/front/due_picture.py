"""Delayed messages by due time, as a small SVG of bars. Pure."""

from __future__ import annotations

from typing import Final

from geminga.admin.front.overview import DueTimes

WIDTH: Final = 720
HEIGHT: Final = 120
BARS: Final = 60
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def due_picture(due: DueTimes, now_ms: int) -> str:
    """Bars of equal spans from now to the last due time. A message that is due already counts in the first
    bar.
    """
    end_ms = max(due.classes[-1][0] + due.width_ms, now_ms + due.width_ms)
    span_ms = max(1, -(-(end_ms - now_ms) // BARS))
    bars = [0] * BARS
    for begin_ms, messages in due.classes:
        # A class counts where its middle is.
        at = (begin_ms + due.width_ms // 2 - now_ms) // span_ms
        bars[min(max(at, 0), BARS - 1)] += messages
    highest = max(bars)
    step = WIDTH / BARS
    drawn = []
    for number, messages in enumerate(bars):
        if messages:
            height = max(1.0, messages / highest * HEIGHT)
            from_text, to_text = span_text(number * span_ms), span_text((number + 1) * span_ms)
            drawn.append(
                f'<rect x="{number * step:.1f}" y="{HEIGHT - height:.1f}" width="{step - 1:.1f}" '
                f'height="{height:.1f}"><title>{messages} messages are due in {from_text} to {to_text}'
                "</title></rect>"
            )
    labels = []
    for share, anchor in ((0.0, "start"), (0.25, "middle"), (0.5, "middle"), (0.75, "middle"), (1.0, "end")):
        text = "now" if not share else f"in {span_text(round((end_ms - now_ms) * share))}"
        labels.append(f'<text x="{WIDTH * share:.0f}" y="{HEIGHT + 16}" text-anchor="{anchor}">{text}</text>')
    return (
        f'<svg viewBox="0 -14 {WIDTH} {HEIGHT + 36}" role="img" aria-label="Delayed messages by due time">'
        f'<text x="0" y="-3">{highest} messages</text>'
        f'<path d="M0 {HEIGHT}H{WIDTH}"/>{"".join(drawn)}{"".join(labels)}</svg>'
    )


def span_text(span_ms: int) -> str:
    """`45 s`, `1.5 h`, `30 d`"""
    for unit_ms, name in _UNITS:
        if span_ms >= unit_ms:
            return f"{span_ms / unit_ms:.1f}".removesuffix(".0") + f" {name}"
    return f"{span_ms} ms"
