"""What a managed ledger holds while it is not open, from its records: nothing is made, closed or written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import trio

from geminga.managed_ledger.chain.ledger_chain import ChainLedger
from geminga.managed_ledger.cursor.acknowledgments import Acknowledgments
from geminga.managed_ledger.cursor.bucket_properties import named_ledgers
from geminga.managed_ledger.cursor.cursor_ledger import Storage
from geminga.managed_ledger.cursor.system_cursors import SYSTEM_CURSORS
from geminga.managed_ledger.opening import recover_chain, recover_cursor_ledgers

CURSORS_MAX: Final = 20
"""Cursors that are read between two checkpoints: about a millisecond."""


class UnopenedCursor(NamedTuple):
    """A durable cursor, as of its newest state on disk."""

    name: str
    backlog_entries: int
    properties: Mapping[str, int]
    is_system: bool


class UnopenedLedger(NamedTuple):
    """The figures that opening would find."""

    entries: int
    size_bytes: int
    created_ms: int
    cursors: tuple[UnopenedCursor, ...]
    has_buckets: bool
    """Whether it or one of its cursors names buckets of the delayed index."""
    holds_delayed: bool
    """Whether a subscription has held messages back: see `ManagedLedgerRecord.holds_delayed`."""


async def read_unopened(storage: Storage) -> UnopenedLedger:
    """Read the records, and the newest state of each cursor: one entry each. TopicNotFound, CorruptData,
    StorageError.

    The caller makes sure that the managed ledger was not opened meanwhile: the figures may be a mixture then.
    """
    recovered = recover_chain(storage, create=False, properties=None)
    chain, record = recovered.chain, recovered.record
    if not chain.ids:
        # Opening would make a ledger here. A position needs one to stand in.
        last = recovered.empty_ledger_ids[-1] if recovered.empty_ledger_ids else 0
        chain.append(ChainLedger(last, 0, 0, 1))
    cursors = []
    has_buckets = bool(named_ledgers(record.properties))
    for number, (name, ledger) in enumerate(recover_cursor_ledgers(storage), 1):
        if number % CURSORS_MAX == 0:
            await trio.lowlevel.checkpoint()
        state, _ = await ledger.read_state()
        # The same arithmetic as for an open cursor, so that a load changes no figure.
        acknowledged = Acknowledgments(chain, state.mark_delete)
        acknowledged.restore(state)
        properties = ledger.record.properties
        has_buckets = has_buckets or bool(named_ledgers(properties))
        backlog = acknowledged.backlog_entries()
        cursors.append(UnopenedCursor(name, backlog, properties, name in SYSTEM_CURSORS))
    return UnopenedLedger(
        entries=chain.entries,
        size_bytes=chain.closed_bytes,
        created_ms=record.created_ms,
        cursors=tuple(cursors),
        has_buckets=has_buckets,
        holds_delayed=record.holds_delayed,
    )
