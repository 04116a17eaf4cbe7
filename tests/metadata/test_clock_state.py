"""Where a virtual clock stands is durable before it gets there."""

from __future__ import annotations

import time

import pytest
import trio

from geminga.metadata.store import MetadataStore
from geminga.metadata.virtual_clock_state import restored_clock, save_clock
from simulation.disk.sim_key_value import SimKeyValue

DAY_MS = 86_400_000
WALL_MS = 1_800_000_000_000


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    shown = [WALL_MS]
    monkeypatch.setattr(time, "time_ns", lambda: shown[0] * 1_000_000)
    return shown


async def test_a_restored_clock_goes_on_from_where_it_was_to_go(wall: list[int]) -> None:
    store = MetadataStore(SimKeyValue(), threaded=False)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        clock = restored_clock(store)
        assert clock.now_ms() == WALL_MS
        await save_clock(store, clock, WALL_MS + 30 * DAY_MS)
        assert clock.now_ms() == WALL_MS, "saving does not move it"
        wall[0] += DAY_MS
        again = restored_clock(store)
        assert again.now_ms() == WALL_MS + 31 * DAY_MS, "it has ticked while the broker was down"
        await save_clock(store, again, WALL_MS + 100 * DAY_MS)
        wall[0] = WALL_MS - DAY_MS
        assert restored_clock(store).now_ms() == WALL_MS + 100 * DAY_MS, "the machine's clock was set back"
        nursery.cancel_scope.cancel()
