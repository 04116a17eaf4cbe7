"""What a subscription is at one moment, by Pulsar's field names."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

import msgspec

from geminga.broker.delays.statistics import bucket_statistics
from geminga.broker.dispatch.consumer import ConsumerStatistics
from geminga.broker.flow.statistics import BucketStatistics, LatenessStatistics

if TYPE_CHECKING:
    from geminga.broker.subscription.subscription import Subscription


# A scrape of 2,000 topics once held the loop for a second: all statistics were gathered in one go.
CONSUMERS_MAX: Final = 50
"""Whose statistics are gathered between two yields: about a millisecond."""


class SubscriptionStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Times are ms since 1970, 0: never. Counters go on when consumers leave."""

    name: str
    type: str = "None"
    msg_backlog: int = 0
    msg_backlog_no_delayed: int = 0
    backlog_size: int = 0
    """Estimated bytes."""
    msg_delayed: int = 0
    msg_overdue: int = 0
    """About so many of these are due and not sent yet. Geminga's own."""
    unread_entries: int = 0
    """At most so many more may be delayed: no consumer has read them since the start, nor anything else."""
    msg_in_replay: int = 0
    unacked_messages: int = 0
    blocked_subscription_on_unacked_msgs: bool = False
    active_consumer_name: str | None = None
    msg_out_counter: int = 0
    bytes_out_counter: int = 0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    msg_rate_redeliver: float = 0.0
    message_ack_rate: float = 0.0
    chunked_message_rate: float = 0.0
    last_consumed_flow_timestamp: int = 0
    last_consumed_timestamp: int = 0
    last_acked_timestamp: int = 0
    last_mark_delete_advanced_timestamp: int = 0
    consumers: list[ConsumerStatistics] = []
    is_durable: bool = True
    allow_out_of_order_delivery: bool = False
    key_shared_mode: str | None = None
    draining_hashes_count: int = 0
    draining_hashes_cleared_total: int = 0
    draining_hashes_unacked_messages: int = 0
    non_contiguous_deleted_messages_ranges: int = 0
    delayed_message_index_size_in_bytes: int = 0
    subscription_properties: dict[str, str] = {}
    msg_rate_expired: float = 0.0
    total_msg_expired: int = 0
    last_expire_timestamp: int = 0
    delayed_buckets: BucketStatistics | None = None
    """Of an index of its own that keeps buckets."""
    delayed_reads_again: tuple[int, int] | None = None
    """First and last ledger of what its index lacks and reads from the topic again, once there is a consumer
    with permits; None: nothing.
    """
    delayed_lateness: LatenessStatistics | None = None
    """None: nothing was held back yet."""
    is_replicated: bool = False
    dispatch_throttled_msg_events_by_subscription_limit: int = 0
    dispatch_throttled_bytes_events_by_subscription_limit: int = 0
    dispatch_throttled_msg_events_by_topic_limit: int = 0
    dispatch_throttled_bytes_events_by_topic_limit: int = 0

    @property
    def consumers_count(self) -> int:
        return len(self.consumers)


def statistics_in_slices(subscription: Subscription) -> Generator[int, None, SubscriptionStatistics]:
    """Without I/O. Yields after every `CONSUMERS_MAX` consumers, and at the end, how many there were."""
    consumers: list[ConsumerStatistics] = []
    dispatcher = subscription.consumers.dispatcher
    looked = 0
    for consumer in list(dispatcher.consumers) if dispatcher is not None else ():
        assert dispatcher is not None
        consumers.append(dispatcher.consumer_statistics(consumer))
        looked += 1
        if looked == CONSUMERS_MAX:
            yield looked
            looked = 0
    found = _statistics_of(subscription, consumers)
    yield looked + 1
    return found


def statistics_of(subscription: Subscription) -> SubscriptionStatistics:
    """A moment's view, without I/O; O(consumers)."""
    dispatcher = subscription.consumers.dispatcher
    consumers = (
        [dispatcher.consumer_statistics(c) for c in dispatcher.consumers] if dispatcher is not None else []
    )
    return _statistics_of(subscription, consumers)


