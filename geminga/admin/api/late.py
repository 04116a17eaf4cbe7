"""The router, made with the first request: importing all routes takes longer than a start may."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import trio

from geminga.admin.http.router import Request, Response
from geminga.allocation import return_free_memory

if TYPE_CHECKING:
    from geminga.admin.http.router import Router
    from geminga.admin.view.broker import BrokerView

TABLE = "geminga.admin.api.table"


class LateRouter:
    """Answers as the router does."""

    def __init__(self, view: BrokerView) -> None:
        self._view = view
        self._router: Router | None = None
        self._making = trio.Lock()
        self.has_large_body = False

    async def prepare(self) -> None:
        """Have the router made. The first call imports off the loop; others wait for it."""
        if self._router is not None:
            return
        async with self._making:
            if self._router is None:
                table = await trio.to_thread.run_sync(importlib.import_module, TABLE)
                self._router = table.router_for(self._view)
                return_free_memory()

    def takes_large_body(self, method: str, target: str) -> bool:
        assert self._router is not None, "prepare comes first"
        return self._router.takes_large_body(method, target)

    async def __call__(self, request: Request) -> Response:
        await self.prepare()
        assert self._router is not None
        return await self._router(request)
