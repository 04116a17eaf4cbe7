"""The names of the topics in the metadata store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from geminga.metadata import records
from geminga.metadata.records import PartitionedTopicRecord
from geminga.names import PARTITION_SUFFIX, NamespaceName, TopicDomain, TopicName, decode_name

if TYPE_CHECKING:
    from geminga.metadata.store import MetadataStore


class TopicNames:
    """Persistent topics that are on disk, or that their first use will create. Keeps no state."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    def exists(self, name: TopicName) -> bool:
        """Whether the topic has a managed ledger. A partition that was never used has none."""
        return self._metadata.get(records.managed_ledger_path(name)) is not None

    def partitions(self, name: TopicName) -> int:
        """Number of partitions of a partitioned topic; 0 if it is not partitioned or does not exist."""
        path = records.partitioned_topic_path(name)
        stored = self._metadata.get(path)
        return records.decode(PartitionedTopicRecord, stored.value, path).partitions if stored else 0

    def is_listed(self, name: TopicName) -> bool:
        """Whether `each_name_in` yields it."""
        if self.exists(name):
            return True
        return name.is_partition and name.partition_index < self.partitions(name.partitioned_name)

    def each_name_in(self, namespace: NamespaceName) -> Iterator[str]:
        """Full names of the topics of a namespace, each partition by its own name, in no order. A partition
        that was used comes twice.
        """
        yield from self.each_stored_name_in(namespace)
        for name in self.each_partitioned_name_in(namespace):
            for index in range(self.partitions(TopicName.parse(name))):
                yield f"{name}{PARTITION_SUFFIX}{index}"

    def plain_names_in(self, namespace: NamespaceName) -> list[str]:
        """Topics that have a managed ledger: topics without partitions, and partitions that were used."""
        return list(self.each_stored_name_in(namespace))

    def each_stored_name_in(self, namespace: NamespaceName) -> Iterator[str]:
        """As `plain_names_in`, one after the other."""
        return self._each_child(records.MANAGED_LEDGERS, namespace)

    def each_partitioned_name_in(self, namespace: NamespaceName) -> Iterator[str]:
        """Names of the partitioned topics of a namespace, without the partitions."""
        return self._each_child(records.PARTITIONED_TOPICS, namespace)

    def _each_child(self, root: str, namespace: NamespaceName) -> Iterator[str]:
        path = records.topics_path(root, namespace, TopicDomain.PERSISTENT)
        for child in self._metadata.each_child(path):
            yield f"persistent://{namespace}/{decode_name(child)}"
