"""The figures of the page at `/`, gathered in slices while other tasks run."""

from __future__ import annotations

from collections import Counter
from heapq import nlargest
from operator import add
from typing import Final, NamedTuple

from geminga.admin.view.broker import BrokerView
from geminga.broker.flow.slices import Pace
from geminga.broker.flow.statistics import MemoryStatistics, TopicStatistics
from geminga.broker.operator.delayed_statistics import DueCount
from geminga.broker.subscription.statistics import SubscriptionStatistics
from geminga.errors import GemingaError
from geminga.names import TopicName

ROWS_MAX: Final = 20
"""Topics on the page."""
KEPT_MAX: Final = 5
"""Topics that are named as kept for compaction, those with the most bytes."""
PICTURED_MAX: Final = 5
"""Subscriptions whose due times are drawn, those with the most delayed messages."""
WRONG_MAX: Final = 12
WIDTH_MS: Final = 60_000
"""Of a class of due times; the broker doubles it for long delays."""


class TopicRow(NamedTuple):
    """One loaded topic. Rates are messages per second."""

    name: str
    rate_in: float
    rate_out: float
    backlog: int
    delayed: int
    unacked: int
    producers: int
    consumers: int
    storage_bytes: int


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
    """The time of these figures, up to a second before the request."""
    wrong: list[str]
    """What is wrong, most important first; empty: nothing is known to be."""
    topics: int
    """Loaded topics. `rows` has those with the largest backlogs."""
    rows: list[TopicRow]
    totals: TopicRow
    connections: int
    memory: MemoryStatistics
    due: DueTimes | None
    """None: no message is delayed."""
    kept: Kept


class _Found:
    """What one pass over the loaded topics collects, of bounded size."""

    def __init__(self) -> None:
        self.topics = 0
        self.rows: list[TopicRow] = []
        self.totals = TopicRow("all topics", 0.0, 0.0, 0, 0, 0, 0, 0, 0)
        self.delayed: list[tuple[int, str, str]] = []
        """(messages, topic, subscription)"""
        self.delayed_subscriptions = 0
        self.blocked: list[str] = []
        self.kept = Kept(0, 0, [])

    def add(self, topic: TopicStatistics) -> None:
        row = _row_of(topic)
        self.topics += 1
        self.totals = TopicRow(self.totals.name, *map(add, self.totals[1:], row[1:]))
        self.rows.append(row)
        # A broker may have a hundred thousand topics, and each may have thousands of subscriptions.
        if len(self.rows) > 50 * ROWS_MAX:
            self.rows = nlargest(ROWS_MAX, self.rows, key=_size)
        if topic.kept_by:
            largest = [*self.kept.largest, (topic.kept_bytes, topic.name, topic.kept_by)]
            self.kept = Kept(
                self.kept.topics + 1,
                self.kept.stored_bytes + topic.kept_bytes,
                nlargest(KEPT_MAX, largest),
            )
        for subscription in topic.subscriptions.values():
            self._add_subscription(topic.name, subscription)

    def _add_subscription(self, topic: str, subscription: SubscriptionStatistics) -> None:
        if subscription.msg_delayed:
            self.delayed_subscriptions += 1
            self.delayed.append((subscription.msg_delayed, topic, subscription.name))
            if len(self.delayed) > 200 * PICTURED_MAX:
                self.delayed = nlargest(PICTURED_MAX, self.delayed)
        if subscription.blocked_subscription_on_unacked_msgs and len(self.blocked) < WRONG_MAX:
            self.blocked.append(
                f"{topic}, subscription {subscription.name}: its consumers have "
                f"{subscription.unacked_messages} unacknowledged messages, and get no more until they "
                "acknowledge some"
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
    )


def _size(row: TopicRow) -> tuple[int, int, float]:
    return row.backlog, row.unacked, row.rate_in


async def overview(view: BrokerView) -> Overview:
    """The figures of this moment. Loads no topic; takes milliseconds for each thousand loaded ones."""
    found, pace = _Found(), Pace()
    for topic in view.statistics.of_topics():
        if topic is None:
            await pace.turn()
        else:
            found.add(topic)
    health = await view.process.health()
    return Overview(
        health.checked_ms,
        [*health.reasons, *health.losses, *found.blocked][:WRONG_MAX],
        found.topics,
        nlargest(ROWS_MAX, found.rows, key=_size),
        found.totals,
        view.statistics.of_broker().active_connections,
        view.process.memory(),
        await _due_times(view, found),
        found.kept,
    )


async def _due_times(view: BrokerView, found: _Found) -> DueTimes | None:
    pictured = nlargest(PICTURED_MAX, found.delayed)
    parts: list[tuple[int, list[DueCount]]] = []
    for _, topic, subscription in pictured:
        try:
            histogram = await view.delayed.histogram(TopicName.parse(topic), subscription, WIDTH_MS)
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
    left_out = found.delayed_subscriptions - len(parts)
    return DueTimes(width_ms, sorted(counts.items()), len(parts), left_out)
