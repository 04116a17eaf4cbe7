"""A subscription: one cursor, its consumers, and the dispatcher that serves them.

The dispatcher is chosen by the first consumer's type and stays until a first consumer of another type comes.
One task (`run`) reads and sends; everything else here is plain calls that change state and wake that task.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Protocol

import trio

from geminga.broker.delays.given_out import GivenOut
from geminga.broker.delays.subscription_delays import IndexDoor, SubscriptionDelays
from geminga.broker.dispatch.consumer import Consumer
from geminga.broker.dispatch.dispatcher import Dispatcher
from geminga.broker.dispatch.rate import DispatchLimit, Published, Throttle
from geminga.broker.dispatch.settings import SubscriptionSettings, Surroundings
from geminga.broker.dispatch.task import Sleeper
from geminga.broker.dispatch.types import dispatcher_for
from geminga.broker.flow.subscription_log import SparseLog
from geminga.broker.subscription.acks import INDIVIDUAL_TYPES, acknowledge_command, acknowledge_cumulative
from geminga.broker.subscription.due_backlog import DueBacklog
from geminga.broker.subscription.expiry import Expiry
from geminga.broker.subscription.statistics import SubscriptionStatistics, statistics_of
from geminga.delivery_log.notes import AT_ANY_TIME
from geminga.errors import ConsumerBusy, NotAllowed, ServiceNotReady, SubscriptionNotFound
from geminga.managed_ledger.cursor.batch_index import ACK_SET_WORDS_MAX, WORD_BITS
from geminga.position import Position

if TYPE_CHECKING:
    from geminga.broker.flow.read_memory import ReadMemory
    from geminga.broker.policies.values import DispatchRate
    from geminga.clock import Clock
    from geminga.delivery_log.notes import SubscriptionNotes
    from geminga.managed_ledger.cursor.cursor import Cursor
    from geminga.managed_ledger.managed_ledger import ManagedLedger
    from geminga.wire import pulsar_pb2 as pb

__all__ = ["Subscription", "SubscriptionSettings", "SubscriptionStatistics", "TopicOfSubscription"]

NEVER_FENCED = trio.Event()
"""Shared by all subscriptions that had no seek yet; nobody waits for it."""
READER_RETURNS_S = 60.0
"""How long a non-durable subscription whose reader was disconnected by a seek waits for it to come back."""


class TopicOfSubscription(Protocol):
    """What a subscription needs of its topic."""

    @property
    def name(self) -> object: ...
    @property
    def partition_index(self) -> int: ...
    @property
    def ledger(self) -> ManagedLedger: ...
    @property
    def subscriptions(self) -> MutableMapping[str, Subscription]: ...


class Subscription:
    """Made for an open cursor, without consumers. `run` must run while it has any.

    A non-durable subscription (a reader's) takes no more consumers once its last one has left: `run` deletes
    the cursor, takes the subscription out of the topic, and returns.
    """

    __slots__ = (
        "_around",
        "_cursor_deleted",
        "_due_backlog",
        "_ended",
        "_fenced",
        "_forgets_delayed",
        "_sleeper",
        "_unfenced",
        "_vanishes_at_s",
        "bytes_out_before",
        "clock",
        "cursor",
        "delayed",
        "dispatcher",
        "expiry",
        "has_task",
        "last_flow_ms",
        "last_mark_delete_advanced_ms",
        "log",
        "mark_delete_seen",
        "messages_out_before",
        "name",
        "notes",
        "rates",
        "settings",
        "throttle",
        "topic",
        "unused_since_ms",
        "wake",
    )

    def __init__(
        self,
        topic: TopicOfSubscription,
        name: str,
        cursor: Cursor,
        *,
        settings: SubscriptionSettings,
        clock: Clock,
        index_door: IndexDoor,
        reads: ReadMemory,
    ) -> None:
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.clock = clock
        self.settings = settings
        self.last_flow_ms = 0
        self.last_mark_delete_advanced_ms = 0
        self.messages_out_before = 0
        self.bytes_out_before = 0
        """Sent to consumers that are gone."""
        self.rates: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 0.0)
        self.dispatcher: Dispatcher | None = None
        self.mark_delete_seen = cursor.mark_delete
        self.unused_since_ms = clock.now_ms()
        """When its last consumer left, or it was loaded; it says nothing while there is a consumer."""
        self.expiry = Expiry()
        self._due_backlog: DueBacklog | None = None
        self.log = SparseLog(clock)
        self.throttle = Throttle(clock)
        self._sleeper = Sleeper(clock)
        self.wake = self._sleeper.wake
        """Have a round run soon. Cheap when one is due already."""
        self.delayed = SubscriptionDelays(topic.ledger, cursor, index_door, GivenOut(), self.wake)
        self._around = Surroundings(
            topic=str(topic.name),
            subscription=name,
            partition_index=topic.partition_index,
            ledger=topic.ledger,
            cursor=cursor,
            settings=settings,
            clock=clock,
            delayed=self.delayed,
            wake=self.wake,
            log=self.log,
            throttle=self.throttle,
            reads=reads,
        )
        self.notes: SubscriptionNotes | None = None
        """Where the delivery log is on."""
        self.has_task = False
        """Whether `run` was started; its topic does that with the first consumer, if not before."""
        self._forgets_delayed = False
        self._fenced = False
        self._unfenced = NEVER_FENCED
        self._ended = False
        self._cursor_deleted = False
        self._vanishes_at_s = math.inf

    def apply(self, settings: SubscriptionSettings) -> None:
        """Go by other settings from now on."""
        if settings != self.settings:
            self.settings = settings
            self._around.apply(settings)
            if self.dispatcher is not None:
                self.dispatcher.settings_changed()
                self.wake()

    def limit_dispatch(self, of_topic: DispatchLimit | None, own: DispatchRate, published: Published) -> None:
        """Give out no faster than this from now on."""
        if self.throttle.apply(of_topic, own, published):
            self.wake()

    # -- the dispatch task -----------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Dispatch until the subscription is closed, deleted, or has vanished. Asleep while nothing can be
        sent.
        """
        task_status.started()
        if self.delayed.has_index():
            await self.delayed.open()
        while not self._ended:
            await self._sleep()
            if self._forgets_delayed:
                self._forgets_delayed = False
                await self.delayed.clear()
            if self.dispatcher is not None and not self._fenced:
                await self.dispatcher.run_round()
                self.end_of_topic()
            if self._vanishes_at_s <= self.clock.monotonic_s():
                self._vanish()
        if self._vanishes_at_s == -math.inf:
            await self.delayed.close()
            # Only now may another one take the name: the cursor has it until here.
            with contextlib.suppress(SubscriptionNotFound, ServiceNotReady):  # the topic went first
                await self._delete_cursor()
            if self.notes is not None:
                self.notes.unsubscribed()
            if self.topic.subscriptions.get(self.name) is self:
                del self.topic.subscriptions[self.name]

    async def _sleep(self) -> None:
        retry_at_s, due_ms = self._vanishes_at_s, None
        if self.dispatcher is not None and not self._fenced:
            retry_at_s = min(retry_at_s, self.dispatcher.retry_at_s())
            due_ms = self.dispatcher.due_ms()
        await self._sleeper.sleep(retry_at_s, due_ms)

    def entries_available(self) -> None:
        """The ledger has new confirmed entries."""
        if self.dispatcher is not None and self.dispatcher.consumers:
            self.wake()

    # -- consumers -------------------------------------------------------------------------------------------

    @property
    def consumers(self) -> Sequence[Consumer]:
        return self.dispatcher.consumers if self.dispatcher is not None else ()

    @property
    def type(self) -> str:
        """The type of its consumers, or of the last one it had; "None" before the first."""
        return self.dispatcher.sub_type if self.dispatcher is not None else "None"

    @property
    def ignores_delays(self) -> bool:
        """Exclusive and Failover deliver at once: what the index holds back does not wait there."""
        return self.dispatcher is not None and not self.dispatcher.heeds_delays

    @property
    def overrides(self) -> Mapping[int, int]:
        """Other due times than entries say, by ledger id << 32 | entry id."""
        return self.delayed.overrides

    def early_max_ms(self) -> int:
        """By so much an entry that is sent now may be before its delivery time; `AT_ANY_TIME` where that
        counts for nothing: the type, or a policy, has entries sent at once.
        """
        if self.ignores_delays or not self.delayed.policy.active:
            return AT_ANY_TIME
        tracker = self.delayed.tracker
        return tracker.early_max_ms() if tracker is not None else 0

    async def ready(self) -> None:
        """Return when no seek is under way, so that consumers may be added."""
        while self._fenced and not self._ended:
            await self._unfenced.wait()

    def add_consumer(self, consumer: Consumer) -> None:
        """Attach a consumer; nothing is written to its outbox before `announce`, or before it sends permits.

        Raises ConsumerBusy (another type is active, one is connected already, too many), ConsumerAssign (key
        ranges that are taken or malformed), ServiceNotReady (during a seek or a close), NotAllowed.
        """
        if self._fenced or self._ended:
            raise ServiceNotReady("Subscription is fenced")
        for gone in [c for c in self.consumers if c.outbox.closed]:
            # Its connection is dead and about to say so; it must not keep others out.
            self.remove_consumer(gone)
        consumer.notes = self.notes
        dispatcher = dispatcher_for(consumer, self.dispatcher, self._around)
        dispatcher.add(consumer)
        if dispatcher is not self.dispatcher:
            self.dispatcher = dispatcher
            if dispatcher.books is not None:
                self.delayed.given_out.follow(dispatcher.books)
            self._forgets_delayed = self.ignores_delays
        self._vanishes_at_s = math.inf
        consumer.outbox.on_writable.add(self._writable)
        self.wake()

    def _writable(self) -> None:
        if self.dispatcher is not None:
            self.dispatcher.capacity_grew()

    def announce(self, consumer: Consumer) -> None:
        """The client has been told that it is subscribed: from now on it may hear more."""
        if self.dispatcher is not None and not consumer.closed:
            self.dispatcher.announce(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """The consumer left or its connection broke; what it did not acknowledge is sent again. May be
        repeated.
        """
        if consumer.closed or self.dispatcher is None or consumer not in self.dispatcher.consumers:
            return
        consumer.closed = True
        if self.notes is not None:
            self.notes.released(consumer.name)
        self.messages_out_before += consumer.messages_out
        self.bytes_out_before += consumer.bytes_out
        self.dispatcher.remove(consumer)
        if not any(c.outbox is consumer.outbox for c in self.dispatcher.consumers):
            consumer.outbox.on_writable.discard(self._writable)
        if not self.dispatcher.consumers:
            self.unused_since_ms = self.clock.now_ms()
        if not self.dispatcher.consumers and not self.cursor.durable:
            if self._fenced:
                self._vanishes_at_s = self.clock.monotonic_s() + READER_RETURNS_S
            else:
                self._vanish()
        self.wake()

    def disconnect(self, consumer: Consumer) -> None:
        """Make a consumer leave; its client comes back by itself."""
        if not consumer.closed:
            consumer.tell_closed()
            self.remove_consumer(consumer)

    def _vanish(self) -> None:
        self._ended = True
        self._vanishes_at_s = -math.inf

    def flow(self, consumer: Consumer, permits: int) -> None:
        """The consumer can take so many messages more."""
        if permits <= 0 or consumer.closed:
            return
        now_ms = self.last_flow_ms = self.clock.now_ms()
        if consumer.flow(permits, now_ms):
            assert self.dispatcher is not None
            self.dispatcher.capacity_grew()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Send these entries again, or all that the consumer has not acknowledged."""
        if not consumer.closed and self.dispatcher is not None:
            if self.notes is not None and not (positions and consumer.sub_type in INDIVIDUAL_TYPES):
                self.notes.released(consumer.name)
            self.dispatcher.redeliver(consumer, positions, epoch)

    # -- acknowledgements ------------------------------------------------------------------------------------

    def acknowledge(self, consumer: Consumer, positions: Sequence[tuple[int, int]]) -> None:
        """Acknowledge whole entries. Positions that are no entry, or acknowledged already, do no harm."""
        if consumer.closed or self.dispatcher is None:
            return
        consumer.last_acked_ms = self.clock.now_ms()
        if self.notes is not None:
            self.notes.acked(consumer.name, positions)
        consumer.acks += self.dispatcher.settle(consumer, positions)
        if self.cursor.acknowledge(positions):
            self.after_acks(consumer.last_acked_ms)

    def acknowledge_cumulative(self, consumer: Consumer, position: tuple[int, int]) -> None:
        """Acknowledge everything up to `position`; Shared and Key_Shared ignore it with a warning, as in
        Pulsar.
        """
        acknowledge_cumulative(self, consumer, position)

    def acknowledge_command(self, consumer: Consumer, command: pb.CommandAck) -> None:
        """Acknowledge by a command that carries more than positions. Raises NotAllowed for transactions."""
        acknowledge_command(self, consumer, command)

    def after_acks(self, now_ms: int) -> None:
        """Something was acknowledged: note how far mark-delete came, and whether the end of the topic is
        reached.
        """
        mark_delete = self.cursor.mark_delete
        if mark_delete != self.mark_delete_seen:
            if mark_delete.ledger_id != self.mark_delete_seen.ledger_id:
                # A shared index lets go of what all have passed; a ledger at a time will do.
                self.delayed.mark_delete_moved(mark_delete)
            self.mark_delete_seen = mark_delete
            self.last_mark_delete_advanced_ms = now_ms
        if self.topic.ledger.terminated:
            self.end_of_topic()

    @property
    def due_backlog(self) -> DueBacklog:
        """For the policies that count from due times; most subscriptions never make one."""
        if self._due_backlog is None:
            self._due_backlog = DueBacklog(self)
        return self._due_backlog

    def let_go(self, positions: Sequence[Position]) -> int:
        """Acknowledge whole entries on behalf of someone who is no consumer; returns how many of them were in
        the backlog.
        """
        before = self.backlog()
        if self.consumers and self.dispatcher is not None:
            self.dispatcher.settle(self.consumers[0], positions)
        self.delayed.passed(positions)
        if self.notes is not None:
            self.notes.acked(None, positions)
        if positions and self.cursor.acknowledge(positions):
            self.after_acks(self.clock.now_ms())
        return before - self.backlog()

    def skip_to(self, position: Position) -> None:
        """Acknowledge everything up to `position` on behalf of someone who is no consumer (skip, expiry,
        clear).
        """
        if self.dispatcher is not None and position <= self.topic.ledger.last_confirmed:
            self.dispatcher.settle_up_to(position)
        if self.notes is not None:
            self.notes.skipped_up_to(position)
        self.cursor.acknowledge_cumulative(position)
        self.delayed.mark_delete_moved(self.cursor.mark_delete)
        if self.dispatcher is not None:
            self.dispatcher.skipped()
        self.after_acks(self.clock.now_ms())

    async def clear_backlog(self) -> None:
        """Acknowledge everything there is, delayed messages included."""
        self.skip_to(self.topic.ledger.last_confirmed)
        await self.delayed.clear()

    def backlog(self) -> int:
        """Entries that are not acknowledged."""
        return self.cursor.backlog_entries()

    def end_of_topic(self) -> None:
        """Tell the consumers that the topic is terminated and nothing is left, if that is so; each is told
        once.
        """
        if self.topic.ledger.terminated and self.consumers and not self.cursor.backlog_entries():
            for consumer in self.consumers:
                consumer.tell_end_of_topic()

    # -- seek, close, delete ---------------------------------------------------------------------------------

    async def seek(self, position: Position, ack_set: Sequence[int] = ()) -> None:
        """Read from `position` on (EARLIEST and LATEST too); durable on return.

        Consumers are disconnected first and come back by themselves: all of them, or of a Failover
        subscription the active one. `ack_set` has the bits of a batch's messages that are still wanted.
        ConsumerBusy during another seek, NotAllowed for an `ack_set` beyond any batch. Cancelling leaves the
        cursor at the old or the new place.
        """
        if len(ack_set) > ACK_SET_WORDS_MAX:
            raise NotAllowed(f"An ack set of {len(ack_set)} words is longer than {ACK_SET_WORDS_MAX}")
        if self._fenced:
            raise ConsumerBusy("Failed to fence subscription")
        self._fenced = True
        self._unfenced = trio.Event()
        try:
            active = self.dispatcher.active() if self.dispatcher is not None else None
            for consumer in [active] if active is not None else list(self.consumers):
                self.disconnect(consumer)
            self.log.info("%s / %s: reset to %s", self._around.topic, self.name, position)
            await self.cursor.reset(position)
            if self.notes is not None:
                self.notes.sought(self.cursor.mark_delete)
            if ack_set and self.settings.batch_index_acks:
                self.cursor.acknowledge_batch_index(position, ack_set, WORD_BITS * len(ack_set))
            self.mark_delete_seen = self.cursor.mark_delete
            if self.dispatcher is not None:
                self.dispatcher.reset()
            await self.delayed.clear()
            self.delayed.mark_delete_moved(self.mark_delete_seen)
        finally:
            self._fenced = self._ended
            self._unfenced.set()
            self.wake()

    async def close(self) -> None:
        """Disconnect all consumers and stop dispatching. The cursor stays open; its ledger closes it."""
        self._fenced = self._ended = True
        for consumer in list(self.consumers):
            self.disconnect(consumer)
        await self.delayed.close()
        self._unfenced.set()
        self.wake()

    async def delete(self) -> None:
        """Close, and delete the cursor for good."""
        await self.close()
        await self._delete_cursor()

    async def _delete_cursor(self) -> None:
        if not self._cursor_deleted:
            await self.topic.ledger.delete_cursor(self.name)
            self._cursor_deleted = True

    # -- statistics ------------------------------------------------------------------------------------------

    def update_rates(self, interval_s: float) -> None:
        """Set the rates from what was counted in the last `interval_s` seconds."""
        self.expiry.rate.measure(self.expiry.total, interval_s)
        for consumer in self.consumers:
            consumer.update_rates(interval_s)
        self.rates = tuple(map(sum, zip(*(c.rates for c in self.consumers), strict=True))) or (0.0,) * 5

    def statistics(self) -> SubscriptionStatistics:
        return statistics_of(self)
