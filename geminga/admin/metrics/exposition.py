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
from operator import attrgetter
from typing import Any, Final, NamedTuple

from geminga.admin.metrics import delayed as delayed_metrics
from geminga.admin.metrics.broker import broker_figures
from geminga.admin.metrics.families import (
    CONSUMER_FAMILIES,
    CURSOR_FAMILIES,
    EVICTIONS,
    KEPT,
    PRODUCER_FAMILIES,
    SUBSCRIPTION_FAMILIES,
    SUMMED_OVER_BROKER,
    TOPIC_FAMILIES,
    UNLOADED_SUBSCRIPTION_FAMILIES,
    UNLOADED_TOPIC_FAMILIES,
    Family,
)
from geminga.admin.metrics.figures import Figure, one
from geminga.admin.metrics.managed_ledgers import NamespaceLedgers, ledger_families, ledger_labels
from geminga.admin.metrics.text import PLAIN, Format, labels_text, line
from geminga.broker.flow.statistics import BrokerStatistics, SubscriptionTotals, TopicStatistics
from geminga.names import TopicName

LINES_MAX: Final = 2000
"""Lines of a page that are written between two yields: half a millisecond."""
ROWS_MAX: Final = 20
"""Subscriptions and clients whose figures are collected between two yields."""
SERIES_MAX: Final = 1_000_000
"""Of topics, and all below these."""
_BROKER_FAMILIES: Final = [family for family in TOPIC_FAMILIES if family.name in SUMMED_OVER_BROKER]
_OF_SUBSCRIPTIONS: Final = "of_subscriptions."
_BROKER_FAMILIES.sort(key=lambda family: family.attribute.startswith(_OF_SUBSCRIPTIONS))
_OWN_VALUES: Final = attrgetter(
    *(f.attribute for f in _BROKER_FAMILIES if not f.attribute.startswith(_OF_SUBSCRIPTIONS))
)
_SUBSCRIPTION_VALUES: Final = attrgetter(
    *(
        f.attribute.removeprefix(_OF_SUBSCRIPTIONS)
        for f in _BROKER_FAMILIES
        if f.attribute.startswith(_OF_SUBSCRIPTIONS)
    )
)
GBIT: Final = 1_000_000_000


class Levels(NamedTuple):
    """How far down the page goes, and how topics are named."""

    topics: bool = True
    consumers: bool = False
    producers: bool = False
    cursors: bool = False
    ledgers: bool = True
    split_partition: bool = False
    series_max: int = SERIES_MAX


DEFAULT_LEVELS: Final = Levels()


def exposition(
    topics: Iterable[TopicStatistics | None],
    broker: BrokerStatistics,
    figures: Sequence[Figure] = (),
    *,
    cluster: str,
    host: str = "localhost",
    levels: Levels = DEFAULT_LEVELS,
    text: Format = PLAIN,
) -> Iterator[str]:
    """The page of one scrape, in slices; some are empty, where `topics` have a None or more of them have to
    be looked at first. About 0.4 us for a series.
    """
    columns = Columns(cluster, host, levels, text)
    for topic in topics:
        if topic is None:
            yield ""
        else:
            for _ in columns.take(topic):
                yield ""
    drawn = [*broker_figures(broker, cluster, host, columns.topics), *columns.figures(broker), *figures]
    yield "".join(piece for figure in drawn for piece in _figure(figure, text))
    yield from columns.pages()
    yield text.end


