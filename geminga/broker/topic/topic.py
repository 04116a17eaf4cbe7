"""One topic: its beginning and end, the policies that hold for it, and who may join it."""

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
from geminga.broker.subscription.subscription import Subscription, SubscriptionSettings
from geminga.broker.topic.backlog_quota import EVICT, BacklogQuotas
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
    SubscriptionNotFound,
    TopicTerminated,
)
from geminga.managed_ledger.cursor.cursor import DEDUPLICATION_CURSOR
from geminga.position import Position

if TYPE_CHECKING:
    from geminga.broker.policies.policies import EffectivePolicies
    from geminga.broker.topic.rooms import Rooms
    from geminga.managed_ledger.chain.tasks import TaskGroup
    from geminga.managed_ledger.managed_ledger import ManagedLedger
    from geminga.names import TopicName

log = logging.getLogger("geminga.broker")

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
        "_dispatch_limit",
        "_now_s",
        "_subscribe_limit",
        "_used_ms",
        "clock",
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
        self._used_ms = rooms.clock.now_ms()
        """When it was loaded, or last found in use."""
        self._now_s = rooms.clock.monotonic_s
        self.delays = TopicDelays(ledger, rooms.clock, rooms.delay_settings)
        self.delivery_log = None if rooms.delivery_log is None else rooms.delivery_log.of_topic(str(name))
        self.publishing = Publishing(
            str(name), ledger, rooms, self.producers, self.subscriptions, self.delays, self.delivery_log
        )
        self.dedup = self.publishing.dedup
        self.quotas = BacklogQuotas(str(name), ledger, rooms.clock, self.subscriptions)
        self.policies = rooms.policies.attach(name, self._policies_changed)
        """What holds for this topic now."""
        self._dispatch_limit: DispatchLimit | None = None
        self._subscribe_limit: SubscribeLimit | None = None
        self._apply_policies()
        ledger.attach(self.publishing, partial(on_fenced, self))

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
        self.publishing.close()
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
    def closing(self) -> bool:
        """Whether it takes no more, neither entries nor clients."""
        return self.publishing.closed

    @property
    def is_in_use(self) -> bool:
        """Whether a producer or a consumer is connected."""
        return bool(len(self.producers)) or any(s.consumers for s in self.subscriptions.values())

    def idle_ms(self) -> int:
        """For how long it has been neither in use nor published to."""
        return self.clock.now_ms() - max(self._used_ms, self.publishing.last_publish_ms)

    def restart_idle_time(self) -> None:
        """Count `idle_ms` from now on: it is in use, or kept for its subscriptions."""
        self._used_ms = self.clock.now_ms()

    def _policies_changed(self, policies: EffectivePolicies) -> None:
        self.policies = policies
        self._apply_policies()

    def _apply_policies(self) -> None:
        """Have what is looked at for each message or entry at hand. Everything else asks `policies`."""
        self.ledger.apply(ledger_settings(self.ledger.settings, self.policies))
        delayed = self.policies.delayed_delivery
        self.delays.set_policy(DelayPolicy(delayed.active, delayed.tick_ms))
        self.publishing.apply(self.policies)
        self._subscribe_limit = subscribe_limit(self.policies.subscribe_rate, self._subscribe_limit)
        self._dispatch_limit = dispatch_limit(
            self.policies.dispatch_rate, self._dispatch_limit, self.publishing.published
        )
        for subscription in self.subscriptions.values():
            subscription.apply(self._subscription_settings())
            self._limit_dispatch(subscription)

    def _limit_dispatch(self, subscription: Subscription) -> None:
        of_each = self.policies.subscription_dispatch_rate
        subscription.limit_dispatch(self._dispatch_limit, of_each, self.publishing.published)

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
        self.publishing.check_open()
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

    async def enforce_quotas(self) -> None:
        """Do what the backlog quotas ask for now: send producers away, or evict. StorageError."""
        found = await self.quotas.exceeded(self.policies)
        if found is None:
            return
        if found.quota.policy == EVICT:
            await self.quotas.evict(self.policies, found)
        elif len(self.producers):
            log.info(
                "%s: its backlog quota (%s) is exceeded; its producers are disconnected",
                self.name,
                found.kind,
            )
            self.disconnect_producers()

    async def upkeep_deduplication(self) -> None:
        """Forget producers that are long gone, snapshot what is due. StorageError."""
        await self.dedup.upkeep(self.policies.deduplication_snapshot_interval_s)

    def measure(self, elapsed_s: float) -> None:
        """Close one interval of the rates of this topic, its producers and its subscriptions."""
        self.publishing.measure(elapsed_s)
        for subscription in self.subscriptions.values():
            subscription.update_rates(elapsed_s)

    # -- producers -------------------------------------------------------------------------------------------

    async def add_producer(self, producer: Producer, topic_epoch: int | None) -> bool:
        """Admit a producer. False: it must call `producers.wait` for its turn. Raises `PeerError`."""
        self.publishing.check_open()
        if self.ledger.terminated:
            raise TopicTerminated(f"Topic {self.name} was already terminated")
        await self.quotas.check_producer(self.policies)
        self.publishing.check_open()
        fenced = self.producers.admit(producer, topic_epoch, self.policies.producers_max)
        if fenced is None:
            return False
        for other in fenced:
            other.tell_closed()
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
        """Attach a consumer to a subscription, which is made if need be; a durable one is on disk on return.

        `initial` is "earliest" or "latest" and counts for a new subscription only; `start` is where a
        non-durable one begins. Raises `PeerError` when the subscription does not take the consumer.
        """
        self.publishing.check_open()
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
        """A new subscription without consumers; the existing one if another caller was faster."""
        self.publishing.check_open()
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
        self.publishing.check_open()
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
