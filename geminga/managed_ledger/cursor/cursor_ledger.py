"""Where a durable cursor is written down: its metadata record, and a ledger of its own for its states.

The order of a switch is what makes a crash harmless: the new ledger's metadata record, the state in the new
ledger, the cursor record that names it, and only then is the old ledger deleted. A crash in between leaves a
ledger that no cursor names; `managed_ledger/orphans.py` finds it at the next start.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import trio
from msgspec import Struct

from geminga.errors import BadVersion, KeyMissing, LedgerNotFound, PeerError, ReadOnly, StorageError
from geminga.managed_ledger.chain.rollover import ManagedLedgerSettings
from geminga.managed_ledger.cursor.attachment import check_room
from geminga.managed_ledger.cursor.bucket_properties import named_ledgers
from geminga.managed_ledger.cursor.cursor_state_format import CursorState, EncodedState, decode, encode
from geminga.metadata import records
from geminga.metadata.records import CursorRecord, LedgerRecord
from geminga.metadata.store import MUST_NOT_EXIST, Put

if TYPE_CHECKING:
    from geminga.bookie.running.bookie import Bookie
    from geminga.bookie.running.ledger_writer import LedgerWriter
    from geminga.clock import Clock
    from geminga.metadata.ledger_ids import LedgerIds
    from geminga.metadata.store import MetadataStore

STATES_TRIED_MAX = 3
"""If the newest state of a cursor ledger is damaged this many of the older ones are tried."""


class Storage(Struct, frozen=True):
    """The rooms below that a managed ledger and its cursors share."""

    topic: str
    """The topic's name, for messages."""
    path: str
    """The topic's metadata node; goes into each ledger's metadata record, and into the bookie's files."""
    bookie: Bookie
    metadata: MetadataStore
    ledger_ids: LedgerIds
    clock: Clock
    settings: ManagedLedgerSettings

    async def create_ledger_record(self, purpose: Literal["data", "cursor", "bucket"]) -> int:
        """A new ledger id whose metadata record is durable."""
        ledger_id = await self.ledger_ids.next()
        await self.metadata.transact([self.ledger_record(ledger_id, purpose)], is_urgent=purpose == "cursor")
        return ledger_id

    def ledger_record(self, ledger_id: int, purpose: Literal["data", "cursor", "bucket"]) -> Put:
        record = LedgerRecord(topic=self.path, purpose=purpose, created_ms=self.clock.now_ms())
        return Put(records.ledger_path(ledger_id), records.encode(record), MUST_NOT_EXIST)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger that no record names any more; its own record goes last, so that it can be
        found.
        """
        # Shielded, entries first, record last. A half-done deletion leaves the record, by which the sweep at
        # the next start finds the ledger; without it the entries would keep their space for ever.
        with trio.CancelScope(shield=True):
            try:
                await self.bookie.delete_ledger(ledger_id)
            except LedgerNotFound:
                pass  # created, but nothing was ever written to it
            with contextlib.suppress(KeyMissing):
                await self.metadata.delete(records.ledger_path(ledger_id))

    def bucket_ledgers(self, properties: Mapping[str, int] | Mapping[str, str]) -> list[int]:
        """The delayed index's ledgers that these properties of the topic or of a cursor name; only such as
        are this topic's.
        """
        found = []
        for ledger_id in named_ledgers(properties):
            path = records.ledger_path(ledger_id) if ledger_id >= 0 else ""
            stored = self.metadata.get(path) if path else None
            if stored is not None:
                record = records.decode(LedgerRecord, stored.value, path)
                # A property is no proof. Only the ledger's own record says that it holds a bucket of this
                # topic; deleting by the property alone could delete another topic's data.
                if record.purpose == "bucket" and record.topic == self.path:
                    found.append(ledger_id)
        return found


class CursorLedger:
    """Writes one cursor's states and record. Not for two tasks at once: the cursor holds a lock."""

    def __init__(self, storage: Storage, path: str, record: CursorRecord, version: int) -> None:
        self._storage = storage
        self._path = path
        self.record = record
        self._version = version
        self._writer: LedgerWriter | None = None
        self._begun: LedgerWriter | None = None
        """Of the next ledger, if a full disk has interrupted the switch to it."""
        self._ledger_id = -1
        self._ledger_bytes = 0
        self._durable_entry_id = self._adding = -1
        self._error: StorageError | None = None
        self._progress: trio.Event | None = None
        """Exists only while a write waits: most cursors are idle."""
        self.last_entry_id = -1
        self.switched_ms = 0
        self.states_saved = self.states_failed = 0
        """Since the load..."""
        self.records_saved = self.records_failed = 0
        self.written_bytes = self.read_bytes = 0
        """...of states."""

    # -- recovery ---------------------------------------------------------------------------------------

    async def read_state(self) -> tuple[CursorState, int]:
        """The newest readable state, and how many newer ones were damaged.

        If there is none the record's own mark-delete position is the state.
        """
        bookie = self._storage.bookie
        ledger_id = self.record.cursor_ledger_id
        damaged = 0
        if ledger_id >= 0:
            last = bookie.last_entry_id(ledger_id)
            self.last_entry_id = last
            # Each state is complete, so an older one is a valid cursor that redelivers more. A few at most: a
            # damaged ledger of thousands of states must not hold up the start.
            for entry_id in range(last, max(-1, last - STATES_TRIED_MAX), -1):
                try:
                    # One byte is enough of a bound: a read returns the first entry whatever its length.
                    (body,) = await bookie.read(ledger_id, entry_id, entry_id, bytes_max=1)
                    self.read_bytes += len(body)
                    return decode(body), damaged
                except StorageError:
                    damaged += 1
        return CursorState(self.record.mark_delete, {}, {}), damaged

    # -- writing ----------------------------------------------------------------------------------------

    async def write(self, state: CursorState) -> int:
        """Make a state durable; returns how many of its parts did not fit (see `encode`). StorageError.

        Cancelling leaves it durable or not; the next state says it all again.
        """
        data, left_out = self.encode(state)
        mark_delete = state.mark_delete
        # A state is up to 4 MiB, and thousands of cursors may be due at once: they wait for room like
        # publishers do.
        await self._storage.bookie.wait_room()
        # No writer after an opening: a ledger that a previous process wrote is never written again, as with
        # topics.
        if self._writer is None or self._is_full():
            try:
                # A switch that is cut in the middle leaves a ledger that no record names. The sweep would
                # find it, at the next start only.
                with trio.CancelScope(shield=True):
                    await self._switch(data, mark_delete)
                return left_out
            except ReadOnly:
                if self._writer is None:
                    raise
        # The rollover waits for space; states still go to the ledger that the record names.
        await self._append(self._writer, data)
        return left_out

    def _is_full(self) -> bool:
        settings = self._storage.settings
        return (
            self.last_entry_id + 1 >= settings.cursor_ledger_entries_max
            or self._ledger_bytes >= settings.cursor_ledger_bytes_max
        )

    def encode(self, state: CursorState) -> EncodedState:
        return encode(state, self._storage.settings.cursor_state_bytes_max)

    def has_room(self) -> bool:
        """Whether `add` may be called: a ledger is open, and takes one more state."""
        return self._writer is not None and not self._is_full()

    def add(self, data: bytes) -> None:
        """Queue a state for the open ledger; `added` says what became of it."""
        assert self._writer is not None
        self._add(self._writer, data)

    async def _append(self, writer: LedgerWriter, data: bytes) -> None:
        self._add(writer, data)
        await self.added(data)

    def _add(self, writer: LedgerWriter, data: bytes) -> None:
        self._adding = writer.next_entry_id
        try:
            writer.append(data)
        except StorageError as error:
            self._error = error

    async def added(self, data: bytes) -> None:
        """Return when the state that was queued last is durable. StorageError."""
        while self._durable_entry_id < self._adding:
            if self._error is not None:
                self.states_failed += 1
                error = self._error
                if isinstance(error, ReadOnly):
                    self._error = None  # the ledger takes the next state once there is space
                raise error
            if self._progress is None:
                self._progress = trio.Event()
            await self._progress.wait()
        self.last_entry_id = self._adding
        self._ledger_bytes += len(data)
        self.states_saved += 1
        self.written_bytes += len(data)

    async def _switch(self, data: bytes, mark_delete: tuple[int, int]) -> None:
        """Continue in a new ledger. If that fails, no ledger is open, and the next write makes one. ReadOnly:
        the next write continues in the present ledger, or with the one that was begun.
        """
        storage = self._storage
        old_ledger_id = self.record.cursor_ledger_id
        if self._begun is None:
            ledger_id = await storage.create_ledger_record("cursor")
            self.close()
            # Set before the first append: a late confirmation of the ledger that is left must not count for
            # this one.
            self._ledger_id = ledger_id
            self._durable_entry_id = -1
            self._ledger_bytes = 0
            self._begun = storage.bookie.create_ledger(
                ledger_id,
                on_durable=functools.partial(self._on_durable, ledger_id),
                on_failed=self._on_failed,
                topic=storage.path,
                purpose="cursor",
                high_priority=True,  # without acknowledgments nothing could be trimmed from a full disk
            )
        writer, ledger_id = self._begun, self._ledger_id
        try:
            # The state before the record that names its ledger: after a crash in between the old ledger is
            # still named, and its last state is what the client was promised.
            await self._append(writer, data)
            await self.save(cursor_ledger_id=ledger_id, mark_delete=mark_delete)
        except (BadVersion, KeyMissing, PeerError):
            self._begun = None
            await storage.delete_ledger(ledger_id)  # no record names it, and none will
            raise
        # Kept: each further ledger would be one more that no record names, until the next start.
        except ReadOnly:
            raise
        # What the disk has is unknown, so nothing is deleted. The caller fences the managed ledger, and the
        # next opening decides by the record.
        except StorageError:
            self._begun = None
            writer.close()
            raise
        self._writer, self._begun = writer, None
        self.switched_ms = storage.clock.now_ms()
        if old_ledger_id >= 0:
            await storage.delete_ledger(old_ledger_id)

    def _on_durable(self, ledger_id: int, last_entry_id: int) -> None:
        if ledger_id == self._ledger_id:  # not that of a ledger we have left
            self._durable_entry_id = last_entry_id
            self._wake()

    def _on_failed(self, error: StorageError) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._progress is not None:
            self._progress.set()
            self._progress = None

    # -- the record -------------------------------------------------------------------------------------

    async def save(
        self,
        *,
        cursor_ledger_id: int | None = None,
        mark_delete: tuple[int, int] | None = None,
        properties: Mapping[str, int] | None = None,
        subscription_properties: Mapping[str, str] | None = None,
    ) -> None:
        """Change fields of the cursor's record; durable on return, and only then seen in `record`."""
        old = self.record
        record = CursorRecord(
            mark_delete=old.mark_delete if mark_delete is None else (mark_delete[0], mark_delete[1]),
            cursor_ledger_id=old.cursor_ledger_id if cursor_ledger_id is None else cursor_ledger_id,
            properties=old.properties if properties is None else dict(properties),
            subscription_properties=(
                old.subscription_properties
                if subscription_properties is None
                else dict(subscription_properties)
            ),
            created_ms=old.created_ms,
        )
        value = records.encode(record)
        # Only properties can be refused: a record near its limit must still be able to name its next cursor
        # ledger.
        if properties is not None or subscription_properties is not None:
            check_room(self._path, value)
        with trio.CancelScope(shield=True):
            # A conditional write: of two attachments that believe to own the cursor one fails here, instead
            # of overwriting the record of the other.
            try:
                self._version = await self._storage.metadata.put(
                    self._path, value, self._version, is_urgent=cursor_ledger_id is not None
                )
            except StorageError:
                self.records_failed += 1
                raise
        self.records_saved += 1
        self.record = record

    # -- the end ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Take no more states. What was written stays."""
        for writer in (self._writer, self._begun):
            if writer is not None:
                writer.close()
        self._writer = self._begun = None

    async def delete_record(self) -> None:
        """Remove the record, for good on return; the cursor ledger is to be deleted after it. KeyMissing,
        BadVersion: it was not ours any more. StorageError. Cannot be cancelled half-way.
        """
        with trio.CancelScope(shield=True):
            await self._storage.metadata.delete(self._path, self._version)
