"""The application of the admin port, with faults in its requests."""

from __future__ import annotations

from typing import Final

import msgspec
import trio

from geminga.admin.http.connection import Application
from geminga.admin.http.router import Request, Response
from geminga.chaos.rules.deciding import Facts
from geminga.chaos.rules.faults import Door
from geminga.chaos.rules.killing import has
from geminga.chaos.rules.rule import FAULT_ROUTES
from geminga.chaos.rules.waiting import wait_while

_ROUTES: Final = FAULT_ROUTES.strip("/").split("/")


class FaultyApplication:
    """Answers as the application does, or as the rules of the place `admin` say."""

    def __init__(self, application: Application, door: Door) -> None:
        self._application = application
        self._door = door
        self.has_large_body = False

    async def prepare(self) -> None:
        await self._application.prepare()

    def takes_large_body(self, method: str, target: str) -> bool:
        return self._application.takes_large_body(method, target)

    async def __call__(self, request: Request) -> Response:
        # Whatever the rules are, they can be listed and cleared.
        if self._door.armed and request.segments[: len(_ROUTES)] != _ROUTES:
            refusal = await self._refusal(request)
            if refusal is not None:
                return refusal
        return await self._application(request)

    async def _refusal(self, request: Request) -> Response | None:
        """Wait as the rules say. Returns the answer if the request is not to be carried out. Raises
        `trio.BrokenResourceError` if there is to be none.
        """
        facts = Facts(method=request.method, path=f"/{'/'.join(request.segments)}")
        hit = self._door.hit(facts)
        for armed in hit:
            await wait_while(self._door, armed, armed.delay_s())
        if has(hit, "cut"):
            raise trio.BrokenResourceError("cut by a rule of faults (injected)")
        for armed in hit:
            if armed.rule.kind == "error":
                reason = armed.rule.message or "refused by a rule of faults (injected)"
                body = msgspec.json.encode({"reason": reason})
                return Response(armed.rule.status, body, "application/json")
        return None