def _statistics_of(subscription: Subscription, consumers: list[ConsumerStatistics]) -> SubscriptionStatistics:
    attached = subscription.consumers
    dispatcher = attached.dispatcher
    cursor = subscription.cursor
    books = dispatcher.books if dispatcher is not None else None
    keyed = dispatcher.key_shared if dispatcher is not None else None
    active = dispatcher.active() if dispatcher is not None else None
    # Exclusive and Failover deliver at once. Beside a shared index their statistics once told 500 of 3000
    # messages as delayed, where the real broker says 0.
    index = None if attached.ignores_delays else subscription.delayed
    delayed = len(index) if index is not None else 0
    backlog = cursor.backlog_entries()
    tracker = index.tracker if index is not None else None
    lateness = tracker.lateness() if tracker is not None else None
    again = index.lost_ranges if index is not None else ()
    messages, throughput, redelivered, acks, chunks = attached.rates
    return SubscriptionStatistics(
        name=subscription.name,
        type=attached.type,
        msg_backlog=backlog,
        msg_backlog_no_delayed=max(backlog - delayed, 0),
        backlog_size=_estimated_bytes(subscription, backlog),
        msg_delayed=delayed,
        msg_overdue=index.overdue() if index is not None else 0,
        unread_entries=index.unread_entries() if index is not None and not len(attached) else 0,
        msg_in_replay=len(books.redelivery) if books is not None else 0,
        unacked_messages=books.messages if books is not None else 0,
        blocked_subscription_on_unacked_msgs=books is not None and books.blocked,
        active_consumer_name=active.name if active is not None else None,
        msg_out_counter=attached.messages_out_before + sum(c.msg_out_counter for c in consumers),
        bytes_out_counter=attached.bytes_out_before + sum(c.bytes_out_counter for c in consumers),
        msg_rate_out=messages,
        msg_throughput_out=throughput,
        msg_rate_redeliver=redelivered,
        message_ack_rate=acks,
        chunked_message_rate=chunks,
        last_consumed_flow_timestamp=attached.last_flow_ms,
        last_consumed_timestamp=max((c.last_consumed_timestamp for c in consumers), default=0),
        last_acked_timestamp=max((c.last_acked_timestamp for c in consumers), default=0),
        last_mark_delete_advanced_timestamp=subscription.acks.last_mark_delete_advanced_ms,
        consumers=consumers,
        is_durable=cursor.durable,
        is_replicated=cursor.is_replicated,
        allow_out_of_order_delivery=keyed is not None and keyed.allows_out_of_order,
        key_shared_mode=keyed.mode if keyed is not None else None,
        draining_hashes_count=sum(c.draining_hashes_count for c in consumers),
        draining_hashes_cleared_total=sum(c.draining_hashes_cleared_total for c in consumers),
        draining_hashes_unacked_messages=sum(c.draining_hashes_unacked_messages for c in consumers),
        non_contiguous_deleted_messages_ranges=cursor.acknowledged_ranges_count(),
        delayed_message_index_size_in_bytes=index.memory_bytes() if index is not None else 0,
        subscription_properties=dict(cursor.subscription_properties),
        msg_rate_expired=subscription.expiry.rate.per_s,
        total_msg_expired=subscription.expiry.total,
        last_expire_timestamp=subscription.expiry.last_ms,
        delayed_buckets=bucket_statistics(index.own) if index is not None else None,
        delayed_reads_again=(again[0].first, again[-1].last) if again else None,
        delayed_lateness=LatenessStatistics(*lateness) if lateness is not None else None,
        dispatch_throttled_msg_events_by_subscription_limit=subscription.throttle.waits.own_messages,
        dispatch_throttled_bytes_events_by_subscription_limit=subscription.throttle.waits.own_bytes,
        dispatch_throttled_msg_events_by_topic_limit=subscription.throttle.waits.topic_messages,
        dispatch_throttled_bytes_events_by_topic_limit=subscription.throttle.waits.topic_bytes,
    )


def _estimated_bytes(subscription: Subscription, entries: int) -> int:
    ledger = subscription.topic.ledger
    stored = ledger.number_of_entries
    # By the mean size of all entries, as statistics do no I/O.
    return ledger.total_size_bytes * entries // stored if stored else 0
