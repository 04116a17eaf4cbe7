"""The figures of the page at `/`, gathered in slices while other tasks run."""

from __future__ import annotations

from collections import Counter
from heapq import nlargest
from operator import add
from typing import Final, NamedTuple

from geminga.admin.front.topic_rows import TopicRow, TopicRows
from geminga.admin.view.broker import BrokerView
from geminga.broker.flow.slices import Pace
from geminga.broker.flow.statistics import BucketStatistics, DiskStatistics, MemoryStatistics, TopicStatistics
from geminga.broker.operator.delayed_statistics import DueCount
from geminga.broker.subscription.statistics import SubscriptionStatistics
from geminga.errors import GemingaError, SubscriptionNotFound
from geminga.events.event import Event, Filter
from geminga.events.kinds import KINDS
from geminga.names import TopicName

NAMED_MAX: Final = 5
"""Topics or subscriptions that are named in a list of the largest."""
DELAYED_MAX: Final = 10
"""Subscriptions whose delayed messages and buckets are listed."""
PICTURED_MAX: Final = 5
"""Subscriptions whose due times are drawn, those with the most delayed messages."""
WRONG_MAX: Final = 12
NAMESPACES_MAX: Final = 1000
"""Namespaces that are counted apart; topics of others are only in the totals."""
EVENTS_MAX: Final = 10
EVENT_KINDS: Final = frozenset(name for name, kind in KINDS.items() if not kind.joins)
"""Those that do not come many at a time."""
WIDTH_MS: Final = 60_000
"""Of a class of due times; the broker doubles it for long delays."""


class Namespace(NamedTuple):
    topics: int = 0
    backlog: float = 0
    delayed: float = 0
    unread: float = 0
    """Entries that may be delayed, too."""


class DelayedRow(NamedTuple):
    """A subscription with delayed messages, or whose index has lost buckets."""

    topic: str
    subscription: str
    delayed: int
    """Messages in the index..."""
    overdue: int
    """...those of them that are due, and not delivered."""
    buckets: BucketStatistics | None
    """None: the index is in memory only."""
    is_shared: bool
    """Whether the buckets are those of all subscriptions of the topic."""
    reads_again: tuple[int, int] | None


class Unserved(NamedTuple):
    """A backlog without a consumer."""

    entries: int
    """What is not known to wait for its time; `unread` of these were not read since the start."""
    topic: str
    subscription: str
    unread: int


class Buckets(NamedTuple):
    """Of all indexes together."""

    growing: int = 0
    """Messages that are in no bucket yet."""
    sealed: int = 0
    lost: int = 0
    """Since the topics were loaded..."""
    rebuilt: int = 0
    """...and those that were sealed out of what was read again."""

    def plus(self, one: BucketStatistics) -> Buckets:
        return Buckets(
            self.growing + one.growing,
            self.sealed + one.serving,
            self.lost + sum(one.lost.values()),
            self.rebuilt + one.rebuilt,
        )


class DueTimes(NamedTuple):
    """Delayed messages by due time, of the subscriptions that have the most."""

    width_ms: int
    classes: list[tuple[int, int]]
    """(begin in ms since 1970, messages), ascending, without empty ones."""
    subscriptions: int
    """How many the classes count; others are left out."""
    left_out: int


class Kept(NamedTuple):
    """Topics that keep all their messages in place of compacting them."""

    topics: int
    stored_bytes: int
    largest: list[tuple[int, str, str]]
    """(bytes, topic, what keeps it: `request` or `threshold`), largest first."""


class Overview(NamedTuple):
    at_ms: int
    """Message time of these figures."""
    uptime_s: float
    clock_is_virtual: bool
    wrong: list[str]
    """What is wrong now, most important first; empty: nothing is known to be."""
    wrong_left_out: int
    losses: list[str]
    """What was lost or found damaged since the start."""
    topics: int
    """Topics on disk..."""
    topics_loaded: int
    """...those that are loaded..."""
    topics_unread: int
    """...and those of which nothing is known yet, as the broker has just started."""
    unread_entries: int
    """Entries in backlogs that were not read since the start: any may be delayed."""
    rows: TopicRows
    totals: TopicRow
    namespaces: dict[str, Namespace]
    connections: int
    memory: MemoryStatistics
    disk: DiskStatistics | None
    buckets: Buckets
    reading_again: int
    """Subscriptions whose index is being read again, or will be."""
    delayed: list[DelayedRow]
    delayed_subscriptions: int
    due: DueTimes | None
    """None: no message is delayed."""
    unserved: list[Unserved]
    """The largest backlogs without a consumer..."""
    unserved_subscriptions: int
    """...and how many there are."""
    kept: Kept
    events: list[Event]
    """The latest first."""


