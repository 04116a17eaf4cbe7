"""One topic: entries go down into its managed ledger, receipts and wake-ups come back up."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from geminga import limits
from geminga.broker.delays.settings import DelayPolicy
from geminga.broker.delays.topic_delays import TopicDelays
from geminga.broker.dispatch.consumer import Consumer
from geminga.broker.dispatch.rate import DispatchLimit, dispatch_limit
from geminga.broker.flow.publish_rate import PublishLimit, publish_limit
from geminga.broker.flow.rates import Histogram, Rate
from geminga.broker.flow.statistics import ENTRY_SIZE_BOUNDS, WRITE_LATENCY_BOUNDS_MS
from geminga.broker.subscription.subscription import Subscription, SubscriptionSettings
from geminga.broker.topic.backlog_quota import check_producer
from geminga.broker.topic.dedup_cursor import Deduplication
from geminga.broker.topic.dedup_entries import PART, admit
from geminga.broker.topic.policies_applied import (
    check_consumer_type,
    check_consumers,
    check_subscriptions,
    ledger_settings,
    subscription_settings,
)
from geminga.broker.topic.producer import Producer
from geminga.broker.topic.producers import Producers
from geminga.broker.topic.publish_context import PublishContext
from geminga.broker.topic.subscribe_rate import SubscribeLimit, subscribe_limit
from geminga.errors import (
    GemingaError,
    NotAllowed,
    ServiceNotReady,
    StorageError,
    SubscriptionNotFound,
    TopicTerminated,
)
from geminga.managed_ledger.cursor.cursor import DEDUPLICATION_CURSOR
from geminga.position import LATEST, Position
from geminga.wire import encoder
from geminga.wire.commands import unsigned
from geminga.wire.message_metadata import peek_or_none, stamp
from geminga.wire.stored_entry import may_be_delayed

if TYPE_CHECKING:
    from geminga.broker.policies.policies import EffectivePolicies
    from geminga.broker.topic.rooms import Rooms
    from geminga.managed_ledger.chain.entry import Entry
    from geminga.managed_ledger.chain.tasks import TaskGroup
    from geminga.managed_ledger.managed_ledger import ManagedLedger
    from geminga.names import TopicName
    from geminga.wire.decoder import Send
    from geminga.wire.peek import Peek

log = logging.getLogger("geminga.broker")

NO_REQUEST = -1
NOWHERE = unsigned(-1)
"""Ledger and entry id in the receipt of a duplicate, as Pulsar has it."""
PROPERTIES_BYTES_MAX = 64 * limits.KIB
"""What a client may attach to a subscription or a topic: small beside what a metadata record may hold."""
EPOCH_PROPERTY = "geminga.topic-epoch"


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise NotAllowed if these are too many to be kept in a metadata record."""
    size = sum(len(key.encode()) + len(value.encode()) for key, value in properties.items())
    if size > PROPERTIES_BYTES_MAX:
        raise NotAllowed(f"properties of {size} bytes: at most {PROPERTIES_BYTES_MAX} are kept")


