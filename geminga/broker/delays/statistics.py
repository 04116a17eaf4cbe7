"""What is counted of an index and of its buckets, for the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from geminga.broker.flow.statistics import BucketOperationStatistics, BucketStatistics

if TYPE_CHECKING:
    from geminga.position import Position
    from geminga.tracker.buckets.buckets import Buckets


def bucket_statistics(buckets: Buckets | None) -> BucketStatistics | None:
    """None: the index keeps no buckets, or is not open."""
    if buckets is None or not buckets.keeps:
        return None
    counts, feed = buckets.operations.counts, buckets.index.feed
    at_hand = sum(bucket.rows_at_hand for _, bucket in buckets.index.buckets.items())
    growing = feed.shared.rows() + sum(tail.rows() for tail in feed.tails)
    return BucketStatistics(
        buckets=len(buckets.stored) + len(buckets.frozen) + len(feed.tails),
        loaded=growing + at_hand,
        stored_bytes=buckets.stored_bytes,
        operations=tuple(
            BucketOperationStatistics(kind, done.succeeded, done.failed, done.total_ms, tuple(done.latencies))
            for kind, done in counts.items()
        ),
        lost={str(how): count for how, count in buckets.losses.by.items()},
        read_again=buckets.losses.read_again,
        rebuilt=buckets.losses.rebuilt,
        sealed=buckets.sealed_count,
        merged=counts["merge"].succeeded,
        growing=growing,
        serving=len(buckets.serving),
    )


def index_bytes(buckets: Buckets) -> int:
    """Memory of the index and of all views of it."""
    index = buckets.index
    return index.memory_bytes() + sum(reader.memory_bytes() for reader in index.readers)


def named_beyond(buckets: Buckets, position: Position) -> dict[str, int]:
    """The durable properties that name something of the index, without buckets that end before this position
    or with it.
    """
    # Not above: the tracker imports numpy, and a broker without delayed messages has no need of that.
    from geminga.tracker.format.rows import position_of

    passed = {bucket.key for bucket in buckets.stored if position_of(bucket.last_code) <= position}
    return {key: found for key, found in buckets.properties().items() if key not in passed}
