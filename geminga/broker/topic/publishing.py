"""The way of an entry from its producer into the managed ledger, and of its receipt back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from geminga.broker.flow.publish_rate import PublishLimit, publish_limit
from geminga.broker.flow.rates import Histogram, Rate
from geminga.broker.flow.statistics import ENTRY_SIZE_BOUNDS, WRITE_LATENCY_BOUNDS_MS
from geminga.broker.topic.dedup_cursor import Deduplication
from geminga.broker.topic.dedup_entries import PART, admit
from geminga.broker.topic.producers import Producers
from geminga.broker.topic.publish_context import PublishContext
from geminga.errors import GemingaError, NotAllowed, ServiceNotReady, StorageError
from geminga.wire.commands import unsigned
from geminga.wire.message_metadata import peek_or_none, stamp
from geminga.wire.stored_entry import may_be_delayed

if TYPE_CHECKING:
    from geminga.broker.delays.topic_delays import TopicDelays
    from geminga.broker.policies.policies import EffectivePolicies
    from geminga.broker.subscription.subscription import Subscription
    from geminga.broker.topic.producer import Producer
    from geminga.broker.topic.rooms import Rooms
    from geminga.delivery_log.delivery_log import DeliveryLog
    from geminga.managed_ledger.managed_ledger import ManagedLedger
    from geminga.wire.decoder import Send
    from geminga.wire.peek import Peek

log = logging.getLogger("geminga.broker")

NOWHERE = unsigned(-1)
"""Ledger and entry id in the receipt of a duplicate, as Pulsar has it."""


class Publishing:
    """What a topic does for each entry that is published, and what it counts of them. Made before its topic
    takes policies: `apply` before anything is published.

    The managed ledger's listener: it tells what became durable, and what never will. Producers know nothing
    of this; `publish` is called with the one whose SEND it was.
    """

    __slots__ = (
        "_clock",
        "_delay_max_ms",
        "_delays",
        "_delivery_log",
        "_ledger",
        "_limits",
        "_name",
        "_now_s",
        "_rooms",
        "_stamp",
        "_stamp_ms",
        "_subscriptions",
        "byte_rate",
        "bytes_in",
        "chunks_in",
        "closed",
        "dedup",
        "entry_sizes",
        "last_publish_ms",
        "message_rate",
        "messages_in",
        "producers",
        "write_latencies",
    )

    def __init__(
        self,
        name: str,
        ledger: ManagedLedger,
        rooms: Rooms,
        producers: Producers,
        subscriptions: Mapping[str, Subscription],
        delays: TopicDelays,
        delivery_log: DeliveryLog | None,
    ) -> None:
        """`subscriptions` are those of the topic at any time: they hear of each entry that is durable."""
        self._name = name
        self._ledger = ledger
        self._rooms = rooms
        self._clock = rooms.clock
        self._now_s = rooms.clock.monotonic_s
        self._subscriptions = subscriptions
        self._delays = delays
        self._delivery_log = delivery_log
        self.producers = producers
        self.dedup = Deduplication(name, ledger, rooms.clock, rooms.settings, producers.names)
        self.closed = False
        """No entry is taken any more."""
        self.messages_in = self.bytes_in = self.chunks_in = 0
        self.message_rate = Rate()
        self.byte_rate = Rate()
        self.entry_sizes = Histogram(ENTRY_SIZE_BOUNDS)
        self.write_latencies = Histogram(WRITE_LATENCY_BOUNDS_MS)
        self.last_publish_ms = 0
        self._delay_max_ms = 0
        self._limits: tuple[PublishLimit, ...] = ()
        self._stamp_ms = -1
        self._stamp = b""

    def apply(self, policies: EffectivePolicies) -> None:
        """Have what is looked at for each entry at hand."""
        delayed = policies.delayed_delivery
        self._delay_max_ms = delayed.delay_max_ms if delayed.active else 0
        self.dedup.want(policies.deduplication)
        rate = policies.publish_rate or self._rooms.settings.topic_publish_rate
        both = (publish_limit(rate.messages, rate.bytes), self._rooms.publish_limit)
        self._limits = tuple(limit for limit in both if limit is not None)

    def close(self) -> None:
        """Refuse every further entry: it would be lost. Receipts for those accepted still go out."""
        self.closed = True

    def check_open(self) -> None:
        """Raise ServiceNotReady after `close`."""
        if self.closed:
            raise ServiceNotReady(f"topic {self._name} is closing; look it up again")

    # -- counting --------------------------------------------------------------------------------------------

    def published(self) -> tuple[int, int]:
        """Messages and bytes so far."""
        return self.messages_in, self.bytes_in

    def measure(self, elapsed_s: float) -> None:
        """Close one interval of the rates of this topic and its producers."""
        self.message_rate.measure(self.messages_in, elapsed_s)
        self.byte_rate.measure(self.bytes_in, elapsed_s)
        self.entry_sizes.measure()
        self.write_latencies.measure()
        for producer in self.producers:
            producer.message_rate.measure(producer.messages_in, elapsed_s)
            producer.byte_rate.measure(producer.bytes_in, elapsed_s)

    # -- down into the ledger --------------------------------------------------------------------------------

    def publish(self, producer: Producer, send: Send) -> None:
        """Take one entry, or answer SEND_ERROR. Its receipt follows once it is durable."""
        error = producer.take(send)
        if error is None:
            try:
                self._append(producer, send)
                return
            except GemingaError as refused:
                producer.untake()
                error = refused
        producer.refuse(send.sequence_id, error)
        self._after_refusal(producer, error)

    def _append(self, producer: Producer, send: Send) -> None:
        """Hand one entry to the ledger, stamped with the broker's time. Its producer hears of it when it is
        durable: at once if it is a duplicate, which is not stored again.

        Raises `GemingaError` when the topic takes no more entries; then nothing was stored.
        """
        self.check_open()
        recorded = PART if send.is_chunk else None
        ids = self.dedup.ids
        if ids is not None:
            recorded = admit(ids, producer.name, send)
            if recorded is None:
                if self._delivery_log is not None:
                    self._delivery_log.duplicate(
                        self._name, producer.name, send.sequence_id, send.num_messages
                    )
                producer.confirm(send.sequence_id, send.highest_sequence_id, NOWHERE, NOWHERE)
                return
        now_ms = self._clock.now_ms()
        if now_ms != self._stamp_ms:
            self._stamp_ms = now_ms
            self._stamp = stamp(now_ms)
        body = send.headers_and_payload
        stored = self._stamp + body
        # Most messages are not looked into here: what is parsed goes along, so that nothing parses it again.
        parsed = None
        deliver_at_ms = 0
        asks_delay = self._delay_max_ms or self._delays.feeds
        if self._delivery_log is not None or (asks_delay and may_be_delayed(stored)):
            parsed = peek_or_none(stored)
            if parsed is not None and asks_delay and parsed.deliver_at_ms:
                deliver_at_ms = self._delivery_time(parsed)
        context = PublishContext(
            producer,
            send.sequence_id,
            send.highest_sequence_id,
            self._now_s(),
            recorded,
            parsed,
            deliver_at_ms,
        )
        self._ledger.append(stored, context, parsed)
        if producer.pending == 1:
            self._rooms.bookie.journals.hurry()
        if ids is not None and recorded is not None and recorded != PART:
            ids.pushed(producer.name, recorded)
        self.entry_sizes.add(len(body))
        self.messages_in += send.num_messages
        self.bytes_in += len(body)
        self.last_publish_ms = now_ms
        if self._limits:
            now_s = self._now_s()
            for limit in self._limits:
                until_s = limit.take(send.num_messages, len(body), now_s)
                if until_s > now_s:
                    producer.throttle(until_s)
        if send.is_chunk:
            self.chunks_in += 1

    def _delivery_time(self, metadata: Peek) -> int:
        """When an entry is due, 0: at once. NotAllowed if that is too far away."""
        if 0 < self._delay_max_ms < metadata.deliver_at_ms - metadata.publish_time_ms:
            raise NotAllowed(f"Exceeds max allowed delivery delay of {self._delay_max_ms} milliseconds")
        return metadata.deliver_at_ms

    # -- back up to producers and subscriptions --------------------------------------------------------------

    def on_confirmed(self, ledger_id: int, first_entry_id: int, contexts: list[PublishContext]) -> None:
        """The ledger's entries from `first_entry_id` on are durable: receipts, then consumers."""
        entry_id = first_entry_id
        now_s = self._now_s()
        add_latency = self.write_latencies.add
        is_delayed = 0
        if self.dedup.ids is not None:
            self.dedup.confirmed(contexts)
        if self._delivery_log is not None:
            self._delivery_log.published(self._name, ledger_id, first_entry_id, contexts)
        for context in contexts:
            context.producer.confirm(context.sequence_id, context.highest_sequence_id, ledger_id, entry_id)
            add_latency((now_s - context.accepted_s) * 1000)
            entry_id += 1
            is_delayed |= context.deliver_at_ms
        if is_delayed:
            # Before anyone reads: an entry that waits is read once, when it is due.
            self._delays.appended(ledger_id, first_entry_id, [context.deliver_at_ms for context in contexts])
        for subscription in self._subscriptions.values():
            subscription.entries_available()

    def on_add_failed(self, error: GemingaError, contexts: list[PublishContext]) -> None:
        """These entries will never be durable: each producer is told, none gets a receipt."""
        for context in contexts:
            context.producer.fail(context.sequence_id, error)
        if self.dedup.ids is not None:
            self.dedup.failed(contexts)
            names = {context.producer.name for context in contexts}
            for producer in self.producers:
                if producer.name in names:
                    self._after_refusal(producer, error)

    def _after_refusal(self, producer: Producer, error: GemingaError) -> None:
        """An entry was refused that its client will send again. With deduplication nothing that follows it
        may be stored before it is: that would make it a duplicate. So the producer has to come anew.
        """
        if self.dedup.ids is not None and not isinstance(error, NotAllowed) and not producer.closed:
            self.producers.disconnect(producer)

    def fail_overdue(self, accepted_before_s: float) -> None:
        """Give up every producer with an entry that was accepted before then and is not durable."""
        oldest: PublishContext | None = self._ledger.oldest_pending()
        if oldest is None or oldest.accepted_s >= accepted_before_s:
            return
        error = StorageError(f"{self._name}: not durable after {self._rooms.settings.write_timeout_s:g} s")
        for context in self._ledger.pending():
            if context.accepted_s >= accepted_before_s:
                break
            producer = context.producer
            if not producer.given_up:
                log.error("%s: producer %s is given up: %s", self._name, producer.name, error)
                producer.give_up(context.sequence_id, error)
                if not producer.closed:
                    self.producers.disconnect(producer)
