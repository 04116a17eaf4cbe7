"""Prometheus metrics. What the first scrape has to import is imported off the event loop."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

import trio

from geminga.admin.http.router import Request, Response, Router, json_response
from geminga.admin.view.broker import BrokerIdentity
from geminga.admin.view.faults import FaultsView
from geminga.admin.view.process import ProcessView
from geminga.admin.view.statistics import StatisticsView
from geminga.broker.flow.slices import in_slices

if TYPE_CHECKING:
    from geminga.admin.routes.scrapes import Scrapes

OPEN_METRICS: Final = "application/openmetrics-text"


class MetricsRoutes:
    def __init__(
        self, broker: BrokerIdentity, statistics: StatisticsView, process: ProcessView, faults: FaultsView
    ) -> None:
        self._broker = broker
        self._statistics = statistics
        self._process = process
        self._faults = faults
        self._scrapes: Scrapes | None = None

    def add_to(self, router: Router) -> None:
        # The router ignores a slash at the end, so this is /metrics/ too.
        router.add("GET", "/metrics", self.metrics, walks="topics")
        router.add("GET", "/geminga/v1/memory", self.memory, walks="topics")

    async def memory(self, request: Request) -> Response:
        return json_response(await in_slices(self._process.memory_in_slices()))

    async def metrics(self, request: Request) -> Response:
        scrapes = await self._ready()
        open_metrics = OPEN_METRICS in request.accept
        headers: tuple[tuple[str, str], ...] = (("Vary", "Accept, Accept-Encoding"),)
        if request.accepts_gzip:
            headers += (("Content-Encoding", "gzip"),)
        parts = scrapes.pages.read(gzip=request.accepts_gzip, open_metrics=open_metrics)
        return Response(200, b"", scrapes.content_type(open_metrics=open_metrics), headers, parts)

    async def _ready(self) -> Scrapes:
        if self._scrapes is None:
            module = await trio.to_thread.run_sync(importlib.import_module, "geminga.admin.routes.scrapes")
            # Another scrape may have come while this one imported.
            if self._scrapes is None:
                self._scrapes = module.Scrapes(self._broker, self._statistics, self._process, self._faults)
        return self._scrapes
