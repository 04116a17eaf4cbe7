"""Adds partitions to a topic, and deletes topics with all partitions."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from geminga.broker.flow.slices import Pace, for_each
from geminga.broker.topic.catalog import check_count
from geminga.broker.topic.topic import check_properties
from geminga.errors import BadVersion, ConsumerBusy, KeyMissing, NotAllowed, TopicNotFound
from geminga.managed_ledger.cursor.bucket_properties import INTERNAL_PREFIX
from geminga.metadata import records
from geminga.metadata.records import PartitionedTopicRecord
from geminga.names import Partitions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from geminga.broker.topic.rooms import Rooms
    from geminga.broker.topic.topic import Topic
    from geminga.broker.topic.topics import Topics
    from geminga.names import TopicName


OWN_PREFIXES = ("geminga.", INTERNAL_PREFIX)
"""Prefixes of the broker's own properties: an operator neither sees nor changes them."""


def changed_properties(old: Mapping[str, str], add: Mapping[str, str], remove: str) -> dict[str, str]:
    """The changed properties. Raises `NotAllowed` if they are too many, or the broker's own."""
    for key in (*add, remove):
        if key.startswith(OWN_PREFIXES):
            raise NotAllowed(f"The broker keeps properties that begin with {' or '.join(OWN_PREFIXES)}")
    changed = {key: value for key, value in {**old, **add}.items() if key != remove}
    check_properties(changed)
    return changed


class PartitionedTopics:
    """Changes of a partitioned topic that also affect its partitions."""

    def __init__(self, topics: Topics, rooms: Rooms) -> None:
        self._topics = topics
        self._catalog = topics.catalog
        self._rooms = rooms

    async def grow(self, name: TopicName, partitions: int) -> None:
        """Increase the number of partitions, which never decreases. New partitions get the subscriptions of
        the others, and keep all their messages if compaction was asked for.
        """
        path = records.partitioned_topic_path(name)
        stored = self._rooms.metadata.get(path)
        if stored is None:
            raise TopicNotFound(f"Partitioned topic {name} does not exist")
        record = records.decode(PartitionedTopicRecord, stored.value, path)
        if partitions <= record.partitions:
            raise NotAllowed(
                f"number of partitions must be more than the existing {record.partitions}, not {partitions}"
            )
        check_count(partitions)
        present = await self._present(name, record.partitions)
        subscriptions: set[str] = set()
        pace = Pace()
        for topic in present:
            subscriptions.update(n for n, s in topic.subscriptions.items() if s.cursor.durable)
            await pace.turn()
        is_kept = any(topic.compaction.kept_by == "request" for topic in present)
        grown = msgspec.structs.replace(record, partitions=partitions)
        await self._rooms.metadata.put(
            records.partitioned_topic_path(name), records.encode(grown), expected_version=stored.version
        )

        async def prepare(part: TopicName) -> None:
            topic = await self._topics.get(part, create=True)
            if is_kept:
                await topic.keep_for_compaction()
            for subscription in subscriptions:
                await topic.create_subscription(subscription, initial="earliest")

        if subscriptions or is_kept:
            await for_each(Partitions(name, partitions)[record.partitions :], prepare)

    async def change_properties(self, name: TopicName, add: Mapping[str, str], remove: str) -> None:
        """Change the properties of the partitioned topic; each partition has its own. Durable on return."""
        path = records.partitioned_topic_path(name)
        while True:
            stored = self._rooms.metadata.get(path)
            if stored is None:
                raise TopicNotFound(f"Partitioned topic {name} does not exist")
            record = records.decode(PartitionedTopicRecord, stored.value, path)
            properties = changed_properties(record.properties, add, remove)
            changed = records.encode(msgspec.structs.replace(record, properties=properties))
            with contextlib.suppress(BadVersion, KeyMissing):  # another change was faster
                await self._rooms.metadata.put(path, changed, stored.version)
                return

    async def delete(self, name: TopicName, *, force: bool = False) -> None:
        """Delete every partition, then the record of the partitioned topic."""
        partitions = self._catalog.partitions(name)
        if not partitions:
            raise TopicNotFound(f"Partitioned topic {name} does not exist")
        parts, pace = Partitions(name, partitions), Pace()
        for part in () if force else parts:
            topic = self._topics.loaded.get(str(part))
            if topic is not None and topic.is_in_use:
                raise ConsumerBusy("Topic has active producers/subscriptions")
            await pace.turn()

        async def delete_part(part: TopicName) -> None:
            if self._catalog.exists(part):
                await self._topics.delete(part, force=force)

        # In the order of their keys: a scan of a topic's records passes over what was deleted behind them. In
        # another order the last of ten thousand deletions pass over all others.
        await for_each(map(name.partition, sorted(range(partitions), key=str)), delete_part)
        try:
            await self._rooms.metadata.delete(records.partitioned_topic_path(name))
        except KeyMissing:
            raise TopicNotFound(f"Partitioned topic {name} does not exist") from None
        await self._rooms.policies.forget_topic(name)
        await self._topics.schemas.forget(name)

    async def _present(self, name: TopicName, partitions: int) -> list[Topic]:
        """The partitions that exist, loaded."""
        present: list[Topic] = []

        async def load(part: TopicName) -> None:
            if self._catalog.exists(part):
                present.append(await self._topics.get(part, create=False))

        await for_each(Partitions(name, partitions), load)
        return present