class _Found:
    """What one pass over the topics collects, of bounded size."""

    def __init__(self) -> None:
        self.unread_entries = 0
        self.rows = TopicRows()
        self.totals = TopicRow("all topics", 0, 0, 0, 0, 0, 0, 0, 0)
        self.namespaces: dict[str, Namespace] = {}
        self.buckets = Buckets()
        self.delayed: list[tuple[int, int, DelayedRow]] = []
        """With what decides which are shown."""
        self.delayed_subscriptions = 0
        self.unserved: list[Unserved] = []
        self.unserved_subscriptions = 0
        self.lost: list[str] = []
        """Texts about subscriptions whose lost buckets are not rebuilt yet."""
        self.lost_subscriptions = 0
        self.reading_again = 0
        self.blocked: list[str] = []
        self.blocked_subscriptions = 0
        self.kept = Kept(0, 0, [])

    def add(self, topic: TopicStatistics) -> None:
        row = _row_of(topic)
        self.totals = TopicRow(self.totals.name, *map(add, self.totals[1:], row[1:]))
        self.rows.add(row)
        self._add_to_namespace(row)
        if topic.kept_by:
            largest = [*self.kept.largest, (topic.kept_bytes, topic.name, topic.kept_by)]
            self.kept = Kept(
                self.kept.topics + 1,
                self.kept.stored_bytes + topic.kept_bytes,
                nlargest(NAMED_MAX, largest),
            )
        if topic.delayed_buckets is not None:
            self.buckets = self.buckets.plus(topic.delayed_buckets)
        for subscription in topic.subscriptions.values():
            self._add_subscription(topic, subscription)

    def _add_to_namespace(self, row: TopicRow) -> None:
        tenant, namespace, _ = row.name.partition("://")[2].split("/", 2)
        name = f"{tenant}/{namespace}"
        before = self.namespaces.get(name)
        if before is not None or len(self.namespaces) < NAMESPACES_MAX:
            topics, backlog, delayed, unread = before or Namespace()
            self.namespaces[name] = Namespace(
                topics + 1, backlog + row.backlog, delayed + row.delayed, unread + row.unread
            )

    def _add_subscription(self, topic: TopicStatistics, subscription: SubscriptionStatistics) -> None:
        name, own = subscription.name, subscription.delayed_buckets
        self.unread_entries += subscription.unread_entries
        if own is not None:
            self.buckets = self.buckets.plus(own)
        shown = own if own is not None else topic.delayed_buckets
        lost = sum(shown.lost.values()) if shown is not None else 0
        if subscription.delayed_reads_again is not None:
            self.reading_again += 1
            # Without a lost bucket it is what was in memory at a stop, which each start reads again.
            if lost:
                self.lost_subscriptions += 1
                if len(self.lost) < WRONG_MAX:
                    self.lost.append(_lost_text(topic.name, subscription, lost))
        if subscription.msg_delayed or subscription.delayed_reads_again or (own is not None and lost):
            self.delayed_subscriptions += 1
            self.delayed.append(
                (
                    subscription.delayed_reads_again is not None,
                    subscription.msg_delayed,
                    DelayedRow(
                        topic.name,
                        name,
                        subscription.msg_delayed,
                        subscription.msg_overdue,
                        shown,
                        own is None and topic.delayed_buckets is not None,
                        subscription.delayed_reads_again,
                    ),
                )
            )
            if len(self.delayed) > 50 * DELAYED_MAX:
                self.delayed = nlargest(DELAYED_MAX, self.delayed, key=_first_two)
        # What is delayed and not due yet needs no consumer.
        entries, unread = subscription.msg_backlog_no_delayed, subscription.unread_entries
        entries += subscription.msg_overdue
        if entries and not subscription.consumers:
            self.unserved_subscriptions += 1
            self.unserved.append(Unserved(entries, topic.name, name, unread))
            if len(self.unserved) > 50 * NAMED_MAX:
                self.unserved = nlargest(NAMED_MAX, self.unserved)
        if subscription.blocked_subscription_on_unacked_msgs:
            self.blocked_subscriptions += 1
            if len(self.blocked) < WRONG_MAX:
                self.blocked.append(
                    f"{topic.name}, subscription {name}: its consumers have "
                    f"{subscription.unacked_messages:,} unacknowledged messages, and get no more until they "
                    "acknowledge some"
                )


def _first_two(found: tuple[int, int, DelayedRow]) -> tuple[int, int]:
    return found[:2]


