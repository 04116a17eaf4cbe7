"""What the admin API needs of topics; `geminga.broker.operator.topics` implements it.

Every method raises `TopicNotFound` if the topic does not exist, and may raise other `GemingaError`s, which
are answered with their own status. Changes are durable on return.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from geminga.names import NamespaceName, TopicName
from geminga.position import Position


class TopicsView(Protocol):
    """Topics by name: which exist, and what an operator may do to one."""

    def exists(self, topic: TopicName) -> bool:
        """True if a topic without partitions, or one partition, is on disk."""
        ...

    def partitions(self, topic: TopicName) -> int:
        """Number of its partitions; 0 if it is not a partitioned topic."""
        ...

    def partition_properties(self, topic: TopicName) -> dict[str, str]:
        """Properties of a partitioned topic."""
        ...

    async def names_in(self, namespace: NamespaceName) -> list[str]:
        """Full names of the persistent topics, partitions by their own names, sorted."""
        ...

    async def partitioned_names_in(self, namespace: NamespaceName) -> list[str]:
        """Full names of the partitioned topics, sorted."""
        ...

    def may_be_created(self, topic: TopicName) -> bool:
        """True if it exists, or a client's first use would create it."""
        ...

    async def create(self, topic: TopicName, properties: dict[str, str]) -> None:
        """A topic without partitions, or a partition of an existing partitioned topic. `Conflict` if it
        exists.
        """
        ...

    async def create_partitioned(
        self, topic: TopicName, partitions: int, properties: dict[str, str]
    ) -> None: ...

    async def grow_partitioned(self, topic: TopicName, partitions: int) -> None: ...

    async def delete(self, topic: TopicName, *, force: bool) -> None: ...

    async def delete_partitioned(self, topic: TopicName, *, force: bool) -> None: ...

    async def load(self, topic: TopicName) -> None:
        """Load the topic, so that calls about it that follow find it in memory."""
        ...

    async def unload(self, topic: TopicName) -> None: ...

    async def terminate(self, topic: TopicName) -> Position:
        """Refuse further messages; returns the position of the last one."""
        ...

    async def truncate(self, topic: TopicName) -> None:
        """Move all subscriptions to the end, and delete all ledgers but the newest, retained or not."""
        ...

    async def trim(self, topic: TopicName) -> None:
        """Delete the ledgers that all subscriptions have consumed and nothing retains."""
        ...

    async def keep_for_compaction(self, topic: TopicName) -> None:
        """Keep all messages from now on, in place of compacting them. May be repeated. An operator gives them
        up by deleting the subscription `__compaction`.
        """
        ...

    async def properties(self, topic: TopicName) -> dict[str, str]: ...

    async def change_properties(self, topic: TopicName, add: Mapping[str, str], remove: str) -> None:
        """Add some properties, and remove one if it is there."""
        ...

    async def change_partition_properties(
        self, topic: TopicName, add: Mapping[str, str], remove: str
    ) -> None:
        """The same for a partitioned topic; its partitions have properties of their own."""
        ...
