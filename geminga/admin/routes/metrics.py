"""Prometheus metrics. What the first scrape has to import is imported off the event loop."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import trio

from geminga.admin.http.router import Request, Response, Router, json_response
from geminga.admin.metrics.bookie import bookie_figures, log_figures, memory_figures
from geminga.admin.metrics.page import Pages
from geminga.admin.view.broker import BrokerIdentity
from geminga.admin.view.process import ProcessView
from geminga.admin.view.statistics import StatisticsView

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsRoutes:
    def __init__(self, broker: BrokerIdentity, statistics: StatisticsView, process: ProcessView) -> None:
        self._broker = broker
        self._statistics = statistics
        self._process = process
        self._pages = Pages(self._draw)
        self._is_ready = False

    def add_to(self, router: Router) -> None:
        # The router ignores a slash at the end, so this is /metrics/ too.
        router.add("GET", "/metrics", self.metrics)
        router.add("GET", "/geminga/v1/memory", self.memory)

    async def memory(self, request: Request) -> Response:
        return json_response(self._process.memory())

    async def metrics(self, request: Request) -> Response:
        if not self._is_ready:
            for module in ("process", "exposition"):
                await trio.to_thread.run_sync(importlib.import_module, f"geminga.admin.metrics.{module}")
            self._is_ready = True
        headers: tuple[tuple[str, str], ...] = (("Vary", "Accept-Encoding"),)
        if request.accepts_gzip:
            headers += (("Content-Encoding", "gzip"),)
        return Response(200, b"", CONTENT_TYPE, headers, self._pages.read(gzip=request.accepts_gzip))

    def _draw(self) -> Iterator[str]:
        from geminga.admin.metrics.exposition import exposition
        from geminga.admin.metrics.process import process_figures

        config, statistics, process = self._broker.config, self._statistics, self._process
        figures = [
            *process_figures(),
            *bookie_figures(statistics.of_bookie(), statistics.recovery_report(), statistics.stored_counts()),
            *memory_figures(process.memory()),
            *log_figures(process.dropped_log_lines()),
            *self._pages.figures(),
        ]
        yield ""
        yield from exposition(
            statistics.of_loaded_topics(),
            statistics.of_broker(),
            figures,
            cluster=config.cluster_name,
            topic_level=config.expose_topic_level_metrics_in_prometheus,
            split_partition=config.split_topic_and_partition_label_in_prometheus,
        )
