"""The tracker of one subscription that lives in memory alone."""

from __future__ import annotations

from geminga.clock import Clock
from geminga.tracker.index.index import DelayedIndex, IndexSettings
from geminga.tracker.index.view import View

TICK_MS = 1000
FIXED_DELAY_LOOKAHEAD = 50_000


def in_memory_tracker(
    clock: Clock,
    tick_ms: int = TICK_MS,
    strict: bool = False,
    fixed_delay_lookahead: int = FIXED_DELAY_LOOKAHEAD,
) -> View:
    """`tick_ms` is how early a message may be when not `strict`, and how precisely its time is kept."""
    settings = IndexSettings(tick_ms, strict, fixed_delay_lookahead=fixed_delay_lookahead)
    return View(DelayedIndex(clock, settings))
