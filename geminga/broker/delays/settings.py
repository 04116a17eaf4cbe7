"""How delayed messages are indexed; the names in brackets are `broker.conf`'s."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from geminga.managed_ledger.cursor.cursor_ledger import Storage
    from geminga.tracker.buckets.bucket_store import BucketStore

    NewBucketStore = Callable[[Storage], BucketStore]
    """Makes the store of the buckets of one topic."""


class DelayPolicy(NamedTuple):
    """What a topic's delayed messages are subject to now."""

    active: bool = True
    """False: entries are dispatched when they are read. Those held back already keep their time."""
    tick_ms: int | None = None
    """How early a message may come if delivery is not strict; None: as the tracker was made."""


class DelaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of all topics; what a topic's policy may override is in `DelayPolicy`."""

    # Pulsar's default, which makes 62 to 81 % of messages early where delivery is not strict.
    tick_ms: int = 1000
    """How early a message may be if delivery is not strict [delayedDeliveryTickTimeMillis]"""
    # False in Pulsar. Early messages are the most frequent complaint about delays, so exact is the default
    # here.
    strict: bool = True
    """Whether no message is early [isDelayedDeliveryDeliverAtTimeStrict]"""
    fixed_delay_lookahead: int = 50_000
    """0: off [delayedDeliveryFixedDelayDetectionLookahead]"""
    keeps_buckets: bool = False
    """Whether what waits is sealed into buckets on the bookie [delayedDeliveryTrackerFactoryClassName]"""
    is_shared: bool = False
    """One index for all subscriptions of a topic [delayedDeliverySharedIndexEnabled, Geminga's own]"""
    bucket_indexes_min: int = 50_000
    """[delayedDeliveryMinIndexCountPerBucket]"""
    segment_span_ms: int = 300_000
    """[delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds]"""
    segment_indexes_max: int = 5_000
    """-1: no limit [delayedDeliveryMaxIndexesPerBucketSnapshotSegment]"""
    buckets_max: int = -1
    """-1: none [delayedDeliveryMaxNumBuckets]"""
