"""Subscriptions for an operator: `admin.view.subscriptions.SubscriptionsView` on loaded topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from geminga.broker.operator.topics import loaded_topic
from geminga.broker.subscription.publish_times import first_published_at
from geminga.broker.topic.topic import check_properties
from geminga.errors import Conflict, ConsumerBusy
from geminga.managed_ledger.cursor.system_cursors import COMPACTION_CURSOR, SYSTEM_CURSORS
from geminga.position import EARLIEST, LATEST, Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from geminga.broker.topic.topics import Topics
    from geminga.names import TopicName


class SubscriptionsOperator:
    """Lists a topic's subscriptions, and changes one of them."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def names(self, topic: TopicName) -> list[str]:
        return sorted((await loaded_topic(self._topics, topic)).subscriptions)

    async def has(self, topic: TopicName, name: str) -> bool:
        loaded = await loaded_topic(self._topics, topic)
        return name in loaded.subscriptions or (name in SYSTEM_CURSORS and name in loaded.ledger.cursors)

    async def create(
        self, topic: TopicName, name: str, *, start: Position, properties: dict[str, str], replicated: bool
    ) -> None:
        loaded = await self._topics.get(topic, create=self._topics.catalog.may_be_created(topic))
        if name in loaded.subscriptions:
            raise Conflict("Subscription already exists for topic")
        if 0 < loaded.policies.subscriptions_max <= len(loaded.subscriptions):
            raise Conflict(f"Exceed the maximum number of subscriptions of the topic: {topic}")
        ends = {EARLIEST: "earliest", LATEST: "latest"}
        await loaded.create_subscription(
            name,
            initial=ends.get(start, "latest"),
            start=None if start in ends else start,
            subscription_properties=properties,
        )
        if replicated:
            await self.set_replicated(topic, name, True)

    async def delete(self, topic: TopicName, name: str, *, force: bool) -> None:
        loaded = await loaded_topic(self._topics, topic)
        if name == COMPACTION_CURSOR:
            await loaded.compaction.give_up()
            return
        subscription = loaded.subscription(name)
        if subscription.consumers and not force:
            raise ConsumerBusy("Subscription has active connected consumers")
        await loaded.delete_subscription(name)

    async def skip(self, topic: TopicName, name: str, count: int | None) -> None:
        subscription = (await loaded_topic(self._topics, topic)).subscription(name)
        if count is None:
            await subscription.clear_backlog()
            await subscription.cursor.persist()
            return
        cursor = subscription.cursor
        last = cursor.nth_unacknowledged(min(count, subscription.backlog())) if count > 0 else None
        if last is not None:
            subscription.acks.skip_to(last)
        await cursor.persist()

    async def expire(self, topic: TopicName, name: str, older_than_s: int) -> bool:
        loaded = await loaded_topic(self._topics, topic)
        subscription = loaded.subscription(name)
        is_done = await loaded.expire_older(subscription, older_than_s)
        await subscription.cursor.persist()
        return is_done

    async def expire_up_to(self, topic: TopicName, name: str, position: Position) -> bool:
        subscription = (await loaded_topic(self._topics, topic)).subscription(name)
        is_done = subscription.expiry.expire_up_to(position)
        await subscription.cursor.persist()
        return is_done

    async def properties(self, topic: TopicName, name: str) -> dict[str, str]:
        cursor = (await loaded_topic(self._topics, topic)).subscription(name).cursor
        return dict(cursor.subscription_properties)

    async def set_properties(self, topic: TopicName, name: str, properties: Mapping[str, str]) -> None:
        check_properties(properties)
        cursor = (await loaded_topic(self._topics, topic)).subscription(name).cursor
        await cursor.set_subscription_properties(properties)

    async def is_replicated(self, topic: TopicName, name: str) -> bool:
        return (await loaded_topic(self._topics, topic)).subscription(name).cursor.is_replicated

    async def set_replicated(self, topic: TopicName, name: str, is_replicated: bool) -> None:
        cursor = (await loaded_topic(self._topics, topic)).subscription(name).cursor
        await cursor.set_replicated(is_replicated)

    async def reset(self, topic: TopicName, name: str, position: Position) -> None:
        await (await loaded_topic(self._topics, topic)).subscription(name).seek(position)

    async def reset_to_time(self, topic: TopicName, name: str, publish_time_ms: int) -> None:
        loaded = await loaded_topic(self._topics, topic)
        subscription = loaded.subscription(name)
        await subscription.seek(await first_published_at(loaded.ledger, publish_time_ms))
