"""A topic's storage: a chain of ledgers that is written at one end, and the cursors of its subscriptions.

The parts do the work: `appender` writes, `ledger_reads` reads, `cursor_set` and `cursor` remember what is
consumed. Here they are put together, and here is all that changes the chain: each change is made under one
lock, on disk first.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import trio

from geminga.errors import ServiceNotReady, StorageError, TopicTerminated
from geminga.managed_ledger.appender import AddListener, Appender
from geminga.managed_ledger.chain_record import ChainRecord
from geminga.managed_ledger.cursor import Cursor
from geminga.managed_ledger.cursor_ledger import Storage
from geminga.managed_ledger.cursor_set import CursorSet
from geminga.managed_ledger.ledger_reads import LedgerReads
from geminga.managed_ledger.opening import Recovered, recover_chain
from geminga.managed_ledger.rollover import ManagedLedgerSettings, ledgers_to_drop
from geminga.managed_ledger.state import State
from geminga.managed_ledger.statistics import ManagedLedgerStatistics, managed_ledger_statistics
from geminga.managed_ledger.tail_cache import TailCache
from geminga.metadata import records
from geminga.metadata.records import LedgerInfo
from geminga.position import Position

if TYPE_CHECKING:
    from geminga.bookie.bookie import Bookie
    from geminga.clock import Clock
    from geminga.metadata.ledger_ids import LedgerIds
    from geminga.metadata.store import MetadataStore

__all__ = ["AddListener", "ManagedLedger", "ManagedLedgerSettings"]


class ManagedLedger:
    """Made by `open`. `append` and the cursors' acknowledgments are synchronous; whatever returns from an
    `await` here is durable. After a StorageError it is fenced: it accepts and confirms nothing until it is
    opened anew.
    """

    def __init__(self, storage: Storage, recovered: Recovered, tail_cache: TailCache) -> None:
        chain = recovered.chain
        self.name = storage.topic
        self._storage = storage
        self._tail_cache = tail_cache
        self._chain = chain
        self._record = ChainRecord(storage, chain, recovered.record, recovered.version)
        self._appender = Appender(
            self.name, chain, tail_cache, storage.clock, storage.settings, self._wake_up
        )
        self._reads = LedgerReads(chain, tail_cache, storage.bookie)
        self._cursors = CursorSet(storage, chain, self._wake_up)
        self._garbage: list[int] = recovered.empty_ledger_ids
        """Ledgers that no record names any more and that are still to be deleted."""
        self._changing = trio.Lock()
        """Held by whatever changes the chain or the state."""
        self._wake = trio.Event()
        self.append = self._appender.append
        self.read_cached = self._reads.read_cached
        self.read = self._reads.read
        self.read_positions = self._reads.read_positions
        self.find_first = self._reads.find_first
        self.cursors: Mapping[str, Cursor] = MappingProxyType(self._cursors.by_name)

    # -- life -------------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        name: str,
        bookie: Bookie,
        metadata: MetadataStore,
        ledger_ids: LedgerIds,
        clock: Clock,
        settings: ManagedLedgerSettings | None = None,
        *,
        tail_cache: TailCache,
        create: bool = True,
        properties: Mapping[str, str] | None = None,
    ) -> ManagedLedger:
        """Recover the managed ledger at this metadata path, or make it; ready for `append` on return.

        The ledger that was open when the process ended is closed where the bookie's entries end, and dropped
        if it is empty. A new one is made unless the topic is terminated. TopicNotFound if absent and not
        `create`. Cancelling leaves at most an empty ledger, which the next opening drops.
        """
        topic = str(records.topic_of(name))
        storage = Storage(
            topic, name, bookie, metadata, ledger_ids, clock, settings or ManagedLedgerSettings()
        )
        recovered = await recover_chain(storage, create=create, properties=properties)
        ledger = cls(storage, recovered, tail_cache)
        await ledger._open(recovered)
        return ledger

    async def _open(self, recovered: Recovered) -> None:
        appender = self._appender
        if recovered.record.terminated is None:
            appender.become(State.CREATING)
            await self._create_ledger()
            appender.last_confirmed = self._chain.tail
        else:
            appender.become(State.TERMINATED)
            appender.last_confirmed = Position(*recovered.record.terminated)
        await self._cursors.recover()
        self._cache_if_read()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Make new ledgers and write cursors down, until closed or fenced. Asleep unless there is work.

        A StorageError fences the managed ledger and ends this quietly: whichever store failed reports it.
        """
        interval_s = self._storage.settings.cursor_persist_interval_ms / 1000
        persist_due_s = math.inf
        async with trio.open_nursery() as nursery:
            task_status.started()
            while self.state not in {State.CLOSED, State.FENCED}:
                if self.state is State.ROLLING and not self._appender.unconfirmed:
                    await self._fencing(self._roll)
                if self._garbage:
                    nursery.start_soon(self._fencing, self._delete_garbage)
                if trio.current_time() >= persist_due_s:
                    persist_due_s = math.inf
                    nursery.start_soon(self._fencing, self._cursors.persist)
                elif self._cursors.due and persist_due_s == math.inf:
                    persist_due_s = trio.current_time() + interval_s
                with trio.move_on_at(persist_due_s):
                    await self._wake.wait()
                self._wake = trio.Event()

    def _wake_up(self) -> None:
        self._wake.set()

    async def _fencing(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except StorageError as error:
            self._appender.fence(error)

    async def close(self) -> None:
        """Take no more entries, wait until the accepted ones are confirmed, write all cursors down.

        On return everything is on disk, and entries that had no ledger yet have failed with ServiceNotReady.
        A fenced managed ledger is closed as it is. Cancelled: closing may be called again. StorageError.
        """
        async with self._changing:
            appender = self._appender
            if self.state is State.CLOSED:
                return
            if self.state is not State.FENCED:
                await self._close_orderly()
            self._cursors.abandon()
            appender.close(ServiceNotReady(f"{self.name} is closed"))
            for ledger_id in self._chain.ids:
                self._tail_cache.discard(ledger_id)

    async def _close_orderly(self) -> None:
        appender = self._appender
        if self.state is not State.CLOSING:
            appender.become(State.CLOSING)
        appender.refuse()
        appender.fail_queue(ServiceNotReady(f"{self.name} is closing"))
        try:
            await appender.drained()
            await self._cursors.close()
            if self._chain.newest_is_open and self._chain.tail.entry_id >= 0:
                # Not needed to recover, but now the size of the last ledger is known for good.
                self._close_newest()
                await self._record.save()
        except StorageError as error:
            appender.fence(error)
            raise

    async def terminate(self) -> Position:
        """Take no more entries, ever; returns the last position, which is on disk. Entries that had no ledger
        yet fail with TopicTerminated. Doing it again returns the same. ServiceNotReady, StorageError.
        """
        async with self._changing:
            appender = self._appender
            if self._record.terminated is not None:
                return Position(*self._record.terminated)
            if self.state is not State.TERMINATED:
                self._check_open()
                appender.become(State.TERMINATED)
            appender.refuse()
            appender.fail_queue(TopicTerminated(f"{self.name} was terminated"))
            await appender.drained()
            if self._chain.newest_is_open:
                self._close_newest()
            try:
                await self._record.save(terminated=appender.last_confirmed)
            except StorageError as error:
                appender.fence(error)
                raise
            return appender.last_confirmed

    async def delete(self) -> None:
        """Delete entries, cursors and records. On return nothing is left; entries not confirmed yet have
        failed.

        The records go first, so that nothing names a ledger that is gone; a crash in between leaves orphans.
        """
        async with self._changing:
            if self.state not in {State.CLOSED, State.CLOSING, State.FENCED}:
                self._appender.become(State.CLOSING)
            if self.state is not State.CLOSED:
                self._appender.close(ServiceNotReady(f"{self.name} was deleted"))
            retired = await self._cursors.retire()
            await self._record.delete([ledger.deletion() for ledger in retired])
            for ledger_id in self._chain.ids:
                self._tail_cache.discard(ledger_id)
            cursor_ledgers = [ledger.record.cursor_ledger_id for ledger in retired]
            self._garbage += [*self._chain.ids, *(i for i in cursor_ledgers if i >= 0)]
        await self._delete_garbage()

    def _check_open(self) -> None:
        if self.state is State.FENCED:
            raise StorageError(f"{self.name} is fenced: {self._appender.error}")
        if self.state in {State.CLOSING, State.CLOSED}:
            raise ServiceNotReady(f"{self.name} is {self.state.value.lower()}")

    # -- the chain --------------------------------------------------------------------------------------

    async def _roll(self) -> None:
        async with self._changing:
            if self.state is State.ROLLING:
                self._appender.become(State.CREATING)
                self._close_newest()
                await self._create_ledger()

    async def _create_ledger(self) -> None:
        storage = self._storage
        ledger_id = await storage.ledger_ids.next()
        await self._record.save(new_ledger_id=ledger_id)
        if self.state is State.CREATING:
            self._appender.open_ledger(storage.bookie, ledger_id)

    def _close_newest(self) -> None:
        self._chain.close_newest(self._appender.ledger_bytes, max(1, self._storage.clock.now_ms()))

    async def _delete_garbage(self) -> None:
        while self._garbage:
            await self._storage.delete_ledger(self._garbage.pop())

    async def trim(self) -> int:
        """Delete the ledgers that all durable cursors have passed and retention does not hold; returns how
        many.

        Never the newest. Leaves a full or old ledger too, so that it can go next time: to be called now and
        then. Readers of a deleted ledger (non-durable cursors) go on at the first one that is left.
        StorageError.
        """
        async with self._changing:
            if self.state is State.OPEN and self._chain.tail.entry_id >= 0:
                self._appender.roll_if_full(self._chain.tail.entry_id + 1)
            dropped = self._droppable()
            if not dropped or self.state in {State.CLOSING, State.CLOSED, State.FENCED}:
                return 0
            await self._record.save(dropped=dropped)
            gone = self._chain.ids[:dropped]
            self._chain.drop_oldest(dropped)
            self._cursors.ledgers_dropped()
            self._appender.ledgers_dropped()
            for ledger_id in gone:
                self._tail_cache.discard(ledger_id)
            self._garbage += gone
        await self._delete_garbage()
        return dropped

    def _droppable(self) -> int:
        """How many of the oldest ledgers may go."""
        older = list(self._chain)[:-1]
        slowest = self._cursors.slowest_durable()
        if slowest is not None:
            older = [ledger for ledger in older if (ledger.ledger_id, ledger.entries - 1) <= slowest]
        settings, now_ms = self._appender.settings, self._storage.clock.now_ms()
        return ledgers_to_drop(settings, older, self.total_size_bytes, now_ms)

    # -- cursors ----------------------------------------------------------------------------------------

    async def open_cursor(
        self,
        name: str,
        *,
        initial: Literal["earliest", "latest"] | Position,
        properties: Mapping[str, int] | None = None,
        subscription_properties: Mapping[str, str] | None = None,
    ) -> Cursor:
        """The durable cursor of that name, as it stands; a new one begins at `initial`, the first to be read.

        Its record is durable on return. Conflict: a non-durable cursor has the name. ServiceNotReady,
        StorageError.
        """
        self._check_open()
        if initial == "earliest":
            start = self._chain.before(self.first_position())
        elif initial == "latest":
            start = self.last_confirmed
        else:
            start = self._chain.before(initial)
        cursor = await self._cursors.open(
            name, min(start, self._chain.tail), properties or {}, subscription_properties or {}
        )
        self._cache_if_read()
        return cursor

    def open_non_durable_cursor(self, name: str, start: Position) -> Cursor:
        """A cursor that is forgotten with the process (`delete_cursor` forgets it sooner), `start` its first
        entry to be read. Conflict if the name is taken; ServiceNotReady.
        """
        self._check_open()
        cursor = self._cursors.open_non_durable(name, min(self._chain.before(start), self._chain.tail))
        self._cache_if_read()
        return cursor

    async def delete_cursor(self, name: str) -> None:
        """Forget a cursor, durable or not; gone for good on return. SubscriptionNotFound, StorageError."""
        await self._cursors.delete(name)
        self._cache_if_read()

    def _cache_if_read(self) -> None:
        self._appender.cache(bool(self.cursors))

    # -- positions --------------------------------------------------------------------------------------

    def first_position(self) -> Position:
        """The first entry there is, or the place of the next one."""
        return self._chain.place((self._chain.ids[0], 0))

    def next_position(self, position: Position) -> Position:
        """The place after `position`, across ledgers: an entry, or where the next one will be."""
        return self._chain.place(position.next())

    def previous_position(self, position: Position) -> Position:
        """The last entry before `position`, across ledgers; (first ledger, -1) if there is none."""
        return self._chain.previous(position)

    def last_position(self) -> Position | None:
        """The last confirmed entry that still is in the chain, however old; None if it is empty."""
        return self._chain.last_entry()

    def count_between(self, after: Position, up_to: Position) -> int:
        """Entries in (after, up_to]."""
        return self._chain.count_between(after, up_to)

    @property
    def last_confirmed(self) -> Position:
        """The newest durable entry; (ledger, -1) if it is not in this newest ledger or there is none."""
        return self._appender.last_confirmed

    # -- what it is -------------------------------------------------------------------------------------

    @property
    def listener(self) -> AddListener:
        return self._appender.listener

    @listener.setter
    def listener(self, listener: AddListener) -> None:
        self._appender.listener = listener

    @property
    def settings(self) -> ManagedLedgerSettings:
        """May be replaced at any time: rollover and retention go by the new ones from then on."""
        return self._appender.settings

    @settings.setter
    def settings(self, settings: ManagedLedgerSettings) -> None:
        self._appender.settings = settings

    @property
    def state(self) -> State:
        return self._appender.state

    @property
    def terminated(self) -> bool:
        return self.state is State.TERMINATED or self._record.terminated is not None

    @property
    def created_ms(self) -> int:
        return self._record.created_ms

    @property
    def properties(self) -> Mapping[str, str]:
        return self._record.properties

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace all properties; durable on return. ServiceNotReady, StorageError."""
        async with self._changing:
            self._check_open()
            await self._record.save(properties=properties)

    @property
    def ledgers(self) -> Sequence[LedgerInfo]:
        """Oldest first. Of the open one `closed_ms` is 0 and the counts are not filled in."""
        return self._record.ledgers()

    @property
    def number_of_entries(self) -> int:
        return self._chain.entries

    @property
    def total_size_bytes(self) -> int:
        open_bytes = self._appender.ledger_bytes if self._chain.newest_is_open else 0
        return self._chain.closed_bytes + open_bytes

    def internal_stats(self) -> ManagedLedgerStatistics:
        """A moment's view, without I/O; costs a walk over the ledgers and over each cursor's acknowledged
        ranges.
        """
        return managed_ledger_statistics(
            self._chain,
            self._appender,
            self._reads,
            self._record,
            self._cursors.by_name,
            self.total_size_bytes,
        )
