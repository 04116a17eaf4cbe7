"""What all dispatchers share: where they read, what they leave out, when they sleep.

A subscription has one dispatcher at a time, by the type of its consumers, and one task that runs it. A round
reads and sends until nothing more can be sent; then the task sleeps until someone wakes it: new entries,
permits, acks that lift a block, a consumer that comes or goes, an outbox that has room again, a delayed
message that falls due. Nothing is polled, and nothing is awaited for a single entry.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import trio

from geminga import limits
from geminga.broker.dispatch.consumer import Consumer, ConsumerStatistics
from geminga.broker.dispatch.unacked import count_bits
from geminga.broker.flow.send_memory import READ_BYTES_TIGHT
from geminga.errors import ConsumerBusy, ProtocolError, StorageError
from geminga.managed_ledger.cursor.batch_index import BATCH_MESSAGES_MAX
from geminga.position import Position
from geminga.wire.message_metadata import peek

if TYPE_CHECKING:
    from geminga.broker.delays.subscription_delays import SubscriptionDelays
    from geminga.broker.dispatch.rate import Throttle
    from geminga.broker.dispatch.settings import SubscriptionSettings
    from geminga.broker.flow.read_memory import ReadMemory
    from geminga.broker.flow.subscription_log import SparseLog
    from geminga.clock import Clock
    from geminga.managed_ledger.chain.entry import Entry
    from geminga.managed_ledger.cursor.cursor import Cursor
    from geminga.managed_ledger.managed_ledger import ManagedLedger

log = logging.getLogger("geminga.broker")


READ_BYTES_ENOUGH = limits.MIB
"""Room that is no reason to look for a consumer with more."""
PASSES_PER_TURN = 4
"""Reads that one subscription may do in a row, each of up to `read_entries_max` entries: about 2 ms."""


class Surroundings(NamedTuple):
    """What a dispatcher works on."""

    topic: str
    subscription: str
    partition_index: int
    ledger: ManagedLedger
    cursor: Cursor
    settings: SubscriptionSettings
    clock: Clock
    delayed: SubscriptionDelays
    wake: Callable[[], None]
    log: SparseLog
    throttle: Throttle
    reads: ReadMemory


class Batch:
    """Entries that may be sent: `sizes[i]` messages of `entries[i]` are not acknowledged yet (at least 1)."""

    __slots__ = ("ack_sets", "entries", "has_chunks", "sizes", "timed")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.sizes: list[int] = []
        self.timed: list[Entry] = []
        """Those of `entries` that have a delivery time."""
        self.has_chunks = False
        self.ack_sets: dict[Position, tuple[int, list[int]]] = {}
        """For partly acknowledged entries: (messages in the whole entry, bits of those still unacknowledged).
        """

    def leave_out(self, held: Collection[Position]) -> None:
        """Take these entries out again: they are held back."""
        if not held:
            return
        kept = [n for n, entry in enumerate(self.entries) if entry.position not in held]
        self.entries = [self.entries[n] for n in kept]
        self.sizes = [self.sizes[n] for n in kept]
        self.has_chunks = self.has_chunks and count_chunks(self.entries) > 0


class Dispatcher:
    """One subscription type's way of sending. Subclasses decide who gets what."""

    sub_type: ClassVar[str]

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.ledger = around.ledger
        self.cursor = around.cursor
        self.settings = around.settings
        self.throttle = around.throttle
        self.consumers: list[Consumer] = []
        self.turned_away = 0
        """Grows whenever the result of a read that is under way would not be wanted any more."""
        self._retry_at_s = math.inf
        """After a failed read: when to try again."""
        self._passes = 0
        self._retry_ms = 0
        self._failed_at: Position | None = None
        self._entry_bytes = 0
        """Of an entry, as the last read from the bookie found; 0: there was none."""

    # -- to be defined by each type --------------------------------------------------------------------------

    async def round(self) -> None:
        """The type's part of `run_round`."""
        raise NotImplementedError

    def add(self, consumer: Consumer) -> None:
        """Raises `PeerError` when the consumer is not wanted; then nothing has changed."""
        raise NotImplementedError

    def remove(self, consumer: Consumer) -> None:
        raise NotImplementedError

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        raise NotImplementedError

    def settle(self, consumer: Consumer, positions: Sequence[tuple[int, int]]) -> int:
        """These entries were acknowledged as a whole; returns how many messages that were."""
        raise NotImplementedError

    def announce(self, consumer: Consumer) -> None:
        """The client knows that it is subscribed: now it may be told more."""

    def capacity_grew(self) -> None:
        """A consumer can take more: permits came, a block was lifted, its outbox has room again."""

    def settle_up_to(self, position: Position) -> None:
        """Everything up to `position` is acknowledged by someone who is no consumer. The cursor is told next:
        until then it knows how many messages of a batch are left.
        """

    def mark_delete_moved(self, position: Position) -> None:
        """Everything up to `position` was acknowledged by someone who is no consumer (skipped, expired)."""

    def due_ms(self) -> int | None:
        """When to run a round although no one asks for it, in message time."""
        return None

    def active(self) -> Consumer | None:
        return None

    def reset(self) -> None:
        """The cursor was moved: forget everything that was read before."""
        self.rewind()

    def apply(self, settings: SubscriptionSettings) -> None:
        """Go by other settings from now on."""
        self.settings = settings

    # -- consumers -------------------------------------------------------------------------------------------

    def check_room(self) -> None:
        if 0 < self.settings.consumers_max <= len(self.consumers):
            raise ConsumerBusy("Subscription reached max consumers limit")

    def consumer_statistics(self, consumer: Consumer) -> ConsumerStatistics:
        return consumer.statistics()

    # -- reading ---------------------------------------------------------------------------------------------

    def rewind(self) -> None:
        """Read again from the first entry that is not acknowledged."""
        self.turned_away += 1
        self.cursor.read_position = self.ledger.next_position(self.cursor.mark_delete)

    def retry_now(self) -> None:
        """What could not be read may have been skipped: the next round reads on at once."""
        self._read_succeeded()

    def retry_at_s(self) -> float:
        """When a round is to be tried although no one asks for it, in I/O time; infinity: never."""
        return min(self._retry_at_s, self.throttle.until_s)

    async def run_round(self) -> None:
        """Send all that can be sent now.

        Only here a wait for the next try ends: it may be over between a round that still kept to it and the
        sleep after that round, which then must not be a long one.
        """
        if not self._is_backing_off():
            self._retry_at_s = math.inf
        self.throttle.until_s = math.inf
        await self.round()

    async def let_others_run(self) -> None:
        """Between two reads: every few of them the other tasks have their turn, and the outboxes theirs, so
        that what was sent leaves in few large writes.
        """
        self._passes += 1
        if self._passes >= PASSES_PER_TURN:
            self._passes = 0
            await trio.lowlevel.checkpoint()

    async def read_new(self, count_max: int) -> list[Entry] | None:
        """The next entries, all of one ledger, from memory if they are there.

        []: there is nothing to read now. None: ask again. The read position is the caller's to move.
        """
        if self._is_backing_off():
            return []
        return await self.read_from(self.cursor.next_unacknowledged(self.cursor.read_position), count_max)

    async def read_from(self, start: Position, count_max: int) -> list[Entry] | None:
        """Entries from a place on, as `read_new` returns them."""
        entries = self.ledger.read_cached(start, count_max, self._bytes_wanted() or READ_BYTES_TIGHT)
        if entries or start > self.ledger.last_confirmed:
            return entries
        seen = self.turned_away
        try:
            read = await self._within_memory(
                count_max, lambda bytes_max: self.ledger.read(start, count_max, bytes_max)
            )
        except StorageError as error:
            self._read_failed(start, error)
            return []
        self._read_succeeded()
        return read if seen == self.turned_away else None

    def _bytes_wanted(self) -> int:
        """How much to read at once: as much as the outbox with the most room takes. 0: no consumer can take
        anything now.
        """
        most = self.settings.read_bytes_max
        wanted = 0
        for consumer in self.consumers:
            if consumer.capacity() > 0:
                wanted = max(wanted, consumer.outbox.room_bytes())
                if wanted >= READ_BYTES_ENOUGH:
                    break
        return min(wanted, most)

    async def _within_memory(
        self, count: int, read: Callable[[int], Awaitable[list[Entry]]]
    ) -> list[Entry] | None:
        """What `read` returns for the most bytes that it may bring, when its turn in the memory of reads has
        come. None: it had to wait, and no consumer can take anything any more.
        """
        reads = self.around.reads
        bytes_max = min(self._bytes_wanted() or READ_BYTES_TIGHT, reads.bytes_max // 2)
        taken = max(min(count * (self._entry_bytes or bytes_max), bytes_max), self._entry_bytes)
        if not reads.try_take(taken):
            await reads.take(taken)
            bytes_max = min(self._bytes_wanted(), bytes_max)
        try:
            if not bytes_max:
                return None
            entries = await read(bytes_max)
        finally:
            reads.give(taken)
        if entries:
            self._entry_bytes = sum(len(entry.body) for entry in entries) // len(entries)
        return entries

    def _read_succeeded(self) -> None:
        self._retry_at_s, self._retry_ms, self._failed_at = math.inf, 0, None

    def _is_backing_off(self) -> bool:
        return self._retry_at_s < math.inf and self._retry_at_s > self.around.clock.monotonic_s()

    def _read_failed(self, start: Position, error: StorageError) -> None:
        settings = self.settings
        self._retry_ms = min(max(self._retry_ms * 2, settings.read_retry_ms_min), settings.read_retry_ms_max)
        self._retry_at_s = self.around.clock.monotonic_s() + self._retry_ms / 1000
        if self._failed_at != start:
            self._failed_at = start
            log.error(
                "%s / %s: entries from %s on cannot be read, trying again in %d s and then less often: %s. "
                "'geminga topics skip %s -s %s -n N' acknowledges the oldest N entries of this subscription, "
                "whatever they are; 'geminga bookie verify' on the stopped broker lists what is damaged",
                self.around.topic,
                self.around.subscription,
                start,
                self._retry_ms // 1000,
                error,
                self.around.topic,
                self.around.subscription,
            )

    # -- choosing what may be sent ---------------------------------------------------------------------------

    def admit(self, entries: list[Entry], *, scattered: bool = False) -> Batch:
        """Leave out what is acknowledged, a marker of the broker's own, or unreadable.

        Markers and entries whose metadata cannot be read are acknowledged at once, as in Pulsar. `scattered`
        entries were read by position, others are a run.
        """
        batch = Batch()
        admitted, sizes, timed = batch.entries, batch.sizes, batch.timed
        cursor = self.cursor
        skipped: list[Position] = []
        if scattered:
            entries = [entry for entry in entries if not cursor.is_acknowledged(entry.position)]
        else:
            entries = cursor.unacknowledged(entries)
        for entry in entries:
            metadata = entry.peek
            if metadata is None:
                try:
                    metadata = entry.peek = peek(entry.body)
                except ProtocolError as error:
                    self._log_unreadable(entry.position, error)
                    skipped.append(entry.position)
                    continue
            if metadata.marker_type is not None:
                skipped.append(entry.position)
                continue
            if metadata.deliver_at_ms:
                timed.append(entry)
            size = metadata.num_messages_in_batch
            if size != 1:
                # A producer may claim any number.
                size = min(max(size, 1), BATCH_MESSAGES_MAX)
                size = self._unacked_of_batch(batch, entry.position, size)
            if metadata.chunk_id >= 0:
                batch.has_chunks = True
            admitted.append(entry)
            sizes.append(size)
        if skipped:
            self.cursor.acknowledge(skipped)
            notes = self.consumers[0].notes if self.consumers else None
            if notes is not None:
                notes.acked(None, skipped)
        return batch

    def _unacked_of_batch(self, batch: Batch, position: Position, size: int) -> int:
        bits = self.cursor.ack_set(position)
        if bits is None:
            return size
        batch.ack_sets[position] = (size, bits)
        return max(count_bits(bits), 1)

    def _log_unreadable(self, position: Position, error: ProtocolError) -> None:
        self.around.log.error(
            "%s / %s: the metadata of entry %s cannot be read; it is skipped and acknowledged: %s",
            self.around.topic,
            self.around.subscription,
            position,
            error,
        )


def count_chunks(entries: Sequence[Entry]) -> int:
    """How many of the entries are chunks of larger messages."""
    return sum(entry.peek.chunk_id >= 0 for entry in entries)
