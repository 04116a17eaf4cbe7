"""What the buckets of one index count since the process began, for metrics and operators.

`BucketOperations`: how often, and how fast, buckets were created, loaded, deleted and merged. The names and
the bounds of the latencies are Pulsar's (`pulsar_delayed_message_index_bucket_op_count` and
`..._op_latency_ms`). `Losses`: which buckets were lost, how that was found, and what became of
their messages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
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


LostBy = Literal["start", "load", "verify", "told"]
LOST_BY: Final[tuple[LostBy, ...]] = ("start", "load", "verify", "told")
# A bound on memory: beyond it only the counts of what is read again are too low.
LOST_MAX: Final = 1000


class Losses:
    """Counts since the process began. Remembers the ranges of the last `LOST_MAX` lost buckets, so that it
    can tell which messages are looked up, and which buckets are sealed, because of them.
    """

    def __init__(self) -> None:
        self.by: dict[LostBy, int] = dict.fromkeys(LOST_BY, 0)
        """How many buckets were lost, by how it was found."""
        self.read_again = 0
        """How many messages of lost buckets were looked up in the backlog."""
        self.rebuilt = 0
        """How many sealed buckets have messages of lost ones."""
        self._ranges: deque[tuple[int, int]] = deque(maxlen=LOST_MAX)

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def count(self, how: LostBy, first_code: int, last_code: int) -> None:
        """A bucket that spans these positions, both included, is lost."""
        self.by[how] += 1
        self._ranges.append((first_code, last_code))

    def count_read_again(self, codes: Sequence[int]) -> None:
        """These delayed messages, ascending, were looked up in the backlog: count what a lost bucket had.
        There may be none: all of a read may be in the index already.
        """
        if not codes:
            return
        # Two comparisons for each range and read; each message is compared only with ranges that are near.
        near = [(first, last) for first, last in self._ranges if first <= codes[-1] and codes[0] <= last]
        if near:
            self.read_again += sum(any(first <= code <= last for first, last in near) for code in codes)

    def concern(self, first_code: int, last_code: int) -> bool:
        """Whether a lost bucket had some of these positions."""
        return any(first <= last_code and first_code <= last for first, last in self._ranges)

    def count_sealed(self, first_code: int, last_code: int) -> bool:
        """Whether a bucket that was sealed for these positions has messages of a lost one."""
        is_rebuilt = self.concern(first_code, last_code)
        self.rebuilt += is_rebuilt
        return is_rebuilt
