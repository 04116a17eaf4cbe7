"""The path of entries from their producer into the managed ledger, and of their receipts back."""

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
from geminga.broker.topic.publish_run import PublishRun
from geminga.broker.topic.stamper import Stamper
from geminga.errors import GemingaError, NotAllowed, ServiceNotReady, StorageError
from geminga.wire.message_metadata import peek_or_none
from geminga.wire.stored_entry import may_be_delayed

if TYPE_CHECKING:
    from geminga.broker.delays.topic_delays import TopicDelays
    from geminga.broker.policies.policies import EffectivePolicies
    from geminga.broker.subscription.subscription import Subscription
    from geminga.broker.topic.producer import Producer
    from geminga.broker.topic.rooms import Rooms
    from geminga.delivery_log.delivery_log import DeliveryLog
    from geminga.managed_ledger.managed_ledger import ManagedLedger
    from geminga.wire.decoder import Send, Sends
    from geminga.wire.peek import Peek

log = logging.getLogger("geminga.broker")


class Publishing:
    """Handles each published entry of a topic, and counts entries. Call `apply` before the first entry.

    It is the managed ledger's listener, which reports durable and failed entries. Producers do not know it:
    the session calls `publish_run` or `publish` with the producer whose SENDs they were.
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
        "_stamper",
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
        self._stamper = Stamper(rooms.clock)

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

    def publish_run(self, producer: Producer, sends: Sends) -> None:
        """Take the entries as one run. Where one of them may have to be refused, or is judged by itself, take
        them one by one as `publish` does.
        """
        entries = sends.entries
        sizes = list(map(len, entries))
        is_even = sizes.count(sizes[0]) == len(sizes)
        largest_bytes = (sizes[0] if is_even else max(sizes)) - sends.prefix_bytes
        if (
            self.dedup.ids is None
            and not self.closed
            and producer.accepts_size(largest_bytes)
            and (len(sizes) == 1 or len(sizes) <= self._ledger.run_entries_max())
        ):
            is_alone = producer.pending == 0
            try:
                self._pass_down(producer, sends.sequence_ids, sends.highest_sequence_ids, entries, is_alone)
            except GemingaError:
                pass  # nothing was stored; each of them gets its answer below
            else:
                messages = sum(sends.num_messages)
                size_bytes = sum(sizes) - len(sizes) * sends.prefix_bytes
                producer.took(len(sizes), messages, size_bytes)
                if is_even:
                    self.entry_sizes.add(largest_bytes, len(sizes))
                else:
                    for size in sizes:
                        self.entry_sizes.add(size - sends.prefix_bytes)
                self._count(producer, messages, size_bytes)
                return
        for send in sends.singly():
            if not producer.closed:
                self.publish(producer, send)

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
        body = send.headers_and_payload
        sequence_ids, highest = [send.sequence_id], [send.highest_sequence_id]
        stored = [self._stamper.now() + body]
        self._pass_down(producer, sequence_ids, highest, stored, producer.pending == 1, recorded)
        # After `append`, which may refuse the entry: the id of an entry that is not on its way would make the
        # client's retry undecidable.
        if ids is not None and recorded is not None and recorded != PART:
            ids.pushed(producer.name, recorded)
        self.entry_sizes.add(len(body))
        self._count(producer, send.num_messages, len(body))
        if send.is_chunk:
            self.chunks_in += 1

    def _pass_down(
        self,
        producer: Producer,
        sequence_ids: list[int],
        highest_sequence_ids: list[int],
        stored: list[bytes],
        is_alone: bool,
        recorded: int | None = None,
    ) -> None:
        """Pass stamped entries to the ledger. `is_alone`: the producer has nothing else on its way. Raises
        `GemingaError` if the topic does not take them; then nothing was stored.
        """
        # Plain calls from here into the journal's queue: a task or an await would cost more than all of this.
        # Entries come in bursts, so most of them share the time from which their latency is counted. It is
        # exact for entries that are alone on their way.
        now_ms = self._clock.now_ms()
        if now_ms != self.last_publish_ms or is_alone:
            self._accepted_s = self._clock.monotonic_s()
        # Most entries need no parsing here. If one is parsed, the result goes along with it, so that neither
        # the tail cache's readers nor the delivery log parse it again.
        # Without a limit and without a shared index that is fed here, the first reader finds the due time.
        parsed = due_times_ms = None
        asks_delay = self._delay_max_ms > 0 or self._delays.feeds
        if asks_delay or self._delivery_log is not None:
            parsed, due_times_ms = self._look_at(stored, asks_delay)
        run = PublishRun(
            producer,
            sequence_ids,
            highest_sequence_ids,
            self._accepted_s,
            recorded,
            parsed,
            due_times_ms,
        )
        self._ledger.append(stored, run, parsed)
        self._rooms.coalescing.sent(producer, len(stored), is_alone=is_alone)
        # A publisher with one entry in flight may be waiting for this receipt, so its entry does not wait for
        # others to share a sync. One with more in flight keeps a pace: each small burst of it once had a sync
        # of its own, which doubled what a message cost at 5,000 a second.
        if is_alone and len(stored) == 1:
            self._rooms.bookie.journals.hurry()
        self.last_publish_ms = now_ms

    def _look_at(
        self, stored: list[bytes], asks_delay: bool
    ) -> tuple[list[Peek | None] | None, list[int] | None]:
        """The metadata and due times, as in `PublishRun`, that the delivery log or the delays need of these
        entries. Raises as `_delivery_time`.
        """
        parsed: list[Peek | None] = [None] * len(stored)
        due_times_ms = [0] * len(stored)
        is_logged = self._delivery_log is not None
        for i, body in enumerate(stored):
            if is_logged or may_be_delayed(body):
                parsed[i] = seen = peek_or_none(body)
                if seen is not None and asks_delay and seen.deliver_at_ms:
                    due_times_ms[i] = self._delivery_time(seen)
        return (parsed if any(parsed) else None), (due_times_ms if any(due_times_ms) else None)

    def _count(self, producer: Producer, messages: int, size_bytes: int) -> None:
        """Count entries that the ledger has accepted, and throttle their producer beyond the limits."""
        self.messages_in += messages
        self.bytes_in += size_bytes
        # Entries are accepted even if they exceed a limit: the client has sent them and waits for receipts.
        # The limits decide when its connection is read again.
        if self._limits:
            now_s = self._clock.monotonic_s()
            for limit in self._limits:
                until_s = limit.take(messages, size_bytes, now_s)
                if until_s > now_s:
                    self.throttled += 1
                    producer.throttle(until_s)

    def _delivery_time(self, metadata: Peek) -> int:
        """The due time of an entry; 0: at once. Raises NotAllowed if the time is too far in the future."""
        # From the publish time of the client, as in Pulsar, not from the broker's clock: `deliverAfter` of a
        # client whose clock is wrong is judged by the delay that it meant.
        if 0 < self._delay_max_ms < metadata.deliver_at_ms - metadata.publish_time_ms:
            raise NotAllowed(f"Exceeds max allowed delivery delay of {self._delay_max_ms} milliseconds")
        return metadata.deliver_at_ms

    # -- back up to producers and subscriptions --------------------------------------------------------------

    def on_confirmed(self, ledger_id: int, first_entry_id: int, contexts: list[PublishRun]) -> None:
        """The ledger's entries from `first_entry_id` on are durable: write receipts, then wake consumers."""
        # Subscriptions come last: they may read at once, and the delayed index has to know an entry before a
        # dispatcher reads it.
        if self.dedup.ids is not None:
            self.dedup.confirmed(contexts)
        if self._delivery_log is not None:
            self._delivery_log.published(self._name, ledger_id, first_entry_id, contexts)
        self._send_receipts(ledger_id, first_entry_id, contexts)
        for subscription in self._subscriptions.values():
            subscription.entries_available()

    def _send_receipts(self, ledger_id: int, first_entry_id: int, runs: list[PublishRun]) -> None:
        """Write the receipts of durable entries, record their latencies, and feed the delayed index."""
        # One call for the runs of one producer, one latency for those of one millisecond: with calls for each
        # entry they were a tenth of what a message costs.
        now_s = self._clock.monotonic_s()
        producer, accepted_s = runs[0].producer, runs[0].accepted_s
        sequence_ids: list[int] = []
        highest_sequence_ids: list[int] = []
        entry_id = receipts_from = latency_from = first_entry_id
        for run in runs:
            if run.producer is not producer:
                producer.confirm(sequence_ids, highest_sequence_ids, ledger_id, receipts_from)
                producer, receipts_from = run.producer, entry_id
                sequence_ids, highest_sequence_ids = [], []
            if run.accepted_s != accepted_s:
                self._count_latency((now_s - accepted_s) * 1000, entry_id - latency_from)
                accepted_s, latency_from = run.accepted_s, entry_id
            sequence_ids += run.sequence_ids
            highest_sequence_ids += run.highest_sequence_ids
            if run.due_times_ms is not None:
                # Fed here, the shared index lets all subscriptions skip the entry until it is due, and it is
                # read once. Without this each of them would read it now only to learn its due time.
                self._delays.appended(ledger_id, entry_id, run.due_times_ms)
            entry_id += len(run.sequence_ids)
        producer.confirm(sequence_ids, highest_sequence_ids, ledger_id, receipts_from)
        self._count_latency((now_s - accepted_s) * 1000, entry_id - latency_from)

    def _count_latency(self, latency_ms: float, count: int) -> None:
        self.write_latencies.add(latency_ms, count)
        self._rooms.figures.publishes.add(latency_ms, count)

    def on_add_failed(self, error: GemingaError, contexts: list[PublishRun]) -> None:
        """These entries will never be durable: their producers get errors instead of receipts."""
        for run in contexts:
            self.add_errors += len(run.sequence_ids)
            for sequence_id in run.sequence_ids:
                run.producer.fail(sequence_id, error)
        if self.dedup.ids is not None:
            self.dedup.failed(contexts)
            names = {run.producer.name for run in contexts}
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
        oldest: PublishRun | None = self._ledger.oldest_pending()
        if oldest is None or oldest.accepted_s >= accepted_before_s:
            return
        error = StorageError(f"{self._name}: not durable after {self._rooms.settings.write_timeout_s:g} s")
        for run in self._ledger.pending():
            if run.accepted_s >= accepted_before_s:
                break
            producer = run.producer
            if not producer.given_up:
                log.error("%s: producer %s is disconnected: %s", self._name, producer.name, error)
                producer.give_up(run.sequence_ids[0], error)
                if not producer.closed:
                    self.producers.disconnect(producer)
