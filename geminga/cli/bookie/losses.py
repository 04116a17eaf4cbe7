"""Compare the entries that the metadata records for closed ledgers with those that a stopped bookie has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from geminga.bookie.index.index_format import DELETED
from geminga.bookie.index.ledger_index import LedgerIndex
from geminga.bookie.offline.inspection import unflushed
from geminga.bookie.records.ledger_mapping import directory_index
from geminga.cli.bookie.directory import LedgerRecords, StoppedBookie


class ShortLedger(NamedTuple):
    """A closed ledger that ends too early."""

    topic: str
    ledger_id: int
    entries: int
    """How many entries the bookie has, from the ledger's first to its last one."""
    promised: int

    def __str__(self) -> str:
        return (
            f"ledger {self.ledger_id} of {self.topic} has {self.entries} entries, and {self.promised} were"
            " confirmed: the others are in no entry log and no journal that is here"
        )


def short_ledgers(
    stopped: StoppedBookie, indexes: Sequence[LedgerIndex], names: LedgerRecords
) -> Iterator[ShortLedger]:
    """Holes inside a ledger are the index's to know; this finds the ends that no file has any more.

    Raises StorageError when a row cannot be read.
    """
    in_journals: dict[int, int] = {}
    for _, segment in unflushed(stopped.disk, stopped.journals, indexes):
        in_journals[segment.ledger_id] = max(in_journals.get(segment.ledger_id, -1), segment.last)
    for topic, ledger_id, promised in names.closed():
        index = indexes[directory_index(ledger_id, len(indexes))]
        state = index.states.get(ledger_id)
        if state is not None and state.kind == DELETED:
            continue
        entries = max(index.last_entry_id(ledger_id), in_journals.get(ledger_id, -1)) + 1
        if entries < promised:
            yield ShortLedger(topic, ledger_id, entries, promised)
