"""A subscription: one cursor, its consumers and the dispatcher that serves them, and when it begins and ends.

Each part owns what it changes: `consumers` the dispatcher that serves them, `acks` how far the cursor has
come, `expiry` what was too old. One task (`run`) reads and sends, and `entries_available` sends what needs no
task while it sleeps; everything else here is plain calls that change state and wake that task.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import trio

from geminga.broker.delays.given_out import GivenOut
from geminga.broker.delays.subscription_delays import IndexDoor, SubscriptionDelays
from geminga.broker.dispatch.rate import DispatchLimit, Published, Throttle
from geminga.broker.dispatch.settings import SubscriptionSettings, Surroundings
from geminga.broker.dispatch.task import sleeper_for
from geminga.broker.flow.slices import Pace
from geminga.broker.flow.subscription_log import SparseLog
from geminga.broker.subscription.acks import Acks
from geminga.broker.subscription.consumers import Consumers
from geminga.broker.subscription.due_backlog import DueBacklog
from geminga.broker.subscription.expiry import Expiry
from geminga.errors import ConsumerBusy, NotAllowed, ServiceNotReady, SubscriptionNotFound
from geminga.managed_ledger.cursor.batch_index import ACK_SET_WORDS_MAX, WORD_BITS
from geminga.managed_ledger.cursor.system_cursors import is_holder
from geminga.position import Position

if TYPE_CHECKING:
    from geminga.broker.dispatch.consumer import Consumer
    from geminga.broker.flow.read_memory import ReadMemory
    from geminga.broker.policies.values import DispatchRate
    from geminga.clock import Clock
    from geminga.delivery_log.delivery_log import DeliveryLog
    from geminga.managed_ledger.cursor.cursor import Cursor
    from geminga.managed_ledger.managed_ledger import ManagedLedger

__all__ = ["Subscription", "SubscriptionSettings", "TopicOfSubscription"]

# An Event for each subscription was a part of what an idle topic costs, and thousands are idle.
NEVER_FENCED = trio.Event()
"""Shared by all subscriptions that had no seek yet; no task waits for it."""
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
    """Made for an open cursor, without consumers. `run` must run while it has any: `needs_task`.

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
        "_has_task",
        "_sleeper",
        "_unfenced",
        "_vanishes_at_s",
        "acks",
        "clock",
        "consumers",
        "cursor",
        "delayed",
        "expiry",
        "is_holder",
        "log",
        "name",
        "notes",
        "throttle",
        "topic",
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
        delivery_log: DeliveryLog | None = None,
    ) -> None:
        self.topic = topic
        self.name = name
        self.is_holder: Final = is_holder(name)
        """Whether it keeps what was restored: no policy takes messages from it, or deletes it."""
        self.cursor = cursor
        self.clock = clock
        # Made with its first use, like its lock: only topics with one of two policies of Geminga's own need
        # it.
        self._due_backlog: DueBacklog | None = None
        self.log = SparseLog(clock)
        self.throttle = Throttle(clock)
        self._sleeper = sleeper_for(clock, f"{topic.name} / {name}")
        # The bound method itself, without a call in between: each group of published entries calls it.
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
        self.consumers = Consumers(self._around, delivery_log)
        self.notes = self.consumers.notes
        """Where the delivery log is on."""
        self.acks = Acks(self._around, self.consumers)
        self.expiry = Expiry(self._around, self.consumers, self.acks)
        self._has_task = False
        self._forgets_delayed = False
        self._fenced = False
        self._unfenced = NEVER_FENCED
        self._ended = False
        self._cursor_deleted = False
        self._vanishes_at_s = math.inf

    def apply(self, settings: SubscriptionSettings) -> None:
        """Go by other settings from now on."""
        if settings != self._around.settings:
            self._around.apply(settings)
            if self.consumers.dispatcher is not None:
                self.consumers.dispatcher.settings_changed()
                self.wake()

    def limit_dispatch(self, of_topic: DispatchLimit | None, own: DispatchRate, published: Published) -> None:
        """Give out no faster than this from now on."""
        if self.throttle.apply(of_topic, own, published):
            self.wake()

    # -- the dispatch task -----------------------------------------------------------------------------------

    def needs_task(self) -> bool:
        """Whether `run` is to be started: True for one call, which starts it, until it has returned."""
        # A subscription without consumers has no task: a sleeping one is much of what an idle topic costs.
        is_first, self._has_task = not self._has_task, True
        return is_first

    @property
    def has_ended(self) -> bool:
        """Whether it was closed or deleted, or has vanished, and takes no consumers any more."""
        return self._ended

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Dispatch until the last consumer has left, or the subscription is closed, deleted, or has vanished.
        Asleep while nothing can be sent.
        """
        task_status.started()
        self._sleeper.begins()
        try:
            await self._run()
        finally:
            self._sleeper.ends()

    async def _run(self) -> None:
        if self.delayed.has_index():
            # Before the first round, which would otherwise read all that the index holds back.
            await self.delayed.open()
        while not self._ended:
            if self._is_left_alone():
                # Without an await behind the look: the next consumer's call starts the next task.
                self._has_task = False
                return
            await self._sleep()
            # Here and not in `add_consumer`, which is a plain call: clearing writes properties.
            if self._forgets_delayed:
                self._forgets_delayed = False
                await self.delayed.clear()
            dispatcher = self.consumers.dispatcher
            if dispatcher is not None and not self._fenced:
                await dispatcher.run_round()
                # The round may have acknowledged the last entry by itself, such as a marker.
                self.consumers.end_of_topic()
            if self._vanishes_at_s <= self.clock.monotonic_s():
                self._vanish()
        # Of a reader only: `close` keeps the cursor, and `delete` deletes it itself.
        if self._vanishes_at_s == -math.inf:
            await self.delayed.close()
            # Only now may another one take the name: the cursor has it until here.
            with contextlib.suppress(SubscriptionNotFound, ServiceNotReady):  # the topic went first
                await self._delete_cursor()
            if self.notes is not None:
                self.notes.unsubscribed()
            if self.topic.subscriptions.get(self.name) is self:
                del self.topic.subscriptions[self.name]

    def _is_left_alone(self) -> bool:
        """Whether there is nothing to do before the next consumer comes."""
        is_changing = self._fenced or self._forgets_delayed
        return self.cursor.durable and not len(self.consumers) and not is_changing

    async def _sleep(self) -> None:
        retry_at_s, due_ms = self._vanishes_at_s, None
        dispatcher = self.consumers.dispatcher
        if dispatcher is not None and not self._fenced:
            retry_at_s = min(retry_at_s, dispatcher.retry_at_s())
            # Asked before each sleep, never remembered: Pulsar cancelled its timer, returned early, and took
            # it for armed from then on (issue #25996).
            due_ms = dispatcher.due_ms()
        await self._sleeper.sleep(retry_at_s, due_ms)

    def entries_available(self) -> None:
        """The ledger has new confirmed entries."""
        dispatcher = self.consumers.dispatcher
        if dispatcher is None or dispatcher.is_idle_after_publish():
            return
        # A task costs more to wake than a single message costs to send. One that is awake may be in a read,
        # and what that brings goes first.
        is_idle = self._sleeper.is_asleep and not (self._fenced or self._ended)
        if not (is_idle and dispatcher.send_published()):
            self.wake()

    # -- consumers -------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Return when no seek is under way, so that consumers may be added."""
        while self._fenced and not self._ended:
            await self._unfenced.wait()

    def add_consumer(self, consumer: Consumer) -> None:
        """As `Consumers.add`; ServiceNotReady also during a seek or a close."""
        # During a seek the cursor may still be at the old position: what a consumer got from there it would
        # get again.
        if self._fenced or self._ended:
            raise ServiceNotReady("Subscription is fenced")
        for gone in [c for c in self.consumers if c.outbox.closed]:
            # Its connection is dead and about to say so; it must not keep others out.
            self.remove_consumer(gone)
        if self.consumers.add(consumer):
            # Exclusive and Failover send all at once: the index is of no use until a consumer of another type
            # comes, for which it is built again.
            self._forgets_delayed = self.consumers.ignores_delays
        self._vanishes_at_s = math.inf
        self.wake()

    def remove_consumer(self, consumer: Consumer) -> None:
        """The consumer left or its connection broke; what it did not acknowledge is sent again. May be
        repeated.
        """
        if not self.consumers.remove(consumer):
            return
        if not len(self.consumers) and not self.cursor.durable:
            # Its client was disconnected by its own seek and comes back; the cursor it looks for must still
            # be there.
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

    async def _disconnect(self, consumers: Iterable[Consumer]) -> None:
        """As `disconnect`, in slices. The subscription is fenced: no consumer is added meanwhile."""
        pace = Pace()
        for consumer in tuple(consumers):
            self.disconnect(consumer)
            await pace.row()

    def _vanish(self) -> None:
        self._ended = True
        self._vanishes_at_s = -math.inf

    # -- the backlog -----------------------------------------------------------------------------------------

    @property
    def due_backlog(self) -> DueBacklog:
        """For the policies that count from due times; most subscriptions never make one."""
        if self._due_backlog is None:
            self._due_backlog = DueBacklog(self._around, self.consumers, self.acks)
        return self._due_backlog

    async def clear_backlog(self) -> None:
        """Acknowledge everything there is, delayed messages included."""
        self.acks.skip_to(self.topic.ledger.last_confirmed)
        await self.delayed.clear()

    def backlog(self) -> int:
        """Entries that are not acknowledged."""
        return self.cursor.backlog_entries()

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
        # Pulsar's text. Two seeks at once would leave the position of whichever wrote last.
        if self._fenced:
            raise ConsumerBusy("Failed to fence subscription")
        self._fenced = True
        self._unfenced = trio.Event()
        try:
            dispatcher = self.consumers.dispatcher
            # Pulsar's disconnectActiveConsumers: the others of a Failover subscription have received nothing.
            active = dispatcher.active() if dispatcher is not None else None
            await self._disconnect([active] if active is not None else self.consumers)
            self.log.info("%s / %s: reset to %s", self._around.topic, self.name, position)
            # After the consumers have gone: an acknowledgement that came in between would move the new
            # position.
            await self.cursor.reset(position)
            if self.notes is not None:
                self.notes.sought(self.cursor.mark_delete)
            if ack_set and self._around.settings.batch_index_acks:
                self.cursor.acknowledge_batch_index(position, ack_set, WORD_BITS * len(ack_set))
            self.acks.sought()
            if dispatcher is not None:
                # Nothing that was pending before counts; Failover's other consumers are still there.
                dispatcher.reset()
            # In Pulsar a seek leaves stale positions in a tracker with buckets (pull 26420).
            await self.delayed.clear()
            self.delayed.mark_delete_moved(self.cursor.mark_delete)
        finally:
            # Not False: a close that came during the seek keeps consumers out.
            self._fenced = self._ended
            self._unfenced.set()
            self.wake()

    async def close(self) -> None:
        """Disconnect all consumers and stop dispatching. The cursor stays open; its ledger closes it."""
        self._fenced = self._ended = True
        await self._disconnect(self.consumers)
        await self.delayed.close()
        # Tasks in `ready` would wait for ever otherwise; they find the subscription ended.
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

    def update_rates(self, interval_s: float) -> None:
        """Set the rates from what was counted in the last `interval_s` seconds."""
        self.expiry.rate.measure(self.expiry.total, interval_s)
        self.consumers.update_rates(interval_s)
