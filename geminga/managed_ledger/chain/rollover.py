"""Decides when a ledger is full, and which ledgers may be deleted, without I/O, by Pulsar's rules."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from geminga.limits import MIB
from geminga.managed_ledger.chain.ledger_chain import ChainLedger

MINUTE_MS = 60_000


class ManagedLedgerSettings(msgspec.Struct, frozen=True):
    """The settings of a managed ledger. Defaults are Pulsar's `broker.conf`."""

    ledger_entries_max: int = 50_000
    """`managedLedgerMaxEntriesPerLedger`"""
    ledger_bytes_max: int = 2048 * MIB
    """`managedLedgerMaxSizePerLedgerMbytes`"""
    rollover_min_ms: int = 10 * MINUTE_MS
    """`managedLedgerMinLedgerRolloverTimeMinutes`; 0 = a full ledger is left at once"""
    rollover_max_ms: int = 240 * MINUTE_MS
    """`managedLedgerMaxLedgerRolloverTimeMinutes`"""
    ledgers_max: int = 8_000
    """A topic with this many ledgers gets no new one while it runs: their list is one metadata record of at
    most 1 MiB, and each restart may add one more.
    """
    retention_time_ms: int = 0
    """How long consumed ledgers are kept; 0 = not at all, -1 = for ever."""
    retention_size_bytes: int = 0
    """How many bytes of consumed and unconsumed ledgers are kept; 0 = none, -1 = any number."""
    cursor_persist_interval_ms: int = 250
    """A cursor with new acknowledgements is saved at most this often (I/O time)."""
    cursor_ledger_entries_max: int = 50_000
    """`managedLedgerCursorMaxEntriesPerLedger`"""
    cursor_ledger_bytes_max: int = 32 * MIB
    """A cursor ledger of this size is replaced, too."""
    cursor_state_bytes_max: int = 4 * MIB
    """The largest state that is saved; acknowledgements beyond it are known in memory only."""


def is_full(settings: ManagedLedgerSettings, entries: int, size_bytes: int, age_ms: int) -> bool:
    """Whether a new ledger should take over: one bound reached, and the ledger older than the minimum.

    As in Pulsar the minimum age holds for every bound: a size reached early waits for it too.
    """
    # Pulsar's `ManagedLedgerImpl.currentLedgerIsFull`: the minimum age is what keeps small bounds from making
    # a ledger every second.
    bound_reached = (
        entries >= settings.ledger_entries_max
        or size_bytes >= settings.ledger_bytes_max
        or age_ms >= settings.rollover_max_ms
    )
    return bound_reached and (settings.rollover_min_ms <= 0 or age_ms > settings.rollover_min_ms)


def ledgers_to_drop(
    settings: ManagedLedgerSettings, consumed: Sequence[ChainLedger], total_bytes: int, now_ms: int
) -> int:
    """How many of the `consumed` ledgers (oldest first, none being written) retention does not hold back.

    A ledger goes when it has been closed for longer than the retention time, or when without it and all older
    ones the topic still is as large as the retention size.
    """
    # Counted with the unconsumed ledgers, as Pulsar does: the retention size is about the topic, not about
    # what its subscriptions have read.
    left_bytes = total_bytes
    for i, ledger in enumerate(consumed):
        left_bytes -= ledger.size_bytes
        time_ms = settings.retention_time_ms
        size_bytes = settings.retention_size_bytes
        expired = time_ms == 0 or 0 < time_ms < now_ms - ledger.closed_ms
        over_size = 0 <= size_bytes <= left_bytes
        # Stops at the first ledger that stays: ledgers go from the front only, or the chain would have a
        # hole.
        if not expired and not over_size:
            return i
    return len(consumed)
