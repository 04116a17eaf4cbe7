"""Prometheus metrics. What draws them up is imported by the first scrape, off the event loop."""

from __future__ import annotations

import trio

from geminga.admin.http.router import Request, Response, Router, json_response
from geminga.admin.metrics.bookie import bookie_figures, log_figures, memory_figures
from geminga.admin.view.broker import BrokerView

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsRoutes:
    def __init__(self, view: BrokerView) -> None:
        self._view = view
        # One scrape at a time: two threads would only take the interpreter from each other and from the loop.
        self._limiter = trio.CapacityLimiter(1)

    def add_to(self, router: Router) -> None:
        # The router ignores a slash at the end, so this is /metrics/ too.
        router.add("GET", "/metrics", self.metrics)
        router.add("GET", "/geminga/v1/memory", self.memory)

    async def memory(self, request: Request) -> Response:
        return json_response(self._view.memory_statistics())

    async def metrics(self, request: Request) -> Response:
        view = self._view
        topics = view.loaded_statistics()
        broker = view.broker_statistics()
        config = view.config
        figures = [
            *bookie_figures(view.bookie_statistics(), view.recovery_report(), view.stored_counts()),
            *memory_figures(view.memory_statistics()),
            *log_figures(view.dropped_log_lines()),
        ]

        def draw_up() -> bytes:
            from geminga.admin.metrics.exposition import exposition

            return exposition(
                topics,
                broker,
                figures,
                cluster=config.cluster_name,
                topic_level=config.expose_topic_level_metrics_in_prometheus,
                split_partition=config.split_topic_and_partition_label_in_prometheus,
            )

        body = await trio.to_thread.run_sync(draw_up, limiter=self._limiter)
        return Response(200, body, CONTENT_TYPE)
