"""Delayed messages by due time, as bars. Pure."""

from __future__ import annotations

from typing import Final

from geminga.admin.front.markup import counted, span_text
from geminga.admin.front.overview import DueTimes

HEIGHT: Final = 100
BARS: Final = 60


def due_picture(due: DueTimes, now_ms: int) -> str:
    """Bars of equal spans from now to the last due time. A message that is due already counts in the first
    bar. The picture stretches to the width that there is, so its words are beside it, not in it.
    """
    end_ms = max(due.classes[-1][0] + due.width_ms, now_ms + due.width_ms)
    span_ms = max(1, -(-(end_ms - now_ms) // BARS))
    bars = [0] * BARS
    for begin_ms, messages in due.classes:
        # A class counts where its middle is.
        at = (begin_ms + due.width_ms // 2 - now_ms) // span_ms
        bars[min(max(at, 0), BARS - 1)] += messages
    highest = max(bars)
    drawn = []
    for number, messages in enumerate(bars):
        if messages:
            height = max(1.0, messages / highest * HEIGHT)
            from_text, to_text = span_text(number * span_ms), span_text((number + 1) * span_ms)
            verb = "is" if messages == 1 else "are"
            drawn.append(
                f'<rect x="{number}" y="{HEIGHT - height:.1f}" width=".9" height="{height:.1f}">'
                f"<title>{counted(messages, 'message')} {verb} due in {from_text} to {to_text}</title></rect>"
            )
    ticks = "".join(
        f"<span>{'now' if not share else 'in ' + span_text(round((end_ms - now_ms) * share))}</span>"
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    return (
        f'<figure><figcaption class="note">the highest bar: {counted(highest, "message")}</figcaption>'
        f'<svg viewBox="0 0 {BARS} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="Delayed messages by due time">{"".join(drawn)}</svg>'
        f'<div class="axis">{ticks}</div></figure>'
    )
