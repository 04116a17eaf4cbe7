"""What happens next without anything being done: the moment to which `geminga clock next` moves.

Counted are a delayed message that falls due, a TTL that lets the oldest message of a backlog go, and unused
subscriptions and topics that expire; of topics that are loaded. A subscription whose due messages wait for a
consumer with room has no next message before they have gone. Retention, quotas by age and what
deduplication remembers are not counted: they take nothing from a consumer.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from geminga.broker.subscription.publish_times import oldest_unacknowledged, published_ms
from geminga.broker.topic.inactivity import goes_at_ms, subscription_goes_at_ms

if TYPE_CHECKING:
    from geminga.broker.subscription.subscription import Subscription
    from geminga.broker.topic.rounds import Rounds
    from geminga.broker.topic.topic import Topic


class NextEvent(msgspec.Struct, frozen=True, kw_only=True, order=True):
    at_ms: int
    """When it will have happened. A check runs in the millisecond before a stop, hence one more than its
    time.
    """
    text: str


async def next_event(loaded: Mapping[str, Topic], rounds: Rounds) -> NextEvent | None:
    """The first of them, None if there is none. Reads an entry of each subscription that has a TTL and a
    backlog: StorageError.
    """
    found = [event for topic in tuple(loaded.values()) for event in _without_reading(topic, rounds)]
    for topic in tuple(loaded.values()):
        found += [event async for event in _expiries(topic, rounds)]
    return min(found, default=None)


def subscriptions_of(loaded: Mapping[str, Topic]) -> Iterable[Subscription]:
    for topic in tuple(loaded.values()):
        yield from tuple(topic.subscriptions.values())


def due_ms(subscription: Subscription) -> int | None:
    tracker = subscription.delayed.tracker
    return None if tracker is None else tracker.next_due_ms()


def lacks_room(subscription: Subscription) -> bool:
    """Whether a due message waits for a consumer with room: time alone does not deliver it."""
    delayed = subscription.delayed
    if any(consumer.capacity() > 0 for consumer in subscription.consumers):
        return False
    return delayed.has_due() or delayed.awaits_due()


def name_of(subscription: Subscription) -> str:
    return f"{subscription.topic.name} / {subscription.name}"


def _without_reading(topic: Topic, rounds: Rounds) -> Iterator[NextEvent]:
    for subscription in tuple(topic.subscriptions.values()):
        at_ms = due_ms(subscription)
        if at_ms is not None and not lacks_room(subscription):
            yield NextEvent(at_ms=at_ms, text=f"a message is due: {name_of(subscription)}")
        unused_ms = subscription_goes_at_ms(topic, subscription)
        if unused_ms is not None:
            text = f"unused for too long: {name_of(subscription)}"
            yield NextEvent(at_ms=max(unused_ms, rounds.unused_subscriptions.due_ms) + 1, text=text)
    idle_ms = goes_at_ms(topic)
    if idle_ms is not None:
        text = f"unused for too long: {topic.name}"
        yield NextEvent(at_ms=max(idle_ms, rounds.unused_topics.due_ms) + 1, text=text)


async def _expiries(topic: Topic, rounds: Rounds) -> AsyncIterator[NextEvent]:
    ttl_s = topic.policies.message_ttl_s
    if ttl_s <= 0:
        return
    for subscription in tuple(topic.subscriptions.values()):
        since_ms = await _oldest_ms(topic, subscription)
        if since_ms is not None and not subscription.is_holder:
            # Expired is what is older than the TTL, not what is as old.
            at_ms = max(since_ms + ttl_s * 1000 + 1, rounds.expiry.due_ms) + 1
            yield NextEvent(at_ms=at_ms, text=f"the TTL of its oldest message ends: {name_of(subscription)}")


async def _oldest_ms(topic: Topic, subscription: Subscription) -> int | None:
    """Since when the TTL of the oldest message counts; None if none has a TTL that counts yet."""
    if topic.policies.ttl_from_due_time:
        due = subscription.due_backlog
        if due.is_unknown:
            return None
        if due.heeds_due_times:
            # What is not due falls due before its TTL begins, and that is an event of its own.
            await due.look()
            oldest_ms = await due.oldest_ms()
            return None if math.isinf(oldest_ms) else int(oldest_ms)
    entry = await oldest_unacknowledged(topic.ledger, subscription.cursor)
    return None if entry is None else published_ms(entry, topic.settings.expires_by_broker_time)
