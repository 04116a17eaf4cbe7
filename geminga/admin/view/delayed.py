"""What the admin API needs of the delayed indexes; `geminga.broker.operator.delayed_view` implements it.

Every method raises `TopicNotFound` or `SubscriptionNotFound` if there is no such thing. Times are ms since
1970. A partitioned topic is taken whole, but for `adopt`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Protocol

from geminga.broker.operator.delayed_statistics import (
    AdoptedBuckets,
    BucketContent,
    BucketInfo,
    BucketRows,
    CancelResult,
    DelayedPage,
    DelayedPrecision,
    DelayedSummary,
    DueHistogram,
    SegmentInfo,
    WhyNotDelivered,
)
from geminga.broker.operator.delayed_verify import VerifiedBucket
from geminga.chaos.bucket_damage import Damage
from geminga.names import TopicName
from geminga.position import Position


class DelayedView(Protocol):
    """Reads are a moment's; changes are durable on return."""

    async def summary(self, topic: TopicName, subscription: str) -> DelayedSummary: ...

    async def histogram(self, topic: TopicName, subscription: str, width_ms: int) -> DueHistogram:
        """By due time, without empty classes. At most 1,000: `width_ms` is doubled as often as that takes,
        and the answer says what it has become, and what is not read yet and so not in it.
        """
        ...

    async def messages(
        self, topic: TopicName, subscription: str, start: Position, count_max: int
    ) -> DelayedPage:
        """Messages that wait, in the order of the topic."""
        ...

    async def why(self, topic: TopicName, subscription: str, position: Position) -> WhyNotDelivered:
        """Why this one has not been delivered, or not again."""
        ...

    async def buckets(
        self, topic: TopicName, subscription: str
    ) -> Iterator[tuple[BucketInfo, Iterator[SegmentInfo]]]:
        """The parts of the index, partition by partition and in the order of their ledgers, and the ranges
        that it does not have yet; each without its segments, and these. As they are when taken.
        """
        ...

    async def bucket(self, topic: TopicName, subscription: str, name: str) -> BucketContent:
        """One that is on the bookie, by its own ledger (`45`) or its range (`10-11`), read now.
        `NoSuchBucket`; `Unreadable`: it is damaged.
        """
        ...

    async def bucket_rows(
        self, topic: TopicName, subscription: str, name: str, start: int, count_max: int
    ) -> BucketRows:
        """Its rows by due time, from row number `start` on; errors as `bucket`."""
        ...

    async def bucket_entries(self, topic: TopicName, subscription: str, ledger_id: int) -> bytes | None:
        """One of them as `tracker/format/bucket_bundle_format.py` says; an entry that cannot be read is
        empty. None: there is no such bucket.
        """
        ...

    async def adopt(self, topic: TopicName, subscription: str, bundle: bytes) -> AdoptedBuckets:
        """Take in buckets that were built elsewhere (`tracker/format/bucket_bundle_format.py`) in place of
        all that the index has of their ledgers; durable on return. What is wrong with them raises, and
        nothing changes.
        """
        ...

    def verify(
        self, topic: TopicName | None, subscription: str | None
    ) -> AsyncGenerator[VerifiedBucket, None]:
        """Look at all buckets on the bookie now, of all topics or of one, partitions and all; those that are
        gone or damaged are lost, and read again. Raises before the first.
        """
        ...

    async def cancel(
        self, topic: TopicName, subscription: str, positions: Sequence[Position]
    ) -> CancelResult:
        """Acknowledge messages that wait for their time, whether they have been read yet or not: they are
        never delivered.
        """
        ...

    async def reschedule(
        self, topic: TopicName, subscription: str, position: Position, due_ms: int | None
    ) -> None:
        """Give a message that waits another time; None: now. `NotDelayed` if it does not wait."""
        ...

    async def precision(self, topic: TopicName, subscription: str) -> DelayedPrecision:
        """How many ms early its messages may be, so that they come together."""
        ...

    async def set_precision(self, topic: TopicName, subscription: str, precision_ms: int | None) -> None:
        """In effect and durable on return, for all partitions; an error may leave some of them as they were.
        `NotAllowed` if the subscription is not durable.
        """
        ...

    async def damage(
        self,
        topic: TopicName,
        subscription: str,
        how: Damage,
        ledger_id: int | None,
        *,
        quietly: bool = False,
    ) -> int | None:
        """Break a bucket (None: the first) on the bookie, as a disk might; returns its ledger, None if
        there is no such bucket. Unless `quietly`, the index knows on return. `NotAllowed` unless the broker
        was started for that.
        """
        ...
