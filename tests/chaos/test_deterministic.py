"""Trio's scheduling is a function of the seed: the switch for it is private and may go."""

from __future__ import annotations

import trio

from simulation.campaign.deterministic import run_deterministically


async def race() -> list[tuple[int, int]]:
    trace: list[tuple[int, int]] = []

    async def run(name: int) -> None:
        for step in range(20):
            trace.append((name, step))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for name in range(5):
            nursery.start_soon(run, name)
    return trace


def test_the_same_seed_gives_the_same_order() -> None:
    traces = [run_deterministically(seed, race) for seed in (1, 1, 2, 3)]
    assert traces[0] == traces[1]
    assert traces[1] != traces[2] != traces[3]


def test_time_is_nobodys() -> None:
    async def month() -> float:
        before = trio.current_time()
        await trio.sleep(30 * 86400)
        return trio.current_time() - before

    assert run_deterministically(0, month) >= 30 * 86400
