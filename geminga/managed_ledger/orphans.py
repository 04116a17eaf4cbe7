"""Ledgers that no topic and no cursor names: what a stop or a crash between two steps can leave behind.

Creating and deleting go through several synced steps, in an order that never leaves a record naming a
ledger that is gone. The price is that a crash, or an orderly stop, which does not wait for all deletions
that are under way, may leave a ledger (or only its record) that nothing names. They hold nothing that was
acknowledged, or only what was deleted, and are swept once at each start, before topics are opened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio

from geminga.bookie.records.records import Run
from geminga.errors import LedgerNotFound
from geminga.events.recording import Record, unrecorded
from geminga.managed_ledger.cursor.bucket_properties import named_ledgers
from geminga.metadata import records
from geminga.metadata.records import CursorRecord, LedgerRecord, ManagedLedgerRecord

if TYPE_CHECKING:
    from geminga.bookie.running.bookie import Bookie
    from geminga.metadata.store import MetadataStore

log = logging.getLogger("geminga.managed_ledger")

SWEPT_PURPOSES = frozenset({"data", "cursor", "bucket"})
"""Schemas are named by others, and swept by them."""

TOPICS_NAMED_MAX = RANGES_NAMED_MAX = 20
LEDGERS_AT_ONCE = 100
"""Records looked up without letting others run."""


def find_orphan_ledgers(
    metadata: MetadataStore, look_at: Callable[[str, ManagedLedgerRecord], None] | None = None
) -> list[int]:
    """Ids of data, cursor and bucket ledgers that their topic does not name. Reads the whole list of ledgers
    once. `look_at` gets each topic's path and record.

    CorruptData rather than a wrong answer: a record that cannot be read might name any ledger.
    """
    by_topic: dict[str, list[int]] = {}
    for component in metadata.children(records.LEDGERS):
        ledger_id = records.ledger_id_of(component)
        path = records.ledger_path(ledger_id)
        stored = metadata.get(path)
        if stored is None:
            continue
        # CorruptData ends the sweep: better a start that stops than a ledger deleted because its owner was
        # unreadable.
        record = records.decode(LedgerRecord, stored.value, path)
        if record.purpose in SWEPT_PURPOSES:
            by_topic.setdefault(record.topic, []).append(ledger_id)
    orphans: list[int] = []
    for topic, ledger_ids in by_topic.items():
        named = named_by_topic(metadata, topic, look_at)
        orphans += [ledger_id for ledger_id in ledger_ids if ledger_id not in named]
    return sorted(orphans)


def named_by_topic(
    metadata: MetadataStore,
    path: str,
    look_at: Callable[[str, ManagedLedgerRecord], None] | None = None,
) -> set[int]:
    """The ledgers that the records of a topic (by its metadata path) and of its cursors name."""
    named: set[int] = set()
    stored = metadata.get(path)
    if stored is not None:
        topic = records.decode(ManagedLedgerRecord, stored.value, path)
        named.update(ledger.ledger_id for ledger in topic.ledgers)
        # Buckets of an index that all subscriptions share are named by the topic, others by their cursor.
        named.update(named_ledgers(topic.properties))
        if look_at is not None:
            look_at(path, topic)
    for component in metadata.children(path):
        cursor_path = records.cursor_path(path, records.cursor_of(component))
        # A cursor may name ledgers of two kinds: its own, with its states, and those of its delayed index.
        cursor = metadata.get(cursor_path)
        if cursor is not None:
            record = records.decode(CursorRecord, cursor.value, cursor_path)
            named.add(record.cursor_ledger_id)
            named.update(named_ledgers(record.properties))
    return named


class MissingEntries:
    """Entries that a topic has confirmed, and that the bookie has not.

    The record of a closed ledger says how many there are. The last ledger of a topic has no such number until
    it is closed. After a mismatch, or damage, it is compared with its own last entry.
    """

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie
        self._usage = bookie.inventory.usage()
        found = bookie.recovery
        # Exact where sums are not: entries behind a log's end have their rows still.
        self._lacking = {run.ledger_id for run in bookie.missing_at_start}
        self._looks_at_open = bookie.inventory.keeps_logs or bool(found.entries_lost or found.entries_missing)
        self.by_topic: dict[str, list[Run]] = {}
        """By path of the topic; entries of several ledgers, ascending."""

    def look_at(self, path: str, record: ManagedLedgerRecord) -> None:
        """One comparison for each ledger that has what it should."""
        for info in record.ledgers:
            usage = self._usage.get(info.ledger_id)
            entries = info.entries
            if not info.closed_ms and self._looks_at_open:
                entries = self._bookie.last_entry_id(info.ledger_id) + 1
            # Sums first, since a start with many topics must not read every ledger's rows.
            is_short = usage is None or usage.entries < entries or info.ledger_id in self._lacking
            if is_short and entries:
                for first, last in self._bookie.inventory.missing(info.ledger_id, entries):
                    self.by_topic.setdefault(path, []).append(Run(info.ledger_id, first, last))

    def tell(self, record: Record) -> None:
        """An ERROR and an event for each topic, with what to do; bounded. Statistics get the number."""
        self._bookie.inventory.tell_missing(sum(map(_entries, self.by_topic.values())))
        for path, runs in list(self.by_topic.items())[:TOPICS_NAMED_MAX]:
            topic = str(records.topic_of(path))
            ranges = ", ".join(
                f"{run.ledger_id}:{run.first} to {run.ledger_id}:{run.last}"
                for run in runs[:RANGES_NAMED_MAX]
            )
            if len(runs) > RANGES_NAMED_MAX:
                ranges += f" and {len(runs) - RANGES_NAMED_MAX} more ranges"
            record("entries-missing", topic=topic, text=ranges, counts={"entries": _entries(runs)})
            log.error(
                "%s: confirmed entries are not in the bookie: %s; consumers wait there until the files are "
                "back, or 'geminga topics skip' takes a subscription past them",
                topic,
                ranges,
            )
        if len(self.by_topic) > TOPICS_NAMED_MAX:
            log.error("entries of %d topics are missing in all", len(self.by_topic))


def _entries(runs: Sequence[Run]) -> int:
    return sum(run.last - run.first + 1 for run in runs)


async def existing_ledgers(metadata: MetadataStore, ledger_ids: Sequence[int]) -> set[int]:
    """Those of the ledgers that have a record, read after the call and a few at a time, so that the loop
    never waits long. StorageError.
    """
    existing = set()
    for number, ledger_id in enumerate(ledger_ids):
        # Each look-up is a read that may go to the disk, and it runs on the event loop.
        if number % LEDGERS_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
        if metadata.get(records.ledger_path(ledger_id)) is not None:
            existing.add(ledger_id)
    return existing


async def sweep_orphan_ledgers(
    bookie: Bookie, metadata: MetadataStore, record: Record = unrecorded
) -> list[int]:
    """Delete all orphans, bookie first, then their records; returns their ids. Entries that a topic has
    confirmed and that are not there are named in the log, and by events. To be called at a start, before any
    managed ledger is open: one being created looks like an orphan. StorageError.

    Cancelling leaves the rest for the next start.
    """
    missing = MissingEntries(bookie)
    orphans = find_orphan_ledgers(metadata, missing.look_at)
    missing.tell(record)
    if missing.by_topic:
        await bookie.keep_files()
    for ledger_id in orphans:
        try:
            await bookie.delete_ledger(ledger_id)
        # Deleting goes bookie first, then the record: a crash of an earlier sweep may have come in between.
        except LedgerNotFound:
            pass  # only its record was left
        # The record last: while it is there, a sweep that was cut short finds the ledger again.
        await metadata.delete(records.ledger_path(ledger_id))
    if orphans:
        log.info(
            "deleted ledgers that no topic names, left by a stop or a crash (%d): %s",
            len(orphans),
            orphans[:20],
        )
    return orphans
