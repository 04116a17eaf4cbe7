"""Managed ledgers by namespace, by Pulsar's names (`pulsar_ml_...`): sums over the loaded topics.

Pulsar's namespace is a path here, `tenant/namespace/persistent`. Its classes of latency and size are rates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from geminga.admin.metrics.figures import Figure, Samples
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
        "Entries not acknowledged, over all subscriptions",
        lambda t: t.of_subscriptions.msg_backlog,
    ),
    "StoredMessagesSize": ("Bytes stored", lambda t: t.storage_size),
}


def _classes(bounds: tuple[float, ...]) -> list[str]:
    return [f"{float(low)}_{float(high)}" for low, high in pairwise((0, *bounds))]


_LATENCY_CLASSES, _SIZE_CLASSES = _classes(WRITE_LATENCY_BOUNDS_MS), _classes(ENTRY_SIZE_BOUNDS)


class NamespaceLedgers:
    """Sums of one namespace."""

    def __init__(self) -> None:
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


def ledger_figures(namespaces: dict[str, NamespaceLedgers], cluster: str) -> Iterator[Figure]:
    found = {
        namespace: ({"cluster": cluster, "namespace": f"{namespace}/persistent"}, ledgers)
        for namespace, ledgers in namespaces.items()
    }.values()
    for place, (name, (text, _)) in enumerate(SUMS.items()):
        samples: Samples = [(labels, ledgers.sums[place]) for labels, ledgers in found]
        yield Figure(f"pulsar_ml_{name}", text, samples)
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
        samples = [
            ({**labels, "quantile": quantile}, value)
            for labels, ledgers in found
            for quantile, value in zip(classes, getattr(ledgers, attribute), strict=False)
        ]
        yield Figure(f"pulsar_ml_{name}", text, samples)
        over: Samples = [(labels, getattr(ledgers, attribute)[-1]) for labels, ledgers in found]
        yield Figure(f"pulsar_ml_{name}_OVERFLOW", f"{text}: above all classes", over)
