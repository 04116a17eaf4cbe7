"""Long looks leave the loop and the threads their time; short ones do not wait."""

from __future__ import annotations

from collections.abc import Generator

import trio
from trio.testing import MockClock

from geminga.broker.flow.slices import PAUSE_S, SLICE_S, in_slices


async def test_the_loop_sleeps_between_the_slices_of_a_long_look_only(autojump_clock: MockClock) -> None:
    """Without the sleep a look of 400 slices had publishers wait for a quarter of a second."""

    def look(slices: int, slice_s: float) -> Generator[None, None, str]:
        for _ in range(slices):
            autojump_clock.jump(slice_s)
            yield
        return "found"

    began_s = trio.current_time()
    assert await in_slices(look(400, 2 * SLICE_S)) == "found"
    paused_s = trio.current_time() - began_s - 800 * SLICE_S
    assert round(paused_s, 6) == round(400 * PAUSE_S, 6)
    began_s = trio.current_time()
    await in_slices(look(9, SLICE_S / 10))
    assert trio.current_time() - began_s < SLICE_S, "it is over before the loop would sleep"
