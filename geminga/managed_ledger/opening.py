"""From what is on disk to a chain and its cursors: the recovery of one managed ledger."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from geminga.errors import CorruptData, TopicNotFound
from geminga.limits import KIB
from geminga.managed_ledger.chain.ledger_chain import ChainLedger, LedgerChain
from geminga.managed_ledger.cursor.cursor_ledger import CursorLedger, Storage
from geminga.metadata import records
from geminga.metadata.records import CursorRecord, ManagedLedgerRecord
from geminga.metadata.store import MUST_NOT_EXIST

if TYPE_CHECKING:
    from geminga.bookie.running.bookie import Bookie

SIZE_SAMPLE_BYTES = 256 * KIB
log = logging.getLogger("geminga.managed_ledger")


class Recovered(NamedTuple):
    record: ManagedLedgerRecord
    version: int
    chain: LedgerChain
    empty_ledger_ids: list[int]
    """Ledgers that were made and never written; they are not in the chain, and to be deleted."""


async def recover_chain(storage: Storage, *, create: bool, properties: Mapping[str, str] | None) -> Recovered:
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
                # Sampled: quotas and statistics need the size, and reading a ledger of 2 GiB for it would
                # hold up the start.
                size_bytes = await size_by_sample(storage.bookie, ledger.ledger_id, entries)
                ledger = ChainLedger(ledger.ledger_id, entries, size_bytes, info.closed_ms or now_ms)
        # Empty ledgers go, or each restart would add one to the record. A terminated topic keeps its last
        # one, because its last position may stand in it.
        if ledger.entries or record.terminated is not None:
            chain.append(ledger)
        else:
            empty.append(ledger.ledger_id)
    return Recovered(record, stored.version, chain, empty)


async def size_by_sample(bookie: Bookie, ledger_id: int, entries: int) -> int:
    """Estimate the bytes of a ledger whose size is not recorded: exact if it is small. 0 if its first
    entry is damaged: no reason to refuse all the others.
    """
    if not entries:
        return 0
    try:
        sample = await bookie.read(ledger_id, 0, entries - 1, bytes_max=SIZE_SAMPLE_BYTES)
    except CorruptData as error:
        log.warning("the size of ledger %d is not known: %s", ledger_id, error)
        return 0
    return sum(map(len, sample)) * entries // len(sample)


def recover_cursor_ledgers(storage: Storage) -> Iterator[tuple[str, CursorLedger]]:
    """The durable cursors of a topic by name, as their records have them. CorruptData."""
    for component in storage.metadata.each_child(storage.path):
        name = records.cursor_of(component)
        cursor_path = records.cursor_path(storage.path, name)
        stored = storage.metadata.get(cursor_path)
        if stored is not None:
            record = records.decode(CursorRecord, stored.value, cursor_path)
            yield name, CursorLedger(storage, cursor_path, record, stored.version)
