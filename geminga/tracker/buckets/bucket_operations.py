"""How often, and how fast, buckets were created, loaded, deleted and merged: counted since the process began.

The names and the bounds of the latencies are Pulsar's (`pulsar_delayed_message_index_bucket_op_count` and
`..._op_latency_ms`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from geminga.clock import Clock
from geminga.errors import GemingaError

Operation = Literal["create", "load", "delete", "merge"]
OPERATIONS: Final[tuple[Operation, ...]] = ("create", "load", "delete", "merge")
# Pulsar's bounds: dashboards that are made for it read these series.
LATENCY_BOUNDS_MS: Final = (50, 100, 500, 1000, 5000, 30_000, 60_000)


class OperationCounts:
    """One kind of operation. `latencies[i]` counts those that took up to the i-th bound and longer than the
    one before; the last is for all that took longer.
    """

    __slots__ = ("failed", "latencies", "succeeded", "total_ms")

    def __init__(self) -> None:
        self.succeeded = 0
        self.failed = 0
        self.latencies = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self.total_ms = 0.0


class BucketOperations:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.counts: dict[Operation, OperationCounts] = {
            operation: OperationCounts() for operation in OPERATIONS
        }

    @contextmanager
    def counting(self, operation: Operation) -> Iterator[None]:
        """Counts what is done in the context: an error of ours is a failure, a cancellation is nothing."""
        counts = self.counts[operation]
        started_s = self._clock.monotonic_s()
        try:
            yield
        # Only ours: a cancellation at the end of a topic is no failed operation, and a bug is no statistic.
        except GemingaError:
            counts.failed += 1
            raise
        taken_ms = (self._clock.monotonic_s() - started_s) * 1000
        counts.succeeded += 1
        counts.total_ms += taken_ms
        counts.latencies[bisect_left(LATENCY_BOUNDS_MS, taken_ms)] += 1
