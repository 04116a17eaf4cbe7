"""Subscriptions for an operator: `admin.view.subscriptions.SubscriptionsView`.

What many topics are asked for at once is done by the records of those that are not loaded, if these suffice:
lists of subscriptions, new ones, deleted ones, backlogs that are cleared. All else loads the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from geminga.broker.flow.slices import Pace, sorted_names
from geminga.broker.operator.topics import loaded_topic
from geminga.broker.subscription.publish_times import first_published_at
from geminga.broker.topic.topic import check_properties
from geminga.errors import Conflict, ConsumerBusy
from geminga.managed_ledger.cursor.cursor import REPLICATED
from geminga.managed_ledger.cursor.system_cursors import COMPACTION_CURSOR, SYSTEM_CURSORS
from geminga.position import EARLIEST, LATEST, Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from geminga.broker.topic.rooms import Rooms
    from geminga.broker.topic.topics import Topics
    from geminga.names import TopicName


class SubscriptionsOperator:
    """Lists a topic's subscriptions, and changes one of them."""

    def __init__(self, topics: Topics, rooms: Rooms) -> None:
        self._topics = topics
        self._rooms = rooms

    async def names(self, topic: TopicName) -> list[str]:
        if self._is_on_disk_only(topic):
            return await sorted_names(self._topics.each_recorded_subscription(topic))
        return sorted((await loaded_topic(self._topics, topic)).subscriptions)

    async def has(self, topic: TopicName, name: str) -> bool:
        if name not in SYSTEM_CURSORS and self._is_on_disk_only(topic):
            return self._topics.has_recorded_subscription(topic, name)
        loaded = await loaded_topic(self._topics, topic)
        return name in loaded.subscriptions or (name in SYSTEM_CURSORS and name in loaded.ledger.cursors)

    def _is_on_disk_only(self, topic: TopicName) -> bool:
        """Whether the records tell all about its subscriptions. A partition that was not used has none."""
        loaded = self._topics.loaded.get(str(topic))
        is_loaded = loaded is not None and not loaded.closing
        return not is_loaded and (self._topics.catalog.exists(topic) or self._is_unused_partition(topic))

    def _is_unused_partition(self, topic: TopicName) -> bool:
        catalog = self._topics.catalog
        return (
            topic.is_partition
            and topic.partition_index < catalog.partitions(topic.partitioned_name)
            and not catalog.exists(topic)
        )

    async def create(
        self, topic: TopicName, name: str, *, start: Position, properties: dict[str, str], replicated: bool
    ) -> None:
        if await self._create_by_record(topic, name, start, properties, replicated):
            return
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

    async def _create_by_record(
        self, topic: TopicName, name: str, start: Position, properties: dict[str, str], replicated: bool
    ) -> bool:
        """False: it is to be created in the loaded topic, which also checks what is wrong with it."""
        if start not in (EARLIEST, LATEST) or name in SYSTEM_CURSORS:
            return False
        check_properties(properties)
        with self._topics.unloaded(topic) as records:
            if records is None or not (records.exists or self._is_unused_partition(topic)):
                return False
            if self._topics.has_recorded_subscription(topic, name):
                return False
            allowed = self._rooms.policies.effective(topic).subscriptions_max
            if allowed > 0:
                pace = Pace()
                for present, _ in enumerate(self._topics.each_recorded_subscription(topic), 1):
                    if present >= allowed:
                        return False
                    await pace.row()
            return await records.create_cursor(
                name,
                initial="earliest" if start == EARLIEST else "latest",
                properties={REPLICATED: 1} if replicated else {},
                subscription_properties=properties,
            )

    async def delete(self, topic: TopicName, name: str, *, force: bool) -> None:
        if name not in SYSTEM_CURSORS:
            with self._topics.unloaded(topic) as records:
                if records is not None and await records.delete_cursor(name):
                    return
        loaded = await loaded_topic(self._topics, topic)
        if name == COMPACTION_CURSOR:
            await loaded.compaction.give_up()
            return
        subscription = loaded.subscription(name)
        if subscription.consumers and not force:
            raise ConsumerBusy("Subscription has active connected consumers")
        await loaded.delete_subscription(name)

    async def skip(self, topic: TopicName, name: str, count: int | None) -> None:
        if count is None and name not in SYSTEM_CURSORS:
            with self._topics.unloaded(topic) as records:
                if records is not None and await records.clear_cursor(name):
                    return
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
