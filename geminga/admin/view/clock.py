"""The clock for the admin API; `geminga.broker.operator.clock` implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from geminga.broker.operator.clock import ClockReport

if TYPE_CHECKING:
    from geminga.broker.jumps.jumps import Jump, Wait


class ClockView(Protocol):
    async def report(self) -> ClockReport: ...

    async def advance(self, length_ms: int, wait: Wait, wait_s: float) -> Jump:
        """Everything that falls due by then has happened on return. `Conflict`: the clock is real."""
        ...

    async def advance_to(self, at_ms: int, wait: Wait, wait_s: float) -> Jump: ...

    async def advance_to_next(self, wait: Wait, wait_s: float) -> Jump: ...