def _lost_text(topic: str, subscription: SubscriptionStatistics, lost: int) -> str:
    assert subscription.delayed_reads_again is not None
    first, last = subscription.delayed_reads_again
    buckets = "one bucket" if lost == 1 else f"{lost:,} buckets"
    which = f"ledger {first}" if first == last else f"ledgers {first} to {last}"
    how = "is being read again" if subscription.consumers else "is read again once it has a consumer"
    return (
        f"{topic}, subscription {subscription.name}: its delayed index has lost {buckets}; what it lacks of "
        f"{which} {how}, and no message is lost"
    )


def _row_of(topic: TopicStatistics) -> TopicRow:
    subscriptions = topic.subscriptions.values()
    return TopicRow(
        topic.name,
        topic.msg_rate_in,
        sum(subscription.msg_rate_out for subscription in subscriptions),
        sum(subscription.msg_backlog for subscription in subscriptions),
        sum(subscription.msg_delayed for subscription in subscriptions),
        sum(subscription.unacked_messages for subscription in subscriptions),
        len(topic.publishers),
        sum(len(subscription.consumers) for subscription in subscriptions),
        topic.storage_size,
        sum(subscription.unread_entries for subscription in subscriptions),
    )


async def overview(view: BrokerView) -> Overview:
    """The figures of this moment. Loads no topic; takes milliseconds for each hundred loaded ones."""
    found, pace = _Found(), Pace()
    for topic in view.statistics.of_topics():
        if topic is None:
            await pace.turn()
        else:
            found.add(topic)
    health, broker = await view.process.health(), view.statistics.of_broker()
    wrong = [*health.reasons, *found.lost, *found.blocked]
    delayed = [row for _, _, row in nlargest(DELAYED_MAX, found.delayed, key=_first_two)]
    events = view.process.events
    return Overview(
        at_ms=health.checked_ms,
        uptime_s=view.loaded.uptime_s(),
        clock_is_virtual=view.loaded.clock_is_virtual,
        wrong=wrong[:WRONG_MAX],
        wrong_left_out=len(health.reasons)
        + found.lost_subscriptions
        + found.blocked_subscriptions
        - min(len(wrong), WRONG_MAX),
        losses=health.losses[:WRONG_MAX],
        topics=broker.topics_loaded + broker.topics_unloaded,
        topics_loaded=broker.topics_loaded,
        topics_unread=broker.topics_unread,
        unread_entries=found.unread_entries,
        rows=found.rows,
        totals=found.totals,
        namespaces=found.namespaces,
        connections=broker.active_connections,
        memory=view.process.memory(),
        disk=await _disk(view),
        buckets=found.buckets,
        reading_again=found.reading_again,
        delayed=delayed,
        delayed_subscriptions=found.delayed_subscriptions,
        due=await _due_times(view, delayed, found.delayed_subscriptions),
        unserved=nlargest(NAMED_MAX, found.unserved),
        unserved_subscriptions=found.unserved_subscriptions,
        kept=found.kept,
        events=events.latest(EVENTS_MAX, Filter(EVENT_KINDS)) if events is not None else [],
    )


async def _disk(view: BrokerView) -> DiskStatistics | None:
    try:
        return await view.process.disk() if view.process.disk is not None else None
    # The health check says what is wrong with it.
    except GemingaError:
        return None


def _loaded(view: BrokerView, topic: str) -> TopicName:
    """Raises if the topic is not loaded any more: to look at it would load it."""
    if topic not in view.loaded:
        raise SubscriptionNotFound(f"{topic} is not loaded")
    return TopicName.parse(topic)


async def _due_times(view: BrokerView, rows: list[DelayedRow], subscriptions: int) -> DueTimes | None:
    parts: list[tuple[int, list[DueCount]]] = []
    for row in rows[:PICTURED_MAX]:
        try:
            histogram = await view.delayed.histogram(_loaded(view, row.topic), row.subscription, WIDTH_MS)
        # The topic or subscription was deleted since the pass over the topics.
        except GemingaError:
            continue
        parts.append((histogram.width_ms, histogram.classes))
    width_ms = max((width for width, _ in parts), default=WIDTH_MS)
    counts: Counter[int] = Counter()
    for _, classes in parts:
        # Widths are the least one times a power of two, so a narrower class lies within one wider class.
        for one in classes:
            counts[one.from_ms // width_ms * width_ms] += one.messages
    if not counts:
        return None
    return DueTimes(width_ms, sorted(counts.items()), len(parts), subscriptions - len(parts))
