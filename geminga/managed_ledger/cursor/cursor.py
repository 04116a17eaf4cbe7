"""A subscription's cursor: its acknowledgments, its properties, and when they reach the disk."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager

import msgspec
import trio

from geminga.errors import GemingaError, PeerError, ReadOnly, ServiceNotReady
from geminga.managed_ledger.chain.ledger_chain import LedgerChain
from geminga.managed_ledger.cursor.acknowledged import count_ranges, ranges_of
from geminga.managed_ledger.cursor.acknowledgments import Acknowledgments
from geminga.managed_ledger.cursor.attachment import Attachment
from geminga.managed_ledger.cursor.bucket_properties import swapped
from geminga.managed_ledger.cursor.cursor_ledger import CursorLedger
from geminga.managed_ledger.cursor.cursor_state_format import EncodedState
from geminga.managed_ledger.cursor.statistics import CursorStatistics
from geminga.managed_ledger.cursor.system_cursors import SYSTEM_CURSORS
from geminga.position import Position

log = logging.getLogger("geminga.managed_ledger")

REPLICATED = "pulsar.replicated.subscription"
"""Pulsar's name for the property of a replicated subscription's cursor; its value is 1."""


class Cursor(Acknowledgments):
    """How far one reader of a managed ledger has come.

    Acknowledging is synchronous and in memory; a durable cursor's state is written by the `CursorSaver`, at
    close, and by `persist`. A crash takes acknowledgments back to the last written state, never forward.
    `mark_delete` is Pulsar's markDeletePosition, `read_position` its readPosition: that belongs to the
    dispatcher, which moves it by `set_read_position`; this room only sets it when the cursor opens and when
    it is reset.
    """

    __slots__ = (
        "_closed",
        "_dirty",
        "_ledger",
        "_lock",
        "_on_dirty",
        "_owner",
        "left_out",
        "name",
        "read_position",
    )

    def __init__(
        self,
        name: str,
        chain: LedgerChain,
        mark_delete: tuple[int, int],
        *,
        ledger: CursorLedger | None,
        owner: Attachment,
        on_dirty: Callable[[], None],
    ) -> None:
        super().__init__(chain, mark_delete)
        self.name = name
        self.read_position = self.next_unacknowledged(self.mark_delete)
        self.left_out = 0
        """Parts of the last written state that did not fit: they are acknowledged in memory only."""
        self._ledger = ledger
        self._owner = owner
        self._on_dirty = on_dirty
        self._dirty = False
        self._closed = False
        self._lock: trio.Lock | None = None

    @property
    def _persisting(self) -> trio.Lock:
        """Made with its first use: most cursors are idle."""
        if self._lock is None:
            self._lock = trio.Lock()
        return self._lock

    @property
    def durable(self) -> bool:
        return self._ledger is not None

    @property
    def is_system(self) -> bool:
        """Whether it is the broker's own and no subscription's: `system_cursors.py`."""
        return self.name in SYSTEM_CURSORS

    @property
    def is_dirty(self) -> bool:
        """Whether something was acknowledged that is not written yet."""
        return self._dirty

    def _changed(self) -> None:
        # Once for each written state: an acknowledgment on the path of every message costs one comparison
        # here while a write is due already.
        if not self._dirty and self._ledger is not None and not self._closed:
            self._dirty = True
            self._on_dirty()

    # -- durability -------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Take over the newest state on disk, cut to what the managed ledger really holds."""
        assert self._ledger is not None
        state, damaged = await self._ledger.read_state()
        if damaged:
            log.error(
                "cursor %s: %d states at the end of cursor ledger %d cannot be read; it goes back to %s",
                self.name,
                damaged,
                self._ledger.record.cursor_ledger_id,
                Position(*state.mark_delete),
            )
        # From mark-delete on: which entries were sent to consumers and not acknowledged is on no disk, so all
        # of them are delivered again.
        self.restore(state)
        self.read_position = self.next_unacknowledged(self.mark_delete)

    async def persist(self) -> None:
        """Write the present state, if it is not on disk yet; durable on return. Nothing for non-durable
        cursors.

        ServiceNotReady, StorageError. Cancelling leaves the state written or not; it stays due.
        """
        if self._ledger is not None:
            async with self._persisting:
                self._check_open()
                await self._write()

    async def written(self) -> None:
        """Return when no write is under way."""
        if self._lock is not None:
            async with self._lock:
                pass

    async def persist_if_open(self) -> None:
        """For the managed ledger, also while it closes: as `persist`, but a closed cursor stays as it is."""
        async with self._persisting:
            await self._write()

    async def _write(self) -> None:
        """Write the state if it is due. Any error but ReadOnly fences the managed ledger, because it is not
        known any more what is on disk.
        """
        ledger = self._ledger
        if ledger is None or not self._dirty or self._closed:
            return
        # Before the state is taken: an acknowledgment that comes while this write waits makes the cursor
        # dirty again, and gets a write of its own. Cleared afterwards, it would be lost with a crash.
        self._dirty = False
        try:
            left_out = await ledger.write(self.state())
        except BaseException as error:
            self._not_written(error)
            raise
        self._written(left_out)

    def _not_written(self, error: BaseException) -> None:
        # Cancelled too: the state may be on disk or not, and a second write of it does no harm.
        self._dirty = True
        # A full disk has refused the write: the next one says it all again. It is asked for here, since the
        # round that the last change has asked for may be over, and no further change asks while this is due.
        if isinstance(error, ReadOnly):
            self._on_dirty()
        elif isinstance(error, GemingaError):
            self._owner.fence(error)

    def _written(self, left_out: int) -> None:
        # Once until all fits again: a subscription with too many holes writes such a state four times a
        # second.
        if left_out and not self.left_out:
            log.warning(
                "cursor %s: %d parts of its state are beyond the largest state that is written; after a "
                "crash their messages are delivered again",
                self.name,
                left_out,
            )
        self.left_out = left_out

    # `begin_save`, `add_state` and `end_save` are `persist_if_open` in steps, so that one task writes many
    # cursors. It holds the lock of each in between: a later state must not be queued before this one.

    def begin_save(self) -> EncodedState | None:
        """The state to be written, which a call of `end_save` or `give_up_save` must follow in this task.
        None if the cursor is being written, or has to be by `persist_if_open`, because a ledger is to be made
        for it.
        """
        ledger = self._ledger
        if ledger is None or self._closed or not ledger.has_room() or self._persisting.locked():
            return None
        self._persisting.acquire_nowait()
        self._dirty = False
        return ledger.encode(self.state())

    def add_state(self, state: EncodedState) -> None:
        """Queue what `begin_save` has returned."""
        assert self._ledger is not None
        self._ledger.add(state.data)

    async def end_save(self, state: EncodedState) -> None:
        """Return when it is durable, or refused by a full disk and due again. Any other error fences the
        managed ledger.
        """
        assert self._ledger is not None
        try:
            await self._ledger.added(state.data)
        except BaseException as error:
            self._not_written(error)
            if not isinstance(error, GemingaError):
                raise
        else:
            self._written(state.left_out)
        finally:
            self._persisting.release()

    def give_up_save(self) -> None:
        """The state stays due, in the file or not."""
        self._dirty = True
        self._persisting.release()

    def _check_open(self) -> None:
        self._owner.check_open()
        if self._closed:
            raise ServiceNotReady(f"cursor {self.name} is closed")

    async def reset(self, position: tuple[int, int]) -> None:
        """Seek: the next entry to be read is `position` (or the first after it); durable on return.

        Everything before it counts as acknowledged, nothing after it. A place beyond the last confirmed entry
        means the tail. Errors as `persist`; with ServiceNotReady nothing has changed.
        """
        async with self._persisting:
            self._check_open()
            chain = self._chain
            # Cut to the tail, for `latest` and for positions of other topics: mark-delete beyond it would
            # skip the messages to come.
            self.clear(min(chain.before(position), chain.tail))
            self.read_position = chain.ceiling(self.mark_delete.next())
            # Written before the seek is answered: a crash would otherwise bring the client back to where it
            # was, although it was told that the seek is done.
            self._changed()
            await self._write()

    async def delete(self) -> CursorLedger | None:
        """Remove the record, gone for good on return, and take no more; returns where the states were, for
        deletion. Cancelled: nothing has happened. If it fails the managed ledger is fenced.
        """
        async with self._persisting:
            if self._ledger is not None:
                self._check_open()
                # The record first. Its ledger is then named by none, and a crash leaves an orphan for the
                # sweep at the start; in the other order the subscription would come back without its states.
                try:
                    await self._ledger.delete_record()
                except ReadOnly:
                    raise  # nothing has changed
                except GemingaError as error:
                    self._owner.fence(error)
                    raise
            self._abandon()
        return self._ledger

    async def retire(self) -> None:
        """Take no more, once what is being written is; later acknowledgments are forgotten."""
        # The lock waits for a write that is under way: one that came later would overwrite the cursor of the
        # next opening.
        async with self._persisting:
            self._abandon()

    def _abandon(self) -> None:
        self._closed = True
        if self._ledger is not None:
            self._ledger.close()

    def set_read_position(self, position: Position) -> None:
        """Where the next read of what is new begins. In memory only: a load begins at mark-delete."""
        self.read_position = position

    def is_at_end(self) -> bool:
        """Whether no entry is left to read from the read position on."""
        place, tail = self.read_position, self._chain.tail
        # The newest ledger has no entry after each load, and after it was rolled over: the place behind the
        # last entry lies before that ledger then. Compared with the tail alone it was never the end.
        return place > tail or self._chain.ceiling(place) > tail

    # -- properties -------------------------------------------------------------------------------------

    @property
    def properties(self) -> Mapping[str, int]:
        return self._ledger.record.properties if self._ledger is not None else {}

    @property
    def subscription_properties(self) -> Mapping[str, str]:
        return self._ledger.record.subscription_properties if self._ledger is not None else {}

    async def swap_properties(self, add: Mapping[str, int], remove: Mapping[str, int]) -> None:
        """Add some properties, and remove those that still have the value given, in one write; durable on
        return. ValueTooLarge, ServiceNotReady, StorageError; BadVersion if another writer changed the record,
        which fences the managed ledger.
        """
        async with self._recording() as ledger:
            properties = swapped(ledger.record.properties, add, remove)
            if properties != ledger.record.properties:
                await ledger.save(properties=properties)

    async def set_subscription_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the client's own properties; durable on return. Errors as `swap_properties`."""
        async with self._recording() as ledger:
            if properties != ledger.record.subscription_properties:
                await ledger.save(subscription_properties=properties)

    @property
    def is_replicated(self) -> bool:
        """Whether it was marked so: nothing here copies it to other clusters."""
        return self.properties.get(REPLICATED) == 1

    async def set_replicated(self, is_replicated: bool) -> None:
        """Durable on return. Errors as `swap_properties`."""
        mark = {REPLICATED: 1}
        await self.swap_properties(mark if is_replicated else {}, {} if is_replicated else mark)

    @asynccontextmanager
    async def _recording(self) -> AsyncIterator[CursorLedger]:
        """Holds the cursor's lock while its record is changed."""
        if self._ledger is None:
            raise ServiceNotReady(f"cursor {self.name} has no record to change")
        async with self._persisting:
            self._check_open()
            try:
                yield self._ledger
            except (PeerError, ReadOnly):
                raise  # properties that are too large, or a full disk: nothing has changed
            except GemingaError as error:
                self._owner.fence(error)
                raise

    # -- introspection ----------------------------------------------------------------------------------

    @property
    def cursor_ledger(self) -> CursorLedger | None:
        """Where the cursor is written down; None if it is not durable. For crash tests and benches."""
        return self._ledger

    def statistics(self, after: Position, ranges_max: int) -> Generator[int, None, CursorStatistics]:
        """A view of the first step; yields as `ranges_of`, which takes `after` and `ranges_max`."""
        ledger = self._ledger
        copies = self.acknowledged_copies()
        found = CursorStatistics(
            mark_delete=self.acknowledged_up_to,
            read_position=self.read_position,
            is_at_end=self.is_at_end(),
            backlog_entries=self.backlog_entries(),
            acknowledged_ranges=[],
            ranges_left_out=0,
            ranges_count=0,
            cursor_ledger_id=ledger.record.cursor_ledger_id if ledger is not None else -1,
            cursor_ledger_last_entry_id=ledger.last_entry_id if ledger is not None else -1,
            ledger_switched_ms=ledger.switched_ms if ledger is not None else 0,
            entries_after_first_unacknowledged=self._chain.count_between(
                self.mark_delete, self._chain.before(self.read_position)
            ),
            durable=ledger is not None,
            properties=dict(self.properties),
        )
        if not copies:
            return found
        yield 1
        count = 0
        for _, bitmap in copies:
            count += count_ranges(bitmap)
            yield 1
        ranges, left_out = yield from ranges_of(copies, after, ranges_max)
        return msgspec.structs.replace(
            found, acknowledged_ranges=ranges, ranges_left_out=left_out, ranges_count=count
        )
