"""Ledger ids that are never assigned twice, even across crashes: taken from metadata in synced blocks."""

from __future__ import annotations

import trio

from geminga.errors import BadVersion, StorageError
from geminga.metadata.node import MUST_NOT_EXIST
from geminga.metadata.records import LedgerIdsRecord, decode, encode
from geminga.metadata.store import MetadataStore

FIRST_LEDGER_ID = 1
# Each topic makes a ledger when it is loaded; a synced write for each id would be one more wait. Lost ids
# cost nothing.
BLOCK_SIZE = 100
TRIES_MAX = 100
"""Far more than cancelled calls can be; a metadata store that refuses for ever must not hold the loop."""


class LedgerIds:
    """Assigns ascending ledger ids. A crash loses the rest of a block: ids have gaps, never repeats."""

    def __init__(self, store: MetadataStore, *, block_size: int = BLOCK_SIZE) -> None:
        assert block_size > 0
        self._store = store
        self._block_size = block_size
        self._next = self._end = FIRST_LEDGER_ID
        self._taking_block = trio.Lock()

    async def next(self) -> int:
        """An id that was never assigned before and never will be again. Waits for the disk once in
        `block_size` calls.

        Raises StorageError. Cancelling loses at most the ids of one block.
        """
        while self._next == self._end:
            async with self._taking_block:
                if self._next == self._end:
                    await self._take_block()
        ledger_id = self._next
        self._next += 1
        return ledger_id

    async def _take_block(self) -> None:
        """Reserve the next block durably; only then may its ids be assigned."""
        path = LedgerIdsRecord.path
        for _ in range(TRIES_MAX):
            stored = self._store.get(path)
            first, version = FIRST_LEDGER_ID, MUST_NOT_EXIST
            if stored is not None:
                first, version = decode(LedgerIdsRecord, stored.value, path).next_id, stored.version
            end = first + self._block_size
            try:
                # Urgent: a cursor's next ledger needs an id, too, and a block is a single small write.
                await self._store.put(path, encode(LedgerIdsRecord(next_id=end)), version, is_urgent=True)
            except BadVersion:
                # A cancelled call of ours took the block after all, and it stays unused. Take the next.
                continue
            self._next, self._end = first, end
            return
        raise StorageError(f"{path}: {TRIES_MAX} times another writer took the next ids")


def next_ledger_id(store: MetadataStore) -> int:
    """No id from this one on was ever assigned. Raises CorruptData."""
    path = LedgerIdsRecord.path
    stored = store.get(path)
    return FIRST_LEDGER_ID if stored is None else decode(LedgerIdsRecord, stored.value, path).next_id


async def skip_ledger_ids(store: MetadataStore, first: int) -> None:
    """Assign no id below `first` from now on; durable on return. Before anything assigns one."""
    path = LedgerIdsRecord.path
    stored = store.get(path)
    if stored is None:
        await store.put(path, encode(LedgerIdsRecord(next_id=first)), MUST_NOT_EXIST)
    elif decode(LedgerIdsRecord, stored.value, path).next_id < first:
        await store.put(path, encode(LedgerIdsRecord(next_id=first)), stored.version)
