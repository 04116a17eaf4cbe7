"""What a managed ledger tells about itself: frozen structs for the admin API, the metrics, and tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from geminga.position import Position

if TYPE_CHECKING:
    from geminga.managed_ledger.appender import Appender
    from geminga.managed_ledger.chain_record import ChainRecord
    from geminga.managed_ledger.cursor import Cursor
    from geminga.managed_ledger.ledger_chain import LedgerChain
    from geminga.managed_ledger.ledger_reads import LedgerReads


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


class LedgerStatistics(msgspec.Struct, frozen=True):
    """As the admin API lists it: the ledger being written has 0 entries and bytes here."""

    ledger_id: int
    entries: int
    size_bytes: int
    closed_ms: int


class ManagedLedgerStatistics(msgspec.Struct, frozen=True):
    """The facts behind Pulsar's `internalStats`."""

    entries_added: int
    """Since the managed ledger was opened."""
    bytes_added: int
    number_of_entries: int
    total_size_bytes: int
    current_ledger_entries: int
    current_ledger_size_bytes: int
    last_ledger_created_ms: int
    pending_adds: int
    """Accepted and not yet durable, queued ones included."""
    last_confirmed: Position
    state: str
    ledgers: list[LedgerStatistics]
    cursors: Mapping[str, CursorStatistics]
    properties: Mapping[str, str]
    created_ms: int
    entries_read_from_cache: int
    entries_read_from_bookie: int
    bytes_read: int


def managed_ledger_statistics(
    chain: LedgerChain,
    appender: Appender,
    reads: LedgerReads,
    record: ChainRecord,
    cursors: Mapping[str, Cursor],
    total_size_bytes: int,
) -> ManagedLedgerStatistics:
    """Put a managed ledger's parts together into what it tells."""
    is_open = chain.newest_is_open
    newest = chain.newest
    return ManagedLedgerStatistics(
        entries_added=appender.entries_added,
        bytes_added=appender.bytes_added,
        number_of_entries=chain.entries,
        total_size_bytes=total_size_bytes,
        current_ledger_entries=newest.entries,
        current_ledger_size_bytes=appender.ledger_bytes if is_open else newest.size_bytes,
        last_ledger_created_ms=appender.ledger_created_ms,
        pending_adds=appender.pending_adds,
        last_confirmed=appender.last_confirmed,
        state=appender.state.value,
        ledgers=[
            LedgerStatistics(info.ledger_id, info.entries, info.size_bytes, info.closed_ms)
            for info in record.ledgers()
        ],
        cursors={name: cursor.statistics() for name, cursor in cursors.items()},
        properties=dict(record.properties),
        created_ms=record.created_ms,
        entries_read_from_cache=reads.entries_from_cache,
        entries_read_from_bookie=reads.entries_from_bookie,
        bytes_read=reads.bytes_read,
    )
