"""The metrics of delayed indexes: those of buckets by Pulsar's names and labels, and Geminga's own.

Pulsar gives each of its families for every subscription and, under the same name without that label, summed
for the topic: a sum over such a family counts twice. So it is here where each subscription has an index of
its own; an index that all share is the topic's alone. Geminga's own families count everything once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from geminga.broker.flow.statistics import (
    BUCKET_LATENCY_BOUNDS_MS,
    BucketOperationStatistics,
    BucketStatistics,
    LatenessStatistics,
    TopicStatistics,
)

_PREFIX = "pulsar_delayed_message_index_"
_OPERATIONS = f"{_PREFIX}bucket_op_count"
_LATENCY = f"{_PREFIX}bucket_op_latency_ms"
_OWN = "geminga_delayed_"
_LATENESS = f"{_OWN}lateness_ms"


class DelayedFamily(NamedTuple):
    """One metric; of a histogram `series` are the names of its samples."""

    name: str
    help: str
    kind: str = "gauge"
    series: tuple[str, ...] = ()


FAMILIES = (
    DelayedFamily(
        f"{_PREFIX}bucket_total", "Buckets of the delayed index, with the one that is not sealed yet"
    ),
    DelayedFamily(f"{_PREFIX}loaded", "Delayed messages whose times are in memory"),
    DelayedFamily(f"{_PREFIX}bucket_snapshot_size_bytes", "Bytes of the buckets on the bookie"),
    DelayedFamily(_OPERATIONS, "Operations on buckets"),
    DelayedFamily(_LATENCY, "Operations on buckets by how long they took, in ms: not cumulative"),
    DelayedFamily(f"{_LATENCY}_count", "Operations on buckets that succeeded"),
    DelayedFamily(f"{_LATENCY}_sum", "How long they took together, in ms"),
    DelayedFamily(
        f"{_OWN}buckets_sealed_total",
        "Buckets that were written, without those that were merged out of others",
        "counter",
    ),
    DelayedFamily(f"{_OWN}buckets_merged_total", "Buckets that were merged out of others", "counter"),
    DelayedFamily(
        f"{_OWN}buckets_lost_total",
        "Buckets that were missing or damaged, by how that was noticed: at a start, when part of one was to "
        "be loaded, by a check that was asked for (verify), or told by the bookie",
        "counter",
    ),
    DelayedFamily(
        f"{_OWN}buckets_lost_at_start", "Buckets that were missing or damaged when the topic was loaded"
    ),
    DelayedFamily(
        f"{_OWN}messages_read_again_total",
        "Delayed messages whose times were read from the backlog again, as their bucket was lost",
        "counter",
    ),
    DelayedFamily(
        f"{_OWN}buckets_rebuilt_total", "Buckets that were sealed out of what was read again", "counter"
    ),
    DelayedFamily(
        _LATENESS,
        "How late delayed messages were sent to consumers, in ms, without those that came early",
        "histogram",
        (f"{_LATENESS}_bucket", f"{_LATENESS}_sum", f"{_LATENESS}_count"),
    ),
    DelayedFamily(
        f"{_OWN}early_total", "Delayed messages that were sent to consumers before their time", "counter"
    ),
)
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
    """Pulsar's families for each subscription that has an index of its own, labelled with it, and for the
    topic: all together. Then Geminga's own.
    """
    total: defaultdict[tuple[str, Labels], float] = defaultdict(float)
    for name, subscription in topic.subscriptions.items():
        if subscription.delayed_buckets is not None:
            for sample in samples_of(subscription.delayed_buckets):
                total[sample.name, sample.labels] += sample.value
                yield sample._replace(labels=(("subscription", name), *sample.labels))
    if topic.delayed_buckets is not None:
        for sample in samples_of(topic.delayed_buckets):
            total[sample.name, sample.labels] += sample.value
    yield from (Sample(name, labels, value) for (name, labels), value in total.items())
    yield from _own_samples(topic)


def _own_samples(topic: TopicStatistics) -> Iterator[Sample]:
    """Labelled with the subscription whose index it is, if it is one subscription's, or whose messages."""
    if topic.delayed_buckets is not None:
        yield from _of_life(topic.delayed_buckets, ())
    for name, subscription in topic.subscriptions.items():
        labels = (("subscription", name),)
        if subscription.delayed_buckets is not None:
            yield from _of_life(subscription.delayed_buckets, labels)
        if subscription.delayed_lateness is not None:
            yield from _of_lateness(subscription.delayed_lateness, labels)


def _of_life(buckets: BucketStatistics, labels: Labels) -> Iterator[Sample]:
    yield Sample(f"{_OWN}buckets_sealed_total", labels, buckets.sealed)
    yield Sample(f"{_OWN}buckets_merged_total", labels, buckets.merged)
    for cause, count in buckets.lost.items():
        yield Sample(f"{_OWN}buckets_lost_total", (*labels, ("cause", cause)), count)
    # A gauge beside the counter: a counter that is born with a loss shows no increase to Prometheus, and
    # after a second start with a loss it has the value of the first.
    yield Sample(f"{_OWN}buckets_lost_at_start", labels, buckets.lost.get("start", 0))
    yield Sample(f"{_OWN}messages_read_again_total", labels, buckets.read_again)
    yield Sample(f"{_OWN}buckets_rebuilt_total", labels, buckets.rebuilt)


def _of_lateness(lateness: LatenessStatistics, labels: Labels) -> Iterator[Sample]:
    if any(lateness.counts):
        # Half of all lines about a topic, which most have whose messages are yet to fall due.
        bounds = [*map(str, lateness.bounds_ms), "+Inf"]
        for bound, count in zip(bounds, accumulate(lateness.counts), strict=True):
            yield Sample(f"{_LATENESS}_bucket", (*labels, ("le", bound)), count)
        yield Sample(f"{_LATENESS}_sum", labels, lateness.total_ms)
        yield Sample(f"{_LATENESS}_count", labels, sum(lateness.counts))
    yield Sample(f"{_OWN}early_total", labels, lateness.early)


def samples_of_namespace(topic: TopicStatistics) -> Iterator[Sample]:
    """Figures of a topic without its subscriptions, so that a sum over topics counts each once."""
    total: defaultdict[tuple[str, Labels], float] = defaultdict(float)
    for name, labels, value in samples_of_topic(topic):
        of_subscription = labels[:1] and labels[0][0] == "subscription"
        if not of_subscription:
            total[name, labels] += value
        elif name.startswith(_OWN):
            total[name, labels[1:]] += value
    yield from (Sample(name, labels, value) for (name, labels), value in total.items())
