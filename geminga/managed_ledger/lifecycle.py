"""The life of a managed ledger: its task while there is work, and every change of its chain, under one lock,
on disk first.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import trio

from geminga.errors import GemingaError, PeerError, ReadOnly, ServiceNotReady, TopicTerminated
from geminga.managed_ledger.chain.appender import Appender
from geminga.managed_ledger.chain.rollover import ledgers_to_drop
from geminga.managed_ledger.chain.state import State
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.managed_ledger.chain.tasks import StartsTasks
from geminga.managed_ledger.chain_record import ChainRecord
from geminga.managed_ledger.cursor.bucket_properties import only_internal, swapped, without_internal
from geminga.managed_ledger.cursor.cursor_ledger import Storage
from geminga.managed_ledger.cursor_saver import CursorSaver
from geminga.managed_ledger.cursor_set import CursorSet
from geminga.managed_ledger.opening import Recovered
from geminga.position import Position

log = logging.getLogger("geminga.managed_ledger")

FULL_RETRY_S = 1.0
"""After this time, what a full disk has refused is retried."""


class Lifecycle:
    """Opening, rolling over, trimming, terminating, closing, deleting."""

    __slots__ = (
        "_deleted",
        "_garbage",
        "_lock",
        "_retry_s",
        "_saver",
        "_storage",
        "_tail_cache",
        "_tasks",
        "_wake",
        "appender",
        "chain",
        "cursors",
        "name",
        "record",
    )

    def __init__(self, storage: Storage, recovered: Recovered, tail_cache: TailCache) -> None:
        chain = recovered.chain
        self.name = storage.topic
        self.chain = chain
        wake = self._wake_up
        self.appender = Appender(
            self.name,
            chain,
            tail_cache,
            storage.clock,
            storage.settings,
            wake=wake,
            first_needed=self._first_needed,
        )
        self.cursors = CursorSet(storage, chain, self.appender, self._cursors_changed)
        self.record = ChainRecord(storage, chain, recovered.record, recovered.version)
        self._storage = storage
        self._tail_cache = tail_cache
        self._garbage: list[int] = recovered.empty_ledger_ids
        """Ledgers that no record names and that are still to be deleted."""
        self._deleted = False
        self._lock: trio.Lock | None = None
        self._tasks: StartsTasks | None = None
        self._saver: CursorSaver | None = None
        self._retry_s = -math.inf
        """No ledger is made or deleted before, because the disk was full."""
        self._wake: trio.Event | None = None
        """While its task runs."""

    @property
    def _changing(self) -> trio.Lock:
        """Held while the chain, its record, or the state changes. Made with its first use: most topics are
        idle.
        """
        if self._lock is None:
            self._lock = trio.Lock()
        return self._lock

    @property
    def state(self) -> State:
        return self.appender.state

    @property
    def total_size_bytes(self) -> int:
        open_bytes = self.appender.ledger_bytes if self.chain.newest_is_open else 0
        return self.chain.closed_bytes + open_bytes

    def estimated_bytes_after(self, position: Position) -> int:
        """See `ManagedLedger.estimated_bytes_after`."""
        chain, size_bytes = self.chain, 0
        for ledger in reversed(list(chain)):
            if ledger.ledger_id < position.ledger_id:
                break
            whole = ledger.size_bytes if ledger.closed_ms else self.appender.ledger_bytes
            if ledger.ledger_id == position.ledger_id and ledger.entries:
                left = max(0, ledger.entries - 1 - max(-1, position.entry_id))
                whole = whole * left // ledger.entries
            size_bytes += whole
        return size_bytes

    async def open(self) -> None:
        """Make the first ledger, unless the topic is terminated, and recover the cursors."""
        if self.record.terminated is None:
            # A new ledger at each opening, as in Pulsar. The old one is never written again, so an entry id
            # that was used before a crash, with or without a receipt, is never used twice.
            self.appender.become(State.CREATING)
            try:
                await self._create_ledger()
            except ReadOnly as full:
                # What is there can be read without a ledger to write to. A new topic has nothing.
                if not self.chain.ids:
                    raise
                self.appender.wait_for_space(full)
        else:
            self.appender.recovered_terminated(Position(*self.record.terminated))
        # After the chain is complete: a cursor is moved to a position that the chain has.
        await self.cursors.recover()
        self.cache_if_read()

    def cache_if_read(self) -> None:
        """Without cursors that read nothing is kept in the tail cache."""
        # System cursors read at their own pace, or not at all; a topic without consumers would fill
        # the tail cache for nothing and push out others' entries.
        self.appender.cache(any(not cursor.is_system for cursor in self.cursors.by_name.values()))

    def _first_needed(self, ledger_id: int) -> int:
        """The first entry of this ledger that a cursor at the tail has still to read."""
        # A cursor far behind does not hold the cache: keeping all for it would be a second copy of the
        # backlog.
        tail, threshold = self.chain.ordinal(self.chain.tail), self._tail_cache.backlogged_entries
        first = self.chain.counts.get(ledger_id, 0)
        for cursor in self.cursors.by_name.values():
            if cursor.is_system:
                continue
            read = cursor.read_position
            if read.ledger_id <= ledger_id and tail - self.chain.ordinal(read) < threshold:
                first = min(first, read.entry_id if read.ledger_id == ledger_id else 0)
        return first

    def run_in(self, tasks: StartsTasks, saver: CursorSaver | None = None) -> None:
        """From now on make new ledgers, in a task that is only there while there is work, and have `saver`
        write cursors down, else one of its own; until closed or fenced.

        Whatever goes wrong fences the managed ledger, is logged, and ends this quietly: if a disk failed its
        store reports it, and any other reason is this topic's alone.
        """
        storage = self._storage
        self._tasks = tasks
        self._saver = saver or CursorSaver(storage.bookie, tasks, storage.settings.cursor_persist_interval_ms)
        self._wake_up()
        if self.cursors.due:
            self._cursors_changed()

    def _cursors_changed(self) -> None:
        if self._saver is not None:
            self._saver.note(self.cursors)

    def _has_work(self) -> bool:
        return bool(self._garbage) or self._is_to_be_rolled()

    def _is_to_be_rolled(self) -> bool:
        if self.appender.full is not None:
            return self.state is State.CREATING
        return self.state is State.ROLLING and not self.appender.unconfirmed

    def _wake_up(self) -> None:
        if self._wake is not None:
            self._wake.set()
        elif self._tasks is not None and self.appender.is_alive and self._has_work():
            self._wake = trio.Event()
            # A task only while there is work: one that sleeps costs 6 KiB, for each of maybe a hundred
            # thousand topics.
            self._tasks.start_soon(self._run)

    async def _run(self) -> None:
        try:
            while self.appender.is_alive and self._has_work():
                async with trio.open_nursery() as nursery:
                    await self._work(nursery)
        finally:
            self._wake = None

    async def _work(self, nursery: trio.Nursery) -> None:
        """Until nothing is left to be done, or the end."""
        while self.appender.is_alive:
            if trio.current_time() >= self._retry_s:
                self._retry_s = -math.inf
                if self._is_to_be_rolled() and not await self._fencing(self._roll):
                    self._retry_s = trio.current_time() + FULL_RETRY_S
                if self._garbage:
                    nursery.start_soon(self._collect)
            if not self._has_work() and not nursery.child_tasks:
                return
            with trio.move_on_at(self._retry_s if self._retry_s > 0 else math.inf):
                await self._woken()

    async def _woken(self) -> None:
        assert self._wake is not None
        await self._wake.wait()
        self._wake = trio.Event()

    async def _fencing(self, work: Callable[[], Awaitable[None]]) -> bool:
        """False if the disk is full: nothing has changed, and the work is to be retried."""
        try:
            await work()
        except ReadOnly:
            return False
        except GemingaError as error:
            self.appender.fence(error)
        return True

    async def _collect(self) -> None:
        if not await self._fencing(self._delete_garbage):
            self._retry_s = trio.current_time() + FULL_RETRY_S
        self._wake_up()

    async def close(self) -> None:
        """Take no more entries, wait until the accepted ones are confirmed, write all cursors down.

        On return everything is on disk, and entries that had no ledger yet have failed with ServiceNotReady.
        A fenced managed ledger is closed as it is. Whatever fails on the way, it ends CLOSED and writes
        nothing any more, so that the topic may be opened again; the first error is raised then. Cancelled:
        closing may be called again.
        """
        failure: GemingaError | None = None
        async with self._changing:
            if self.state not in {State.CLOSED, State.FENCED}:
                try:
                    await self._close_orderly()
                except GemingaError as error:
                    self.appender.fence(error)
                    failure = error
            await self._end(ServiceNotReady(f"{self.name} is closed"))
        if failure is not None:
            raise failure

    async def _end(self, reason: GemingaError) -> None:
        """Become CLOSED; on return nothing of ours is on its way to the disk."""
        if self.state is not State.CLOSED:
            self.appender.close(reason)
        # Before the topic may be opened again: a late write of ours would overwrite the next opening's
        # cursors.
        await self.cursors.retire()
        await self.appender.settled()
        for ledger_id in self.chain.ids:
            self._tail_cache.discard(ledger_id)

    async def _close_orderly(self) -> None:
        appender = self.appender
        if self.state is not State.CLOSING:
            appender.become(State.CLOSING)
        appender.refuse()
        appender.fail_queue(ServiceNotReady(f"{self.name} is closing"))
        await appender.drained()
        try:
            # After the last confirmation: consumers may have acknowledged what was confirmed while closing.
            await self.cursors.persist_all()
            if self.chain.newest_is_open and self.chain.tail.entry_id >= 0:
                # Not needed to recover, but now the size of the last ledger is known for good.
                self._close_newest()
                await self.record.save()
        except ReadOnly as full:
            dirty = [name for name, cursor in self.cursors.by_name.items() if cursor.is_dirty]
            if dirty:
                log.warning(
                    "%s: the last acknowledgements of %s could not be written, so their messages are "
                    "delivered again: %s",
                    self.name,
                    ", ".join(dirty),
                    full,
                )

    async def terminate(self) -> Position:
        """Take no more entries, ever; returns the last position, which is on disk. Entries that had no ledger
        yet fail with TopicTerminated. Doing it again returns the same. ServiceNotReady, StorageError.
        """
        async with self._changing:
            appender = self.appender
            if self.record.terminated is not None:
                return Position(*self.record.terminated)
            if self.state is not State.TERMINATED:
                self.appender.check_open()
                appender.become(State.TERMINATED)
            appender.refuse()
            # Entries that wait for a ledger fail; those in the ledger become durable and are confirmed. The
            # last position must be known before it is written, since readers end there for good.
            appender.fail_queue(TopicTerminated(f"{self.name} was terminated"))
            await appender.drained()
            if self.chain.newest_is_open:
                self._close_newest()
            try:
                await self.record.save(terminated=appender.last_confirmed)
            except ReadOnly:
                raise  # it takes no entries, and its end can be written by another call
            except GemingaError as error:
                appender.fence(error)
                raise
            return appender.last_confirmed

    async def delete(self) -> None:
        """Delete entries, cursors and records. On return nothing is left; entries not confirmed yet have
        failed.

        The records go first, so that nothing names a ledger that is gone; a crash in between leaves orphans.
        If it fails this attachment is CLOSED all the same; the topic is opened again, or deleting called
        again.
        """
        async with self._changing:
            if self.state not in {State.CLOSED, State.CLOSING, State.FENCED}:
                self.appender.become(State.CLOSING)
            await self._end(ServiceNotReady(f"{self.name} was deleted"))
            if not self._deleted:
                # The record first: a crash behind it leaves ledgers that nothing names, which the sweep at
                # the start deletes. In the other order a record would name ledgers that are gone.
                named = await self.record.delete()
                self._deleted = True
                self._garbage += [*self.chain.ids, *named]
        try:
            await self._delete_garbage()
        except ReadOnly as full:
            log.warning("%s is deleted; the next start frees the space of its ledgers: %s", self.name, full)

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace all properties but the internal ones; durable on return. ValueTooLarge, ServiceNotReady,
        StorageError.
        """
        async with self._recording() as record:
            await record.save(properties=without_internal(properties) | only_internal(record.properties))

    async def swap_properties(self, add: Mapping[str, str], remove: Mapping[str, str]) -> None:
        """Add some properties, and remove those that still have the value given, in one write; durable on
        return. Errors as `set_properties`.
        """
        async with self._recording() as record:
            properties = swapped(record.properties, add, remove)
            # Nothing to write, as when a merge is tried again after its first write was durable.
            if properties != record.properties:
                await record.save(properties=properties)

    async def note_delayed(self, holds: bool) -> None:
        """Note in the record whether subscriptions hold messages back; durable on return. Errors as
        `set_properties`.
        """
        async with self._recording() as record:
            if record.holds_delayed is not holds:
                await record.save(holds_delayed=holds)

    @contextlib.asynccontextmanager
    async def _recording(self) -> AsyncIterator[ChainRecord]:
        async with self._changing:
            self.appender.check_open()
            try:
                yield self.record
            except (PeerError, ReadOnly):
                raise  # too large, or a full disk: nothing has changed
            except GemingaError as error:
                self.appender.fence(error)
                raise

    # -- the chain --------------------------------------------------------------------------------------

    async def _roll(self) -> None:
        async with self._changing:
            if self.state is State.ROLLING:
                self.appender.become(State.CREATING)
                self._close_newest()
            if self.state is State.CREATING:
                try:
                    await self._create_ledger()
                except ReadOnly as full:
                    self.appender.wait_for_space(full)
                    raise

    async def _create_ledger(self) -> None:
        storage = self._storage
        ledger_id = await storage.ledger_ids.next()
        # Durable before the first entry goes to the bookie: a receipt for an entry in a ledger that no record
        # names would be lost with the next start's sweep.
        await self.record.save(new_ledger_id=ledger_id)
        # Closing or a fence may have come while the record was written; the empty ledger is dropped by the
        # next opening.
        if self.state is State.CREATING:
            self.appender.open_ledger(storage.bookie, ledger_id, storage.path)

    def _close_newest(self) -> None:
        self.chain.close_newest(self.appender.ledger_bytes, max(1, self._storage.clock.now_ms()))

    async def _delete_garbage(self) -> None:
        while self._garbage:
            # Each deletion is shielded; a stop need not wait for all of them.
            await trio.lowlevel.checkpoint_if_cancelled()
            ledger_id = self._garbage.pop()
            try:
                await self._storage.delete_ledger(ledger_id)
            except ReadOnly:
                self._garbage.append(ledger_id)
                raise

    async def trim(self, *, retains: bool = True) -> int:
        """Delete the ledgers that all durable cursors have passed and retention does not hold; returns how
        many. Without `retains` retention holds nothing.

        Never the newest. Leaves a full or old ledger too, so that it can go next time: to be called now and
        then. Readers of a deleted ledger (non-durable cursors) go on at the first one that is left.
        Whatever goes wrong fences the managed ledger, as in `run_in`, and is not raised. On a full disk it is
        retried instead.
        """
        dropped = 0

        async def drop() -> None:
            nonlocal dropped
            dropped = await self._drop_oldest(retains)
            await self._delete_garbage()

        if not await self._fencing(drop):
            self._retry_s = trio.current_time() + FULL_RETRY_S
            self._wake_up()
        return dropped

    async def _drop_oldest(self, retains: bool) -> int:
        async with self._changing:
            if self.state is State.OPEN and self.chain.tail.entry_id >= 0:
                # A topic without traffic gets no confirmation that would look: its consumed data would stay
                # until the next message.
                self.appender.roll_if_full(self.chain.tail.entry_id + 1)
            dropped = self._droppable(retains)
            if not dropped or self.state in {State.CLOSING, State.CLOSED, State.FENCED}:
                return 0
            # A cursor that is behind on disk would say after a crash that the rest of such a ledger was not
            # acknowledged. A full disk needs the space first.
            with contextlib.suppress(ReadOnly):
                await self.cursors.persist_all()
            # "Metadata first when something is deleted": a crash from here on leaves ledgers for the sweep to
            # delete.
            await self.record.save(dropped=dropped)
            gone = self.chain.ids[:dropped]
            self.chain.drop_oldest(dropped)
            self.cursors.ledgers_dropped()
            self.appender.ledgers_dropped()
            for ledger_id in gone:
                self._tail_cache.discard(ledger_id)
            self._garbage += gone
        return dropped

    def _droppable(self, retains: bool) -> int:
        """How many of the oldest ledgers may go."""
        # Non-durable cursors (readers) hold nothing back, as in Pulsar.
        older = list(self.chain)[:-1]
        slowest = self.cursors.slowest_durable()
        if slowest is not None:
            older = [ledger for ledger in older if (ledger.ledger_id, ledger.entries - 1) <= slowest]
        if not retains:
            return len(older)
        settings, now_ms = self.appender.settings, self._storage.clock.now_ms()
        return ledgers_to_drop(settings, older, self.total_size_bytes, now_ms)
