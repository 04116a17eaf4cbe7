"""What a move of the virtual clock answers while real time goes on."""

from __future__ import annotations

from itertools import count

from geminga.broker.jumps.jumps import Jumps, Saves
from geminga.clock import VirtualClock


class NoRounds:
    def are_due(self, at_ms: int) -> bool:
        return False


async def test_a_move_is_as_long_as_it_was_asked_to_be() -> None:
    """Each look at the machine's clock is a millisecond later: the answer once began after the move."""
    wall_ms = count(1_800_000_000_000)
    clock = VirtualClock(wall_ms=lambda: next(wall_ms))

    async def begin(at_ms: int) -> None:
        pass

    async def end() -> int:
        return clock.offset_ms

    jumps = Jumps(clock, {}, NoRounds(), Saves(begin, end))  # type: ignore[arg-type]
    before_ms = clock.now_ms()
    moved = await jumps.by(360_001)
    assert moved.to_ms - moved.from_ms == 360_001
    again = await jumps.by(5)
    assert before_ms < moved.from_ms < moved.to_ms <= again.from_ms
    assert clock.now_ms() >= again.to_ms
