"""Managed ledgers by namespace, by Pulsar's names (`pulsar_ml_...`): sums over the loaded topics.

Pulsar's namespace is a path here, `tenant/namespace/persistent`. Its classes of latency and size are rates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from geminga.admin.metrics.text import labels_text, line
from geminga.broker.flow.statistics import ENTRY_SIZE_BOUNDS, WRITE_LATENCY_BOUNDS_MS, TopicStatistics


def _byte_rate(topic: TopicStatistics) -> float:
    return topic.entry_sizes.sum / topic.interval_s if topic.interval_s else 0.0


SUMS: dict[str, tuple[str, Callable[[TopicStatistics], float]]] = {
    "AddEntryBytesRate": ("Bytes of entries written per second", _byte_rate),
    "AddEntryWithReplicasBytesRate": (
        "Bytes of entries written per second; there is one replica",
        _byte_rate,
    ),
    "AddEntryMessagesRate": ("Entries written per second; a batch is one", lambda t: t.write_rate),
    "AddEntrySucceed": ("Entries written in the last interval", lambda t: t.entries_written),
    "AddEntryErrors": ("Entries that could not be written, since the load", lambda t: t.add_errors),
    "ReadEntriesBytesRate": ("Bytes read from the bookie per second", lambda t: t.read_throughput),
    "ReadEntriesRate": ("Entries read from the bookie per second", lambda t: t.read_rate),
    "ReadEntriesOpsCacheMissesRate": (
        "Entries per second that were not in the tail cache",
        lambda t: t.read_rate,
    ),
    "ReadEntriesSucceeded": (
        "Entries read from the bookie in the last interval",
        lambda t: t.read_rate * t.interval_s,
    ),
    "ReadEntriesErrors": ("Reads from the bookie that failed, since the load", lambda t: t.read_errors),
    "MarkDeleteRate": ("States of cursors written per second", lambda t: t.mark_delete_rate),
    "NumberOfMessagesInBacklog": (
        "Entries not acknowledged, over all subscriptions; a batch is one",
        lambda t: t.of_subscriptions.msg_backlog,
    ),
    "StoredMessagesSize": ("Bytes stored", lambda t: t.storage_size),
}


def _classes(bounds: tuple[float, ...]) -> list[str]:
    return [f"{float(low)}_{float(high)}" for low, high in pairwise((0, *bounds))]


_LATENCY_CLASSES, _SIZE_CLASSES = _classes(WRITE_LATENCY_BOUNDS_MS), _classes(ENTRY_SIZE_BOUNDS)


class NamespaceLedgers:
    """Sums of one namespace, whose series have these labels."""

    def __init__(self, labels: str) -> None:
        self.labels = labels
        self.sums = [0.0] * len(SUMS)
        self.latencies = [0.0] * (len(_LATENCY_CLASSES) + 1)
        self.sizes = [0.0] * (len(_SIZE_CLASSES) + 1)

    def add(self, topic: TopicStatistics) -> None:
        for place, (_, read) in enumerate(SUMS.values()):
            self.sums[place] += read(topic)
        # Most topics are idle: their classes are all zero.
        if topic.interval_s and topic.write_latencies.sum:
            for place, count in enumerate(topic.write_latencies.counts):
                self.latencies[place] += count / topic.interval_s
        if topic.interval_s and topic.entry_sizes.sum:
            for place, count in enumerate(topic.entry_sizes.counts):
                self.sizes[place] += count / topic.interval_s


class LedgerFamily(NamedTuple):
    """One metric, and its lines: one by one, since there may be many thousands of namespaces."""

    name: str
    help: str
    lines: Iterator[str]


def ledger_labels(namespace: str, cluster: str) -> str:
    return labels_text({"cluster": cluster, "namespace": f"{namespace}/persistent"})


def ledger_families(namespaces: Sequence[NamespaceLedgers]) -> Iterator[LedgerFamily]:
    """None without a namespace."""
    if not namespaces:
        return
    for place, (name, (text, _)) in enumerate(SUMS.items()):
        name = f"pulsar_ml_{name}"
        yield LedgerFamily(name, text, _sums(name, namespaces, place))
    for name, text, classes, attribute in (
        ("AddEntryLatencyBuckets", "Entries per second by write latency", _LATENCY_CLASSES, "latencies"),
        (
            "LedgerAddEntryLatencyBuckets",
            "Entries per second by write latency",
            _LATENCY_CLASSES,
            "latencies",
        ),
        ("EntrySizeBuckets", "Entries per second by size in bytes", _SIZE_CLASSES, "sizes"),
    ):
        name = f"pulsar_ml_{name}"
        yield LedgerFamily(name, text, _by_class(name, namespaces, attribute, classes))
        over = f"{name}_OVERFLOW"
        yield LedgerFamily(over, f"{text}: above all classes", _above_all(over, namespaces, attribute))


def _sums(name: str, namespaces: Sequence[NamespaceLedgers], place: int) -> Iterator[str]:
    return (line(name, ledgers.labels, ledgers.sums[place]) for ledgers in namespaces)


def _by_class(
    name: str, namespaces: Sequence[NamespaceLedgers], attribute: str, classes: Sequence[str]
) -> Iterator[str]:
    for ledgers in namespaces:
        for quantile, value in zip(classes, getattr(ledgers, attribute), strict=False):
            yield line(name, f'{ledgers.labels},quantile="{quantile}"', value)


def _above_all(name: str, namespaces: Sequence[NamespaceLedgers], attribute: str) -> Iterator[str]:
    return (line(name, ledgers.labels, getattr(ledgers, attribute)[-1]) for ledgers in namespaces)
