"""Prometheus exposition under Pulsar's own names, so that the public dashboards find what they ask for.

Built from statistics structs at scrape time; nothing is counted here. Pulsar's families are gauges all, the
counters included, as the real broker declares them. Without topic level the same names carry only the
namespace.

The format wants all samples of a family together, so a page is drawn in two passes: `Columns` takes the
figures out of each topic's struct, which is let go, and then the families are written one after the other.
Both are iterators that stop every few hundred lines.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from geminga import __version__
from geminga.admin.metrics import delayed as delayed_metrics
from geminga.admin.metrics.bookie import Figure
from geminga.admin.metrics.families import (
    SUBSCRIPTION_FAMILIES,
    SUMMED_OVER_BROKER,
    TOPIC_FAMILIES,
    Family,
)
from geminga.broker.flow.statistics import BrokerStatistics, TopicStatistics
from geminga.names import TopicName

LINES_MAX: Final = 500
"""Lines of a page that are written between two yields: some hundred microseconds."""
SUBSCRIPTIONS_MAX: Final = 20
"""Topics whose figures are collected between two yields."""
_BROKER_FAMILIES: Final = [
    (place, family) for place, family in enumerate(TOPIC_FAMILIES) if family.name in SUMMED_OVER_BROKER
]


def exposition(
    topics: Iterable[TopicStatistics | None],
    broker: BrokerStatistics,
    figures: Sequence[Figure] = (),
    *,
    cluster: str,
    topic_level: bool = True,
    split_partition: bool = False,
) -> Iterator[str]:
    """The page of one scrape in Prometheus' text format, in slices; some are empty, where `topics` have a
    None or more of them have to be looked at first. About 0.5 us for a series.
    """
    columns = Columns(cluster, topic_level=topic_level, split_partition=split_partition)
    for topic in topics:
        if topic is None:
            yield ""
        else:
            for _ in columns.take(topic):
                yield ""
    yield "".join(_of_broker(columns, broker))
    yield "".join(
        line
        for figure in figures
        for line in _family(
            figure.name,
            figure.help,
            ((_text(labels), value) for labels, value in figure.samples),
            figure.kind,
        )
    )
    yield from columns.pages()


class _Rows:
    """Series with the same labels: the labels, and a column of figures for each family."""

    def __init__(self, families: Sequence[Family]) -> None:
        self.families = families
        self.labels: list[str] = []
        self.values = [array("d") for _ in families]

    def take(self, labels: str, source: object) -> None:
        self.labels.append(labels)
        for column, family in zip(self.values, self.families, strict=True):
            column.append(family.read(source))

    def add(self, row: int, source: object) -> None:
        for column, family in zip(self.values, self.families, strict=True):
            column[row] += family.read(source)


class Columns:
    """The figures of all topics, 8 bytes for each and the labels of each row."""

    def __init__(self, cluster: str, *, topic_level: bool, split_partition: bool) -> None:
        self.cluster = _text({"cluster": cluster})
        self.topics = 0
        self.totals = [0.0] * len(TOPIC_FAMILIES)
        self._topic_level = topic_level
        self._split_partition = split_partition
        self._namespaces: dict[str, int] = {}
        """How many topics each has."""
        self._namespace_rows: dict[str, int] = {}
        """Where these are summed up."""
        self._rows = _Rows(TOPIC_FAMILIES)
        self._subscriptions = _Rows(SUBSCRIPTION_FAMILIES)
        self._delayed: dict[tuple[str, str], tuple[array[int], array[float]]] = {}
        """By family and further labels: rows, and the figure of each."""
        self._delayed_rows: dict[tuple[str, str, int], int] = {}
        """Where namespaces are summed up: the place of each in its columns."""

    def take(self, topic: TopicStatistics) -> Iterator[None]:
        """Yields after some of its subscriptions."""
        name = TopicName.parse(topic.name)
        namespace = str(name.namespace)
        self.topics += 1
        self._namespaces[namespace] = self._namespaces.get(namespace, 0) + 1
        for place, family in _BROKER_FAMILIES:
            self.totals[place] += family.read(topic)
        if not self._topic_level:
            self._sum_up(namespace, topic)
            return
        labels = self._labels(namespace, name)
        self._rows.take(labels, topic)
        for number, (subscription, statistics) in enumerate(topic.subscriptions.items(), 1):
            self._subscriptions.take(f"{labels},{_text({'subscription': subscription})}", statistics)
            if number % SUBSCRIPTIONS_MAX == 0:
                yield
        row = len(self._rows.labels) - 1
        for sample in delayed_metrics.samples_of_topic(topic):
            rows, values = self._delayed.setdefault(
                (sample.name, _text(dict(sample.labels))), (array("q"), array("d"))
            )
            rows.append(row)
            values.append(sample.value)

    def _sum_up(self, namespace: str, topic: TopicStatistics) -> None:
        row = self._namespace_rows.get(namespace)
        if row is None:
            row = self._namespace_rows[namespace] = len(self._rows.labels)
            self._rows.take(self._of_namespace(namespace), topic)
        else:
            self._rows.add(row, topic)
        for name, labels, value in delayed_metrics.samples_of_namespace(topic):
            more = _text(dict(labels))
            rows, values = self._delayed.setdefault((name, more), (array("q"), array("d")))
            place = self._delayed_rows.setdefault((name, more, row), len(rows))
            if place == len(rows):
                rows.append(row)
                values.append(value)
            else:
                values[place] += value

    def _of_namespace(self, namespace: str) -> str:
        return f"{self.cluster},{_text({'namespace': namespace})}"

    def _labels(self, namespace: str, name: TopicName) -> str:
        place = {"topic": str(name)}
        if self._split_partition:
            place = {"topic": str(name.partitioned_name), "partition": str(name.partition_index)}
        return f"{self._of_namespace(namespace)},{_text(place)}"

    def pages(self) -> Iterator[str]:
        """All families, in slices."""
        counts = [(self._of_namespace(name), float(count)) for name, count in self._namespaces.items()]
        yield from _slices("pulsar_topics_count", "Loaded topics", counts or [(self.cluster, 0.0)])
        for family, column in zip(TOPIC_FAMILIES, self._rows.values, strict=True):
            samples: Iterable[tuple[str, float]] = zip(self._rows.labels, column, strict=True)
            if not self.topics and family.name in SUMMED_OVER_BROKER:
                # So that a dashboard sees that there is a broker, before there is a topic.
                samples = [(self.cluster, 0.0)]
            yield from _slices(family.name, family.help, samples)
        if self._topic_level:
            for family, column in zip(SUBSCRIPTION_FAMILIES, self._subscriptions.values, strict=True):
                samples = zip(self._subscriptions.labels, column, strict=True)
                yield from _slices(family.name, family.help, samples)
        for name, text, kind, series in delayed_metrics.FAMILIES:
            if any(key[0] in (name, *series) for key in self._delayed):
                yield _head(name, text, kind)
                for sample in series or (name,):
                    yield from _sliced(_line(sample, *found) for found in self._delayed_samples(sample))

    def _delayed_samples(self, name: str) -> Iterator[tuple[str, float]]:
        for (family, labels), (rows, values) in self._delayed.items():
            if family == name:
                tail = f",{labels}" if labels else ""
                for row, value in zip(rows, values, strict=True):
                    yield f"{self._rows.labels[row]}{tail}", value


def _of_broker(columns: Columns, broker: BrokerStatistics) -> Iterator[str]:
    cluster = columns.cluster
    version = f"{cluster},{_text({'version': __version__, 'commit': ''})}"
    yield from _family("pulsar_version_info", "Version of the broker", [(version, 1.0)])
    yield from _family("pulsar_broker_topics_count", "Loaded topics", [(cluster, float(columns.topics))])
    for place, family in _BROKER_FAMILIES:
        name = f"pulsar_broker_{family.name.removeprefix('pulsar_')}"
        yield from _family(name, f"{family.help}, over all topics", [(cluster, columns.totals[place])])
    opened, closed = float(broker.connections_opened), float(broker.connections_closed)
    labels = f"{cluster},{_text({'metric': 'broker_connection'})}"
    for name, text, value in (
        ("pulsar_active_connections", "Open connections", float(broker.active_connections)),
        ("pulsar_connection_created_total_count", "Connections accepted", opened),
        ("pulsar_connection_create_success_count", "Connections accepted", opened),
        ("pulsar_connection_create_fail_count", "Connections refused", 0.0),
        ("pulsar_connection_closed_total_count", "Connections closed", closed),
    ):
        yield from _family(name, text, [(labels, value)])


def _slices(name: str, text: str, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield from _sliced(_family(name, text, samples))


def _sliced(lines: Iterable[str]) -> Iterator[str]:
    taken: list[str] = []
    for line in lines:
        taken.append(line)
        if len(taken) == LINES_MAX:
            yield "".join(taken)
            taken.clear()
    yield "".join(taken)


def _family(name: str, text: str, samples: Iterable[tuple[str, float]], kind: str = "gauge") -> Iterator[str]:
    yield _head(name, text, kind)
    for labels, value in samples:
        yield _line(name, labels, value)


def _head(name: str, text: str, kind: str) -> str:
    described = text.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {described}\n# TYPE {name} {kind}\n"


def _line(name: str, labels: str, value: float) -> str:
    return f"{name}{{{labels}}} {float(value)!r}\n" if labels else f"{name} {float(value)!r}\n"


def _text(labels: dict[str, str]) -> str:
    """Without the braces."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
