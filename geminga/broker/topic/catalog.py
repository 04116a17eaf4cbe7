"""Which topics there are: questions to the metadata store, without loading a topic.

A topic exists once the record of its managed ledger is durable; a partitioned topic has a record of its own,
and each of its partitions exists from its first use on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from geminga.errors import BadVersion, Conflict, NotAllowed, TopicNotFound
from geminga.metadata import records
from geminga.metadata.records import PartitionedTopicRecord
from geminga.names import TopicDomain, TopicName, decode_name

if TYPE_CHECKING:
    from geminga.broker.topic.rooms import Rooms
    from geminga.names import NamespaceName

PARTITIONS_MAX = 10_000
"""Of one topic. Each is a topic of its own; a larger number is most likely a slip of the keyboard."""


def check_count(partitions: int) -> None:
    """Raise NotAllowed if a topic may not have so many partitions."""
    if partitions > PARTITIONS_MAX:
        raise NotAllowed(f"{partitions} partitions: a topic may have at most {PARTITIONS_MAX}")


class TopicCatalog:
    """The topics on disk, loaded or not."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    def check_served(self, name: TopicName) -> None:
        """NotAllowed for a non-persistent topic, NamespaceNotFound."""
        if not name.is_persistent:
            raise NotAllowed(f"{name}: only persistent topics are served")
        self._rooms.namespaces.check_exists(name.namespace)

    def exists(self, name: TopicName) -> bool:
        """Whether the topic is on disk, or will be made the moment someone asks for it."""
        return self._rooms.metadata.get(records.managed_ledger_path(name)) is not None

    def partitions(self, name: TopicName) -> int:
        """How many partitions a topic has; 0 if it is not partitioned (or is not there)."""
        path = records.partitioned_topic_path(name)
        stored = self._rooms.metadata.get(path)
        return records.decode(PartitionedTopicRecord, stored.value, path).partitions if stored else 0

    def may_be_created(self, name: TopicName) -> bool:
        """Whether a client's first use makes this topic, if it is not there yet."""
        if self._rooms.settings.auto_topic_creation or self.exists(name):
            return True
        return self.partitions(name.partitioned_name if name.partition_index >= 0 else name) > 0

    def check_may_create(self, name: TopicName, create: bool) -> None:
        """Raise TopicNotFound or NotAllowed if a load may not create this topic."""
        if name.partition_index >= 0:
            partitions = self.partitions(name.partitioned_name)
            if partitions:
                if name.partition_index >= partitions:
                    raise TopicNotFound(
                        f"Illegal topic partition name {name} with max allowed {partitions} partitions"
                    )
                return
        elif self.partitions(name):
            raise NotAllowed(
                f"{name} is a partitioned topic; use one of its partitions, {name}-partition-0 and so on"
            )
        if not create:
            raise TopicNotFound(f"Topic {name} does not exist")

    async def partitions_or_create(self, name: TopicName, *, create: bool) -> int:
        """Number of partitions; a topic that is partitioned by default is recorded now. 0: not partitioned.

        Raises `TopicNotFound` when the topic is not there and will not be made by its first use either.
        """
        self.check_served(name)
        partitions = self.partitions(name)
        if partitions or name.partition_index >= 0 or self.exists(name):
            return partitions
        settings = self._rooms.settings
        if not (create and settings.auto_topic_creation):
            raise TopicNotFound(f"Topic {name} does not exist")
        if settings.auto_topic_creation_partitions > 0:
            with contextlib.suppress(Conflict):
                await self.create_partitioned(name, settings.auto_topic_creation_partitions)
        return self.partitions(name)

    def each_name_in(self, namespace: NamespaceName) -> Iterator[str]:
        """Full names of the persistent topics of a namespace, each partition by its own name: one after the
        other, in no order, some twice.
        """
        yield from self._each_child(records.MANAGED_LEDGERS, namespace)
        for partitioned in self.partitioned_names_in(namespace):
            name = TopicName.parse(partitioned)
            for index in range(self.partitions(name)):
                yield str(name.partition(index))

    def plain_names_in(self, namespace: NamespaceName) -> list[str]:
        """Topics that have a managed ledger: those without partitions, and partitions that were used."""
        return self._children(records.MANAGED_LEDGERS, namespace)

    def partitioned_names_in(self, namespace: NamespaceName) -> list[str]:
        """Names of the partitioned topics of a namespace, without the partitions."""
        return self._children(records.PARTITIONED_TOPICS, namespace)

    def _children(self, root: str, namespace: NamespaceName) -> list[str]:
        return list(self._each_child(root, namespace))

    def _each_child(self, root: str, namespace: NamespaceName) -> Iterator[str]:
        path = records.topics_path(root, namespace, TopicDomain.PERSISTENT)
        for child in self._rooms.metadata.each_child(path):
            yield f"persistent://{namespace}/{decode_name(child)}"

    async def create_partitioned(
        self, name: TopicName, partitions: int, properties: dict[str, str] | None = None
    ) -> None:
        """Record a partitioned topic; its partitions are made when they are first used. Durable on return."""
        self.check_served(name)
        if partitions <= 0:
            raise NotAllowed(f"number of partitions should be more than 0, not {partitions}")
        check_count(partitions)
        if self.exists(name) or self.partitions(name):
            raise Conflict("This topic already exists")
        await self._rooms.policies.forget_topic(name)  # of an earlier topic, whose deletion was cut short
        record = PartitionedTopicRecord(
            partitions=partitions, properties=properties or {}, created_ms=self._rooms.clock.now_ms()
        )
        try:
            await self._rooms.metadata.put(
                records.partitioned_topic_path(name), records.encode(record), expected_version=-1
            )
        except BadVersion:
            raise Conflict("This topic already exists") from None
