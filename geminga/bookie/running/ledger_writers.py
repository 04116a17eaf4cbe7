"""The writers of one ledger directory: those that accept entries, or have entries that are not flushed."""

from __future__ import annotations

from typing import Final

from geminga.bookie.records.segment_map import SegmentMap
from geminga.bookie.running.ledger_writer import LedgerWriter
from geminga.errors import ReadOnly, StorageError

LOOKED_AT_MAX: Final = 1000
"""Writers that one flush looks at: 10,000 that go at once took 28 ms, in which no client was served."""
SHARE_LOOKED_AT: Final = 10
"""One in so many is looked at if that is more: closed writers would pile up with each flush otherwise."""


class LedgerWriters:
    """Writers by ledger. Writers with high priority are not paused on a full disk."""

    def __init__(self) -> None:
        self._writers: dict[int, LedgerWriter] = {}
        self._privileged: set[int] = set()
        self._not_looked_at: list[int] = []

    def add(self, writer: LedgerWriter, *, high_priority: bool, read_only: str) -> None:
        """Add a writer. `read_only` is the reason for which entries are refused now; "" if they are
        accepted.
        """
        self._writers[writer.ledger_id] = writer
        if high_priority:
            self._privileged.add(writer.ledger_id)
        self._pause_or_resume(writer.ledger_id, writer, read_only)

    def get(self, ledger_id: int) -> LedgerWriter | None:
        return self._writers.get(ledger_id)

    def discard(self, ledger_id: int) -> None:
        self._writers.pop(ledger_id, None)
        self._privileged.discard(ledger_id)

    def pause_or_resume(self, read_only: str) -> None:
        """`read_only` is the reason for which the disk takes no entries; "" if it takes them again."""
        for ledger_id, writer in self._writers.items():
            self._pause_or_resume(ledger_id, writer, read_only)

    def _pause_or_resume(self, ledger_id: int, writer: LedgerWriter, read_only: str) -> None:
        if not read_only:
            writer.resume()
        elif ledger_id not in self._privileged:
            writer.pause(ReadOnly(read_only))

    def discard_done(self, active: SegmentMap) -> list[int]:
        """Look at the next writers, 1,000 or a tenth, and remove those that are closed and whose ledger has
        no pending entry and none in the active cache; returns the ledger ids. The others are looked at by
        the next flushes.
        """
        # In one step. A walk that left turns, behind the start of the next flush, took the names of ledgers
        # whose entries were yet to be written.
        if not self._not_looked_at:
            self._not_looked_at = list(self._writers)
        count = max(LOOKED_AT_MAX, len(self._writers) // SHARE_LOOKED_AT)
        looked_at = self._not_looked_at[-count:]
        del self._not_looked_at[-count:]
        gone = []
        for ledger_id in looked_at:
            writer = self._writers.get(ledger_id)
            if writer is not None and writer.is_done() and ledger_id not in active:
                self.discard(ledger_id)
                gone.append(ledger_id)
        return gone

    def close(self) -> None:
        """Close all writers."""
        for writer in self._writers.values():
            writer.close()

    def failed(self, error: StorageError) -> None:
        """No pending entry will become durable."""
        for writer in list(self._writers.values()):
            writer.failed(error)
