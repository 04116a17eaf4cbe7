"""From what is on disk to a chain and its cursors: the recovery of one managed ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from geminga.errors import TopicNotFound
from geminga.managed_ledger.chain.ledger_chain import ChainLedger, LedgerChain
from geminga.managed_ledger.cursor.cursor_ledger import CursorLedger, Storage
from geminga.metadata import records
from geminga.metadata.records import CursorRecord, ManagedLedgerRecord
from geminga.metadata.store import MUST_NOT_EXIST


class Recovered(NamedTuple):
    record: ManagedLedgerRecord
    version: int
    chain: LedgerChain
    empty_ledger_ids: list[int]
    """Ledgers that were made and never written; they are not in the chain, and to be deleted."""


def recover_chain(storage: Storage, *, create: bool, properties: Mapping[str, str] | None) -> Recovered:
    """Read the record and close the ledger that was open when the process ended. Changes nothing on disk.

    A topic that is not there yet has an empty chain. TopicNotFound if it may not be made; CorruptData.
    """
    path = storage.path
    stored = storage.metadata.get(path)
    now_ms = storage.clock.now_ms()
    chain = LedgerChain()
    if stored is None:
        if not create:
            raise TopicNotFound(f"{storage.topic} does not exist")
        record = ManagedLedgerRecord(properties=dict(properties or {}), created_ms=now_ms)
        return Recovered(record, MUST_NOT_EXIST, chain, [])
    record = records.decode(ManagedLedgerRecord, stored.value, path)
    empty: list[int] = []
    for info in record.ledgers:
        ledger = ChainLedger(info.ledger_id, info.entries, info.size_bytes, info.closed_ms)
        # A closed ledger has grown if it was closed while one of its entry logs was away. It cannot grow
        # otherwise, since it is closed when all of its entries are durable.
        has_grown = storage.bookie.inventory.keeps_logs and record.terminated is None
        if not ledger.closed_ms or has_grown:
            # The bookie decides how long the ledger is. Its record has no count, since that would cost a
            # metadata write for each entry; recovery has made everything that can be read final.
            entries = storage.bookie.last_entry_id(ledger.ledger_id) + 1
            if not ledger.closed_ms or entries > info.entries:
                size_bytes = storage.bookie.size_bytes(ledger.ledger_id, entries)
                ledger = ChainLedger(ledger.ledger_id, entries, size_bytes, info.closed_ms or now_ms)
        # Empty ledgers go, or each restart would add one to the record. A terminated topic keeps its last
        # one, because its last position may stand in it.
        if ledger.entries or record.terminated is not None:
            chain.append(ledger)
        else:
            empty.append(ledger.ledger_id)
    return Recovered(record, stored.version, chain, empty)


def recover_cursor_ledgers(storage: Storage) -> Iterator[tuple[str, CursorLedger]]:
    """The durable cursors of a topic by name, as their records have them. CorruptData."""
    for component in storage.metadata.each_child(storage.path):
        name = records.cursor_of(component)
        cursor_path = records.cursor_path(storage.path, name)
        stored = storage.metadata.get(cursor_path)
        if stored is not None:
            record = records.decode(CursorRecord, stored.value, cursor_path)
            yield name, CursorLedger(storage, cursor_path, record, stored.version)
