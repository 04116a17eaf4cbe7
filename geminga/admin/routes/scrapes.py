"""All that a page shows, gathered. Only the first scrape imports this: it takes longer than a start may."""

from __future__ import annotations

from collections.abc import Iterator

from geminga.admin.metrics.bookie import bookie_figures
from geminga.admin.metrics.emulated import Collections, cache_figures, jvm_figures, request_figures
from geminga.admin.metrics.exposition import Levels, exposition
from geminga.admin.metrics.faults import fault_figures
from geminga.admin.metrics.own import group_figures, log_figures, loops_figure, memory_figures, turn_figures
from geminga.admin.metrics.page import Pages
from geminga.admin.metrics.process import process_figures
from geminga.admin.metrics.text import OPEN_METRICS, PLAIN
from geminga.admin.view.broker import BrokerIdentity
from geminga.admin.view.faults import FaultsView
from geminga.admin.view.process import ProcessView
from geminga.admin.view.statistics import StatisticsView


class Scrapes:
    """Draws pages from what the broker tells of itself."""

    def __init__(
        self, broker: BrokerIdentity, statistics: StatisticsView, process: ProcessView, faults: FaultsView
    ) -> None:
        self._config = broker.config
        self._statistics = statistics
        self._process = process
        self._faults = faults
        self._collections = Collections()
        self._collections.begin()
        self.pages = Pages(self._draw)

    @staticmethod
    def content_type(*, open_metrics: bool) -> str:
        return (OPEN_METRICS if open_metrics else PLAIN).content_type

    def _draw(self, open_metrics: bool) -> Iterator[str]:
        config, statistics, process = self._config, self._statistics, self._process
        cluster, host = config.cluster_name, config.advertised_address or "localhost"
        looks = process.memory_in_slices()
        while True:
            try:
                next(looks)
            except StopIteration as end:
                memory = end.value
                break
            yield ""
        bookie, broker = statistics.of_bookie(), statistics.of_broker()
        figures = [
            *process_figures(),
            *bookie_figures(bookie, statistics.recovery_report(), statistics.stored_counts()),
            *group_figures(bookie),
            *turn_figures(broker.turns),
            loops_figure(),
            *memory_figures(memory),
            *log_figures(process.dropped_log_lines()),
            *fault_figures(self._faults.in_force(), self._faults.hits()),
            *self.pages.figures(),
            *jvm_figures(memory, self._collections, cluster, host),
            *cache_figures(broker, bookie, cluster),
            *request_figures(self.pages.asked, cluster),
        ]
        yield ""
        levels = Levels(
            topics=config.expose_topic_level_metrics_in_prometheus,
            consumers=config.expose_consumer_level_metrics_in_prometheus,
            producers=config.expose_producer_level_metrics_in_prometheus,
            cursors=config.expose_managed_cursor_metrics_in_prometheus,
            ledgers=config.expose_managed_ledger_metrics_in_prometheus,
            split_partition=config.split_topic_and_partition_label_in_prometheus,
            series_max=config.geminga_metrics_series_max,
        )
        yield from exposition(
            statistics.of_topics(with_cursors=levels.cursors),
            broker,
            figures,
            cluster=cluster,
            host=host,
            levels=levels,
            text=OPEN_METRICS if open_metrics else PLAIN,
        )
