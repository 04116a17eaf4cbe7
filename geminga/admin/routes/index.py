"""The page at `/` of the web port, for a person with a browser."""

from __future__ import annotations

from geminga.admin.front.overview import overview
from geminga.admin.front.page import CONTENT_POLICY, page
from geminga.admin.http.router import Request, Response, Router
from geminga.admin.routes.addresses import Addresses
from geminga.admin.view.broker import BrokerView


class IndexRoutes:
    def __init__(self, view: BrokerView) -> None:
        self._view = view

    def add_to(self, router: Router) -> None:
        router.add("GET", "/", self.index)

    async def index(self, request: Request) -> Response:
        service_url = Addresses(self._view, request.local_host).binary
        html = page(await overview(self._view), service_url)
        headers = (("Content-Security-Policy", CONTENT_POLICY), ("Cache-Control", "no-store"))
        return Response(200, html.encode(), "text/html; charset=utf-8", headers)
