"""The figures of the page of one topic."""

from __future__ import annotations

from heapq import nlargest
from typing import Final, NamedTuple

from geminga.admin.view.broker import BrokerView
from geminga.broker.flow.slices import Pace
from geminga.broker.flow.statistics import TopicStatistics
from geminga.broker.operator.delayed_statistics import BucketInfo, DelayedSummary
from geminga.broker.subscription.statistics import SubscriptionStatistics
from geminga.errors import GemingaError, TopicNotFound
from geminga.names import TopicName

SUBSCRIPTIONS_MAX: Final = 20
"""Those that are shown, with the largest backlogs."""
BUCKETS_MAX: Final = 20
"""Of each subscription."""
AT_ONCE: Final = 100
"""Buckets that are looked at between two checkpoints: about a millisecond."""
PARTITIONS_MAX: Final = 200
"""Links to partitions."""


class SubscriptionLook(NamedTuple):
    figures: SubscriptionStatistics
    delayed: DelayedSummary | None
    """None: nothing is delayed, or the index cannot be read now."""
    buckets: list[BucketInfo]
    buckets_left_out: int


class TopicLook(NamedTuple):
    name: str
    at_ms: int
    partitions: int
    """0: it is not partitioned, or is a partition."""
    figures: TopicStatistics | None
    """None: the topic exists, and its records were not read yet, or it is partitioned."""
    subscriptions: list[SubscriptionLook]


async def topic_look(view: BrokerView, topic: TopicName) -> TopicLook:
    """Loads no topic. Raises `TopicNotFound`."""
    name = str(topic)
    if name not in view.loaded:
        partitions = view.topics.partitions(topic)
        if not partitions and not view.topics.exists(topic):
            raise TopicNotFound(f"there is no topic {name}")
        unloaded = view.statistics.of_unloaded_topic(name)
        figures_of = unloaded.subscriptions.values() if unloaded is not None else ()
        largest = nlargest(SUBSCRIPTIONS_MAX, figures_of, key=lambda one: one.msg_backlog)
        looks = [SubscriptionLook(one, None, [], 0) for one in largest]
        return TopicLook(name, view.loaded.now_ms(), partitions, unloaded, looks)
    figures = await view.statistics.of_topic(topic)
    largest = nlargest(
        SUBSCRIPTIONS_MAX,
        figures.subscriptions.values(),
        key=lambda one: (one.msg_backlog, len(one.consumers)),
    )
    looks = [await _look(view, topic, subscription) for subscription in largest]
    return TopicLook(name, view.loaded.now_ms(), 0, figures, looks)


async def _look(view: BrokerView, topic: TopicName, found: SubscriptionStatistics) -> SubscriptionLook:
    if not (found.msg_delayed or found.delayed_reads_again or found.delayed_buckets):
        return SubscriptionLook(found, None, [], 0)
    first: list[BucketInfo] = []
    sealed: list[BucketInfo] = []
    listed, pace = 0, Pace()
    try:
        summary = await view.delayed.summary(topic, found.name)
        for bucket, _ in await view.delayed.buckets(topic, found.name):
            # What is not sealed comes last in the index, and is what a reader looks for.
            part = sealed if bucket.state == "sealed" else first
            if len(part) < BUCKETS_MAX:
                part.append(bucket)
            listed += 1
            if listed % AT_ONCE == 0:
                await pace.turn()
    # Unloaded or deleted since.
    except GemingaError:
        return SubscriptionLook(found, None, [], 0)
    shown = [*first, *sealed][:BUCKETS_MAX]
    return SubscriptionLook(found, summary, shown, listed - len(shown))
