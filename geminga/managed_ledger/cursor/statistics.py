"""What a cursor tells about itself, for the admin API, the metrics, and tests."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final, NamedTuple

import msgspec

from geminga.managed_ledger.cursor.acknowledged import RANGES_AT_ONCE, Range
from geminga.position import EARLIEST, Position

RANGES_MAX: Final = 10_000
"""Ranges of acknowledged entries in one answer, of all cursors together: some 300 KB of text."""


class RangesAsked(NamedTuple):
    """Which ranges of acknowledged entries an answer about a topic lists."""

    ranges_max: int = RANGES_MAX
    of: str | None = None
    """A cursor; None: all of them, in their order, until there are `ranges_max`."""
    after: Position = EARLIEST


USUAL_RANGES: Final = RangesAsked()


class CursorStatistics(msgspec.Struct, frozen=True):
    mark_delete: Position
    read_position: Position
    is_at_end: bool
    """Whether no entry is left to read from there on."""
    backlog_entries: int
    acknowledged_ranges: list[Range]
    """Of the entries beyond mark-delete, ascending: those that were asked for."""
    ranges_left_out: int
    """Ranges behind these."""
    ranges_count: int
    """All that there are."""
    cursor_ledger_id: int
    """-1: nothing was written yet, the metadata record holds the mark-delete position."""
    cursor_ledger_last_entry_id: int
    ledger_switched_ms: int
    entries_after_first_unacknowledged: int
    """Entries between mark-delete and the read position, acknowledged or not."""
    durable: bool
    properties: Mapping[str, int]


def ranges_text(ranges: list[Range]) -> Generator[int, None, str]:
    """Pulsar's notation: half-open from below, `[(3:1..3:4],(3:6..3:7]]` for entries 2-4 and 7. Yields after
    `RANGES_AT_ONCE` how many it has written.
    """
    parts: list[str] = []
    for start in range(0, len(ranges), RANGES_AT_ONCE):
        some = ranges[start : start + RANGES_AT_ONCE]
        parts.append(",".join(f"({id_}:{first - 1}..{id_}:{last}]" for id_, first, last in some))
        yield len(some)
    return f"[{','.join(parts)}]"
