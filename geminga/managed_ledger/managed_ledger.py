"""A topic's storage: a chain of ledgers that is written at one end, and the cursors of its subscriptions.

The parts do the work and are put together here: `appender` writes, `ledger_reads` reads, `cursor_set` and
`cursor` remember what is consumed, `life` changes the chain and ends it. A method here that only forwards
promises what the one of the same name there does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from geminga.errors import GemingaError
from geminga.managed_ledger.chain.add_listener import AddListener
from geminga.managed_ledger.chain.ledger_reads import LedgerReads
from geminga.managed_ledger.chain.rollover import ManagedLedgerSettings
from geminga.managed_ledger.chain.state import State
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.managed_ledger.cursor.bucket_properties import only_internal, without_internal
from geminga.managed_ledger.cursor.cursor import Cursor
from geminga.managed_ledger.cursor.cursor_ledger import Storage
from geminga.managed_ledger.cursor.statistics import USUAL_RANGES, RangesAsked
from geminga.managed_ledger.lifecycle import Lifecycle
from geminga.managed_ledger.opening import Recovered, recover_chain
from geminga.managed_ledger.statistics import ManagedLedgerStatistics, managed_ledger_statistics
from geminga.metadata import records
from geminga.metadata.records import LedgerInfo
from geminga.position import Position

if TYPE_CHECKING:
    from geminga.bookie.running.bookie import Bookie
    from geminga.clock import Clock
    from geminga.metadata.ledger_ids import LedgerIds
    from geminga.metadata.store import MetadataStore

__all__ = ["AddListener", "ManagedLedger", "ManagedLedgerSettings"]


class ManagedLedger:
    """Made by `open`. `append` and the cursors' acknowledgments are synchronous; whatever returns from an
    `await` here is durable. When its storage fails, or its records are not as it left them, it is fenced: it
    accepts and confirms nothing until it is closed and opened again; its listener is told.
    """

    def __init__(self, storage: Storage, recovered: Recovered, tail_cache: TailCache) -> None:
        life = Lifecycle(storage, recovered, tail_cache)
        self.name = storage.topic
        self.life = life
        self._chain = life.chain
        self._record = life.record
        self._appender = life.appender
        self.reads = LedgerReads(life.chain, tail_cache, storage.bookie)

        # Bound here once: forwarding would cost a Python call for every message. Not for calls that are
        # seldom made: each bound method takes 72 bytes of every loaded topic.
        self.append = self._appender.append
        self.run_entries_max = self._appender.run_entries_max
        self.read_cached = self.reads.read_cached
        self.read = self.reads.read
        self.read_positions = self.reads.read_positions
        self.storage = storage
        # A view: cursors are added and removed under the set's lock, with their records.
        self.cursors: Mapping[str, Cursor] = MappingProxyType(life.cursors.by_name)

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
        # Nothing is written before the chain is recovered whole: a start that refuses a damaged topic leaves
        # its files as they were.
        recovered = recover_chain(storage, create=create, properties=properties)
        ledger = cls(storage, recovered, tail_cache)
        await ledger.life.open()
        return ledger

    # -- entries ----------------------------------------------------------------------------------------

    def attach(self, listener: AddListener, on_fenced: Callable[[], None] | None = None) -> None:
        self._appender.attach(listener, on_fenced)

    def apply(self, settings: ManagedLedgerSettings) -> None:
        self._appender.apply(settings)

    def fence(self, error: GemingaError) -> None:
        self._appender.fence(error)

    def pending(self) -> Iterator[Any]:
        return self._appender.pending()

    def oldest_pending(self) -> Any:
        return self._appender.oldest_pending()

    # -- cursors ----------------------------------------------------------------------------------------

    async def open_cursor(
        self,
        name: str,
        *,
        initial: Literal["earliest", "latest"] | Position,
        properties: Mapping[str, int] | None = None,
        subscription_properties: Mapping[str, str] | None = None,
    ) -> Cursor:
        """The durable cursor of that name, unchanged if it exists. The first entry that a new one reads is at
        `initial`.

        Its record is durable on return. Conflict: a non-durable cursor has the name. ServiceNotReady,
        StorageError.
        """
        self._appender.check_open()
        if initial == "earliest":
            # A mark-delete position is the last entry that is not wanted, so "earliest" stands before the
            # first one.
            start = self._chain.before(self.first_position())
        elif initial == "latest":
            # Not the last appended: entries without their receipt may fail, and the subscription would miss
            # their retries.
            start = self._chain.before(self.last_confirmed.next())
        else:
            start = self._chain.before(initial)
        cursor = await self.life.cursors.open(
            # A client may ask for a position beyond the end; standing there, it would skip entries to come.
            name,
            min(start, self._chain.tail),
            properties or {},
            subscription_properties or {},
        )
        # From now on new entries are kept for it; those before are read from the bookie.
        self.life.cache_if_read()
        return cursor

    def open_non_durable_cursor(self, name: str, start: Position) -> Cursor:
        """A cursor that is forgotten with the process (`delete_cursor` forgets it sooner), `start` its first
        entry to be read. Its mark-delete position is the last entry before that, of whichever ledger: readers
        learn from it how long a ledger is. Conflict if the name is taken; ServiceNotReady.
        """
        # Synchronous, unlike a durable cursor: it has no record, and a reader need not wait for a disk.
        self._appender.check_open()
        cursor = self.life.cursors.open_non_durable(name, min(self._chain.before(start), self._chain.tail))
        self.life.cache_if_read()
        return cursor

    async def delete_cursor(self, name: str) -> None:
        """Forget a cursor, durable or not; gone for good on return. SubscriptionNotFound, StorageError."""
        await self.life.cursors.delete(name)
        self.life.cache_if_read()

    async def persist_cursors(self) -> None:
        """Write what was acknowledged so far; durable on return. StorageError."""
        await self.life.cursors.persist_now()

    # -- positions --------------------------------------------------------------------------------------

    def are_closed_ledgers(self, first: tuple[int, int], last: tuple[int, int]) -> bool:
        return self._chain.are_closed_ledgers(first, last)

    def first_position(self) -> Position:
        """The first entry of the topic, or the position of the next one."""
        return self._chain.ceiling((self._chain.ids[0], 0))

    def next_position(self, position: Position) -> Position:
        """The position after `position`, across ledgers: an entry, or the next one to come."""
        return self._chain.ceiling(position.next())

    def previous_position(self, position: Position) -> Position:
        """The last entry before `position`, across ledgers; (first ledger, -1) if there is none."""
        return self._chain.previous(position)

    def last_position(self) -> Position | None:
        """The last confirmed entry that still is in the chain, however old; None if it is empty."""
        return self._chain.last_entry()

    def entries_in(self, ledger_id: int) -> int:
        """Confirmed entries of one ledger; 0 if it is not in the chain."""
        return self._chain.counts.get(ledger_id, 0)

    def count_between(self, after: Position, up_to: Position) -> int:
        """Entries in (after, up_to]."""
        return self._chain.count_between(after, up_to)

    def position_after(self, position: Position, entries: int) -> Position:
        """The entry that stands so many entries behind `position`; the last one if there are not so many."""
        chain = self._chain
        # By ordinals: adding to the entry id would leave the ledger, or meet one that was trimmed.
        ordinal = min(chain.ordinal(position) + entries, chain.ordinal(chain.tail))
        return chain.at_ordinal(ordinal) if ordinal > chain.ordinal((chain.ids[0], -1)) else position

    def estimated_bytes_after(self, position: Position) -> int:
        """Bytes of the entries behind `position`; of its own ledger the same share as of the entries."""
        return self.life.estimated_bytes_after(position)

    @property
    def last_confirmed(self) -> Position:
        """The newest durable entry; (ledger, -1) if it is not in this newest ledger or there is none."""
        return self._appender.last_confirmed

    # -- what it is -------------------------------------------------------------------------------------

    @property
    def listener(self) -> AddListener:
        """Attached last."""
        return self._appender.listener

    @property
    def fenced(self) -> bool:
        """Whether it was, be it closed since or not."""
        return self._appender.fenced

    @property
    def settings(self) -> ManagedLedgerSettings:
        """Those of the broker, changed by the topic's policies since: see `apply`."""
        return self._appender.settings

    @property
    def state(self) -> State:
        return self._appender.state

    @property
    def error(self) -> GemingaError | None:
        """What fenced or ended it."""
        return self._appender.error

    @property
    def terminated(self) -> bool:
        # The record too: a fenced or closed topic has lost the state, and stays terminated.
        return self.state is State.TERMINATED or self._record.terminated is not None

    @property
    def created_ms(self) -> int:
        return self._record.created_ms

    @property
    def properties(self) -> Mapping[str, str]:
        """The topic's own."""
        return without_internal(self._record.properties)

    @property
    def internal_properties(self) -> Mapping[str, str]:
        """Those of the delayed index, in `cursor/bucket_properties.py`."""
        return only_internal(self._record.properties)

    @property
    def holds_delayed(self) -> bool:
        """What `note_delayed` noted last."""
        return self._record.holds_delayed

    @property
    def ledgers(self) -> Sequence[LedgerInfo]:
        """Oldest first. Of the open one `closed_ms` is 0 and the counts are not filled in."""
        return self._record.ledgers()

    @property
    def number_of_ledgers(self) -> int:
        return len(self._chain.ids)

    @property
    def number_of_entries(self) -> int:
        return self._chain.entries

    @property
    def total_size_bytes(self) -> int:
        return self.life.total_size_bytes

    def internal_stats(
        self, asked: RangesAsked = USUAL_RANGES
    ) -> Generator[int, None, ManagedLedgerStatistics]:
        """Without I/O, each cursor as of one moment. Yields after some rows (ledgers, cursors, acknowledged
        ranges) how many.
        """
        return managed_ledger_statistics(
            self._chain,
            self._appender,
            self.reads,
            self._record,
            self.cursors,
            self.total_size_bytes,
            asked,
        )
