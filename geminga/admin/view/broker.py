"""What the admin API needs of the broker: reads of its state, and the changes that an operator may ask for.

Topics and subscriptions stay unknown here; `geminga.broker.operator.view` implements this on them.
Every method that takes a topic raises `TopicNotFound` if it is not there, every one that takes a subscription
`SubscriptionNotFound`; other `GemingaError`s are answered with their own status.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from geminga.admin.view.delayed import DelayedView
from geminga.bookie.records.settings import BookieStatistics
from geminga.bookie.recovery.recovery import RecoveryReport
from geminga.bookie.running.stored_counts import StoredCounts
from geminga.broker.flow.statistics import BackupReport, BrokerStatistics, MemoryStatistics, TopicStatistics
from geminga.broker.operator.health import HealthReport
from geminga.broker.policies.namespaces import Namespaces
from geminga.broker.policies.policies import Policies
from geminga.broker.schemas.registry import SchemaRegistry
from geminga.config.config import Config
from geminga.managed_ledger.statistics import ManagedLedgerStatistics
from geminga.names import NamespaceName, TopicName
from geminga.position import Position


class BrokerView(Protocol):
    """One broker. Plain calls answer from memory or the metadata store, async ones may wait for a disk."""

    config: Config
    namespaces: Namespaces
    policies: Policies
    schemas: SchemaRegistry
    binary_port: int
    web_port: int

    @property
    def delayed(self) -> DelayedView:
        """Of the delayed indexes."""
        ...

    # -- topics ----------------------------------------------------------------------------------------------

    def exists(self, topic: TopicName) -> bool:
        """True if a topic without partitions, or one partition, is on disk."""
        ...

    def partitions(self, topic: TopicName) -> int:
        """How many partitions; 0 if it is not a partitioned topic."""
        ...

    def partition_properties(self, topic: TopicName) -> dict[str, str]:
        """Properties of a partitioned topic."""
        ...

    async def topics_in(self, namespace: NamespaceName) -> list[str]:
        """Full names of the persistent topics, partitions by their own names, sorted."""
        ...

    def partitioned_topics_in(self, namespace: NamespaceName) -> list[str]: ...

    def may_be_created(self, topic: TopicName) -> bool:
        """True if it exists, or a client's first use would create it."""
        ...

    async def create_topic(self, topic: TopicName, properties: dict[str, str]) -> None:
        """A topic without partitions, or a partition of an existing partitioned topic."""
        ...

    async def create_partitioned_topic(
        self, topic: TopicName, partitions: int, properties: dict[str, str]
    ) -> None: ...

    async def grow_partitioned_topic(self, topic: TopicName, partitions: int) -> None: ...

    async def delete_topic(self, topic: TopicName, *, force: bool) -> None: ...

    async def delete_partitioned_topic(self, topic: TopicName, *, force: bool) -> None: ...

    async def unload_topic(self, topic: TopicName) -> None: ...

    async def terminate_topic(self, topic: TopicName) -> Position:
        """No more messages; the position of the last one."""
        ...

    async def truncate_topic(self, topic: TopicName) -> None:
        """All subscriptions move to the end, and all ledgers but the newest go, retained or not."""
        ...

    async def topic_properties(self, topic: TopicName) -> dict[str, str]: ...

    async def last_message_id(self, topic: TopicName) -> Position: ...

    # -- subscriptions ---------------------------------------------------------------------------------------

    async def subscription_names(self, topic: TopicName) -> list[str]: ...

    async def create_subscription(
        self, topic: TopicName, name: str, *, start: Position, properties: dict[str, str], replicated: bool
    ) -> None:
        """Durable on return. `start` is the first message it gets, or `position.EARLIEST` or `LATEST`.

        `Conflict` if it exists.
        """
        ...

    async def delete_subscription(self, topic: TopicName, name: str, *, force: bool) -> None:
        """`ConsumerBusy` while it has consumers, unless forced: they are disconnected then."""
        ...

    async def skip(self, topic: TopicName, name: str, count: int | None) -> None:
        """Acknowledge the next `count` unacknowledged messages; None: all. Durable on return."""
        ...

    async def expire(self, topic: TopicName, name: str, older_than_s: int) -> bool:
        """Acknowledge what was published longer ago, durable on return; False: there was nothing to look
        for.
        """
        ...

    async def expire_up_to(self, topic: TopicName, name: str, position: Position) -> bool:
        """Acknowledge everything up to and with `position`, durable on return; False: the topic does not
        reach so far.
        """
        ...

    async def reset(self, topic: TopicName, name: str, position: Position) -> None:
        """The next message is the one at `position`, or after it if that is gone; EARLIEST, LATEST."""
        ...

    async def reset_to_time(self, topic: TopicName, name: str, publish_time_ms: int) -> None:
        """The next message is the first one published at that time or later."""
        ...

    # -- statistics ------------------------------------------------------------------------------------------

    async def load(self, topic: TopicName) -> None:
        """Load the topic, so that the questions that follow find it in memory."""
        ...

    async def topic_statistics(self, topic: TopicName) -> TopicStatistics:
        """Loads the topic if need be."""
        ...

    async def ledger_statistics(self, topic: TopicName) -> ManagedLedgerStatistics:
        """Loads the topic if need be."""
        ...

    def loaded_statistics(self) -> Iterator[TopicStatistics | None]:
        """Statistics of every topic loaded now, each gathered when it is taken. At each None the caller must
        let other tasks run.
        """
        ...

    def broker_statistics(self) -> BrokerStatistics: ...

    def bookie_statistics(self) -> BookieStatistics: ...

    def recovery_report(self) -> RecoveryReport:
        """The bookie's findings at this start."""
        ...

    def stored_counts(self) -> StoredCounts: ...

    def memory_statistics(self) -> MemoryStatistics: ...

    async def health(self) -> HealthReport:
        """True if a message could be published and read, at most a second ago."""
        ...

    async def backup(self, directory: str) -> BackupReport:
        """A consistent copy of all data in a new directory, durable on return. Conflict says why not."""
        ...

    def dropped_log_lines(self) -> int:
        """Lines of the log that found no room or no reader, since the start."""
        ...
