"""One request makes a value for all that wait; none is made while none asks."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from geminga.admin.front.shared import FRESH_FOR_MAKING, FRESH_S, KEPT_MAX, Shared

TAKES_S = 2.0


class Made:
    """Values that take two seconds each."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.shared = Shared(self.make)

    async def make(self, key: str) -> str:
        self.begun.append(key)
        await trio.sleep(TAKES_S)
        if key == "broken":
            raise ValueError(key)
        return f"{key} {len(self.begun)}"


async def test_twenty_that_ask_at_once_share_one_and_so_do_later_ones_while_it_is_fresh(
    autojump_clock: MockClock,
) -> None:
    made, found = Made(), list[str]()

    async def ask() -> None:
        found.append(await made.shared.get("a"))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
    await trio.sleep(FRESH_FOR_MAKING * TAKES_S - 0.01)
    await ask()
    assert found == ["a 1"] * 21
    await trio.sleep(0.02)
    await ask()
    assert found[-1] == "a 2"
    await trio.sleep(3600)
    assert made.begun == ["a", "a"]


async def test_what_takes_no_time_serves_for_a_second(autojump_clock: MockClock) -> None:
    times: list[float] = []

    async def make(key: str) -> float:
        times.append(trio.current_time())
        return times[-1]

    shared = Shared(make)
    for _ in range(40):
        await shared.get("a")
        await trio.sleep(FRESH_S / 10)
    assert len(times) == 4


async def test_a_request_that_goes_away_leaves_the_work_to_the_next_one(autojump_clock: MockClock) -> None:
    made, found = Made(), list[str]()

    async def ask() -> None:
        found.append(await made.shared.get("a"))

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(TAKES_S / 2):
            async with trio.open_nursery() as gone:
                gone.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                for _ in range(3):
                    nursery.start_soon(ask)
    assert found == ["a 2"] * 3


async def test_an_error_is_for_its_own_request(autojump_clock: MockClock) -> None:
    made = Made()
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            await made.shared.get("broken")
    assert await made.shared.get("a") == "a 3"


async def test_as_many_values_are_kept_as_there_is_room_for(autojump_clock: MockClock) -> None:
    made = Made()
    for number in range(KEPT_MAX + 1):
        await made.shared.get(str(number))
    assert len(made.shared._kept) == KEPT_MAX
    assert "0" not in made.shared._kept
