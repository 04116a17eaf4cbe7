"""How a dispatcher reads: from memory or from the bookie, within bounds, and what of it may be sent.

Every read that waits is guarded: `turn_away` makes its result unwanted, whatever moved the read position or
took away the consumers meanwhile.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from geminga import limits
from geminga.broker.dispatch.chooser import Batch, Chooser
from geminga.broker.dispatch.unacked import count_bits
from geminga.broker.flow.send_memory import READ_BYTES_TIGHT
from geminga.errors import ProtocolError, StorageError
from geminga.loops import native
from geminga.managed_ledger.chain.ledger_reads import reached
from geminga.managed_ledger.cursor.batch_index import BATCH_MESSAGES_MAX
from geminga.position import Position
from geminga.wire.message_metadata import peek
from geminga.wire.peek import Peek

if TYPE_CHECKING:
    from geminga.broker.dispatch.settings import Surroundings
    from geminga.managed_ledger.chain.entry import Entry

log = logging.getLogger("geminga.broker")

READ_BYTES_ENOUGH = limits.MIB
"""Room that is no reason to look for a consumer with more."""


class Scattered(NamedTuple):
    """What a read by position found."""

    entries: list[Entry]
    reached: int
    """So many of the positions were looked at. Those among them without an entry have been trimmed."""


class EntryReader:
    """Reads for one dispatcher. After a failed read it backs off: nothing is read before `retry_at_s`."""

    def __init__(self, around: Surroundings, chooser: Chooser) -> None:
        self.retry_at_s = math.inf
        """After a failed read: when to try again, in I/O time."""
        self.is_backing_off = False
        """Whether that is still to come."""
        self._around = around
        self._ledger = around.ledger
        self._cursor = around.cursor
        self._chooser = chooser
        self.turned_away = 0
        """Grows whenever the result of a read that is under way would not be wanted any more."""
        # Apart from `retry_at_s`, which is infinite while a try is under way: the next wait is twice this
        # one.
        self._retry_ms = 0
        self._failed_at: Position | None = None
        self._entry_bytes = 0
        """Mean size of an entry in the last read from the bookie; 0: there was none."""

    # -- where it reads --------------------------------------------------------------------------------------

    def turn_away(self) -> None:
        """The result of a read that is under way is not wanted any more."""
        self.turned_away += 1

    def rewind(self) -> None:
        """Read again from the first entry that is not acknowledged."""
        # Else a read that is under way would move the read position past what is to be read again.
        self.turned_away += 1
        self._cursor.set_read_position(self._ledger.next_position(self._cursor.mark_delete))

    # -- backing off -----------------------------------------------------------------------------------------

    def begin_round(self) -> None:
        """Only here a back-off ends: it may be over between a round that still kept to it and the sleep after
        that round, which then must not be a long one.
        """
        if self.is_backing_off and self.retry_at_s <= self._around.clock.monotonic_s():
            self.retry_at_s, self.is_backing_off = math.inf, False

    def retry_now(self) -> None:
        """What could not be read was read now, or may have been skipped: no reason to wait."""
        self.retry_at_s, self.is_backing_off = math.inf, False
        self._retry_ms, self._failed_at = 0, None

    def _failed(self, start: Position, error: StorageError) -> None:
        around = self._around
        settings = around.settings
        # Pulsar's readFailureBackoff: 15 s, then twice as long up to a minute. A damaged entry is tried until
        # an operator skips it.
        self._retry_ms = min(max(self._retry_ms * 2, settings.read_retry_ms_min), settings.read_retry_ms_max)
        self.retry_at_s = around.clock.monotonic_s() + self._retry_ms / 1000
        self.is_backing_off = True
        # Each try would be a line else. The subscription stands still until then, so the line says what to
        # do.
        if self._failed_at != start:
            self._failed_at = start
            log.error(
                "%s / %s: entries from %s on cannot be read, trying again in %d s and then less often: %s. "
                "'geminga topics skip %s -s %s -n N' acknowledges the oldest N entries of this subscription, "
                "whatever they are; 'geminga bookie verify' on the stopped broker lists what is damaged",
                around.topic,
                around.subscription,
                start,
                self._retry_ms // 1000,
                error,
                around.topic,
                around.subscription,
            )

    # -- reads -----------------------------------------------------------------------------------------------

    def read_new_cached(self, count_max: int) -> list[Entry]:
        """The next entries, if they are in memory: by a plain call. []: `read_new` has to look for them."""
        start = self._cursor.next_unacknowledged(self._cursor.read_position)
        return [] if self.is_backing_off else self._read_cached(start, count_max)

    def _read_cached(self, start: Position, count_max: int) -> list[Entry]:
        # It takes no memory of reads: the cache holds these bytes anyway.
        return self._ledger.read_cached(start, count_max, self._bytes_wanted() or READ_BYTES_TIGHT)

    async def read_new(self, count_max: int) -> list[Entry] | None:
        """The next entries, all of one ledger, from memory if they are there.

        []: there is nothing to read now. None: ask again. The read position is the caller's to move.
        """
        return await self.read_from(self._cursor.next_unacknowledged(self._cursor.read_position), count_max)

    async def read_from(self, start: Position, count_max: int) -> list[Entry] | None:
        """Entries from a position on, as `read_new` returns them."""
        if self.is_backing_off:
            return []
        # A plain call, for consumers that keep up.
        entries = self._read_cached(start, count_max)
        if entries or start > self._ledger.last_confirmed:
            return entries
        # From here on the disk is waited for: a seek, a skip, or other consumers may come.
        seen = self.turned_away
        try:
            read = await self._within_memory(
                count_max, lambda bytes_max: self._ledger.read(start, count_max, bytes_max)
            )
        # Unlike a failed write, a damaged entry does not end the process: it stops this subscription, and an
        # operator decides.
        except StorageError as error:
            self._failed(start, error)
            return []
        self.retry_now()
        # Not []: that would say that nothing is left, and the read position may have been set back.
        return read if seen == self.turned_away else None

    async def read_positions(
        self,
        positions: Sequence[tuple[int, int]],
        read_along: Callable[[], Sequence[Position]] | None = None,
    ) -> Scattered | None:
        """Entries that lie anywhere, ascending: at least the first, if it exists. `read_along`: see
        `LedgerReads.read_positions`.

        None: they are not wanted any more, no consumer can take anything, or reading failed.
        """
        looked_at = 0

        async def read(bytes_max: int) -> list[Entry]:
            nonlocal looked_at
            # In one trip to the disk: due messages with random delays lie anywhere in a backlog. With a trip
            # through a worker thread for each (300 us) 2,500 a second kept the broker at the edge of falling
            # behind.
            # At once: the round counts its reads, and a turn of the loop for each message that is due alone
            # cost as much as reading it.
            found = await self._ledger.read_positions(
                positions, bytes_max, at_once=True, read_along=read_along
            )
            # A read also ends at its bytes. Positions that it did not reach stay to be sent; those that it
            # reached without an entry have been trimmed.
            looked_at = reached(positions, found, bytes_max)
            return found

        seen = self.turned_away
        try:
            entries = await self._within_memory(len(positions), read)
        except StorageError as error:
            self._failed(Position(*positions[0]), error)
            return None
        if entries is None or seen != self.turned_away:
            return None
        return Scattered(entries, looked_at)

    async def _within_memory(
        self, count: int, read: Callable[[int], Awaitable[list[Entry]]]
    ) -> list[Entry] | None:
        """What `read` returns for the most bytes that it may bring, when its turn in the memory of reads has
        come. None: it had to wait, and no consumer can take anything any more.
        """
        reads = self._around.reads
        # At most half of it, so that another dispatcher can read beside a large read of this one.
        bytes_max = min(self._bytes_wanted() or READ_BYTES_TIGHT, reads.bytes_max // 2)
        # By the mean size of the last read: with `bytes_max` for every read, others would wait for memory
        # that a few small entries do not take. One entry is always read, so no less than one.
        taken = max(min(count * (self._entry_bytes or bytes_max), bytes_max), self._entry_bytes)
        if not reads.try_take(taken):
            await reads.take(taken)
            # The outboxes may have filled while this read waited for its turn; what it brings would have
            # nowhere to go.
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

    def _bytes_wanted(self) -> int:
        """How much to read at once: as much as the outbox with the most room takes. 0: no consumer can take
        anything now.
        """
        wanted = 0
        for consumer in self._chooser.receivers():
            if consumer.capacity() > 0:
                # The largest and not the sum, as one consumer may get all that is read.
                wanted = max(wanted, consumer.outbox.room_bytes())
                if wanted >= READ_BYTES_ENOUGH:
                    break
        return min(wanted, self._around.settings.read_bytes_max)

    # -- what may be sent ------------------------------------------------------------------------------------

    def admit(self, entries: list[Entry], *, scattered: bool = False) -> Batch:
        """Leave out what is acknowledged, a marker of the broker's own, or unreadable.

        Markers and entries whose metadata cannot be read are acknowledged at once, as in Pulsar. `scattered`
        entries were read by position, others are a run.
        """
        admitted: list[Entry] = []
        sizes: list[int] = []
        timed: list[Entry] = []
        skipped: list[Position] = []
        ack_sets: dict[Position, tuple[int, list[int]]] = {}
        has_chunks = False
        cursor = self._cursor
        # A run is checked by one count over the cursor's bitmap, which mostly says that all of it is wanted.
        if scattered:
            entries = [entry for entry in entries if not cursor.is_acknowledged(entry.position)]
        else:
            entries = cursor.unacknowledged(entries)
        if native is not None:
            # `peek` in C, for entries with the usual metadata.
            native.peek_entries(entries, Peek)
        for entry in entries:
            metadata = entry.peek
            if metadata is None:
                try:
                    # Stays with the entry, so that the topic's other subscriptions, which share it, need not
                    # parse it again.
                    metadata = entry.parsed(peek)
                # Acknowledged, as Pulsar's filterEntriesForConsumer does with both kinds: no client will ever
                # acknowledge them, and they would hold the mark-delete position back for good.
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
                # A batch of none would take no permits, and be sent without end.
                size = min(max(size, 1), BATCH_MESSAGES_MAX)
                if (bits := cursor.ack_set(entry.position)) is not None:
                    ack_sets[entry.position] = (size, bits)
                    # As in Pulsar, messages of the batch that are acknowledged take no permits.
                    size = max(count_bits(bits), 1)
            if metadata.chunk_id >= 0:
                has_chunks = True
            admitted.append(entry)
            sizes.append(size)
        if skipped:
            self._skip(skipped)
        return Batch(admitted, sizes, timed, ack_sets, has_chunks=has_chunks)

    def _skip(self, positions: list[Position]) -> None:
        self._cursor.acknowledge(positions)
        consumers = self._chooser.consumers
        notes = consumers[0].notes if consumers else None
        if notes is not None:
            notes.acked(None, positions)

    def _log_unreadable(self, position: Position, error: ProtocolError) -> None:
        self._around.log.error(
            "%s / %s: the metadata of entry %s cannot be read; it is skipped and acknowledged: %s",
            self._around.topic,
            self._around.subscription,
            position,
            error,
        )
