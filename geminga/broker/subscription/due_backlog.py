"""The part of a backlog that is due: for the policies that let a message's age begin when it is due.

Pulsar counts from when a message was published, so that a long delay eats its TTL and fills its quota. Where
a topic says otherwise, what is not due yet has to be told from what is. The delayed index knows it of
every entry that was read once; entries that no dispatcher has read yet, for want of a consumer or of permits,
are read here.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import trio

from geminga.errors import ProtocolError
from geminga.limits import MIB
from geminga.managed_ledger.chain.ledger_reads import reached
from geminga.position import EARLIEST, LATEST, Position
from geminga.wire.message_metadata import broker_timestamp_ms, peek

if TYPE_CHECKING:
    from geminga.broker.dispatch.settings import Surroundings
    from geminga.broker.subscription.acks import Acks
    from geminga.broker.subscription.consumers import Consumers
    from geminga.managed_ledger.chain.entry import Entry

RUN_ENTRIES, RUN_BYTES = 100, MIB
SCATTERED_ENTRIES = 20
"""Read at once, of whatever size, for nothing but their times."""
DUE_AT_ONCE = 1_000
OLDEST_ENTRIES_MAX = 10_000


class DueBacklog:
    """Of one subscription; made with its first use. Reads wait for the disk and raise StorageError."""

    def __init__(self, around: Surroundings, consumers: Consumers, acks: Acks) -> None:
        self._clock = around.clock
        self._ledger = around.ledger
        self._cursor = around.cursor
        self._delayed = around.delayed
        self._consumers = consumers
        self._acks = acks
        # A quota and the TTL may look at once: the second one would read all entries again.
        self._looking = trio.Lock()
        # Kept, so that each check reads only what was published since the one before.
        self._looked_up_to = EARLIEST
        self._clears = 0

    @property
    def heeds_due_times(self) -> bool:
        """Whether its messages wait for their times at all; until a consumer of another type comes, they do.

        False too while an index that was found at a start is still being read: it is not known yet.
        """
        return (
            not self._consumers.ignores_delays
            and self._delayed.policy.active
            and self._delayed.unknown is None
        )

    @property
    def is_unknown(self) -> bool:
        return self._delayed.unknown is not None

    # -- telling them apart ----------------------------------------------------------------------------------

    async def look(self, stop: Position = LATEST) -> None:
        """Have the index hold exactly what is not due, up to `stop`. Each entry is read once for that."""
        async with self._looking:
            if self._delayed.tracker is None and (self._delayed.has_index() or self._delayed.is_opening):
                await self._delayed.open()
            while self._delayed.is_opening:
                await trio.lowlevel.checkpoint()  # it is open, and about to take what was read meanwhile
            # A seek or a cleared backlog emptied the index: what was held back then has to be found once
            # more.
            if self._clears != self._delayed.clears:
                self._clears, self._looked_up_to = self._delayed.clears, EARLIEST
            # What lies before the read position was sent, is in the index, or is noted to be read again
            # (`is_complete`).
            place = max(self._looked_up_to, self._unread())
            while self.heeds_due_times:
                found = await self._read(place, stop)
                if found is None:
                    break
                entries, place = found
                await self._hold_back(entries)
                # Else the index was emptied while this waited for the disk, and knows nothing of these
                # entries.
                if self._clears == self._delayed.clears:
                    self._looked_up_to = place
        await self._release_due()

    def _unread(self) -> Position:
        """From where on no dispatcher has looked at the backlog."""
        # Without consumers the read position says nothing: the next first consumer rewinds.
        if len(self._consumers):
            return self._cursor.read_position
        return self._cursor.mark_delete.next()

    async def _hold_back(self, entries: list[Entry]) -> None:
        now_ms = self._clock.now_ms()
        timed = [entry for entry in entries if _has_peek(entry) and entry.peek.deliver_at_ms > now_ms]
        if not timed:
            return
        if self._delayed.tracker is None:
            await self._delayed.open()
        # Once more, after the index was opened: an acknowledged entry would count as waiting until its time.
        if timed := self._cursor.unacknowledged(timed):
            self._delayed.hold_back(timed)

    async def _release_due(self) -> None:
        """Release entries that are due and were not fetched because there is no consumer."""
        # Nothing else takes them out while there is no consumer, and what is in the index counts as not due.
        while self.heeds_due_times and self._take_due():
            await trio.lowlevel.checkpoint()

    def _take_due(self) -> bool:
        dispatcher, tracker = self._consumers.dispatcher, self._delayed.tracker
        if dispatcher is not None and dispatcher.consumers:
            # Through the dispatcher, so that they go out as redeliveries: taken from the index alone they
            # would be nowhere.
            return dispatcher.take_due(DUE_AT_ONCE)
        return tracker is not None and tracker.has_due() and bool(tracker.take_due(DUE_AT_ONCE))

    async def _read(self, place: Position, stop: Position) -> tuple[list[Entry], Position] | None:
        """The next unacknowledged entries that are not held back, some, and the place behind them; None:
        there are no more before `stop`.
        """
        window = self._delayed.window(place, stop)
        if window is None:
            return None
        ledger_id, first = window.place
        if window.free is None:
            count = min(RUN_ENTRIES, window.end.entry_id - first)
            # As a run, without a look at each entry: nothing of this window is held back.
            entries = await self._ledger.read(window.place, count, RUN_BYTES)
            if not entries or entries[0].position.ledger_id != ledger_id:
                return [], window.end  # it was trimmed meanwhile
            return self._cursor.unacknowledged(entries), entries[-1].position.next()
        ids = list(islice(window.free, SCATTERED_ENTRIES))
        if not ids:
            return [], window.end
        positions = [(ledger_id, entry_id) for entry_id in ids]
        entries = await self._ledger.read_positions(positions, RUN_BYTES)
        return entries, Position(ledger_id, ids[reached(positions, entries, RUN_BYTES) - 1] + 1)

    # -- what is due, after `look` ---------------------------------------------------------------------------

    def entries(self) -> int:
        """How many are due and not acknowledged."""
        return max(0, self._cursor.backlog_entries() - len(self._delayed))

    async def oldest_ms(self) -> float:
        """Since when the oldest of them has been due; infinity if there is none.

        As messages come in the order in which they were published, nothing behind the first one without a
        delay is older than that.
        """
        oldest_ms, place = float("inf"), self._cursor.mark_delete.next()
        # Bounded: before the first entry without a delay there may be millions with one.
        for _ in range(OLDEST_ENTRIES_MAX // SCATTERED_ENTRIES):
            found = await self._read(place, LATEST)
            if found is None:
                break
            entries, place = found
            for entry in entries:
                oldest_ms = min(oldest_ms, self.came_ms(entry, False))
                if not _has_peek(entry) or not entry.peek.deliver_at_ms:
                    return oldest_ms
        return oldest_ms

    async def expire(self, before_ms: int, stop: Position, by_broker_time: bool) -> int:
        """Acknowledge what was due, or published if it has no time, before then and stands before `stop`;
        returns how many entries.
        """
        await self.look(stop)
        expired, place = 0, self._cursor.mark_delete.next()
        # Asked each time: a consumer of another type may come meanwhile, which gets everything at once.
        while self.heeds_due_times and (found := await self._read(place, stop)) is not None:
            entries, place = found
            old = [entry for entry in entries if self.came_ms(entry, by_broker_time) < before_ms]
            expired += self._acks.let_go([entry.position for entry in old])
        return expired

    async def evict(self, entries: int) -> int:
        """Acknowledge so many of the first that are due; returns how many there were."""
        # A full index, or one that is read again, does not hold back all that is not due: messages were once
        # evicted that no consumer could have received yet.
        if self.heeds_due_times and not self._delayed.is_complete:
            return await self._evict_by_time(entries)
        # Beyond that no entry was asked for its time.
        stop = max(self._looked_up_to, self._unread()) if self.heeds_due_times else LATEST
        evicted, place = 0, self._cursor.mark_delete.next()
        while evicted < entries and (window := self._delayed.window(place, stop)) is not None:
            ledger_id, first = window.place
            free = window.free if window.free is not None else range(first, window.end.entry_id)
            positions = (Position(ledger_id, entry_id) for entry_id in free)
            backlog = (position for position in positions if not self._cursor.is_acknowledged(position))
            evicted += self._acks.let_go(list(islice(backlog, entries - evicted)))
            place = window.end
        return evicted

    async def _evict_by_time(self, entries: int) -> int:
        """The same while the index does not hold all that waits: each entry is asked for its time."""
        evicted, place = 0, self._cursor.mark_delete.next()
        while evicted < entries and self.heeds_due_times:
            found = await self._read(place, LATEST)
            if found is None:
                break
            read, place = found
            now_ms = self._clock.now_ms()
            due = [e.position for e in read if not _has_peek(e) or self._delayed.due_ms(e) <= now_ms]
            evicted += self._acks.let_go(due[: entries - evicted])
        return evicted

    def came_ms(self, entry: Entry, by_broker_time: bool) -> int:
        """When an entry was due, or published if that was later; 0 if its metadata cannot be read."""
        if not _has_peek(entry):
            return 0
        stamped_ms = broker_timestamp_ms(entry.body) if by_broker_time else None
        published_ms = entry.peek.publish_time_ms if stamped_ms is None else stamped_ms
        # Not the due time alone: a producer may send one that lies before the publish time.
        return max(published_ms, self._delayed.due_ms(entry))


def _has_peek(entry: Entry) -> bool:
    """Whether an entry's metadata can be read; they are at hand then."""
    if entry.peek is None:
        try:
            entry.parsed(peek)
        except ProtocolError:
            return False
    return True
