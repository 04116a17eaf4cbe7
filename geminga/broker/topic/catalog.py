"""The topics in the metadata store, without loading a topic.

A topic exists once the record of its managed ledger is durable. A partitioned topic has a record of its own,
and each of its partitions exists after its first use.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from geminga.broker.topic_lists.topic_names import TopicNames
from geminga.errors import BadVersion, Conflict, NotAllowed, TooManyTopics, TopicNotFound
from geminga.metadata import records
from geminga.metadata.records import PartitionedTopicRecord
from geminga.names import TopicName

if TYPE_CHECKING:
    from geminga.broker.topic.rooms import Rooms

PARTITIONS_MAX = 10_000
"""The limit of a topic's partitions. Each is a topic of its own; a larger number is most likely a typing
error.
"""


def check_count(partitions: int) -> None:
    """Raise NotAllowed if a topic may not have this many partitions."""
    if partitions > PARTITIONS_MAX:
        raise NotAllowed(f"{partitions} partitions: a topic may have at most {PARTITIONS_MAX}")


class TopicCatalog:
    """The topics on disk, loaded or not."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self.names = TopicNames(rooms.metadata)

    def check_served(self, name: TopicName) -> None:
        """Raises NotAllowed for a non-persistent topic, and NamespaceNotFound."""
        if not name.is_persistent:
            raise NotAllowed(f"{name}: only persistent topics are served")
        self._rooms.namespaces.check_exists(name.namespace)

    def exists(self, name: TopicName) -> bool:
        """Whether the topic is on disk: a topic without partitions, or a partition that was used."""
        return self.names.exists(name)

    def partitions(self, name: TopicName) -> int:
        """Number of partitions of a partitioned topic; 0 if it is not partitioned or does not exist."""
        return self.names.partitions(name)

    def may_be_created(self, name: TopicName) -> bool:
        """Whether the topic exists, or a client's first use may create it."""
        # A partition of a recorded topic may always be created: the record was the decision, and partitions
        # get their ledgers only when they are used.
        if self._rooms.policies.effective(name).auto_topic_creation.allowed or self.exists(name):
            return True
        return self.partitions(name.partitioned_name if name.partition_index >= 0 else name) > 0

    def check_may_create(self, name: TopicName, create: bool) -> None:
        """Raise TopicNotFound or NotAllowed if a load may not create this topic."""
        # A client with an old number of partitions, or a typing error in a name, must not make a topic that
        # no producer of the partitioned one ever writes to.
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
        self._check_room(name, 1)

    def _check_room(self, name: TopicName, wanted: int) -> None:
        """Raise TooManyTopics if the namespace may not have this many more topics; each partition counts."""
        allowed = self._rooms.policies.effective(name).topics_max
        if allowed > 0 and len(set(self.names.each_name_in(name.namespace))) + wanted > allowed:
            raise TooManyTopics("Exceed maximum number of topics in namespace.")

    async def partitions_or_create(self, name: TopicName, *, create: bool) -> int:
        """Number of partitions; 0 if the topic is not partitioned. A topic that is partitioned by default is
        recorded now.

        Raises `TopicNotFound` if the topic does not exist and its first use may not create it.
        """
        self.check_served(name)
        partitions = self.partitions(name)
        # A topic that exists keeps its kind: `allowAutoTopicCreationType=partitioned` concerns new names
        # only.
        if partitions or name.partition_index >= 0 or self.exists(name):
            return partitions
        creation = self._rooms.policies.effective(name).auto_topic_creation
        if not (create and creation.allowed):
            raise TopicNotFound(f"Topic {name} does not exist")
        if creation.partition_count > 0:
            # Another client's question may have recorded it meanwhile: then its number counts for both.
            with contextlib.suppress(Conflict):
                await self.create_partitioned(name, creation.partition_count)
        return self.partitions(name)

    async def create_partitioned(
        self, name: TopicName, partitions: int, properties: dict[str, str] | None = None
    ) -> None:
        """Record a partitioned topic; its partitions are created at their first use. Durable on return."""
        # A topic of ten thousand partitions costs one record until a client uses them.
        self.check_served(name)
        if partitions <= 0:
            raise NotAllowed(f"number of partitions should be more than 0, not {partitions}")
        check_count(partitions)
        if self.exists(name) or self.partitions(name):
            raise Conflict("This topic already exists")
        self._check_room(name, partitions)
        # Of an earlier topic of this name, whose deletion a crash has cut short.
        await self._rooms.policies.forget_topic(name)
        record = PartitionedTopicRecord(
            partitions=partitions, properties=properties or {}, created_ms=self._rooms.clock.now_ms()
        )
        try:
            await self._rooms.metadata.put(
                records.partitioned_topic_path(name), records.encode(record), expected_version=-1
            )
        except BadVersion:
            raise Conflict("This topic already exists") from None
