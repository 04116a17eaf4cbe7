"""One topic: its start and end, its policies, and the producers and consumers that it admits."""

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
from geminga.broker.flow.slices import Pace
from geminga.broker.subscription.subscription import Subscription, SubscriptionSettings
from geminga.broker.topic.backlog_quota import BacklogQuotas
from geminga.broker.topic.compaction_cursor import CompactionCursor
from geminga.broker.topic.ledger_rates import LedgerRates
from geminga.broker.topic.policies_applied import (
    check_consumer_type,
    check_consumers,
    check_subscriptions,
    ledger_settings,
    subscription_settings,
)
from geminga.broker.topic.producer import Producer
from geminga.broker.topic.producers import Producers
from geminga.broker.topic.publishing import Publishing
from geminga.broker.topic.subscribe_rate import SubscribeLimit, subscribe_limit
from geminga.errors import (
    NotAllowed,
    ReadOnly,
    SubscriptionNotFound,
    TopicTerminated,
)
from geminga.managed_ledger.cursor.system_cursors import check_is_no_system_cursor
from geminga.managed_ledger.cursor_saver import CursorSaver
from geminga.position import Position

if TYPE_CHECKING:
    from geminga.broker.policies.policies import EffectivePolicies
    from geminga.broker.topic.rooms import Rooms
    from geminga.managed_ledger.chain.tasks import TaskGroup
    from geminga.managed_ledger.managed_ledger import ManagedLedger
    from geminga.names import TopicName

PROPERTIES_BYTES_MAX = 64 * limits.KIB
"""The limit of the properties that a client may set on a subscription or topic, far below the size of a
metadata record.
"""
EPOCH_PROPERTY = "geminga.topic-epoch"

