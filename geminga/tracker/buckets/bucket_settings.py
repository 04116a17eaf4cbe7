"""How buckets are cut and how many there may be; the names and defaults are Pulsar's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# With Pulsar's default of -1 nothing would ever be merged; the whole record is written with each change.
BUCKETS_MAX: Final = 2000
"""Merged above this even where nothing is configured: each bucket is a property in one metadata record."""


@dataclass(frozen=True, slots=True)
class BucketSettings:
    indexes_min: int = 50_000
    """A bucket is sealed with at least so many (`delayedDeliveryMinIndexCountPerBucket`)."""
    segment_span_ms: int = 300_000
    """`delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds`"""
    segment_indexes_max: int = 5000
    """`delayedDeliveryMaxIndexesPerBucketSnapshotSegment`; -1: no limit."""
    buckets_max: int = -1
    """`delayedDeliveryMaxNumBuckets`; 0 or less: none but `BUCKETS_MAX`."""