class _Rows:
    """Series with the same labels: the labels, and a row of what each attribute is."""

    # Plain tuples of numbers and of such tuples: the garbage collector lets them be. Ten thousand rows that
    # held structs made it walk over all that the broker holds.

    def __init__(self, families: Sequence[Family]) -> None:
        self.labels: list[str] = []
        self._families = families
        attributes = list(dict.fromkeys(family.attribute for family in families))
        attributes.sort(key=lambda attribute: attribute.startswith(_OF_SUBSCRIPTIONS))
        self._place = {attribute: place for place, attribute in enumerate(attributes)}
        self._own = attrgetter(*(name for name in attributes if not name.startswith(_OF_SUBSCRIPTIONS)))
        below = [
            name.removeprefix(_OF_SUBSCRIPTIONS) for name in attributes if name.startswith(_OF_SUBSCRIPTIONS)
        ]
        self._below = attrgetter(*below) if below else None
        self._rows: list[tuple[Any, ...]] = []

    def take(self, labels: str, source: object, totals: SubscriptionTotals | None = None) -> None:
        self.labels.append(labels)
        row: tuple[Any, ...] = self._own(source)
        self._rows.append(row if self._below is None else row + self._below(totals))

    def columns(self) -> Iterator[tuple[Family, list[str], list[float]]]:
        for family in self._families:
            place = self._place[family.attribute]
            yield family, self.labels, family.column([row[place] for row in self._rows])


class _Sums:
    """Series that are sums over topics: a namespace's."""

    def __init__(self, families: Sequence[Family]) -> None:
        self.labels: list[str] = []
        self._families = families
        self._values: list[list[float]] = [[] for _ in families]

    def begin(self, labels: str) -> int:
        """The row of a series that is new."""
        self.labels.append(labels)
        for column in self._values:
            column.append(0.0)
        return len(self.labels) - 1

    def add(self, row: int, source: object) -> None:
        for column, family in zip(self._values, self._families, strict=True):
            column[row] += family.read(source)

    def columns(self) -> Iterator[tuple[Family, list[str], list[float]]]:
        for family, column in zip(self._families, self._values, strict=True):
            yield family, self.labels, column


