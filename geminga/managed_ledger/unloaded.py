"""A topic that is not loaded: deleted by its records alone, and its cursors made, cleared and deleted.

A request about ten thousand partitions would load each of them for one write. What is done here leaves the
records as a load, the same change and a close would, but without a new ledger. The order of the writes is
that of `chain_record.py`, `cursor_set.py` and `cursor/cursor_ledger.py`.

**The caller keeps the topic from being loaded meanwhile**: a record has one writer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Literal

import msgspec
import trio

from geminga.errors import Conflict, ReadOnly
from geminga.managed_ledger.chain.ledger_chain import LedgerChain
from geminga.managed_ledger.chain_record import ChainRecord
from geminga.managed_ledger.cursor.attachment import check_room
from geminga.managed_ledger.cursor.bucket_properties import named_ledgers, only_internal
from geminga.managed_ledger.cursor.system_cursors import SYSTEM_CURSORS
from geminga.metadata import records
from geminga.metadata.records import CursorRecord, LedgerInfo, ManagedLedgerRecord
from geminga.metadata.store import MUST_NOT_EXIST, Put
from geminga.position import EARLIEST, Position

if TYPE_CHECKING:
    from geminga.managed_ledger.cursor.cursor_ledger import Storage

log = logging.getLogger("geminga.managed_ledger")


def each_subscription_name(storage: Storage) -> Iterator[str]:
    """Of the durable cursors without the broker's own. Also right while the topic is loaded."""
    names = map(records.cursor_of, storage.metadata.each_child(storage.path))
    return (name for name in names if name not in SYSTEM_CURSORS)


def has_cursor(storage: Storage, name: str) -> bool:
    """Whether the topic has this durable cursor, of whichever kind. Also right while it is loaded."""
    return storage.metadata.get(records.cursor_path(storage.path, name)) is not None


class UnloadedTopic:
    """Made by `read`. Methods that return False have changed nothing: that takes a loaded topic."""

    def __init__(self, storage: Storage, record: ManagedLedgerRecord | None, version: int) -> None:
        self._storage = storage
        self._record = record
        self._version = version

    @classmethod
    def read(cls, storage: Storage) -> UnloadedTopic:
        """The topic need not be there. CorruptData."""
        stored = storage.metadata.get(storage.path)
        if stored is None:
            return cls(storage, None, MUST_NOT_EXIST)
        record = records.decode(ManagedLedgerRecord, stored.value, storage.path)
        return cls(storage, record, stored.version)

    @property
    def exists(self) -> bool:
        return self._record is not None

    @property
    def _is_plain(self) -> bool:
        """Whether its ledgers are all that a load would look at for the position of a cursor."""
        record = self._record
        return record is None or (
            record.terminated is None  # its last ledger stays, empty or not
            and not self._storage.bookie.inventory.keeps_logs  # closed ledgers may have grown
            and not only_internal(record.properties)  # the shared index has to hear of it
        )

    def _ends(self) -> tuple[Position, Position]:
        """Mark-delete positions before the first entry, and at the last one."""
        full = [
            (ledger.ledger_id, entries)
            for ledger in (self._record.ledgers if self._record else ())
            if (entries := self._entries_in(ledger))
        ]
        if not full:
            return EARLIEST, EARLIEST  # a load makes it the beginning of its first ledger
        return Position(full[0][0], -1), Position(full[-1][0], full[-1][1] - 1)

    def _entries_in(self, ledger: LedgerInfo) -> int:
        """As a load counts them: the record has no count of a ledger that was not closed with entries."""
        if ledger.closed_ms:
            return ledger.entries
        return self._storage.bookie.last_entry_id(ledger.ledger_id) + 1

    def _cursor(self, name: str) -> tuple[str, CursorRecord, int] | None:
        path = records.cursor_path(self._storage.path, name)
        stored = self._storage.metadata.get(path)
        return stored and (path, records.decode(CursorRecord, stored.value, path), stored.version)

    def _is_last_cursor(self) -> bool:
        return len(list(islice(self._storage.metadata.each_child(self._storage.path), 2))) == 1

    async def create_cursor(
        self,
        name: str,
        *,
        initial: Literal["earliest", "latest"],
        properties: Mapping[str, int],
        subscription_properties: Mapping[str, str],
    ) -> bool:
        """A new cursor, and the topic if it is not there; both durable on return. Conflict: it exists.
        ValueTooLarge, StorageError.
        """
        if not self._is_plain:
            return False
        storage, now_ms = self._storage, self._storage.clock.now_ms()
        first, last = self._ends()
        record = CursorRecord(
            mark_delete=first if initial == "earliest" else last,
            properties=dict(properties),
            subscription_properties=dict(subscription_properties),
            created_ms=now_ms,
        )
        path, value = records.cursor_path(storage.path, name), records.encode(record)
        check_room(path, value)
        puts = [Put(path, value, MUST_NOT_EXIST)]
        if self._record is None:
            topic = records.encode(ManagedLedgerRecord(created_ms=now_ms))
            puts.append(Put(storage.path, topic, MUST_NOT_EXIST))
        elif storage.metadata.get(path) is not None:
            raise Conflict(f"cursor {name} exists already on {storage.topic}")
        with trio.CancelScope(shield=True):
            await storage.metadata.transact(puts)
        return True

    async def delete_cursor(self, name: str) -> bool:
        """Delete a cursor; gone for good on return, then the ledgers that it named. StorageError.

        False too if entries would stay that nothing reads any more: only a loaded topic is trimmed.
        """
        found = self._cursor(name)
        if found is None or self._record is None or only_internal(self._record.properties):
            return False
        path, record, version = found
        if self._ends()[1] != EARLIEST and self._is_last_cursor():
            return False
        with trio.CancelScope(shield=True):
            await self._storage.metadata.delete(path, version)
            named = self._storage.bucket_ledgers(record.properties)
            if record.cursor_ledger_id >= 0:
                named.append(record.cursor_ledger_id)
            for ledger_id in named:
                await self._storage.delete_ledger(ledger_id)
        return True

    async def clear_cursor(self, name: str) -> bool:
        """Move a cursor behind the last entry; durable on return. StorageError."""
        found = self._cursor(name)
        if found is None or not self._is_plain or named_ledgers(found[1].properties):
            return False
        path, record, version = found
        old_ledger_id, last = record.cursor_ledger_id, self._ends()[1]
        if last == EARLIEST or (tuple(record.mark_delete) == last and old_ledger_id < 0):
            return True
        moved = msgspec.structs.replace(record, mark_delete=last, cursor_ledger_id=-1)
        # The record no longer names the ledger with the states: then that may go.
        with trio.CancelScope(shield=True):
            await self._storage.metadata.put(path, records.encode(moved), version)
            if old_ledger_id >= 0:
                await self._storage.delete_ledger(old_ledger_id)
        return True

    async def delete(self) -> None:
        """Delete the topic with its cursors; gone for good on return, then the ledgers that they named.
        StorageError.
        """
        assert self._record is not None
        chain = ChainRecord(self._storage, LedgerChain(), self._record, self._version)
        with trio.CancelScope(shield=True):
            named = await chain.delete()
            try:
                for ledger_id in (*(ledger.ledger_id for ledger in self._record.ledgers), *named):
                    await self._storage.delete_ledger(ledger_id)
            except ReadOnly as full:
                topic = self._storage.topic
                log.warning("%s is deleted; the next start frees the space of its ledgers: %s", topic, full)