class Topic:
    """A loaded topic: `start` before anything else. `close` ends its tasks and leaves everything on disk."""

    __slots__ = (
        "_delay_max_ms",
        "_dispatch_limit",
        "_now_s",
        "_publish_limits",
        "_stamp",
        "_stamp_ms",
        "_subscribe_limit",
        "active_ms",
        "byte_rate",
        "bytes_in",
        "chunks_in",
        "clock",
        "closing",
        "dedup",
        "delays",
        "delivery_log",
        "entry_sizes",
        "last_publish_ms",
        "ledger",
        "message_rate",
        "messages_in",
        "name",
        "partition_index",
        "policies",
        "producers",
        "rooms",
        "settings",
        "subscriptions",
        "tasks",
        "write_latencies",
    )

    def __init__(
        self,
        name: TopicName,
        ledger: ManagedLedger,
        rooms: Rooms,
        tasks: TaskGroup,
        *,
        on_fenced: Callable[[Topic], None],
    ) -> None:
        """`on_fenced` is told when the ledger takes nothing any more until it is loaded anew."""
        self.tasks = tasks
        self.name = name
        self.partition_index = name.partition_index
        self.ledger = ledger
        self.rooms = rooms
        self.clock = rooms.clock
        self.settings = rooms.settings
        epoch = ledger.properties.get(EPOCH_PROPERTY)
        self.producers = Producers(str(name), int(epoch) if epoch else None)
        self.subscriptions: dict[str, Subscription] = {}
        self.closing = False
        self.messages_in = 0
        self.bytes_in = 0
        self.chunks_in = 0
        self.message_rate = Rate()
        self.byte_rate = Rate()
        self.entry_sizes = Histogram(ENTRY_SIZE_BOUNDS)
        self.write_latencies = Histogram(WRITE_LATENCY_BOUNDS_MS)
        self.last_publish_ms = 0
        self.active_ms = rooms.clock.now_ms()
        """When it was loaded, or seen in use since."""
        self._now_s = rooms.clock.monotonic_s
        self.delays = TopicDelays(ledger, rooms.clock, rooms.delay_settings)
        self.delivery_log = None if rooms.delivery_log is None else rooms.delivery_log.of_topic(str(name))
        self.dedup = Deduplication(str(name), ledger, rooms.clock, rooms.settings, self._producer_names)
        self.policies = rooms.policies.attach(name, self._policies_changed)
        """What holds for this topic now."""
        self._delay_max_ms = 0
        self._publish_limits: tuple[PublishLimit, ...] = ()
        self._dispatch_limit: DispatchLimit | None = None
        self._subscribe_limit: SubscribeLimit | None = None
        self._apply_policies()
        self._stamp_ms = -1
        self._stamp = b""
        ledger.listener = self
        ledger.on_fenced = partial(on_fenced, self)

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Before anything else is asked of it. Its tasks run from here until `close`, or until one of them
        breaks. StorageError, ServiceNotReady.
        """
        await self.dedup.start()
        await self.delays.start(self.tasks)
        self.dedup.run_in(self.tasks)
        for name, cursor in self.ledger.cursors.items():
            if not cursor.is_system:
                self._add_subscription(name, cursor)
        self.ledger.run_in(self.tasks)

    async def close(self) -> None:
        """Disconnect everyone, persist cursors, close the ledger. On return the disk holds all of it."""
        await self._end(self.ledger.close)

    async def delete(self) -> None:
        """Like `close`, but nothing of the topic is left on disk."""
        notes = [subscription.notes for subscription in self.subscriptions.values()]
        await self._end(self.ledger.delete)
        for gone in notes:
            if gone is not None:
                gone.unsubscribed()

    async def _end(self, finish: Callable[[], Awaitable[None]]) -> None:
        """However `finish` goes, the topic's tasks end: who needs it next loads it from disk."""
        self.closing = True
        try:
            self.disconnect_producers()
            for subscription in tuple(self.subscriptions.values()):
                await subscription.close()
            await self.delays.close()
            await self.dedup.close()
            await finish()
        finally:
            self.rooms.policies.detach(self.name, self._policies_changed)
            self.subscriptions.clear()
            self.tasks.cancel()

    @property
    def is_in_use(self) -> bool:
        """Whether a producer or a consumer is connected."""
        return bool(len(self.producers)) or any(s.consumers for s in self.subscriptions.values())

    def _policies_changed(self, policies: EffectivePolicies) -> None:
        self.policies = policies
        self._apply_policies()

    def _apply_policies(self) -> None:
        """Have what is looked at for each message or entry at hand. Everything else asks `policies`."""
        self.ledger.settings = ledger_settings(self.ledger.settings, self.policies)
        delayed = self.policies.delayed_delivery
        self._delay_max_ms = delayed.delay_max_ms if delayed.active else 0
        self.delays.set_policy(DelayPolicy(delayed.active, delayed.tick_ms))
        self.dedup.want(self.policies.deduplication)
        rate = self.policies.publish_rate or self.settings.topic_publish_rate
        both = (publish_limit(rate.messages, rate.bytes), self.rooms.publish_limit)
        self._publish_limits = tuple(limit for limit in both if limit is not None)
        self._subscribe_limit = subscribe_limit(self.policies.subscribe_rate, self._subscribe_limit)
        self._dispatch_limit = dispatch_limit(
            self.policies.dispatch_rate, self._dispatch_limit, self._published
        )
        for subscription in self.subscriptions.values():
            subscription.apply(self._subscription_settings())
            self._limit_dispatch(subscription)

    def _limit_dispatch(self, subscription: Subscription) -> None:
        of_each = self.policies.subscription_dispatch_rate
        subscription.limit_dispatch(self._dispatch_limit, of_each, self._published)

    def _published(self) -> tuple[int, int]:
        return self.messages_in, self.bytes_in

    def _subscription_settings(self) -> SubscriptionSettings:
        return subscription_settings(self.rooms.subscription_settings, self.policies)

    async def trim(self) -> None:
        """Let go of ledgers that everybody has consumed and nothing retains. StorageError."""
        await self.ledger.trim()

    async def truncate(self) -> None:
        """Let go of everything, as Pulsar does it: all subscriptions move to the end, what waits for its time
        included, and all ledgers but the newest are deleted, whatever retention says. Consumers stay.

        Durable on return. StorageError, ServiceNotReady.
        """
        self._check_open()
        for subscription in tuple(self.subscriptions.values()):
            await subscription.clear_backlog()
            await subscription.cursor.persist()
        await self.dedup.snapshot()
        await self.ledger.trim(retains=False)
        if self.ledger.error is not None:
            raise self.ledger.error

    async def expire(self) -> None:
        """Acknowledge what is older than the TTL, on every subscription. StorageError if unreadable."""
        ttl_s = self.policies.message_ttl_s
        if ttl_s > 0:
            from_due_time = self.policies.ttl_from_due_time
            for subscription in tuple(self.subscriptions.values()):
                await self.expire_older(subscription, ttl_s, from_due_time=from_due_time)

    async def expire_older(
        self, subscription: Subscription, than_s: int, *, from_due_time: bool = False
    ) -> bool:
        """See `Expiry.expire`."""
        return await subscription.expiry.expire(
            than_s,
            by_broker_time=self.settings.expires_by_broker_time,
            due_backlog=subscription.due_backlog if from_due_time else None,
        )

    async def upkeep_deduplication(self) -> None:
        """Forget producers that are long gone, snapshot what is due. StorageError."""
        await self.dedup.upkeep(self.policies.deduplication_snapshot_interval_s)

    def _producer_names(self) -> set[str]:
        return {producer.name for producer in self.producers}

    def _check_open(self) -> None:
        if self.closing:
            raise ServiceNotReady(f"topic {self.name} is closing; look it up again")

    def measure(self, elapsed_s: float) -> None:
        """Close one interval of the rates of this topic, its producers and its subscriptions."""
        self.message_rate.measure(self.messages_in, elapsed_s)
        self.byte_rate.measure(self.bytes_in, elapsed_s)
        self.entry_sizes.measure()
        self.write_latencies.measure()
        for producer in self.producers:
            producer.message_rate.measure(producer.messages_in, elapsed_s)
            producer.byte_rate.measure(producer.bytes_in, elapsed_s)
        for subscription in self.subscriptions.values():
            subscription.update_rates(elapsed_s)

    # -- publishing ------------------------------------------------------------------------------------------

    def append(self, producer: Producer, send: Send) -> None:
        """Hand one entry to the ledger, stamped with the broker's time. Its producer hears of it when it is
        durable: at once if it is a duplicate, which is not stored again.

        Raises `GemingaError` when the topic takes no more entries; then nothing was stored.
        """
        self._check_open()
        recorded = PART if send.is_chunk else None
        ids = self.dedup.ids
        if ids is not None:
            recorded = admit(ids, producer.name, send)
            if recorded is None:
                if self.delivery_log is not None:
                    self.delivery_log.duplicate(
                        str(self.name), producer.name, send.sequence_id, send.num_messages
                    )
                producer.confirm(send.sequence_id, send.highest_sequence_id, NOWHERE, NOWHERE)
                return
        now_ms = self.clock.now_ms()
        if now_ms != self._stamp_ms:
            self._stamp_ms = now_ms
            self._stamp = stamp(now_ms)
        body = send.headers_and_payload
        stored = self._stamp + body
        # Most messages are not looked into here: what is parsed goes along, so that nothing parses it again.
        parsed = None
        deliver_at_ms = 0
        asks_delay = self._delay_max_ms or self.delays.feeds
        if self.delivery_log is not None or (asks_delay and may_be_delayed(stored)):
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
        self.ledger.append(stored, context, parsed)
        if producer.pending == 1:
            self.rooms.bookie.hurry()
        if ids is not None and recorded is not None and recorded != PART:
            ids.pushed(producer.name, recorded)
        self.entry_sizes.add(len(body))
        self.messages_in += send.num_messages
        self.bytes_in += len(body)
        self.last_publish_ms = now_ms
        if self._publish_limits:
            now_s = self._now_s()
            for limit in self._publish_limits:
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

    def on_confirmed(self, ledger_id: int, first_entry_id: int, contexts: list[PublishContext]) -> None:
        """The ledger's entries from `first_entry_id` on are durable: receipts, then consumers."""
        entry_id = first_entry_id
        now_s = self._now_s()
        add_latency = self.write_latencies.add
        is_delayed = 0
        if self.dedup.ids is not None:
            self.dedup.confirmed(contexts)
        if self.delivery_log is not None:
            self.delivery_log.published(str(self.name), ledger_id, first_entry_id, contexts)
        for context in contexts:
            context.producer.confirm(context.sequence_id, context.highest_sequence_id, ledger_id, entry_id)
            add_latency((now_s - context.accepted_s) * 1000)
            entry_id += 1
            is_delayed |= context.deliver_at_ms
        if is_delayed:
            # Before anyone reads: an entry that waits is read once, when it is due.
            self.delays.appended(ledger_id, first_entry_id, [context.deliver_at_ms for context in contexts])
        for subscription in self.subscriptions.values():
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
                    self.after_refusal(producer, error)

    def after_refusal(self, producer: Producer, error: GemingaError) -> None:
        """An entry was refused that its client will send again. With deduplication nothing that follows it
        may be stored before it is: that would make it a duplicate. So the producer has to come anew.
        """
        if self.dedup.ids is not None and not isinstance(error, NotAllowed) and not producer.closed:
            self.producers.remove(producer)
            self._disconnect(producer)

    def fail_overdue(self, accepted_before_s: float) -> None:
        """Give up every producer with an entry that was accepted before then and is not durable."""
        oldest: PublishContext | None = self.ledger.oldest_pending()
        if oldest is None or oldest.accepted_s >= accepted_before_s:
            return
        error = StorageError(f"{self.name}: not durable after {self.settings.write_timeout_s:g} s")
        for context in self.ledger.pending():
            if context.accepted_s >= accepted_before_s:
                break
            producer = context.producer
            if not producer.given_up:
                log.error("%s: producer %s is given up: %s", self.name, producer.name, error)
                producer.give_up(context.sequence_id, error)
                if not producer.closed:
                    self.producers.remove(producer)
                    self._disconnect(producer)

    async def add_producer(self, producer: Producer, topic_epoch: int | None) -> bool:
        """Admit a producer. False: it must call `producers.wait` for its turn. Raises `PeerError`."""
        self._check_open()
        if self.ledger.terminated:
            raise TopicTerminated(f"Topic {self.name} was already terminated")
        await check_producer(self)
        self._check_open()
        fenced = self.producers.admit(producer, topic_epoch, self.policies.producers_max)
        if fenced is None:
            return False
        for other in fenced:
            self._disconnect(other)
        if producer.access_mode:
            await self.save_epoch()
        return True

    async def save_epoch(self) -> None:
        """Make the topic epoch durable."""
        await self.ledger.set_properties(
            {**self.ledger.properties, EPOCH_PROPERTY: str(self.producers.epoch)}
        )

    def disconnect_producers(self) -> None:
        """Tell every producer to look the topic up again."""
        for producer in self.producers:
            self.producers.remove(producer)
            self._disconnect(producer)

    def _disconnect(self, producer: Producer) -> None:
        producer.closed = True
        producer.outbox.write(encoder.close_producer(producer.producer_id, NO_REQUEST))

    # -- subscriptions ---------------------------------------------------------------------------------------

    async def subscribe(
        self,
        name: str,
        consumer: Consumer,
        *,
        durable: bool,
        initial: str,
        start: Position | None,
        subscription_properties: dict[str, str],
        create: bool = True,
    ) -> Subscription:
        """Attach a consumer to a subscription, which is made if need be; a durable one is on disk on return.

        `initial` is "earliest" or "latest" and counts for a new subscription only; `start` is where a
        non-durable one begins. Raises `PeerError` when the subscription does not take the consumer.
        """
        self._check_open()
        if self._subscribe_limit is not None:
            self._subscribe_limit.check(consumer, self._now_s())
        check_consumer_type(self.name, consumer.sub_type, self.policies)
        subscription = self.subscriptions.get(name)
        if subscription is not None and subscription.cursor.durable is not durable:
            raise NotAllowed(
                f"Durable subscription with the same name already exists: {name}"
                if not durable
                else f"NonDurable subscription with the same name already exists: {name}"
            )
        if subscription is None:
            subscription = await self.create_subscription(
                name,
                durable=durable,
                initial=initial,
                start=start,
                subscription_properties=subscription_properties,
                create=create,
            )
        await subscription.ready()
        self._check_open()
        check_consumers(self.subscriptions, self.policies)
        subscription.add_consumer(consumer)
        self._start(subscription)
        return subscription

    async def create_subscription(
        self,
        name: str,
        *,
        durable: bool = True,
        initial: str = "latest",
        start: Position | None = None,
        subscription_properties: dict[str, str] | None = None,
        create: bool = True,
    ) -> Subscription:
        """A new subscription without consumers; the existing one if another caller was faster."""
        self._check_open()
        if name == DEDUPLICATION_CURSOR:
            raise NotAllowed(f"{name} is the name of the broker's own cursor")
        check_properties(subscription_properties or {})
        check_subscriptions(self.name, name, self.subscriptions, self.policies)
        if not create:
            raise SubscriptionNotFound(
                f"Subscription {name} does not exist on {self.name} and may not be created automatically"
            )
        if durable:
            cursor = await self.ledger.open_cursor(
                name,
                initial=start if start is not None else initial,  # type: ignore[arg-type]
                subscription_properties=subscription_properties or {},
            )
        else:
            assert start is not None
            cursor = self.ledger.open_non_durable_cursor(name, start)
        self._check_open()
        existing = self.subscriptions.get(name)
        if existing is not None:
            return existing
        subscription = self._add_subscription(name, cursor)
        if subscription.notes is not None:
            subscription.notes.subscribed(cursor.mark_delete)
        return subscription

    async def delete_subscription(self, name: str) -> None:
        """Take a subscription and its cursor away, for good on return."""
        subscription = self.subscriptions.pop(name, None)
        if subscription is None:
            raise SubscriptionNotFound(f"Subscription not found: {name} on {self.name}")
        await subscription.delete()
        if subscription.notes is not None:
            subscription.notes.unsubscribed()
        self.delays.detach(subscription.delayed)
        await self.delays.subscription_deleted()

    def subscription(self, name: str) -> Subscription:
        """The subscription of that name, or `SubscriptionNotFound`."""
        found = self.subscriptions.get(name)
        if found is None:
            raise SubscriptionNotFound(f"Subscription not found: {name} on {self.name}")
        return found

    async def first_published_at(self, since_ms: int) -> Position:
        """The first entry that was published at `since_ms` or later; LATEST if there is none."""

        def is_late_enough(entry: Entry) -> bool:
            metadata = peek_or_none(entry.body)
            # One whose metadata cannot be read is delivered to no consumer.
            return metadata is not None and metadata.publish_time_ms >= since_ms

        found = await self.ledger.find_first(is_late_enough)
        return found if found is not None else LATEST

    def _add_subscription(self, name: str, cursor: Any) -> Subscription:
        """Without a task until it has its first consumer, unless there is an index to be opened."""
        subscription = Subscription(
            self,
            name,
            cursor,
            settings=self._subscription_settings(),
            clock=self.clock,
            index_door=self.delays,
            reads=self.rooms.read_memory,
            # Readers go where they like and acknowledge nothing: nobody promised them anything.
            delivery_log=self.delivery_log if cursor.durable else None,
        )
        self.subscriptions[name] = subscription
        self._limit_dispatch(subscription)
        self.delays.attach(subscription.delayed)
        if subscription.delayed.has_index():
            self._start(subscription)
        return subscription

    def _start(self, subscription: Subscription) -> None:
        """Give it its task, if it has none."""
        if subscription.needs_task():
            self.tasks.start_soon(self._run_subscription, subscription)

    async def _run_subscription(self, subscription: Subscription) -> None:
        try:
            await subscription.run()
        finally:
            self.delays.detach(subscription.delayed)