class Columns:
    """The figures of all topics, 8 bytes for each and the labels of each row."""

    def __init__(self, cluster: str, host: str, levels: Levels, text: Format) -> None:
        self._host = host
        self.cluster = labels_text({"cluster": cluster})
        self.topics = 0
        self.totals = [0.0] * len(_BROKER_FAMILIES)
        self._plain_cluster = cluster
        self._levels = levels
        self._text = text
        self._series = self._series_left_out = 0
        self._traffic = {"in": [0.0, 0.0], "out": [0.0, 0.0]}
        """Bytes, in and out: of topics that people use, of the broker's own."""
        self._evictions = [0.0, 0.0]
        self._namespaces: dict[str, int] = {}
        """How many topics each has."""
        self._ledgers: dict[str, NamespaceLedgers] = {}
        self._namespace_rows: dict[str, int] = {}
        """Where these are summed up."""
        self._rows = _Rows(TOPIC_FAMILIES) if levels.topics else _Sums(TOPIC_FAMILIES)
        self._subscriptions = _Rows(SUBSCRIPTION_FAMILIES)
        # An unloaded topic has few figures. All families of it would be zeros for the most part, and the
        # page of a restarted broker would be twenty times as long.
        self._unloaded = _Rows(UNLOADED_TOPIC_FAMILIES)
        self._unloaded_subscriptions = _Rows(UNLOADED_SUBSCRIPTION_FAMILIES)
        self._producers = _Rows(PRODUCER_FAMILIES)
        self._consumers = _Rows(CONSUMER_FAMILIES)
        self._cursors = _Rows(CURSOR_FAMILIES)
        self._evicted: list[tuple[str, str, float]] = []
        """Labels of topics that lost something to a quota, by its kind."""
        self._kept: list[tuple[str, str, float]] = []
        """Labels of topics that keep all messages for compaction, by what asked for it."""
        self._delayed: dict[tuple[str, str], tuple[array[int], array[float]]] = {}
        """By family and further labels: rows, and the figure of each."""
        self._delayed_rows: dict[tuple[str, str, int], int] = {}
        """Where namespaces are summed up: the place of each in its columns."""

    def take(self, topic: TopicStatistics) -> Iterator[None]:
        """Yields after some of its subscriptions and clients."""
        name = TopicName.parse(topic.name)
        namespace = str(name.namespace)
        self.topics += topic.is_loaded
        self._namespaces[namespace] = self._namespaces.get(namespace, 0) + topic.is_loaded
        # The sums over subscriptions are made once, and not for each family.
        totals = topic.of_subscriptions
        for place, value in enumerate(_OWN_VALUES(topic) + _SUBSCRIPTION_VALUES(totals)):
            self.totals[place] += value
        self._sum_over_broker(name, topic)
        if self._levels.ledgers:
            ledgers = self._ledgers.get(namespace)
            if ledgers is None:
                labels = ledger_labels(namespace, self._plain_cluster)
                ledgers = self._ledgers[namespace] = NamespaceLedgers(labels)
            ledgers.add(topic)
        if not self._levels.topics:
            self._sum_up(namespace, topic)
            return
        delayed = list(delayed_metrics.samples_of_topic(topic))
        series = self._series_of(topic) + len(delayed)
        if self._series + series > self._levels.series_max:
            self._series_left_out += series
            return
        self._series += series
        labels = self._labels(namespace, name)
        if topic.kept_by:
            self._kept.append((labels, topic.kept_by, float(topic.kept_bytes)))
        if not topic.is_loaded:
            self._unloaded.take(labels, topic, totals)
            for subscription, statistics in topic.subscriptions.items():
                of_subscription = f"{labels},{labels_text({'subscription': subscription})}"
                self._unloaded_subscriptions.take(of_subscription, statistics)
            return
        assert isinstance(self._rows, _Rows)
        self._rows.take(labels, topic, totals)
        yield from self._take_below(labels, topic)
        row = len(self._rows.labels) - 1
        for kind, count in zip(("size", "time"), topic.quota_evictions, strict=True):
            if count:
                self._evicted.append((labels, kind, float(count)))
        for sample in delayed:
            rows, values = self._delayed.setdefault(
                (sample.name, labels_text(dict(sample.labels))), (array("q"), array("d"))
            )
            rows.append(row)
            values.append(sample.value)
        if self._levels.cursors:
            path = f"{namespace}/persistent"
            ledger = {"namespace": path, "ledger_name": f"{path}/{name.local}"}
            for cursor in topic.cursors:
                of_cursor = labels_text({**ledger, "cursor_name": cursor.name})
                self._cursors.take(f"{self.cluster},{of_cursor}", cursor)

    def _series_of(self, topic: TopicStatistics) -> int:
        """Without those of delayed messages."""
        levels, subscriptions = self._levels, topic.subscriptions
        some = sum(count > 0 for count in topic.quota_evictions) + bool(topic.kept_by)
        if not topic.is_loaded:
            of_subscriptions = len(subscriptions) * len(UNLOADED_SUBSCRIPTION_FAMILIES)
            return some + len(UNLOADED_TOPIC_FAMILIES) + of_subscriptions
        series = some + len(TOPIC_FAMILIES) + len(subscriptions) * len(SUBSCRIPTION_FAMILIES)
        if levels.consumers:
            series += sum(len(s.consumers) for s in subscriptions.values()) * len(CONSUMER_FAMILIES)
        if levels.producers:
            series += len(topic.publishers) * len(PRODUCER_FAMILIES)
        return series + len(topic.cursors) * len(CURSOR_FAMILIES)

    def _take_below(self, labels: str, topic: TopicStatistics) -> Iterator[None]:
        looked = 0
        for subscription, statistics in topic.subscriptions.items():
            of_subscription = f"{labels},{labels_text({'subscription': subscription})}"
            self._subscriptions.take(of_subscription, statistics)
            for consumer in statistics.consumers if self._levels.consumers else ():
                mine = {"consumer_name": consumer.consumer_name, "consumer_id": str(consumer.consumer_id)}
                self._consumers.take(f"{of_subscription},{labels_text(mine)}", consumer)
                looked += 1
                if looked % ROWS_MAX == 0:
                    yield
            looked += 1
            if looked % ROWS_MAX == 0:
                yield
        for number_of, producer in enumerate(topic.publishers if self._levels.producers else (), 1):
            its = {"producer_name": producer.producer_name, "producer_id": str(producer.producer_id)}
            self._producers.take(f"{labels},{labels_text(its)}", producer)
            if number_of % ROWS_MAX == 0:
                yield

    def _sum_over_broker(self, name: TopicName, topic: TopicStatistics) -> None:
        own = name.local.startswith("__")
        self._traffic["in"][own] += topic.bytes_in_counter
        for subscription, statistics in topic.subscriptions.items():
            of_broker = own or subscription.startswith("__")
            self._traffic["out"][of_broker] += statistics.bytes_out_counter
        for place, count in enumerate(topic.quota_evictions):
            self._evictions[place] += count

    def _sum_up(self, namespace: str, topic: TopicStatistics) -> None:
        assert isinstance(self._rows, _Sums)
        row = self._namespace_rows.get(namespace)
        if row is None:
            row = self._namespace_rows[namespace] = self._rows.begin(self._of_namespace(namespace))
        self._rows.add(row, topic)
        for name, labels, value in delayed_metrics.samples_of_namespace(topic):
            more = labels_text(dict(labels))
            rows, values = self._delayed.setdefault((name, more), (array("q"), array("d")))
            place = self._delayed_rows.setdefault((name, more, row), len(rows))
            if place == len(rows):
                rows.append(row)
                values.append(value)
            else:
                values[place] += value

    def _of_namespace(self, namespace: str) -> str:
        return f"{self.cluster},{labels_text({'namespace': namespace})}"

    def _labels(self, namespace: str, name: TopicName) -> str:
        place = {"topic": str(name)}
        if self._levels.split_partition:
            place = {"topic": str(name.partitioned_name), "partition": str(name.partition_index)}
        return f"{self._of_namespace(namespace)},{labels_text(place)}"

    def figures(self, broker: BrokerStatistics) -> Iterator[Figure]:
        """What all topics have together."""
        labels = {"cluster": self._plain_cluster}
        yield one("pulsar_broker_topics_count", "Loaded topics", self.topics, **labels)
        text = "Topics on disk, loaded or not"
        yield one("geminga_topics_stored", text, broker.topics_loaded + broker.topics_unloaded)
        text = "Topics that are loaded: clients use them, or they hold delayed messages, which are counted"
        yield one("geminga_topics_loaded", text, broker.topics_loaded)
        text = "Topics whose figures this page does not have yet, as the broker has just started"
        yield one("geminga_topics_unread", text, broker.topics_unread)
        for place, family in enumerate(_BROKER_FAMILIES):
            name = f"pulsar_broker_{family.name.removeprefix('pulsar_')}"
            yield one(name, f"{family.help}, over all topics", self.totals[place], **labels)
        for way, key in (("in", "system_topic"), ("out", "system_subscription")):
            own = zip(("false", "true"), self._traffic[way], strict=True)
            samples = [({**labels, key: is_own}, value) for is_own, value in own]
            text = "Bytes published" if way == "in" else "Bytes delivered"
            yield Figure(f"pulsar_broker_{way}_bytes_total", f"{text}, by loaded topics", samples)
        kinds = zip(("size", "time"), self._evictions, strict=True)
        yield Figure(
            "pulsar_broker_storage_backlog_quota_exceeded_evictions_total",
            f"{EVICTIONS.help}, over all topics",
            [({**labels, "quota_type": kind}, value) for kind, value in kinds],
        )
        rates = {family.name: self.totals[place] for place, family in enumerate(_BROKER_FAMILIES)}
        for way in ("in", "out"):
            percent = rates[f"pulsar_throughput_{way}"] * 8 / GBIT * 100
            text = "Shim: messages, in percent of 1 Gbit/s"
            load = {**labels, "broker": self._host, "metric": "loadBalancing"}
            yield one(f"pulsar_lb_bandwidth_{way}_usage", text, percent, **load)
        text = "Series of topics that this page leaves out, to have no more than gemingaMetricsSeriesMax"
        yield one("geminga_metrics_series_dropped", text, self._series_left_out)

    def pages(self) -> Iterator[str]:
        """All families of namespaces, topics and below, in slices."""
        for of_ledgers in ledger_families([*self._ledgers.values()]):
            yield self._text.head(of_ledgers.name, of_ledgers.help, "gauge")
            yield from _sliced(of_ledgers.lines)
        yield self._text.head("pulsar_topics_count", "Loaded topics", "gauge")
        if not self._namespaces:
            yield line("pulsar_topics_count", self.cluster, 0.0)
        yield from _sliced(
            line("pulsar_topics_count", self._of_namespace(name), count)
            for name, count in self._namespaces.items()
        )
        unloaded = {family.name: (labels, column) for family, labels, column in self._unloaded.columns()}
        for family, labels, column in self._rows.columns():
            also = unloaded.get(family.name, ([], []))
            if not labels and not also[0] and family.name in SUMMED_OVER_BROKER:
                # So that a dashboard sees that there is a broker, before there is a topic.
                labels, column = [self.cluster], [0.0]
            if labels or also[0]:
                yield self._text.head(family.name, family.help, "gauge")
                yield from _lines(family.name, labels, column)
                yield from _lines(family.name, *also)
        for some, label, found in ((EVICTIONS, "quota_type", self._evicted), (KEPT, "by", self._kept)):
            if found:
                yield self._text.head(some.name, some.help, "gauge")
                yield from _sliced(
                    line(some.name, f'{labels},{label}="{kind}"', value) for labels, kind, value in found
                )
        yield from self._below_topics()
        for name, help_text, kind, series in delayed_metrics.FAMILIES:
            if any(key[0] in (name, *series) for key in self._delayed):
                yield self._text.head(name, help_text, kind)
                if series:
                    yield from _sliced(self._histogram(series))
                else:
                    yield from _sliced(line(name, *found) for found in self._delayed_samples(name))

    def _histogram(self, series: Sequence[str]) -> Iterator[str]:
        """OpenMetrics wants all samples of one histogram together."""
        grouped: dict[str, list[str]] = {}
        for sample in series:
            for labels, value in self._delayed_samples(sample):
                whole = labels.partition(',le="')[0]
                grouped.setdefault(whole, []).append(line(sample, labels, value))
        for lines in grouped.values():
            yield from lines

    def _below_topics(self) -> Iterator[str]:
        also = {family.name: (labels, column) for family, labels, column in self._consumers.columns()}
        also |= {f.name: (labels, column) for f, labels, column in self._unloaded_subscriptions.columns()}
        both = (self._subscriptions, self._producers, self._cursors)
        for family, labels, column in (each for rows in both for each in rows.columns()):
            more = also.pop(family.name, ([], []))
            if labels or more[0]:
                yield self._text.head(family.name, family.help, "gauge")
                yield from _lines(family.name, labels, column)
                yield from _lines(family.name, *more)
        for family, labels, column in self._consumers.columns():
            if labels and family.name in also:
                yield self._text.head(family.name, family.help, "gauge")
                yield from _lines(family.name, labels, column)

    def _delayed_samples(self, name: str) -> Iterator[tuple[str, float]]:
        for (family, labels), (rows, values) in self._delayed.items():
            if family == name:
                tail = f",{labels}" if labels else ""
                for row, value in zip(rows, values, strict=True):
                    yield f"{self._rows.labels[row]}{tail}", value


def _lines(name: str, labels: Sequence[str], values: Sequence[float]) -> Iterator[str]:
    # Most of the time of a scrape is spent here: one expression for a slice, and the text of 0, which most
    # figures of idle topics are, is not made again.
    for start in range(0, len(values), LINES_MAX):
        stop = start + LINES_MAX
        yield "".join(
            [
                f"{name}{{{of}}} {float(value)!r}\n" if value else f"{name}{{{of}}} 0.0\n"
                for of, value in zip(labels[start:stop], values[start:stop], strict=True)
            ]
        )


def _sliced(lines: Iterable[str]) -> Iterator[str]:
    taken: list[str] = []
    for each in lines:
        taken.append(each)
        if len(taken) == LINES_MAX:
            yield "".join(taken)
            taken.clear()
    yield "".join(taken)


def _figure(figure: Figure, text: Format) -> Iterator[str]:
    yield text.head(figure.name, figure.help, figure.kind)
    for labels, value in figure.samples:
        yield line(figure.name, labels_text(labels), value)
    for ending, labels, value in figure.parts:
        yield line(figure.name + ending, labels_text(labels), value)
