"""Which consumers a subscription has, and the dispatcher that serves them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from geminga.broker.dispatch.consumer import KEY_SHARED, SHARED, Consumer
from geminga.broker.dispatch.types import dispatcher_for
from geminga.delivery_log.notes import AT_ANY_TIME

if TYPE_CHECKING:
    from geminga.broker.dispatch.dispatcher import Dispatcher
    from geminga.broker.dispatch.settings import Surroundings
    from geminga.delivery_log.delivery_log import DeliveryLog
    from geminga.position import Position

INDIVIDUAL_TYPES = (SHARED, KEY_SHARED)
"""Those whose consumers acknowledge, and ask for, entries one by one."""


class Consumers:
    """The consumers of one subscription. Everything here is a plain call on the loop.

    The dispatcher is chosen by the first consumer's type. It stays when the last consumer leaves, with the
    books of what is to be redelivered, until a first consumer of another type comes.
    """

    __slots__ = (
        "_around",
        "bytes_out_before",
        "dispatcher",
        "last_flow_ms",
        "messages_out_before",
        "notes",
        "rates",
        "unused_since_ms",
    )

    def __init__(self, around: Surroundings, delivery_log: DeliveryLog | None) -> None:
        """`delivery_log` gets a note of each event; None: nothing of this subscription is noted."""
        self._around = around
        self.dispatcher: Dispatcher | None = None
        """None until the first consumer comes."""
        self.notes = (
            delivery_log.subscription(around.topic, around.subscription, self)
            if delivery_log is not None
            else None
        )
        self.messages_out_before = self.bytes_out_before = 0
        """Sent to consumers that are gone."""
        self.last_flow_ms = 0
        self.unused_since_ms = around.clock.now_ms()
        """When the last consumer left, or the subscription was loaded; says nothing while there is one."""
        self.rates: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 0.0)
        """As a consumer's, summed."""

    def __iter__(self) -> Iterator[Consumer]:
        """Over a copy: consumers may be removed meanwhile."""
        return iter(tuple(self.dispatcher.consumers) if self.dispatcher is not None else ())

    def __len__(self) -> int:
        return len(self.dispatcher.consumers) if self.dispatcher is not None else 0

    @property
    def type(self) -> str:
        """The type of the consumers, or of the last one there was; "None" before the first."""
        return self.dispatcher.sub_type if self.dispatcher is not None else "None"

    @property
    def ignores_delays(self) -> bool:
        """Exclusive and Failover deliver at once: what the index holds back does not wait there."""
        return self.dispatcher is not None and not self.dispatcher.heeds_delays

    # -- when a delayed entry may be sent, for the delivery log ----------------------------------------------

    @property
    def overrides(self) -> Mapping[int, int]:
        """Other due times than entries say, by ledger id << 32 | entry id."""
        return self._around.delayed.overrides

    def early_max_ms(self) -> int:
        """By so much an entry that is sent now may be before its delivery time; `AT_ANY_TIME` where that
        counts for nothing: the type, or a policy, has entries sent at once.
        """
        delayed = self._around.delayed
        if self.ignores_delays or not delayed.policy.active:
            return AT_ANY_TIME
        return delayed.tracker.early_max_ms() if delayed.tracker is not None else 0

    # -- coming and going ------------------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> bool:
        """Attach a consumer; nothing is written to its outbox before `announce`, or before it sends permits.
        True: another dispatcher than before serves from now on.

        Raises ConsumerBusy (another type is active, one is connected already, too many), ConsumerAssign (key
        ranges that are taken or malformed), NotAllowed.
        """
        if self.notes is not None:
            consumer.note_in(self.notes)
        dispatcher = dispatcher_for(consumer, self.dispatcher, self._around)
        # May refuse; until here the present dispatcher is as it was.
        dispatcher.add(consumer)
        # A set: two consumers of one connection have one outbox, and one wake-up is enough for both.
        consumer.outbox.on_writable.add(self._writable)
        if dispatcher is self.dispatcher:
            return False
        self.dispatcher = dispatcher
        if dispatcher.books is not None:
            # The index outlives the dispatcher. The books of the former one know nothing of what is sent from
            # now on, so that it would wait a second time.
            self._around.delayed.given_out.follow(dispatcher.books)
        return True

    def announce(self, consumer: Consumer) -> None:
        """The client has been told that it is subscribed: from now on it may hear more."""
        if self.dispatcher is not None and not consumer.closed:
            self.dispatcher.announce(consumer)

    def remove(self, consumer: Consumer) -> bool:
        """What the consumer did not acknowledge is sent again. False: it was not here any more."""
        dispatcher = self.dispatcher
        if consumer.closed or dispatcher is None or consumer not in dispatcher.consumers:
            return False
        # First: whatever it still sends while it is taken out must not count.
        consumer.close()
        if self.notes is not None:
            self.notes.released(consumer.name)
        # As Pulsar's msgOutFromRemovedConsumer: a counter must not go back when a consumer leaves.
        self.messages_out_before += consumer.messages_out
        self.bytes_out_before += consumer.bytes_out
        dispatcher.remove(consumer)
        # Another consumer of this connection still needs the wake-up.
        if not any(other.outbox is consumer.outbox for other in dispatcher.consumers):
            consumer.outbox.on_writable.discard(self._writable)
        if not dispatcher.consumers:
            self.unused_since_ms = self._around.clock.now_ms()
        return True

    def _writable(self) -> None:
        if self.dispatcher is not None:
            self.dispatcher.capacity_grew()

    # -- what clients ask ------------------------------------------------------------------------------------

    def flow(self, consumer: Consumer, permits: int) -> None:
        """The consumer can take so many messages more."""
        if permits <= 0 or consumer.closed:
            return
        now_ms = self.last_flow_ms = self._around.clock.now_ms()
        if consumer.flow(permits, now_ms):
            assert self.dispatcher is not None
            self.dispatcher.capacity_grew()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Send these entries again, or all that the consumer has not acknowledged."""
        if not consumer.closed and self.dispatcher is not None:
            # Exclusive and Failover give all back whatever positions are named, as in Pulsar: single messages
            # that come again would break the order.
            if self.notes is not None and not (positions and consumer.sub_type in INDIVIDUAL_TYPES):
                self.notes.released(consumer.name)
            self.dispatcher.redeliver(consumer, positions, epoch)

    # -- what they are told, and counted ---------------------------------------------------------------------

    def end_of_topic(self) -> None:
        """Tell the consumers that the topic is terminated and nothing is left, if that is so; each is told
        once.
        """
        around = self._around
        # Pulsar tells it only when all is acknowledged too: a client that hears of the end may close, and
        # what is unacknowledged would be lost to it.
        if around.ledger.terminated and len(self) and not around.cursor.backlog_entries():
            for consumer in self:
                consumer.tell_end_of_topic()

    def update_rates(self, interval_s: float) -> None:
        """Set the rates from what was counted in the last `interval_s` seconds."""
        for consumer in self:
            consumer.update_rates(interval_s)
        self.rates = tuple(map(sum, zip(*(c.rates for c in self), strict=True))) or (0.0,) * 5
