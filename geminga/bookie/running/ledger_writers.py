"""The writers of one ledger directory: those that accept entries, or have entries that are not flushed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from geminga.bookie.running.ledger_writer import LedgerWriter
from geminga.bookie.running.write_caches import WriteCaches
from geminga.errors import ReadOnly, StorageError

LOOKED_AT_ONCE: Final = 200
"""Writers between two steps of a walk over all of them: less than a millisecond."""


class LedgerWriters:
    """Writers by ledger. Writers with high priority are not paused on a full disk."""

    def __init__(self) -> None:
        self._writers: dict[int, LedgerWriter] = {}
        self._privileged: set[int] = set()

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

    def discard_done(self, caches: WriteCaches) -> Iterator[list[int]]:
        """Remove closed writers whose ledger has no pending entry and none in a cache; yields their ledger
        ids, some at a time. Anything may happen between two steps.
        """
        # In both caches: the active one may have become another flush's since this one was over. The names of
        # its ledgers were missing in the log once, as they go with the writers.
        # In one step 5,000 of 10,000 writers took 20 ms.
        ledger_ids = list(self._writers)
        for start in range(0, len(ledger_ids), LOOKED_AT_ONCE):
            gone = []
            for ledger_id in ledger_ids[start : start + LOOKED_AT_ONCE]:
                writer = self._writers.get(ledger_id)
                if writer is not None and writer.is_done() and caches.last_entry_id(ledger_id) < 0:
                    self.discard(ledger_id)
                    gone.append(ledger_id)
            yield gone

    def close(self) -> None:
        """Close all writers."""
        for writer in self._writers.values():
            writer.close()

    def failed(self, error: StorageError) -> None:
        """No pending entry will become durable."""
        for writer in list(self._writers.values()):
            writer.failed(error)
