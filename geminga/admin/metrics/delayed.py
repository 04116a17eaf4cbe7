"""The metrics of delayed indexes that keep buckets, by Pulsar's names and labels.

Pulsar gives each of them for every subscription and, under the same name without that label, summed for the
topic. Whoever adds such a family up counts twice; so it is there, and so it is here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from geminga.broker.flow.statistics import (
    BUCKET_LATENCY_BOUNDS_MS,
    BucketOperationStatistics,
    BucketStatistics,
    TopicStatistics,
)

_PREFIX = "pulsar_delayed_message_index_"
_OPERATIONS = f"{_PREFIX}bucket_op_count"
_LATENCY = f"{_PREFIX}bucket_op_latency_ms"
FAMILIES = {
    f"{_PREFIX}bucket_total": "Buckets of the delayed index, with the one that is not sealed yet",
    f"{_PREFIX}loaded": "Delayed messages whose times are in memory",
    f"{_PREFIX}bucket_snapshot_size_bytes": "Bytes of the buckets on the bookie",
    _OPERATIONS: "Operations on buckets",
    _LATENCY: "Operations on buckets by how long they took, in ms: not cumulative",
    f"{_LATENCY}_count": "Operations on buckets that succeeded",
    f"{_LATENCY}_sum": "How long they took together, in ms",
}
_CLASSES = [*map(str, BUCKET_LATENCY_BOUNDS_MS), "overflow"]

Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    name: str
    labels: Labels
    value: float


def samples_of(statistics: BucketStatistics) -> Iterator[Sample]:
    """Everything about one index. What has not happened is left out, as in Pulsar."""
    yield Sample(f"{_PREFIX}bucket_total", (), statistics.buckets)
    yield Sample(f"{_PREFIX}loaded", (), statistics.loaded)
    yield Sample(f"{_PREFIX}bucket_snapshot_size_bytes", (), statistics.stored_bytes)
    for operation in statistics.operations:
        yield from _of_operation(operation)


def _of_operation(operation: BucketOperationStatistics) -> Iterator[Sample]:
    kind = ("type", operation.type)
    succeeded, failed = operation.succeeded, operation.failed
    for state, count in (("succeed", succeeded), ("failed", failed), ("all", succeeded + failed)):
        if count:
            yield Sample(_OPERATIONS, (("state", state), kind), count)
    if not succeeded:
        return
    for quantile, count in zip(_CLASSES, operation.latencies, strict=True):
        if count:
            yield Sample(_LATENCY, (kind, ("quantile", quantile)), count)
    yield Sample(f"{_LATENCY}_count", (kind,), succeeded)
    yield Sample(f"{_LATENCY}_sum", (kind,), operation.total_ms)


def samples_of_topic(topic: TopicStatistics) -> Iterator[Sample]:
    """Of each subscription that has an index of its own, labelled with it, and of the topic: all together."""
    total: defaultdict[tuple[str, Labels], float] = defaultdict(float)
    for name, subscription in topic.subscriptions.items():
        buckets = getattr(subscription, "delayed_buckets", None)
        if buckets is not None:
            for sample in samples_of(buckets):
                total[sample.name, sample.labels] += sample.value
                yield sample._replace(labels=(("subscription", name), *sample.labels))
    if topic.delayed_buckets is not None:
        for sample in samples_of(topic.delayed_buckets):
            total[sample.name, sample.labels] += sample.value
    yield from (Sample(name, labels, value) for (name, labels), value in total.items())


def samples_of_namespace(topics: Iterable[TopicStatistics]) -> Iterator[Sample]:
    """Of all topics together, without subscriptions."""
    total: defaultdict[tuple[str, Labels], float] = defaultdict(float)
    for topic in topics:
        for name, labels, value in samples_of_topic(topic):
            if labels[:1] and labels[0][0] == "subscription":
                continue
            total[name, labels] += value
    yield from (Sample(name, labels, value) for (name, labels), value in total.items())
