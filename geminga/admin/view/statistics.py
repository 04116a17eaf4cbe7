"""What the admin API shows of topics and the bookie; `geminga.broker.operator.statistics` implements it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from geminga.bookie.records.settings import BookieStatistics
from geminga.bookie.recovery.recovery import RecoveryReport
from geminga.bookie.running.ledger_inventory import StoredCounts
from geminga.broker.flow.statistics import BrokerStatistics, TopicStatistics
from geminga.managed_ledger.statistics import ManagedLedgerStatistics
from geminga.names import TopicName
from geminga.position import EARLIEST, Position


class StatisticsView(Protocol):
    """Figures of one moment. Methods with a topic load it, and raise `TopicNotFound` if it does not exist."""

    async def of_topic(self, topic: TopicName) -> TopicStatistics: ...

    async def earliest_in_backlogs(self, topic: TopicName) -> dict[str, int]:
        """When the first message of each durable subscription's backlog was published, in ms since 1970; -1
        of one without a backlog. Reads from the disk, at most one entry for each subscription.
        """
        ...

    async def of_ledgers(
        self, topic: TopicName, *, ranges_of: str | None = None, ranges_after: Position = EARLIEST
    ) -> ManagedLedgerStatistics:
        """Of the topic's managed ledger: its ledgers and cursors. The acknowledged ranges are those of one
        cursor or of all, behind a position, and at most `cursor.statistics.RANGES_MAX`.
        """
        ...

    async def readers(self, topic: TopicName) -> dict[str, bool]:
        """The subscriptions with consumers: whether one of these has permits left."""
        ...

    def of_topics(self, *, with_cursors: bool = False) -> Iterator[TopicStatistics | None]:
        """Of every topic, each gathered when it is taken: of the loaded ones in full, of the others what
        their records say. Topics with a backlog come first. At each None the caller must let other tasks run.
        """
        ...

    def of_unloaded_topic(self, name: str) -> TopicStatistics | None:
        """What its records say; None if it is loaded, does not exist, or was not read yet."""
        ...

    def of_broker(self) -> BrokerStatistics: ...

    def of_bookie(self) -> BookieStatistics: ...

    def recovery_report(self) -> RecoveryReport:
        """What the bookie's recovery found at this start."""
        ...

    def stored_counts(self) -> StoredCounts: ...
