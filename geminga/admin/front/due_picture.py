"""Delayed messages by due time, as bars. Pure."""

from __future__ import annotations

from typing import Final

from geminga.admin.front.markup import count_text, counted, span_text
from geminga.admin.front.overview import DueTimes

HEIGHT: Final = 100
BARS: Final = 60
FAR_TIMES: Final = 4
"""So many times the span of nearly all messages is far."""
FAR_SHARE: Final = 0.02
"""Of the messages, or one: at most so many are left out of the bars."""


def due_picture(due: DueTimes, now_ms: int) -> str:
    """Bars of equal spans from now to the last due time, or to that of nearly all where the few others are
    due far later; those are told in words. A message that is due already counts in the first bar. The picture
    stretches to the width that there is, so its words are beside it, not in it.
    """
    last_ms = max(due.classes[-1][0] + due.width_ms, now_ms + due.width_ms)
    end_ms, later = _end_of_nearly_all(due, now_ms)
    # Else the far ones would squeeze all others into the first bar.
    if last_ms - now_ms < FAR_TIMES * (end_ms - now_ms):
        end_ms, later = last_ms, 0
    span_ms = max(1, -(-(end_ms - now_ms) // BARS))
    bars = [0] * BARS
    for begin_ms, messages in due.classes:
        if begin_ms >= end_ms:
            break
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
    far = f"; {count_text(later)} more due later, within {span_text(last_ms - now_ms)}" if later else ""
    return (
        f'<figure><figcaption class="note">the highest bar: {counted(highest, "message")}{far}</figcaption>'
        f'<svg viewBox="0 0 {BARS} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="Delayed messages by due time">{"".join(drawn)}</svg>'
        f'<div class="axis">{ticks}</div></figure>'
    )


def _end_of_nearly_all(due: DueTimes, now_ms: int) -> tuple[int, int]:
    """The end of the bars without the few latest messages, and how many those are."""
    left = max(1, int(sum(messages for _, messages in due.classes) * FAR_SHARE))
    later, end_ms = 0, due.classes[-1][0] + due.width_ms
    for begin_ms, messages in reversed(due.classes):
        if later + messages > left:
            end_ms = begin_ms + due.width_ms
            break
        later += messages
    return max(end_ms, now_ms + due.width_ms), later
