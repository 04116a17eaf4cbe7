"""Latencies without keeping each of them: a histogram whose buckets are 1.6 % wide."""

from __future__ import annotations

_SUB_BITS = 6
_SUB = 1 << _SUB_BITS


class Histogram:
    """Whole numbers (microseconds, say) up to any size, in a dictionary of buckets."""

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.sum = 0
        self.max = 0

    def add(self, value: int) -> None:
        value = max(value, 0)
        shift = max(value.bit_length() - _SUB_BITS - 1, 0)
        bucket = (shift << (_SUB_BITS + 1)) + (value >> shift)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1
        self.sum += value
        self.max = max(self.max, value)

    def percentile(self, percent: float) -> int:
        """The middle of the bucket below which `percent` of the values lie; 0 if there are none."""
        wanted = self.count * percent / 100
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                shift, mantissa = bucket >> (_SUB_BITS + 1), bucket & (2 * _SUB - 1)
                return min((mantissa << shift) + ((1 << shift) >> 1), self.max)
        return 0

    @property
    def mean(self) -> float:
        return self.sum / self.count if self.count else 0.0

    def merge(self, other: Histogram) -> None:
        for bucket, count in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += other.count
        self.sum += other.sum
        self.max = max(self.max, other.max)
