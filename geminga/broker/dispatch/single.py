"""Exclusive and Failover: one consumer gets everything, in order (Pulsar's
PersistentDispatcherSingleActiveConsumer).

Nothing is kept of what was sent. What the consumer did not acknowledge is read again when another one becomes
active or when it asks for redelivery; what it has no permits for is read again when it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from geminga.broker.dispatch.choice import choose_active
from geminga.broker.dispatch.chooser import Batch, Given, Shares
from geminga.broker.dispatch.consumer import EXCLUSIVE, FAILOVER, Consumer
from geminga.broker.dispatch.hash_ranges import StickyRangeSelector
from geminga.wire.message_metadata import sticky_hash, sticky_key

if TYPE_CHECKING:
    from geminga.broker.dispatch.settings import SettingsInForce
    from geminga.managed_ledger.chain.entry import Entry


class Exclusive:
    """One consumer; `types.check_compatible` refuses a second one. Readers are such subscriptions too."""

    sub_type = EXCLUSIVE

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        self._ranges: StickyRangeSelector[Consumer] | None = None

    def add(self, consumer: Consumer) -> None:
        assert not self.consumers
        ranges: StickyRangeSelector[Consumer] | None = None
        # As Pulsar's HashRangeExclusiveStickyKeyConsumerSelector: a reader may ask for ranges of key hashes.
        if consumer.key_ranges:
            ranges = StickyRangeSelector()
            ranges.add(consumer)
        self._ranges = ranges
        self.consumers.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)

    def active(self) -> Consumer | None:
        return self.consumers[0] if self.consumers else None

    def receivers(self) -> Sequence[Consumer]:
        return self.consumers

    def share(self, batch: Batch, *, is_new: bool) -> Shares:
        """A reader may ask for a part of the keys: the rest is passed over, and not acknowledged."""
        # Exactly one: a read is turned away when it leaves, so no batch comes without it.
        (consumer,) = self.consumers
        if self._ranges is None:
            return give_all(consumer, batch.entries, batch.sizes)
        kept = [
            n for n, entry in enumerate(batch.entries) if self._ranges.select(self._slot(entry)) is consumer
        ]
        return give_all(consumer, [batch.entries[n] for n in kept], [batch.sizes[n] for n in kept])

    def _slot(self, entry: Entry) -> int:
        assert self._ranges is not None
        return self._ranges.slot(sticky_hash(sticky_key(entry.peek)))


class Failover:
    """Any number of consumers, one of them active; another follows when it leaves or a better one comes."""

    sub_type = FAILOVER

    def __init__(self, in_force: SettingsInForce, topic: str, partition_index: int) -> None:
        self.consumers: list[Consumer] = []
        self._in_force = in_force
        self._topic = topic
        self._partition_index = partition_index
        self._active: Consumer | None = None

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self._choose()

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        # Chosen again at once. In Pulsar no consumer was active in 2 of 20 runs when the active one left as
        # it became active, until the next change.
        self._choose()

    def _choose(self) -> None:
        self._active = None
        if self.consumers:
            self._active = choose_active(
                self.consumers,
                self._topic,
                self._partition_index,
                always_by_hash=self._in_force.settings.failover_by_hash,
            )

    def active(self) -> Consumer | None:
        return self._active

    def receivers(self) -> Sequence[Consumer]:
        return (self._active,) if self._active is not None else ()

    def share(self, batch: Batch, *, is_new: bool) -> Shares:
        assert self._active is not None
        return give_all(self._active, batch.entries, batch.sizes)


class Takeover:
    """When the active consumer of a Failover subscription begins to get entries: a while after it was chosen,
    so that acknowledgements of the one before may still arrive (`activeConsumerFailoverDelayTimeMillis`).
    """

    __slots__ = ("at_s",)

    def __init__(self) -> None:
        self.at_s = math.inf
        """In I/O time; infinity: the active consumer has begun, or there is none."""

    @property
    def is_waiting(self) -> bool:
        return self.at_s < math.inf

    def active_changed(self, now_s: float, delay_ms: int, *, has_active: bool) -> None:
        """Another consumer is active, or none is left. A wait that is under way goes on: it does not begin
        again with each consumer that comes or goes.
        """
        if not has_active:
            self.at_s = math.inf
        # As in Pulsar, where readOnActiveConsumerTask is not replaced: consumers that come one by one would
        # put it off each time.
        elif not self.is_waiting:
            self.at_s = now_s + delay_ms / 1000

    def take_over(self, now_s: float) -> bool:
        """True, once: the wait is over."""
        if self.at_s > now_s:
            return False
        self.at_s = math.inf
        return True


def give_all(consumer: Consumer, entries: list[Entry], sizes: list[int]) -> Shares:
    """One consumer gets as many entries as its permits allow, and the rest waits."""
    fits = fitting(sizes, consumer.capacity())
    if fits == len(entries):
        return Shares([Given(consumer, entries, sizes)] if entries else [], [])
    given = [Given(consumer, entries[:fits], sizes[:fits])] if fits else []
    return Shares(given, entries[fits:])


def fitting(sizes: Sequence[int], permits: int) -> int:
    """How many entries may go out: the last of them may take more permits than are left."""
    count = 0
    for size in sizes:
        # Asked before each entry and not after: a batch goes whole while one permit is left, and the debt is
        # paid first.
        if permits <= 0:
            break
        permits -= size
        count += 1
    return count
