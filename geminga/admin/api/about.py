"""`/geminga/openapi.json` and `/geminga/unserved`: what this API has, and what it was asked for in vain."""

from __future__ import annotations

import msgspec
import trio

from geminga import __version__
from geminga.admin.http.router import Request, Response, Router, json_response


class AboutRoutes:
    def __init__(self, router: Router) -> None:
        self._router = router
        self._document: bytes | None = None

    def add_to(self, router: Router) -> None:
        router.add("GET", "/geminga/openapi.json", self.openapi)
        router.add("GET", "/geminga/unserved", self.unserved)

    async def openapi(self, request: Request) -> Response:
        """This document."""
        if self._document is None:
            self._document = await trio.to_thread.run_sync(self._made)
        return Response(200, self._document, "application/json")

    def _made(self) -> bytes:
        from geminga.admin.api.openapi import document

        return msgspec.json.encode(document(self._router.routes(), __version__))

    async def unserved(self, request: Request) -> Response:
        """Requests that no route was there for, by method and path, the most frequent first."""
        unserved = self._router.unserved
        return json_response({"requests": unserved.rows(), "others": unserved.others})
