"""Routes of the pages for a person with a browser. What draws them is imported off the event loop."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

import trio

from geminga.admin.front import script
from geminga.admin.http.router import Request, Response, Router
from geminga.admin.view.broker import BrokerView

if TYPE_CHECKING:
    from geminga.admin.routes.pages import Pages

TOPIC: Final = "/geminga/topics/persistent/{tenant}/{namespace}/{topic}"


class IndexRoutes:
    def __init__(self, view: BrokerView) -> None:
        self._view = view
        self._pages: Pages | None = None

    def add_to(self, router: Router) -> None:
        router.add("GET", "/", self.index, walks="topics")
        router.add("GET", TOPIC, self.topic, walks="subscriptions")
        router.add("GET", script.PATH, self.script)

    async def index(self, request: Request) -> Response:
        """The page of the broker. `sort`, `q` (part of a name), `namespace` and `limit` choose its topics."""
        return await (await self._ready()).index(request)

    async def topic(self, request: Request) -> Response:
        """The page of one topic: its subscriptions, clients, and buckets of delayed messages."""
        return await (await self._ready()).topic(request)

    async def script(self, request: Request) -> Response:
        """The script of the pages."""
        return await (await self._ready()).script(request)

    async def _ready(self) -> Pages:
        if self._pages is None:
            # Python's html alone takes 0.3 MB.
            module = await trio.to_thread.run_sync(importlib.import_module, "geminga.admin.routes.pages")
            # Another request may have come while this one imported.
            if self._pages is None:
                self._pages = module.Pages(self._view)
        return self._pages
