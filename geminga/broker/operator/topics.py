"""Topics for an operator: `admin.view.topics.TopicsView` on the topics of this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from geminga.broker.flow.slices import sorted_names
from geminga.broker.operator.partitioned_topics import PartitionedTopics, changed_properties
from geminga.broker.topic.topic import check_properties
from geminga.errors import Conflict, TopicNotFound
from geminga.metadata import records
from geminga.metadata.records import PartitionedTopicRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from geminga.broker.topic.rooms import Rooms
    from geminga.broker.topic.topic import Topic
    from geminga.broker.topic.topics import Topics
    from geminga.names import NamespaceName, TopicName
    from geminga.position import Position


async def loaded_topic(topics: Topics, name: TopicName) -> Topic:
    """An existing topic, loaded if necessary. Always a checkpoint, because some requests load many topics in
    a row.
    """
    await trio.lowlevel.checkpoint()
    return await topics.get(name, create=False)


class TopicsOperator:
    """Lists topics, and changes one of them."""

    def __init__(self, topics: Topics, rooms: Rooms) -> None:
        self._topics = topics
        self._catalog = topics.catalog
        self._partitioned = PartitionedTopics(topics, rooms)
        self._metadata = rooms.metadata

    def exists(self, topic: TopicName) -> bool:
        return self._catalog.exists(topic)

    def partitions(self, topic: TopicName) -> int:
        return self._catalog.partitions(topic)

    def partition_properties(self, topic: TopicName) -> dict[str, str]:
        path = records.partitioned_topic_path(topic)
        stored = self._metadata.get(path)
        if stored is None:
            raise TopicNotFound(f"Partitioned topic {topic} does not exist")
        return records.decode(PartitionedTopicRecord, stored.value, path).properties

    async def names_in(self, namespace: NamespaceName) -> list[str]:
        return await sorted_names(self._catalog.names.each_name_in(namespace))

    async def partitioned_names_in(self, namespace: NamespaceName) -> list[str]:
        return await sorted_names(self._catalog.names.each_partitioned_name_in(namespace))

    def may_be_created(self, topic: TopicName) -> bool:
        return self._catalog.may_be_created(topic)

    async def create(self, topic: TopicName, properties: dict[str, str]) -> None:
        if self._catalog.exists(topic) or self._catalog.partitions(topic):
            raise Conflict("This topic already exists")
        check_properties(properties)
        # In one write: on a full disk a second one could be refused, and leave a topic behind an error.
        loaded = await self._topics.get(topic, create=True, properties=properties)
        if properties.items() - loaded.ledger.properties.items():  # another request has created it meanwhile
            await loaded.ledger.life.set_properties({**loaded.ledger.properties, **properties})

    async def create_partitioned(self, topic: TopicName, partitions: int, properties: dict[str, str]) -> None:
        await self._catalog.create_partitioned(topic, partitions, properties)

    async def grow_partitioned(self, topic: TopicName, partitions: int) -> None:
        await self._partitioned.grow(topic, partitions)

    async def delete(self, topic: TopicName, *, force: bool) -> None:
        await self._topics.delete(topic, force=force)

    async def delete_partitioned(self, topic: TopicName, *, force: bool) -> None:
        await self._partitioned.delete(topic, force=force)

    async def unload(self, topic: TopicName) -> None:
        await self._topics.unload(topic)

    async def terminate(self, topic: TopicName) -> Position:
        loaded = await loaded_topic(self._topics, topic)
        last = await loaded.ledger.life.terminate()
        loaded.disconnect_producers()
        for subscription in loaded.subscriptions.values():
            subscription.consumers.end_of_topic()
        return last

    async def truncate(self, topic: TopicName) -> None:
        await (await loaded_topic(self._topics, topic)).truncate()

    async def properties(self, topic: TopicName) -> dict[str, str]:
        properties = (await loaded_topic(self._topics, topic)).ledger.properties
        return {key: value for key, value in properties.items() if not key.startswith("geminga.")}

    async def trim(self, topic: TopicName) -> None:
        await (await loaded_topic(self._topics, topic)).trim()

    async def keep_for_compaction(self, topic: TopicName) -> None:
        await (await loaded_topic(self._topics, topic)).keep_for_compaction()

    async def change_properties(self, topic: TopicName, add: Mapping[str, str], remove: str) -> None:
        ledger = (await loaded_topic(self._topics, topic)).ledger
        changed_properties(ledger.properties, add, remove)
        # One that is changed at the same time stays as that change has it.
        gone = {key: value for key, value in ledger.properties.items() if key == remove}
        await ledger.life.swap_properties(add, gone)

    async def change_partition_properties(
        self, topic: TopicName, add: Mapping[str, str], remove: str
    ) -> None:
        await self._partitioned.change_properties(topic, add, remove)

    async def load(self, topic: TopicName) -> None:
        await loaded_topic(self._topics, topic)
