"""The path of an entry from its producer into the managed ledger, and of its receipt back."""

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
from geminga.wire.message_metadata import peek_or_none, stamp, virtual_stamp
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


class Publishing:
    """Handles each published entry of a topic, and counts entries. Call `apply` before the first entry.

    It is the managed ledger's listener, which reports durable and failed entries. Producers do not know it:
    the session calls `publish` with the producer whose SEND it was.
    """

    __slots__ = (
        "_accepted_s",
        "_clock",
        "_delay_max_ms",
        "_delays",
        "_delivery_log",
        "_ledger",
        "_limits",
        "_name",
        "_rooms",
        "_stamp",
        "_stamp_ms",
        "_stamp_of",
        "_subscriptions",
        "add_errors",
        "byte_rate",
        "bytes_in",
        "chunks_in",
        "closed",
        "dedup",
        "entry_sizes",
        "interval_s",
        "last_publish_ms",
        "message_rate",
        "messages_in",
        "producers",
        "throttled",
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
        """`subscriptions` is the topic's own mapping: each subscription in it is woken when entries are
        durable.
        """
        self._name = name
        self._ledger = ledger
        self._rooms = rooms
        self._clock = rooms.clock
        self._subscriptions = subscriptions
        self._delays = delays
        self._delivery_log = delivery_log
        self.producers = producers
        self.dedup = Deduplication(name, ledger, rooms.clock, rooms.settings, producers.names)
        self.closed = False
        """Whether all further entries are refused."""
        self.messages_in = self.bytes_in = self.chunks_in = 0
        self.add_errors = 0
        """Entries that did not become durable."""
        self.throttled = 0
        """How often a producer was made to wait by a limit of the rate."""
        self.interval_s = 0.0
        """The last one of the rates; 0: none is over."""
        self.message_rate = Rate()
        self.byte_rate = Rate()
        self.entry_sizes = Histogram(ENTRY_SIZE_BOUNDS)
        self.write_latencies = Histogram(WRITE_LATENCY_BOUNDS_MS)
        self.last_publish_ms = 0
        self._delay_max_ms = 0
        self._limits: tuple[PublishLimit, ...] = ()
        self._accepted_s = 0.0
        self._stamp_ms = -1
        self._stamp_of = virtual_stamp if rooms.clock.is_virtual else stamp
        self._stamp = b""

    def apply(self, policies: EffectivePolicies) -> None:
        """Store the policies that concern each entry."""
        # Copied into attributes: a policy changes rarely, and each SEND reads them.
        delayed = policies.delayed_delivery
        self._delay_max_ms = delayed.delay_max_ms if delayed.active else 0
        self.dedup.want(policies.deduplication)
        rate = policies.publish_rate or policies.broker_publish_rate
        both = (publish_limit(rate.messages, rate.bytes), self._rooms.publish_limit)
        self._limits = tuple(limit for limit in both if limit is not None)

    def close(self) -> None:
        """Refuse all further entries, which would be lost. Receipts of accepted entries are still sent."""
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
        self.interval_s = elapsed_s
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
        """Pass one entry to the ledger, with the broker's stamp. Its receipt follows when it is durable, or
        at once for a duplicate, which is not stored again.

        Raises `GemingaError` if the topic takes no more entries; then nothing was stored.
        """
        # Plain calls from here into the journal's queue: a task or an await for each entry would cost more
        # than all of this.
        if self.closed:
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
                # A receipt and no error: the client resent the entry because it missed the first receipt.
                producer.confirm_duplicate(send)
                return
        # Entries come in bursts, so most of them share the stamp of their millisecond and the time from which
        # their latency is counted. That time is exact for an entry that is alone on its way.
        now_ms = self._clock.now_ms()
        if now_ms != self._stamp_ms or producer.pending == 1:
            self._stamp_ms = now_ms
            self._stamp = self._stamp_of(now_ms)
            self._accepted_s = self._clock.monotonic_s()
        # In front, so that the client's bytes and their checksum stay as they are. Every entry has had its
        # stamp from the first release on: expiry by the broker's time can be computed from what is on disk.
        body = send.headers_and_payload
        stored = self._stamp + body
        # Most entries need no parsing here. If one is parsed, the result goes along with it, so that neither
        # the tail cache's readers nor the delivery log parse it again.
        parsed = None
        deliver_at_ms = 0
        # Without a limit and without a shared index that is fed here, the first reader finds the due time.
        asks_delay = self._delay_max_ms or self._delays.feeds
        if self._delivery_log is not None or (asks_delay and may_be_delayed(stored)):
            parsed = peek_or_none(stored)
            if parsed is not None and asks_delay and parsed.deliver_at_ms:
                deliver_at_ms = self._delivery_time(parsed)
        context = PublishContext(
            producer,
            send.sequence_id,
            send.highest_sequence_id,
            self._accepted_s,
            recorded,
            parsed,
            deliver_at_ms,
        )
        self._ledger.append(stored, context, parsed)
        # A publisher with nothing else in flight may be waiting for this receipt, so its entry does not wait
        # for others to share a sync. One with more in flight keeps a pace: an entry of it once had a sync of
        # its own each time, which only cost CPU.
        if producer.pending == 1:
            self._rooms.bookie.journals.hurry()
        # After `append`, which may refuse the entry: the id of an entry that is not on its way would make the
        # client's retry undecidable.
        if ids is not None and recorded is not None and recorded != PART:
            ids.pushed(producer.name, recorded)
        self.entry_sizes.add(len(body))
        self.messages_in += send.num_messages
        self.bytes_in += len(body)
        self.last_publish_ms = now_ms
        # The entry is accepted even if it exceeds a limit: the client has sent it and waits for its receipt.
        # The limits decide when its connection is read again.
        if self._limits:
            now_s = self._clock.monotonic_s()
            for limit in self._limits:
                until_s = limit.take(send.num_messages, len(body), now_s)
                if until_s > now_s:
                    self.throttled += 1
                    producer.throttle(until_s)
        if send.is_chunk:
            self.chunks_in += 1

    def _delivery_time(self, metadata: Peek) -> int:
        """The due time of an entry; 0: at once. Raises NotAllowed if the time is too far in the future."""
        # From the publish time of the client, as in Pulsar, not from the broker's clock: `deliverAfter` of a
        # client whose clock is wrong is judged by the delay that it meant.
        if 0 < self._delay_max_ms < metadata.deliver_at_ms - metadata.publish_time_ms:
            raise NotAllowed(f"Exceeds max allowed delivery delay of {self._delay_max_ms} milliseconds")
        return metadata.deliver_at_ms

    # -- back up to producers and subscriptions --------------------------------------------------------------

    def on_confirmed(self, ledger_id: int, first_entry_id: int, contexts: list[PublishContext]) -> None:
        """The ledger's entries from `first_entry_id` on are durable: write receipts, then wake consumers."""
        # Subscriptions come last: they may read at once, and the delayed index has to know an entry before a
        # dispatcher reads it.
        if self.dedup.ids is not None:
            self.dedup.confirmed(contexts)
        if self._delivery_log is not None:
            self._delivery_log.published(self._name, ledger_id, first_entry_id, contexts)
        is_delayed = self._send_receipts(ledger_id, first_entry_id, contexts)
        if is_delayed:
            # Fed here, the shared index lets all subscriptions skip the entry until it is due, and it is read
            # once. Without this each of them would read it now only to learn its due time.
            self._delays.appended(ledger_id, first_entry_id, [context.deliver_at_ms for context in contexts])
        for subscription in self._subscriptions.values():
            subscription.entries_available()

    def _send_receipts(self, ledger_id: int, first_entry_id: int, contexts: list[PublishContext]) -> bool:
        """Write the receipts of durable entries and record their latencies. True if one of them has a due
        time.
        """
        # One list of receipts for a run of entries of one producer, one latency for those of one millisecond:
        # with calls for each entry they were a tenth of what a message costs.
        entry_id = first_entry_id
        now_s = self._clock.monotonic_s()
        producer = contexts[0].producer
        encode = producer.encode_receipt
        receipts: list[bytes] = []
        accepted_s = contexts[0].accepted_s
        accepted = 0
        due_times = 0
        for context in contexts:
            if context.producer is not producer:
                producer.confirm(receipts)
                producer = context.producer
                encode = producer.encode_receipt
                receipts = []
            receipts.append(encode(context.sequence_id, context.highest_sequence_id, ledger_id, entry_id))
            if context.accepted_s != accepted_s:
                self._count_latency((now_s - accepted_s) * 1000, accepted)
                accepted_s = context.accepted_s
                accepted = 0
            accepted += 1
            entry_id += 1
            due_times |= context.deliver_at_ms
        producer.confirm(receipts)
        self._count_latency((now_s - accepted_s) * 1000, accepted)
        return due_times != 0

    def _count_latency(self, latency_ms: float, count: int) -> None:
        self.write_latencies.add(latency_ms, count)
        self._rooms.figures.publishes.add(latency_ms, count)

    def on_add_failed(self, error: GemingaError, contexts: list[PublishContext]) -> None:
        """These entries will never be durable: their producers get errors instead of receipts."""
        self.add_errors += len(contexts)
        for context in contexts:
            context.producer.fail(context.sequence_id, error)
        if self.dedup.ids is not None:
            self.dedup.failed(contexts)
            names = {context.producer.name for context in contexts}
            for producer in self.producers:
                if producer.name in names:
                    self._after_refusal(producer, error)

    def _after_refusal(self, producer: Producer, error: GemingaError) -> None:
        """Disconnect the producer of a refused entry, if deduplication is on."""
        # The client sends the entry again. If a later one were stored before that, the retry would have the
        # lower sequence id, and be taken for a duplicate: a lost message with a receipt. A client that
        # reconnects sends everything again in order. After NotAllowed it does not: such an entry is refused
        # each time.
        if self.dedup.ids is not None and not isinstance(error, NotAllowed) and not producer.closed:
            self.producers.disconnect(producer)

    def fail_overdue(self, accepted_before_s: float) -> None:
        """Fail every producer with an entry that was accepted before then and is not durable."""
        # [managedLedgerAddEntryTimeoutSeconds] The journal is not touched: a sync that takes long may still
        # succeed. Only the oldest entry is looked at, since entries become durable in order.
        oldest: PublishContext | None = self._ledger.oldest_pending()
        if oldest is None or oldest.accepted_s >= accepted_before_s:
            return
        error = StorageError(f"{self._name}: not durable after {self._rooms.settings.write_timeout_s:g} s")
        for context in self._ledger.pending():
            if context.accepted_s >= accepted_before_s:
                break
            producer = context.producer
            if not producer.given_up:
                log.error("%s: producer %s is disconnected: %s", self._name, producer.name, error)
                producer.give_up(context.sequence_id, error)
                if not producer.closed:
                    self.producers.disconnect(producer)
