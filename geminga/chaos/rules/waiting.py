"""Waits as a rule says, but not longer than the rule."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

import trio

from geminga.chaos.rules.deciding import Armed
from geminga.chaos.rules.faults import Door
from geminga.clock import RealClock

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


def wait_slow(door: Door, hit: Iterable[Armed]) -> None:
    """As `wait_while`, for each of these rules that makes an operation slow. Blocks the thread."""
    clock_s, never = RealClock().monotonic_s, threading.Event()
    for armed in hit:
        if armed.rule.kind == "slow":
            ends_s = clock_s() + armed.rule.latency_ms / 1000
            while not door.is_over(armed) and (left_s := ends_s - clock_s()) > 0:
                never.wait(min(left_s, STEP_S))
