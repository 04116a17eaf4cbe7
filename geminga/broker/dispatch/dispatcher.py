"""The dispatcher: one loop for all subscription types, which asks its chooser which consumer gets what.

A subscription has one dispatcher at a time, by the type of its consumers, and one task that runs it. A round
reads and sends until nothing more can be sent; then the task sleeps until it is woken: new entries, permits,
acks that lift a block, a consumer that comes or goes, an outbox that has room again, a delayed message that
falls due. Nothing is polled, and nothing is awaited for a single entry. While the task sleeps, what was just
published is sent by a plain call (`send_published`), unless a round has more to do than that.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from geminga.broker.dispatch.chooser import Batch, Chooser, Given, count_chunks
from geminga.broker.dispatch.consumer import Consumer, ConsumerStatistics
from geminga.broker.dispatch.key_shared import KeyShared
from geminga.broker.dispatch.send import send, send_tracked
from geminga.errors import ConsumerBusy
from geminga.position import Position

if TYPE_CHECKING:
    from geminga.broker.dispatch.delaying import DelayedReads
    from geminga.broker.dispatch.reader import EntryReader
    from geminga.broker.dispatch.replay import Replay
    from geminga.broker.dispatch.settings import Surroundings
    from geminga.broker.dispatch.single import Takeover
    from geminga.broker.dispatch.unacked import UnackedBooks
    from geminga.managed_ledger.chain.entry import Entry

log = logging.getLogger("geminga.broker")

# With a turn after every read the outboxes were flushed after every read too: many small writes.
PASSES_PER_TURN = 4
"""Reads that one subscription may do in a row, each of up to `read_entries_max` entries: about 2 ms."""
# Those of a thousand subscriptions go out in one turn of the loop, as the rounds of woken tasks would.
PUBLISHED_ENTRIES_MAX = 16
"""Entries that are sent without the task at once; beside more of them its turn costs little."""


class Dispatcher:
    """Made by `types.dispatcher_for`, which knows the parts of each type: `replay` and `delays` are those of
    Shared and Key_Shared, `takeover` is Failover's.
    """

    def __init__(
        self,
        around: Surroundings,
        chooser: Chooser,
        reader: EntryReader,
        *,
        replay: Replay | None = None,
        delays: DelayedReads | None = None,
        takeover: Takeover | None = None,
    ) -> None:
        self.sub_type = chooser.sub_type
        self.consumers: Sequence[Consumer] = chooser.consumers
        self._around = around
        self._cursor = around.cursor
        self._throttle = around.throttle
        self._chooser = chooser
        self._reader = reader
        self._replay = replay
        self._delays = delays
        self._new: EntryReader | DelayedReads = reader if delays is None else delays
        """Reads what was not to be sent before."""
        self._takeover = takeover
        # Kept between rounds: a consumer with permits for one read at a time would otherwise get overdue
        # entries each time, and never a new one.
        self._is_turn_of_due = True
        self._told_delay = False
        self._told_compacted = False

    @property
    def books(self) -> UnackedBooks | None:
        """What is pending at each consumer and to be sent again; None: the type keeps nothing of that."""
        return self._replay.books if self._replay is not None else None

    @property
    def key_shared(self) -> KeyShared | None:
        return self._chooser if isinstance(self._chooser, KeyShared) else None

    @property
    def heeds_delays(self) -> bool:
        """Exclusive and Failover deliver at once, as in Pulsar: what the index holds back does not wait."""
        return self._delays is not None

    def active(self) -> Consumer | None:
        """The one consumer that gets everything; None where each may get something, or there is none."""
        return self._chooser.active()

    def consumer_statistics(self, consumer: Consumer) -> ConsumerStatistics:
        keyed = self.key_shared
        return keyed.statistics_of(consumer) if keyed is not None else consumer.statistics()

    # -- consumers -------------------------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        """Raises `PeerError` when the consumer is not wanted; then nothing has changed."""
        settings = self._around.settings
        # Before the chooser is asked, as a consumer that it took would own Key_Shared slots already. The text
        # is Pulsar's.
        if 0 < settings.consumers_max <= len(self.consumers):
            raise ConsumerBusy("Subscription reached max consumers limit")
        active = self._chooser.active()
        self._chooser.add(consumer)
        if self._replay is not None:
            self._replay.books.join(consumer, settings.unacked_max_per_consumer)
        # Pulsar's addConsumer too rewinds the cursor for the first consumer after none, and defers that while
        # a read is under way. Here `remove` has turned that read away, so nothing has to be deferred.
        if len(self.consumers) == 1:
            self.reset()
        self._follow_active(active)
        if consumer.read_compacted and not self._told_compacted:
            self._note_compacted(consumer)

    def announce(self, consumer: Consumer) -> None:
        """The client knows that it is subscribed. A consumer of a Failover subscription that changes nothing
        is told at once where it stands; else all are, when the change is made.
        """
        active = self._chooser.active()
        if self._takeover is not None and not self._takeover.is_waiting and active is not None:
            consumer.tell_active(consumer is active)

    def remove(self, consumer: Consumer) -> None:
        active = self._chooser.active()
        self._chooser.remove(consumer)
        if self._replay is not None:
            self._replay.books.leave(consumer)
        if not self.consumers:
            # All consumers may be replaced while one read waits for the disk. The next first consumer starts
            # over, so what that read brings would go out twice.
            self._reader.turn_away()
            if self._delays is not None:
                # A shared index waits with sealing until all that read the backlog are through; this
                # subscription no longer gets there.
                self._delays.stopped()
        self._follow_active(active)
        self._around.wake()

    def _follow_active(self, before: Consumer | None) -> None:
        """If another consumer of a Failover subscription is the active one now: it begins after a while."""
        active = self._chooser.active()
        # Exclusive needs no takeover: a second consumer is refused, and for the first one `reset` has
        # rewound.
        if self._takeover is None or active is before:
            return
        # `_take_over` rewinds and would send again what a read for the former consumer brings meanwhile.
        self._reader.turn_away()
        now_s = self._around.clock.monotonic_s()
        delay_ms = self._around.settings.failover_delay_ms
        self._takeover.active_changed(now_s, delay_ms, has_active=active is not None)
        self._around.wake()

    def _take_over(self) -> None:
        # When the wait is over and not before, as in Pulsar: what the former consumer acknowledged meanwhile
        # is not sent again.
        self._reader.rewind()
        active = self._chooser.active()
        for consumer in self.consumers:
            if consumer is not active and consumer.notes is not None:
                # Without this event the delivery log could not tell why an entry was delivered a second time.
                consumer.notes.released(consumer.name)
            consumer.tell_active(consumer is active)

    def reset(self) -> None:
        """Read from the first entry that is not acknowledged, without what is held back: the first consumer
        came, or the cursor was moved. Nothing of what was read before counts.
        """
        if self._replay is not None:
            self._replay.start_over()
        if self._delays is not None:
            self._delays.start_over()
        self._reader.rewind()

    def settings_changed(self) -> None:
        """Bounds that are kept count from now on; all others are looked up with each use."""
        if self._replay is not None:
            settings = self._around.settings
            self._replay.books.limit(settings.unacked_max_per_subscription, settings.unacked_max_per_consumer)

    # -- what clients ask ------------------------------------------------------------------------------------

    def capacity_grew(self) -> None:
        """A consumer can take more: permits came, its outbox has room again."""
        if self._replay is not None:
            self._replay.room_came()
        else:
            self._around.wake()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Send these again, or all that the consumer has not acknowledged. Where nothing is kept of what was
        sent, that is all from the first unacknowledged entry on, if the consumer is the one that gets it.
        """
        if self._replay is not None:
            self._replay.give_back(consumer, positions)
            return
        # PIP-84: messages may be on their way when the client asks for everything again. It counts its epoch
        # up and drops those of an earlier one.
        consumer.raise_epoch(epoch)
        waits = self._takeover is not None and self._takeover.is_waiting
        # Pulsar too ignores a consumer that is not active. During a wait there is nothing to do: its end
        # rewinds.
        if consumer is self._chooser.active() and not waits:
            self._reader.rewind()
            self._around.wake()

    def settle(self, consumer: Consumer, positions: Sequence[tuple[int, int]]) -> int:
        """These entries were acknowledged as a whole; returns how many messages of the consumer that were. To
        be called before the cursor is told.
        """
        # Where nothing is pending Pulsar counts an entry as one message as well.
        return len(positions) if self._replay is None else self._replay.books.settle(consumer, positions)

    def settle_up_to(self, position: Position) -> None:
        """Everything up to here is acknowledged, and not by a consumer. The cursor is told next: until then
        it knows how many messages of a batch are left.
        """
        if self._replay is not None:
            self._replay.books.expire(position)

    def skipped(self) -> None:
        """The cursor has been told what `settle_up_to` said: entries up to its mark-delete position were
        acknowledged (skipped, expired), perhaps one that could not be read.
        """
        self.settle_up_to(self._cursor.mark_delete)
        self._reader.retry_now()
        self._around.wake()

    def is_idle_after_publish(self) -> bool:
        """Whether a round would find nothing, although the ledger has new confirmed entries."""
        # Without consumers each publish would wake a task for nothing.
        return not self.consumers or (self._delays is not None and self._delays.passes_published())

    # -- when to run a round ---------------------------------------------------------------------------------

    def retry_at_s(self) -> float:
        """When a round is to be tried although nothing asks for it, in I/O time; infinity: never."""
        if self._takeover is not None and self._takeover.is_waiting:
            return self._takeover.at_s
        return min(self._reader.retry_at_s, self._throttle.until_s)

    def due_ms(self) -> int | None:
        """The same for what falls due, in message time. A time that has come counts as long as a round would
        take what is due, so it does not come back for ever; else the message waits for permits or the next
        try of a failed read, not for the time.
        """
        delays = self._delays
        # A due time that no round can act on has come at every look: the task would wake up without end. It
        # did so for a due message that could not be read.
        if delays is None or not delays.has_tracker() or self._reader.is_backing_off:
            return None
        return delays.next_due_ms() if self._entries_wanted() else None

    def take_due(self, count_max: int) -> bool:
        """Put what is due among what is to be sent again. False: nothing is."""
        return self._delays is not None and self._delays.take_due(count_max)

    # -- a round ---------------------------------------------------------------------------------------------

    async def run_round(self) -> None:
        """Send all that can be sent now."""
        # The others have had their turn before this round, so it counts from 0.
        passes = 0
        self._reader.begin_round()
        # A time of the last round that is past by now would end the sleep after this one at once.
        self._throttle.ask_again()
        if self._takeover is not None and self._takeover.take_over(self._around.clock.monotonic_s()):
            self._take_over()
        while count := self._entries_wanted():
            goes_on = await (
                self._send_new(count) if self._delays is None else self._pass(self._delays, count)
            )
            if not goes_on:
                return
            # Between two reads: every few of them the other tasks have their turn, and the outboxes theirs,
            # so that what was sent leaves in few large writes.
            passes += 1
            if passes % PASSES_PER_TURN == 0:
                await trio.lowlevel.checkpoint()

    def _entries_wanted(self) -> int:
        """About as many entries as the permits will do for; 0: no consumer can take any."""
        if self._takeover is not None and self._takeover.is_waiting:
            return 0
        receivers = self._chooser.receivers()
        wanted, most = 0, self._around.settings.read_entries_max
        for consumer in receivers:
            capacity = consumer.capacity()
            # Permits count messages, a read counts entries. Without the average, permits for 1000 messages
            # would have 100 batches read of which one may use them up. Pulsar does this where
            # preciseDispatcherFlowControl is set.
            if capacity > 0:
                average = round(consumer.average_messages)
                wanted += capacity if average <= 1 else -(-capacity // average)
                if wanted >= most:
                    wanted = most
                    break
        if wanted and self._throttle.limits:
            # By the largest average: with the smallest one 110 messages went out at a limit of 20 a second,
            # as a consumer that had just joined had no average yet.
            return self._throttle.room(wanted, max(c.average_messages for c in receivers))
        return wanted

    async def _pass(self, delays: DelayedReads, count_max: int) -> bool:
        """What is to be sent again goes first, as in Pulsar. Delayed messages that are due and new entries go
        by turns, a read of each, so that a great many that are overdue hold up nothing. False: nothing more
        can be sent now.
        """
        if delays.is_unopened:
            # Before the first read: without the index all that it holds back would be read once more, only to
            # learn its time.
            await delays.open()
            return True
        # In Pulsar all that is overdue goes before anything new, so that after a pause new messages wait
        # until a slow consumer has taken all of it.
        is_turn_of_due = self._is_turn_of_due
        self._is_turn_of_due = not (is_turn_of_due and delays.take_due_at_pace(count_max))
        assert self._replay is not None
        if positions := self._replay.select(count_max):
            return await self._send_again(self._replay, delays, positions)
        sent_new = await self._send_new(count_max)
        # Beside new entries: they waited for the end of a backlog that was only read to be indexed again.
        read_more = await self._read_once_more(delays, count_max)
        # Nothing new is no reason to stop if this was not the turn of what is due.
        if not (sent_new or read_more) and (is_turn_of_due or not delays.may_take_due()):
            return False
        # A message that was just published is one pass; a second one that finds nothing would double its
        # cost.
        return not self._is_at_end()

    def _is_at_end(self) -> bool:
        """Whether another pass would find nothing: all is read, and nothing goes before what is new."""
        return self._cursor.is_at_end() and self._has_only_new()

    def _has_only_new(self) -> bool:
        """Whether nothing is due, to be sent again, or to be read again or sealed."""
        delays = self._delays
        if delays is None:
            return True
        assert self._replay is not None
        # Without "settled" the last read of a backlog ended the round, and what it had added to the index was
        # not sealed.
        return not self._replay.books.redelivery and delays.is_settled and not delays.may_take_due()

    async def _send_again(self, replay: Replay, delays: DelayedReads, positions: list[Position]) -> bool:
        """False: reading failed, so that going on is of no use now."""
        batch = await replay.read(positions, delays.due_next)
        if batch is None:
            return not self._reader.is_backing_off
        # All of them were to be sent before: none is asked for its time again.
        # Pulsar does ask its tracker again here, and a position that it returned too early is tracked once
        # more.
        self._share(batch, is_new=False)
        delays.gave_out(len(positions))
        # A stream of due messages is one pass for each look of the pace.
        return not self._is_at_end()

    async def _send_new(self, count_max: int) -> bool:
        """False: there is nothing to read now, or reading is not allowed."""
        delays = self._delays
        entries = await self._new.read_new(count_max)
        if not entries:
            return entries is None
        batch = self._reader.admit(entries) if delays is None else await delays.hold_back(entries)
        if batch is not None:
            self._share_new(entries, batch)
        return True

    def send_published(self) -> bool:
        """Send what was just published, if that is all there is to do and it needs no await. To be called
        while no round is under way. True: a round would find nothing more.
        """
        # A limit sets the time of the next try, which the task has to sleep for.
        if self._throttle.limits or not self._has_only_new():
            return False
        if not (count := self._entries_wanted()):
            return True
        first, last = self._cursor.read_position, self._around.ledger.last_confirmed
        # More of them, or a backlog, take reads with turns of others in between.
        if last.ledger_id != first.ledger_id or last.entry_id - first.entry_id >= PUBLISHED_ENTRIES_MAX:
            return False
        if not (entries := self._new.read_new_cached(count)):
            return False
        batch = self._new.admit(entries)
        if self._delays is not None and self._delays.may_wait(batch):
            return False
        self._share_new(entries, batch)
        return self._is_at_end()

    def _share_new(self, entries: list[Entry], batch: Batch) -> None:
        """Send what was read as new, and admitted."""
        delays = self._delays
        # Before sharing: Exclusive and Failover put it back to the first entry that found no permits.
        self._cursor.set_read_position(entries[-1].position.next())
        if batch.timed:
            if delays is not None:
                delays.leap_if_behind(batch)
            # Once for each dispatcher, and at INFO: it is no fault, and all entries of a backlog may have a
            # time.
            elif not self._told_delay:
                self._note_delay(batch.timed)
        self._share(batch, is_new=True)

    async def _read_once_more(self, delays: DelayedReads, count_max: int) -> bool:
        """Go on with what is to be read again: whatever of it is nowhere is held back or sent. False: nothing
        was done.
        """
        entries = await delays.read_once_more(count_max)
        # Shared out as new entries, so that those of Key_Shared wait behind what of their key is to be sent
        # again.
        if entries and (batch := await delays.hold_back(entries)) is not None:
            self._share(batch, is_new=True)
        return entries is not None

    # -- sending ---------------------------------------------------------------------------------------------

    def _share(self, batch: Batch, *, is_new: bool) -> None:
        if not batch.entries:
            return
        shares = self._chooser.share(batch, is_new=is_new)
        for given in shares.given:
            self._send(given, batch)
        if not shares.waiting:
            return
        if self._replay is not None:
            self._replay.keep(shares)
        else:
            # What found no permits is not kept: the next read, mostly from the tail cache, brings it again,
            # and a seek or a failover has nothing to clear. Pulsar sends all that one read brought, without a
            # second look at the permits.
            self._cursor.set_read_position(shares.waiting[0].position)

    def _send(self, given: Given, batch: Batch) -> None:
        consumer, entries, sizes = given.consumer, given.entries, given.sizes
        now_ms = self._around.clock.now_ms()
        if self._replay is not None:
            books = self._replay.books
            messages = send_tracked(
                consumer,
                entries,
                sizes,
                now_ms,
                slots=given.slots,
                ack_sets=batch.ack_sets,
                counts=books.counts.counts,
            )
            books.sent(consumer, messages)
        else:
            epoch = consumer.epoch if consumer.epoch >= 0 else None
            messages = send(consumer, entries, sizes, now_ms, ack_sets=batch.ack_sets, epoch=epoch)
        if self._throttle.limits:
            self._throttle.sent(messages, entries)
        if batch.has_chunks:
            consumer.sent_chunks(count_chunks(entries))

    # -- notes in the log ------------------------------------------------------------------------------------

    def _note_delay(self, timed: list[Entry]) -> None:
        if max(entry.peek.deliver_at_ms for entry in timed) > self._around.clock.now_ms():
            self._told_delay = True
            log.info(
                "%s / %s: messages with a delivery time are delivered at once, as the type is %s; "
                "only Shared and Key_Shared wait",
                self._around.topic,
                self._around.subscription,
                self.sub_type,
            )

    def _note_compacted(self, consumer: Consumer) -> None:
        self._told_compacted = True
        log.warning(
            "%s / %s: consumer %s asked for the compacted topic; it gets all messages",
            self._around.topic,
            self._around.subscription,
            consumer.name,
        )
