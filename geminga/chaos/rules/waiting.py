"""Waits as a rule says, but not longer than the rule."""

from __future__ import annotations

from typing import Final

import trio

from geminga.chaos.rules.deciding import Armed
from geminga.chaos.rules.faults import Door

STEP_S: Final = 0.1
"""How long after its end a rule may still hold something up."""


async def wait_while(door: Door, armed: Armed, wait_s: float) -> None:
    """Return after this time, or soon after the rule was cleared or its duration has ended."""
    ends_s = trio.current_time() + wait_s
    while not door.is_over(armed):
        left_s = ends_s - trio.current_time()
        if left_s <= 0:
            return
        await trio.sleep(min(left_s, STEP_S))
