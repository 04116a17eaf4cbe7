"""A managed ledger's metadata record: its ledgers, written before the chain in memory changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import trio

from geminga.errors import CorruptData
from geminga.managed_ledger.chain.ledger_chain import LedgerChain
from geminga.managed_ledger.cursor.attachment import check_room
from geminga.managed_ledger.cursor.cursor_ledger import Storage
from geminga.metadata import records
from geminga.metadata.records import CursorRecord, LedgerInfo, ManagedLedgerRecord
from geminga.metadata.store import Delete, Put

log = logging.getLogger("geminga.managed_ledger")


class ChainRecord:
    """The only writer of `/managed-ledgers/...` for this topic. Each save is one synced transaction. Not for
    two tasks at once: the caller holds the lock under which the chain changes.
    """

    __slots__ = (
        "_chain",
        "_deleted",
        "_storage",
        "_version",
        "created_ms",
        "holds_delayed",
        "properties",
        "terminated",
    )

    def __init__(
        self, storage: Storage, chain: LedgerChain, record: ManagedLedgerRecord, version: int
    ) -> None:
        self._storage = storage
        self._chain = chain
        self._version = version
        self._deleted = False
        self.properties: Mapping[str, str] = record.properties
        self.terminated: tuple[int, int] | None = record.terminated
        self.created_ms = record.created_ms
        self.holds_delayed = record.holds_delayed

    def ledgers(self) -> list[LedgerInfo]:
        """The chain as it is written; the counts of an open ledger are not stored."""
        return [
            LedgerInfo(
                ledger_id=ledger.ledger_id,
                # An open ledger's counts would be wrong on disk with the next entry; recovery asks the bookie
                # for them.
                entries=ledger.entries if ledger.closed_ms else 0,
                size_bytes=ledger.size_bytes if ledger.closed_ms else 0,
                closed_ms=ledger.closed_ms,
            )
            for ledger in self._chain
        ]

    async def save(
        self,
        *,
        new_ledger_id: int | None = None,
        dropped: int = 0,
        terminated: tuple[int, int] | None = None,
        properties: Mapping[str, str] | None = None,
        holds_delayed: bool | None = None,
    ) -> None:
        """Write the chain, as it is but for what the arguments change; durable on return.

        With `new_ledger_id` that ledger's own record is written in the same transaction: neither is ever on
        disk without the other. Cannot be cancelled half-way. BadVersion: our record was changed meanwhile.
        ValueTooLarge: the properties are too large, or the list of ledgers has become so. StorageError.
        """
        ledgers = self.ledgers()[dropped:]
        puts: list[Put] = []
        if new_ledger_id is not None:
            # Both records in one transaction. Alone, the ledger's own would be an orphan; the chain's would
            # name a ledger without a record, which a start takes for a sign of old metadata and refuses.
            ledgers.append(LedgerInfo(ledger_id=new_ledger_id))
            puts.append(self._storage.ledger_record(new_ledger_id, "data"))
        new_terminated = self.terminated if terminated is None else (terminated[0], terminated[1])
        new_properties = self.properties if properties is None else dict(properties)
        new_holds_delayed = self.holds_delayed if holds_delayed is None else holds_delayed
        record = ManagedLedgerRecord(
            ledgers=ledgers,
            terminated=new_terminated,
            properties=dict(new_properties),
            created_ms=self.created_ms,
            holds_delayed=new_holds_delayed,
        )
        value = records.encode(record)
        # Checked before writing only where a client has chosen the size. The chain's own growth is bounded by
        # `ledgers_max`.
        if properties is not None:
            check_room(self._storage.path, value)
        puts.append(Put(self._storage.path, value, self._version))
        with trio.CancelScope(shield=True):
            # Shielded: a cancelled wait leaves the write queued, and our version would be behind what is on
            # disk. The next save would meet BadVersion and fence the topic.
            is_urgent = new_ledger_id is None and properties is None
            self._version = (await self._storage.metadata.transact(puts, is_urgent=is_urgent))[-1]
        self.terminated = new_terminated
        self.properties = new_properties
        self.holds_delayed = new_holds_delayed

    async def delete(self) -> list[int]:
        """Remove the record and those of all cursors that there are now, all at once; again it does nothing.
        Returns the ledgers that were named beside the chain's own, which are to be deleted: the cursors' and
        those of the delayed index. Errors as `save`.

        The cursors are retired, so no new one can appear meanwhile.
        """
        if self._deleted:
            return []
        storage = self._storage
        paths = [f"{storage.path}/{component}" for component in storage.metadata.children(storage.path)]
        named = storage.bucket_ledgers(self.properties)
        for path in paths:
            named += self._named_by_cursor(path)
        deletes = [*(Delete(path) for path in paths), Delete(storage.path, self._version)]
        with trio.CancelScope(shield=True):
            await storage.metadata.transact([], deletes)
        self._deleted = True
        return named

    def _named_by_cursor(self, path: str) -> list[int]:
        stored = self._storage.metadata.get(path)
        assert stored is not None
        try:
            record = records.decode(CursorRecord, stored.value, path)
        except CorruptData as error:
            # A cursor's damaged record must not make its topic undeletable: deleting may be the operator's
            # way out.
            log.error("%s; it is deleted with its topic", error)
            return []  # its ledgers are orphans, found at the next start
        named = self._storage.bucket_ledgers(record.properties)
        return named if record.cursor_ledger_id < 0 else [*named, record.cursor_ledger_id]
