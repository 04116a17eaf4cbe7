"""Exclusive and Failover: one consumer gets everything, in order, and nothing is remembered of what it was
sent.

What it did not acknowledge is read again when the active consumer changes or asks for redelivery. Delivery
times do not count here, as in Pulsar.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from geminga.broker.dispatch.choice import choose_active
from geminga.broker.dispatch.consumer import EXCLUSIVE, FAILOVER, Consumer
from geminga.broker.dispatch.dispatcher import Batch, Dispatcher, Surroundings, count_chunks
from geminga.broker.dispatch.hash_ranges import StickyRangeSelector
from geminga.broker.dispatch.send import send
from geminga.errors import ConsumerBusy
from geminga.managed_ledger.chain.entry import Entry
from geminga.position import Position
from geminga.wire.message_metadata import sticky_hash, sticky_key

log = logging.getLogger("geminga.broker")


class SingleDispatcher(Dispatcher):
    """Sends to `active()` only; how it is chosen is the subclasses' business."""

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._active: Consumer | None = None
        self._told_delay = False
        self._told_compacted = False

    def active(self) -> Consumer | None:
        return self._active

    async def round(self) -> None:
        while (consumer := self._ready()) is not None:
            wanted = min(self._entries_for(consumer), self.settings.read_entries_max)
            if self.throttle.limits and not (wanted := self.throttle.room(wanted, consumer.average_messages)):
                return
            entries = await self.read_new(wanted)
            if entries is None or consumer is not self._ready():
                continue
            if not entries:
                return
            self._deliver(consumer, entries)
            await self.let_others_run()

    def _ready(self) -> Consumer | None:
        """The active consumer, if it may be sent something now."""
        consumer = self._active
        return consumer if consumer is not None and consumer.capacity() > 0 else None

    def _entries_for(self, consumer: Consumer) -> int:
        """About as many entries as its permits will do for; what is read too much stays in the cache."""
        average = max(round(consumer.average_messages), 1)
        return -(-consumer.capacity() // average)

    def _deliver(self, consumer: Consumer, entries: list[Entry]) -> None:
        batch = self.admit(entries)
        if batch.timed and not self._told_delay:
            self._note_delay(batch.timed)
        following = entries[-1].position.next()
        self._keep(consumer, batch)
        fits = fitting(batch.sizes, consumer.capacity())
        if fits < len(batch.entries):
            following = batch.entries[fits].position
            del batch.entries[fits:], batch.sizes[fits:]
        self.cursor.read_position = following
        if batch.entries:
            epoch = consumer.epoch if consumer.epoch >= 0 else None
            messages = send(
                consumer,
                batch.entries,
                batch.sizes,
                self.around.clock.now_ms(),
                ack_sets=batch.ack_sets,
                epoch=epoch,
            )
            if self.throttle.limits:
                self.throttle.sent(messages, batch.entries)
            if batch.has_chunks:
                consumer.chunks_out += count_chunks(batch.entries)

    def _keep(self, consumer: Consumer, batch: Batch) -> None:
        """Leave out what is not this consumer's, whatever that means for the type."""

    def _note_delay(self, timed: list[Entry]) -> None:
        if max(entry.peek.deliver_at_ms for entry in timed) > self.around.clock.now_ms():
            self._told_delay = True
            log.info(
                "%s / %s: messages with a delivery time are delivered at once, as the type is %s; "
                "only Shared and Key_Shared wait",
                self.around.topic,
                self.around.subscription,
                self.sub_type,
            )

    def _note_compacted(self, consumer: Consumer) -> None:
        if consumer.read_compacted and not self._told_compacted:
            self._told_compacted = True
            log.warning(
                "%s / %s: consumer %s asked for the compacted topic; it gets all messages",
                self.around.topic,
                self.around.subscription,
                consumer.name,
            )

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Read again from the first unacknowledged entry; single messages cannot be redelivered here."""
        if epoch is not None and epoch > consumer.epoch:
            consumer.epoch = epoch
        if consumer is not self._active or self._is_waiting():
            return
        self.rewind()
        self.around.wake()

    def _is_waiting(self) -> bool:
        return False

    def settle(self, consumer: Consumer, positions: Sequence[tuple[int, int]]) -> int:
        """Nothing is pending here."""
        return len(positions)


class ExclusiveDispatcher(SingleDispatcher):
    """One consumer; a second one is refused. Readers are such subscriptions too."""

    sub_type = EXCLUSIVE

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._ranges: StickyRangeSelector[Consumer] | None = None

    def add(self, consumer: Consumer) -> None:
        if self.consumers:
            raise ConsumerBusy("Exclusive consumer is already connected")
        ranges: StickyRangeSelector[Consumer] | None = None
        if consumer.key_ranges:
            ranges = StickyRangeSelector()
            ranges.add(consumer)
        self._note_compacted(consumer)
        self._ranges = ranges
        self.consumers.append(consumer)
        self._active = consumer
        self.rewind()

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._active = None
        self.turned_away += 1

    def _keep(self, consumer: Consumer, batch: Batch) -> None:
        """A reader may ask for a part of the keys; the rest is passed over, not acknowledged."""
        if self._ranges is None:
            return
        ranges = self._ranges
        kept = [
            (entry, size)
            for entry, size in zip(batch.entries, batch.sizes, strict=True)
            if ranges.select(ranges.slot(sticky_hash(sticky_key(entry.peek)))) is consumer
        ]
        batch.entries = [entry for entry, _ in kept]
        batch.sizes = [size for _, size in kept]


class FailoverDispatcher(SingleDispatcher):
    """Any number of consumers, one of them active; the others take over when it leaves or a better one comes.

    A new active consumer waits `failover_delay_ms` before it gets anything, and everyone is told then who it
    is.
    """

    sub_type = FAILOVER

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._takes_over_at_s = 0.0

    def add(self, consumer: Consumer) -> None:
        self.check_room()
        self._note_compacted(consumer)
        self.consumers.append(consumer)
        self._choose()

    def announce(self, consumer: Consumer) -> None:
        """A consumer that changes nothing is told at once where it stands; else all are, when the change is
        made.
        """
        if self._active is not None and not self._is_waiting():
            consumer.tell_active(consumer is self._active)

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        if self.consumers:
            self._choose()
        else:
            self._active = None
            self._takes_over_at_s = 0.0
            self.turned_away += 1

    def _choose(self) -> None:
        settings = self.settings
        chosen = choose_active(
            self.consumers,
            self.around.topic,
            self.around.partition_index,
            always_by_hash=settings.failover_by_hash,
        )
        if chosen is self._active:
            return
        self._active = chosen
        self.turned_away += 1
        if not self._is_waiting():
            self._takes_over_at_s = self.around.clock.monotonic_s() + settings.failover_delay_ms / 1000
        self.around.wake()

    def _is_waiting(self) -> bool:
        return self._takes_over_at_s > 0

    def retry_at_s(self) -> float:
        return self._takes_over_at_s if self._is_waiting() else super().retry_at_s()

    def _ready(self) -> Consumer | None:
        if self._is_waiting():
            if self.around.clock.monotonic_s() < self._takes_over_at_s:
                return None
            self._take_over()
        return super()._ready()

    def _take_over(self) -> None:
        self._takes_over_at_s = 0.0
        if self._active is None:
            return
        self.rewind()
        for consumer in self.consumers:
            if consumer is not self._active and consumer.notes is not None:
                consumer.notes.released(consumer.name)
            consumer.tell_active(consumer is self._active)


def fitting(sizes: Sequence[int], permits: int) -> int:
    """How many entries may go out: the last of them may take more permits than are left."""
    count = 0
    for size in sizes:
        if permits <= 0:
            break
        permits -= size
        count += 1
    return count
