"""What a managed ledger tells about itself: frozen structs for the admin API, the metrics, and tests."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from geminga.position import Position

if TYPE_CHECKING:
    from geminga.managed_ledger.chain.appender import Appender
    from geminga.managed_ledger.chain.ledger_chain import LedgerChain
    from geminga.managed_ledger.chain.ledger_reads import LedgerReads
    from geminga.managed_ledger.chain_record import ChainRecord
    from geminga.managed_ledger.cursor.cursor import Cursor
    from geminga.managed_ledger.cursor.statistics import CursorStatistics, RangesAsked

ROWS_MAX: Final = 50
"""Ledgers that are looked at between two yields."""


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
    terminated: Position | None
    """Its last entry, if it takes no more."""
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
    asked: RangesAsked,
) -> Generator[int, None, ManagedLedgerStatistics]:
    """Put a managed ledger's parts together into what it tells; yields after some rows how many."""
    left, found = asked.ranges_max, {}
    for name, cursor in tuple(cursors.items()):
        ranges_max = left if asked.of in (None, name) else 0
        statistics = found[name] = yield from cursor.statistics(asked.after, ranges_max)
        left -= len(statistics.acknowledged_ranges)
        yield 1
    ledgers = []
    for info in tuple(record.ledgers()):
        ledgers.append(LedgerStatistics(info.ledger_id, info.entries, info.size_bytes, info.closed_ms))
        if len(ledgers) % ROWS_MAX == 0:
            yield ROWS_MAX
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
        terminated=None if record.terminated is None else Position(*record.terminated),
        state=appender.state.value,
        ledgers=ledgers,
        cursors=found,
        properties=dict(record.properties),
        created_ms=record.created_ms,
        entries_read_from_cache=reads.entries_from_cache,
        entries_read_from_bookie=reads.entries_from_bookie,
        bytes_read=reads.bytes_read,
    )
