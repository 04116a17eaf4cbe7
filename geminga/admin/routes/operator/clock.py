"""`/geminga/clock`: what the broker's clock shows; jumps of a virtual one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from geminga.admin.http.router import BadRequest, Request, Response, Router, json_response, streamed_json
from geminga.admin.routes.operator.operator_gate import OperatorGate
from geminga.admin.view.clock import ClockView
from geminga.admin.view.process import ProcessView
from geminga.broker.jumps.jumps import Wait
from geminga.clock import LAST_MS

WAIT_SECONDS_MAX: Final = 3600.0


class _Advance(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    ms: int | None = None
    to_ms: int | None = None
    next: bool = False
    wait: Wait = "dispatched"
    wait_seconds: float = 30.0


class ClockRoutes:
    def __init__(self, clock: ClockView, process: ProcessView) -> None:
        self._clock = clock
        self._gate = OperatorGate(process)

    def add_to(self, router: Router) -> None:
        router.add("GET", "/geminga/clock", self.report, walks="topics")
        router.add("POST", "/geminga/clock", self.advance)

    async def report(self, request: Request) -> Response:
        """{"clock": "real" or "virtual", "now_ms", "wall_ms", "stands", "next_due_ms" or null,
        "unread_topics", "unread_entries"}: a message of those that are not read yet may be due before.
        """
        self._gate.check(request)
        return json_response(await self._clock.report())

    async def advance(self, request: Request) -> Response:
        """Move a virtual clock. Body: one of {"ms": by how much}, {"to_ms": a time}, {"next": true}; "wait":
        "dispatched" or "acknowledged", "wait_seconds". The answer comes when all that fell due has happened;
        a caller that goes away before ends the move.
        """
        self._gate.check(request)
        try:
            asked = msgspec.convert(request.json(), _Advance)
        except msgspec.ValidationError as error:
            raise BadRequest(f"{error}; {_EXPECTED}") from None
        if (asked.ms is not None) + (asked.to_ms is not None) + asked.next != 1:
            raise BadRequest(_EXPECTED)
        if not 0 <= asked.wait_seconds <= WAIT_SECONDS_MAX:
            raise BadRequest(f"wait_seconds: expected 0 to {WAIT_SECONDS_MAX:.0f}")
        if asked.ms is not None and not 0 <= asked.ms <= LAST_MS:
            raise BadRequest(f"ms: expected 0 to {LAST_MS}; the clock never goes back")
        # In parts, though it is one: that is drawn only as long as the caller is there.
        return streamed_json(self._moved(asked))

    async def _moved(self, asked: _Advance) -> AsyncGenerator[bytes, None]:
        wait, wait_s = asked.wait, asked.wait_seconds
        if asked.to_ms is not None:
            jump = await self._clock.advance_to(asked.to_ms, wait, wait_s)
        elif asked.ms is not None:
            jump = await self._clock.advance(asked.ms, wait, wait_s)
        else:
            jump = await self._clock.advance_to_next(wait, wait_s)
        yield msgspec.json.encode(jump)


_EXPECTED: Final = (
    'expected one of {"ms": 86400000}, {"to_ms": milliseconds since 1970} and {"next": true}, and if you '
    'like "wait": "dispatched" or "acknowledged" and "wait_seconds"'
)