log = logging.getLogger("geminga.broker")


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise NotAllowed if these are too large for a metadata record."""
    size = sum(len(key.encode()) + len(value.encode()) for key, value in properties.items())
    if size > PROPERTIES_BYTES_MAX:
        raise NotAllowed(f"properties of {size} bytes: at most {PROPERTIES_BYTES_MAX} are kept")


class Topic:
    """A loaded topic. Call `start` first. `close` ends its tasks and leaves all of its state on disk."""

    # Slots, one group of tasks for all its parts, and events that are made when they are first waited for: a
    # broker may have ten thousand idle topics, and each costs 10.8 KiB with a subscription, where it was 21.
    __slots__ = (
        "_cursor_saver",
        "_dispatch_limit",
        "_on_unsettled",
        "_subscribe_limit",
        "_used_ms",
        "clock",
        "compaction",
        "dedup",
        "delays",
        "delivery_log",
        "ledger",
        "name",
        "partition_index",
        "policies",
        "producers",
        "publishing",
        "quotas",
        "rates",
        "rooms",
        "settings",
        "subscriptions",
        "tasks",
    )

    def __init__(
        self,
        name: TopicName,
        ledger: ManagedLedger,
        rooms: Rooms,
        tasks: TaskGroup,
        cursor_saver: CursorSaver,
        *,
        on_fenced: Callable[[Topic], None],
        on_unsettled: Callable[[CompactionCursor], None],
    ) -> None:
        """`on_fenced` is called when the ledger has failed; it takes no entries until the topic is loaded
        again. `on_unsettled` is called when `settle` of its compaction cursor has become due.
        """
        self.tasks = tasks
        self._cursor_saver = cursor_saver
        self.name = name
        self.partition_index = name.partition_index
        self.ledger = ledger
        self.rooms = rooms
        self.clock = rooms.clock
        self.settings = rooms.settings
        epoch = ledger.properties.get(EPOCH_PROPERTY)
        self.producers = Producers(str(name), int(epoch) if epoch else None)
        self.subscriptions: dict[str, Subscription] = {}
        self._used_ms = rooms.clock.now_ms()
        """When the topic was loaded, or last found in use."""
        self.delays = TopicDelays(
            ledger,
            rooms.clock,
            rooms.delay_settings,
            new_store=rooms.new_bucket_store,
            record=rooms.record,
        )
        self.delivery_log = None if rooms.delivery_log is None else rooms.delivery_log.of_topic(str(name))
        self.publishing = Publishing(
            str(name), ledger, rooms, self.producers, self.subscriptions, self.delays, self.delivery_log
        )
        self.dedup = self.publishing.dedup
        self.compaction = CompactionCursor(str(name), ledger)
        self._on_unsettled = on_unsettled
        self.rates = LedgerRates()
        self.quotas = BacklogQuotas(str(name), ledger, rooms.clock, self.subscriptions)
        # From here on a change of policy reaches this topic, also while it is still loading.
        self.policies = rooms.policies.attach(name, self._policies_changed)
        """The effective policies of this topic."""
        self._dispatch_limit: DispatchLimit | None = None
        self._subscribe_limit: SubscribeLimit | None = None
        self._apply_policies()
        ledger.attach(self.publishing, partial(on_fenced, self))

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the topic's state. Its tasks run from here until `close`, or until one of them fails. Raises
        StorageError, ServiceNotReady.
        """
        # Before the topic is in any round: its first trimming must find the cursor.
        try:
            await self.compaction.settle()
        except ReadOnly as full:
            # A full disk keeps no topic from being read. Nothing is trimmed before the cursor is there, since
            # `trim` settles it first, and an unused topic is not deleted.
            log.warning("%s: its compaction threshold is applied when there is space: %s", self.name, full)
        # Both read what an earlier process left, before the first entry and the first consumer: deduplication
        # must not judge an entry with half of its ids, and a dispatcher would read what the index holds
        # already.
        await self.dedup.start()
        await self.delays.start(self.tasks)
        self.dedup.run_in(self.tasks)
        pace = Pace()
        for name, cursor in tuple(self.ledger.cursors.items()):
            if not cursor.is_system:
                self._add_subscription(name, cursor)
            await pace.row()
        self.ledger.life.run_in(self.tasks, self._cursor_saver)

    async def close(self) -> None:
        """Disconnect all clients, persist the cursors, close the ledger. Durable on return."""
        await self._end(self.ledger.life.close)

    async def delete(self) -> None:
        """As `close`, but also deletes all of the topic's state on disk."""
        # Noted after the deletion: a delivery log that said so before a deletion that fails would be wrong.
        notes = [subscription.notes for subscription in self.subscriptions.values()]
        await self._end(self.ledger.life.delete)
        for gone in notes:
            if gone is not None:
                gone.unsubscribed()

    async def _end(self, finish: Callable[[], Awaitable[None]]) -> None:
        """End the topic's tasks, whether `finish` succeeds or not. The next request loads the topic from
        disk.
        """
        # Upper parts first: no new entries, then no producers, then no deliveries. What is persisted
        # afterwards is the final state.
        self.publishing.close()
        try:
            self.disconnect_producers()
            pace = Pace()
            for subscription in tuple(self.subscriptions.values()):
                await subscription.close()
                await pace.row()
            await self.delays.close()
            await self.dedup.close()
            await finish()
            # Freed one by one: thousands of them at once would hold up the loop.
            while self.subscriptions:
                self.subscriptions.popitem()
                await pace.row()
        finally:
            self.rooms.policies.detach(self.name, self._policies_changed)
            self.subscriptions.clear()
            self.tasks.cancel()

    @property
    def closing(self) -> bool:
        """Whether the topic refuses entries and clients."""
        # One flag for both, since a producer that is admitted must be able to publish.
        return self.publishing.closed

    @property
    def is_in_use(self) -> bool:
        """Whether a producer or a consumer is connected."""
        return bool(len(self.producers)) or any(s.consumers for s in self.subscriptions.values())

    def idle_ms(self) -> int:
        """How long the topic has been neither in use nor published to."""
        return self.clock.now_ms() - max(self._used_ms, self.publishing.last_publish_ms)

    def restart_idle_time(self, at_ms: int | None = None) -> None:
        """Count `idle_ms` from now on, because the topic is in use, or its subscriptions keep it; or from
        `at_ms` on, until when it was.
        """
        # In memory only, as in Pulsar: written down for each topic it would cost a write a minute.
        self._used_ms = self.clock.now_ms() if at_ms is None else max(self._used_ms, at_ms)

    async def _policies_changed(self, policies: EffectivePolicies) -> None:
        self.policies = policies
        self._apply_policies()
        if not self.compaction.is_settled:
            self._on_unsettled(self.compaction)
        # Each gets what holds at its turn: of two changes at once the later one stays.
        pace = Pace()
        for subscription in tuple(self.subscriptions.values()):
            subscription.apply(self._subscription_settings())
            self._limit_dispatch(subscription)
            await pace.row()

    def _apply_policies(self) -> None:
        """Push to each part but the subscriptions the values that it needs per message or entry. All other
        code reads `policies`.
        """
        self.ledger.apply(ledger_settings(self.ledger.settings, self.policies))
        # In effect before the request that changed a policy is answered: tests of applications rely on it.
        delayed = self.policies.delayed_delivery
        self.delays.set_policy(DelayPolicy(delayed.active, delayed.tick_ms))
        self.publishing.apply(self.policies)
        self.compaction.set_threshold(self.policies.compaction_threshold_bytes)
        # A limit of the same rate is kept with its counts: changing another policy would otherwise reset it.
        self._subscribe_limit = subscribe_limit(self.policies.subscribe_rate, self._subscribe_limit)
        self._dispatch_limit = dispatch_limit(
            self.policies.dispatch_rate, self._dispatch_limit, self.publishing.published
        )

    def _limit_dispatch(self, subscription: Subscription) -> None:
        own = self.policies.subscription_rates.get(
            subscription.name, self.policies.subscription_dispatch_rate
        )
        subscription.limit_dispatch(self._dispatch_limit, own, self.publishing.published)

    def _subscription_settings(self) -> SubscriptionSettings:
        return subscription_settings(self.rooms.subscription_settings, self.policies)

    async def trim(self) -> None:
        """Delete ledgers that all subscriptions have consumed and nothing keeps. StorageError,
        ServiceNotReady.
        """
        await self.compaction.settle()
        await self.ledger.life.trim()

    async def keep_for_compaction(self) -> None:
        """Keep all messages from now on, because compaction was asked for; durable on return. StorageError,
        ServiceNotReady.
        """
        self.publishing.check_open()
        await self.compaction.keep()
        # The deletion of an unused topic may have begun meanwhile, and takes the cursor with it.
        self.publishing.check_open()

    async def truncate(self) -> None:
        """Delete all messages, including delayed ones. All cursors move to the end, and all ledgers but the
        newest are deleted, regardless of retention. Consumers stay connected.

        Durable on return. Raises StorageError, ServiceNotReady.
        """
        # As in Pulsar: the newest ledger stays, since entries may be on their way into it.
        self.publishing.check_open()
        for subscription in tuple(self.subscriptions.values()):
            await subscription.clear_backlog()
            await subscription.cursor.persist()
        # System cursors hold ledgers back like any other. That of deduplication moves with a snapshot only.
        await self.dedup.snapshot()
        await self.compaction.truncate()
        await self.ledger.life.trim(retains=False)
        if self.ledger.error is not None:
            raise self.ledger.error

    async def expire_older(
        self, subscription: Subscription, than_s: int, *, from_due_time: bool = False
    ) -> bool:
        """See `Expiry.expire`."""
        return await subscription.expiry.expire(
            than_s,
            by_broker_time=self.settings.expires_by_broker_time,
            due_backlog=subscription.due_backlog if from_due_time else None,
        )

    async def measure(self, elapsed_s: float, pace: Pace) -> None:
        """Close one interval of the rates of this topic, its producers and its subscriptions."""
        self.publishing.measure(elapsed_s)
        saved = 0
        for cursor in tuple(self.ledger.cursors.values()):
            if cursor.cursor_ledger is not None:
                saved += cursor.cursor_ledger.states_saved
            await pace.row()
        self.rates.measure(self.ledger, saved, elapsed_s)
        for subscription in tuple(self.subscriptions.values()):
            subscription.update_rates(elapsed_s)
            await pace.row()

    # -- producers -------------------------------------------------------------------------------------------

    async def add_producer(self, producer: Producer, topic_epoch: int | None) -> bool:
        """Admit a producer. Returns False if it must call `producers.wait` for its turn. Raises
        `PeerError`.
        """
        self.publishing.check_open()
        # Before the quotas: a terminated topic refuses for good, and clients retry after a quota's error.
        if self.ledger.terminated:
            raise TopicTerminated(f"Topic {self.name} was already terminated")
        await self.quotas.check_producer(self.policies)
        self.publishing.check_open()  # the topic may have begun to close while an entry was read
        fenced = self.producers.admit(producer, topic_epoch, self.policies.producers_max)
        if fenced is None:
            return False
        for other in fenced:
            other.tell_closed()
        # Durable before the client gets its answer: after a restart an old exclusive producer must still be
        # fenced.
        if producer.access_mode:
            await self.save_epoch()
        return True

    async def save_epoch(self) -> None:
        """Make the topic epoch durable."""
        # A property of the topic's record: no ledger has to be read for it at a load.
        await self.ledger.life.set_properties(
            {**self.ledger.properties, EPOCH_PROPERTY: str(self.producers.epoch)}
        )

    def disconnect_producers(self) -> None:
        """Tell every producer to look the topic up again."""
        for producer in self.producers:
            self.producers.disconnect(producer)

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
        """Attach a consumer to a subscription, which is created if necessary; a durable one is on disk on
        return.

        `initial` is "earliest" or "latest" and only used for a new subscription; a non-durable one begins at
        `start`. Raises `PeerError` if the subscription does not accept the consumer.
        """
        self.publishing.check_open()
        if self._subscribe_limit is not None:
            self._subscribe_limit.check(consumer, self.clock.monotonic_s())
        check_consumer_type(self.name, consumer.sub_type, self.policies)
        subscription = self.subscriptions.get(name)
        # A reader and an application's subscription of one name would take each other's messages. The texts
        # are Pulsar's.
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
        # After the awaits: nothing may come between these checks and `add_consumer`, or the topic would have
        # a consumer too many, or one that the end of the topic has missed.
        await subscription.ready()
        self.publishing.check_open()
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
        """Create a subscription without consumers. Returns the existing one if another caller was faster."""
        self.publishing.check_open()
        # A subscription of that name would move a cursor that the broker relies on.
        check_is_no_system_cursor(name)
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
        # Several consumers of a new application often come at once, and each opens the cursor: the ledger
        # gives all of them the same one, and the first to get here makes the subscription.
        self.publishing.check_open()
        existing = self.subscriptions.get(name)
        if existing is not None:
            return existing
        subscription = self._add_subscription(name, cursor)
        if subscription.notes is not None:
            subscription.notes.subscribed(cursor.mark_delete)
        return subscription

    async def delete_subscription(self, name: str) -> None:
        """Delete a subscription and its cursor, durably on return."""
        # Out of the mapping first: a consumer that comes meanwhile creates a new one instead of joining this
        # one.
        subscription = self.subscriptions.pop(name, None)
        if subscription is None:
            raise SubscriptionNotFound(f"Subscription not found: {name} on {self.name}")
        await subscription.delete()
        if subscription.notes is not None:
            subscription.notes.unsubscribed()
        self.delays.detach(subscription.delayed)
        await self.delays.subscription_deleted()

    def subscription(self, name: str) -> Subscription:
        """The subscription of that name. Raises `SubscriptionNotFound`, and `NotAllowed` for the name of a
        system cursor.
        """
        found = self.subscriptions.get(name)
        if found is None:
            check_is_no_system_cursor(name)
            raise SubscriptionNotFound(f"Subscription not found: {name} on {self.name}")
        return found

    def _add_subscription(self, name: str, cursor: Any) -> Subscription:
        """Add a subscription. It has no task before its first consumer, unless it has to open an index."""
        subscription = Subscription(
            self,
            name,
            cursor,
            settings=self._subscription_settings(),
            clock=self.clock,
            index_door=self.delays,
            reads=self.rooms.read_memory,
            # Readers seek freely and acknowledge nothing, so an audit cannot tell a lost message from one
            # that they did not want. Each reader of Spark was once audited as a subscription that got delayed
            # messages a day early.
            delivery_log=self.delivery_log if cursor.durable else None,
        )
        self.subscriptions[name] = subscription
        self._limit_dispatch(subscription)
        self.delays.attach(subscription.delayed)
        if subscription.delayed.has_index():
            self._start(subscription)
        return subscription

    def _start(self, subscription: Subscription) -> None:
        """Start the subscription's task, if it has none."""
        if subscription.needs_task():
            self.tasks.start_soon(self._run_subscription, subscription)

    async def _run_subscription(self, subscription: Subscription) -> None:
        has_left = False
        try:
            await subscription.run()
            has_left = not subscription.has_ended
        finally:
            # Without consumers its delayed messages stay in the index; only its end takes them out.
            if not has_left:
                self.delays.detach(subscription.delayed)
