"""What a cursor tells about itself, for the admin API, the metrics, and tests."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from geminga.position import Position


class CursorStatistics(msgspec.Struct, frozen=True):
    mark_delete: Position
    read_position: Position
    backlog_entries: int
    acknowledged_ranges: list[tuple[int, int, int]]
    """(ledger, first entry, last entry) beyond mark-delete, ascending."""
    cursor_ledger_id: int
    """-1: nothing was written yet, the metadata record holds the mark-delete position."""
    cursor_ledger_last_entry_id: int
    ledger_switched_ms: int
    entries_after_first_unacknowledged: int
    """Entries between mark-delete and the read position, acknowledged or not."""
    durable: bool
    properties: Mapping[str, int]

    @property
    def individually_deleted_messages(self) -> str:
        """Pulsar's notation: half-open from below, `[(3:1..3:4],(3:6..3:7]]` for entries 2-4 and 7."""
        parts = (
            f"({ledger}:{first - 1}..{ledger}:{last}]" for ledger, first, last in self.acknowledged_ranges
        )
        return f"[{','.join(parts)}]"
