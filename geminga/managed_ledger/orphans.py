"""Ledgers that no topic and no cursor names: what a crash between two steps can leave behind.

Creating and deleting go through several synced steps, in an order that never leaves a record naming a ledger
that is gone. The price is that a crash may leave a ledger (or only its record) that nothing names. They hold
nothing that was acknowledged, or only what was deleted, and are swept once at each start, before topics are
opened.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

import trio

from geminga.errors import CorruptData, LedgerNotFound
from geminga.managed_ledger.cursor.bucket_properties import named_ledgers
from geminga.metadata import records
from geminga.metadata.records import CursorRecord, LedgerIdsRecord, LedgerRecord, ManagedLedgerRecord

if TYPE_CHECKING:
    from geminga.bookie.running.bookie import Bookie
    from geminga.metadata.store import MetadataStore

log = logging.getLogger("geminga.managed_ledger")

SWEPT_PURPOSES = frozenset({"data", "cursor", "bucket"})
"""Schemas are named by others, and swept by them."""

LEDGERS_AT_ONCE = 100
"""Records looked up without letting others run."""


def find_orphan_ledgers(metadata: MetadataStore) -> list[int]:
    """Ids of data, cursor and bucket ledgers that their topic does not name. Reads the whole list of ledgers
    once.

    CorruptData rather than a wrong answer: a record that cannot be read might name any ledger.
    """
    by_topic: dict[str, list[int]] = {}
    for component in metadata.children(records.LEDGERS):
        ledger_id = records.ledger_id_of(component)
        path = records.ledger_path(ledger_id)
        stored = metadata.get(path)
        if stored is None:
            continue
        record = records.decode(LedgerRecord, stored.value, path)
        if record.purpose in SWEPT_PURPOSES:
            by_topic.setdefault(record.topic, []).append(ledger_id)
    orphans: list[int] = []
    for topic, ledger_ids in by_topic.items():
        named = _named_ledgers(metadata, topic)
        orphans += [ledger_id for ledger_id in ledger_ids if ledger_id not in named]
    return sorted(orphans)


def _named_ledgers(metadata: MetadataStore, path: str) -> set[int]:
    """The ledgers that the records of a topic (by its metadata path) and of its cursors name."""
    named: set[int] = set()
    stored = metadata.get(path)
    if stored is not None:
        topic = records.decode(ManagedLedgerRecord, stored.value, path)
        named.update(ledger.ledger_id for ledger in topic.ledgers)
        named.update(named_ledgers(topic.properties))
    for component in metadata.children(path):
        cursor_path = records.cursor_path(path, records.cursor_of(component))
        cursor = metadata.get(cursor_path)
        if cursor is not None:
            record = records.decode(CursorRecord, cursor.value, cursor_path)
            named.add(record.cursor_ledger_id)
            named.update(named_ledgers(record.properties))
    return named


async def existing_ledgers(metadata: MetadataStore, ledger_ids: Sequence[int]) -> set[int]:
    """Those of the ledgers that have a record, read after the call and a few at a time, so that the loop
    never waits long. StorageError.
    """
    existing = set()
    for number, ledger_id in enumerate(ledger_ids):
        if number % LEDGERS_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
        if metadata.get(records.ledger_path(ledger_id)) is not None:
            existing.add(ledger_id)
    return existing


async def sweep_orphan_ledgers(bookie: Bookie, metadata: MetadataStore) -> list[int]:
    """Delete all orphans, bookie first, then their records; returns their ids. To be called at a start,
    before any managed ledger is open: one being created looks like an orphan. StorageError.

    Cancelling leaves the rest for the next start.
    """
    orphans = find_orphan_ledgers(metadata)
    for ledger_id in orphans:
        try:
            await bookie.delete_ledger(ledger_id)
        except LedgerNotFound:
            pass  # only its record was left
        await metadata.delete(records.ledger_path(ledger_id))
    if orphans:
        log.info("deleted %d ledgers that a crash had left behind: %s", len(orphans), orphans[:20])
    return orphans


def unrecorded_ledgers(held: Set[int], metadata: MetadataStore) -> list[int]:
    """Those of the bookie's ledgers that no metadata record knows: they were deleted before the index was
    lost and made anew. Ascending. Records are synced before a ledger's first entry, so nothing that was
    acknowledged is without one.

    CorruptData if the metadata has not given one of their ids yet: then it is the metadata that is missing,
    or an old copy. Having given the ids and knowing no ledger at all is no reason: all may be deleted.
    """
    recorded = {records.ledger_id_of(component) for component in metadata.children(records.LEDGERS)}
    unknown = sorted(held - recorded)
    stored = metadata.get(LedgerIdsRecord.path)
    next_id = records.decode(LedgerIdsRecord, stored.value, LedgerIdsRecord.path).next_id if stored else 0
    if not unknown or unknown[-1] < next_id:
        return unknown
    if not recorded and not next_id:
        raise CorruptData(
            f"the bookie holds {len(held)} ledgers, but the metadata knows none of them and has given no "
            "ids: it is lost or another directory's. Restore it, or start with an empty data directory"
        )
    raise CorruptData(
        f"the bookie holds ledger {unknown[-1]}, but the metadata has given ids below {next_id} only: it "
        "is older than the ledgers, as an old copy is, or one whose write-ahead log is gone. Restore the "
        "metadata that belongs to them; nothing was deleted"
    )


async def sweep_unrecorded_ledgers(bookie: Bookie, metadata: MetadataStore) -> list[int]:
    """Delete `unrecorded_ledgers`; returns their ids. CorruptData as from there, and nothing is deleted."""
    unknown = unrecorded_ledgers(bookie.ledgers(), metadata)
    for ledger_id in unknown:
        await bookie.delete_ledger(ledger_id)
    if unknown:
        log.info("deleted %d ledgers without a record: %s", len(unknown), unknown[:20])
    return unknown
